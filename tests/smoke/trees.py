"""Copies of the project, for tests that change definitions."""

from __future__ import annotations

import shutil
from pathlib import Path

from stackyard.project import ROOT


def copy_tree(folder: Path) -> Path:
    """Everything that `invoke` needs, below `folder`/stackyard."""
    tree = folder / "stackyard"
    for name in ("images", "stackyard", "templates"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("tasks.py", "stackyard.toml"):
        shutil.copy2(ROOT / name, tree / name)
    return tree
