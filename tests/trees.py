"""Copies of the project, for tests that change definitions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from stackyard.definitions.project import ROOT


def copy_tree(folder: Path) -> Path:
    """Everything that `invoke` needs, below `folder`/stackyard."""
    tree = folder / "stackyard"
    for name in ("images", "stackyard", "templates"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("tasks.py", "stackyard.toml"):
        shutil.copy2(ROOT / name, tree / name)
    return tree


def rename_stack(tree: Path, old: str, new: str) -> Path:
    """Give a stack another name, so that the real one's image stays what it is; its folder."""
    folder = (tree / "images" / old).rename(tree / "images" / new)
    stack = folder / "stack.yml"
    stack.write_text(stack.read_text().replace(f"name: {old}", f"name: {new}"))
    for limit in (tree / "images" / "limits").glob("*.yml"):
        text = limit.read_text()
        limit.write_text(re.sub(rf"^(stacks: .*)\b{old}\b", rf"\g<1>{new}", text, flags=re.M))
    return folder
