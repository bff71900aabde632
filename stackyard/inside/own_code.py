"""Put a user's tree over an installed package in this node, and keep its compiled modules.

Owns a folder of links, one for each file of the tree, that comes before site-packages on Python's
path. Compiled modules that the tree lacks come from the image, and files that the stack's fixes
repair are repaired copies. The tree itself is only read, and an edit shows in the next job.

    own_code.py PACKAGE TREE OUT FIXES    one JSON line: what was linked, or what is wrong

FIXES is a file that `apply_fixes.py` reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import apply_fixes  # type: ignore[import-not-found]  # it lies beside this file

# Where a project's packages lie in its tree.
ROOTS = ("", "src", "python", "lib")
SKIPPED = {"__pycache__", ".git"}


class Unfit(Exception):
    """Report why the tree cannot stand in for the package."""


def tops(installed: list[str]) -> list[str]:
    """Return the names that a distribution adds to site-packages: packages and single modules."""
    firsts = {name.split("/")[0] for name in installed if not name.startswith("../")}
    return sorted(
        name for name in firsts
        if not name.endswith((".dist-info", ".egg-info", ".pth")) and name not in SKIPPED
    )  # fmt: skip


def files(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder once, following links to folders."""
    seen = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:
            folders[:] = []
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            # Skips pipes, and dangling links as editors put beside an open file.
            if (Path(here) / name).is_file():
                yield Path(here) / name


def mirror(source: Path, place: Path) -> int:
    """Link every file of `source` at `place`; return the number of links."""
    count = 0
    for path in files(source):
        link = place / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
        count += 1
    return count


def lay(package: str, tree: Path, out: Path, site: Path, installed: list[str]) -> dict[str, Any]:
    """Build the folder of links for a tree; return a description of it.

    Args:
        site: the folder that the package is installed in.
        installed: paths of its files below that.

    Raises:
        Unfit: the tree has none of the package's modules.
    """
    names = tops(installed)
    root = max((tree / r for r in ROOTS), key=lambda at: sum((at / n).exists() for n in names))
    there = [name for name in names if (root / name).exists()]
    if not there:
        raise Unfit(f"{tree} has none of {package}'s modules ({', '.join(names)})")
    count = 0
    for name in there:
        if (root / name).is_file():
            out.mkdir(parents=True, exist_ok=True)
            (out / name).symlink_to(root / name)
            count += 1
            continue
        count += mirror(root / name, out / name)
        # Folders that a build copies into the package: fairseq's examples lie beside it in git.
        inner = {
            p.split("/")[1] for p in installed if p.startswith(f"{name}/") and p.count("/") > 1
        }
        for folder in sorted(inner - SKIPPED):
            if not (root / name / folder).exists() and (root / folder).is_dir():
                count += mirror(root / folder, out / name / folder)
    compiled = []
    for path in installed:
        if path.split("/")[0] in there and path.endswith(tuple(EXTENSION_SUFFIXES)):
            link = out / path
            if not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(site / path)
                compiled.append(path)
    found = hashlib.sha256()
    for file in sorted(files(out)):
        name = str(file.relative_to(out))
        if name not in compiled:
            found.update(f"{hashlib.sha256(file.read_bytes()).hexdigest()} {name}\n".encode())
    return {
        "package": package, "root": str(root), "files": count, "compiled": compiled,
        "left": [name for name in names if name not in there],
        "digest": f"sha256:{found.hexdigest()}",
    }  # fmt: skip


def repair(out: Path, fixes: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Apply fixes to copies of the linked files; metadata stays the image's, which is repaired.

    Returns:
        Fixes by outcome: `applied`, `there` already, or `absent` (the tree has none of the files
        that they repair).

    Raises:
        apply_fixes.FixMismatch: a fix does not fit; nothing was written.
    """
    kept: list[dict[str, Any]] = []
    found: dict[str, list[str]] = {"applied": [], "there": [], "absent": []}
    for fix in fixes:
        rules = [rule for rule in fix["replace"] if (out / rule["file"]).is_file()]
        # A single module beside the packages belongs to the image, never to a tree.
        added = {
            name: text
            for name, text in fix.get("add", {}).items()
            if "/" in name and (out / name).parent.is_dir()
        }
        if rules or added:
            kept.append({**fix, "stage": "installed", "replace": rules, "add": added})
        elif any(".dist-info/" not in rule["file"] for rule in fix["replace"]):
            found["absent"].append(fix["id"])
    said = apply_fixes.apply_all(kept, "installed", out)
    for fix in kept:
        done = any(
            one["fix"] == fix["id"] and one["outcome"] in ("applied", "added") for one in said
        )
        found["applied" if done else "there"].append(fix["id"])
    return found


def main(package: str, tree: str, out: str, fixes: str) -> dict[str, Any]:
    """Link the tree and apply the fixes; return the description or the error."""
    try:
        if not Path(tree).is_dir():
            raise Unfit(f"there is no folder {tree} in this node")
        found = metadata.distribution(package)
        installed = [str(path) for path in found.files or ()]
        site = Path(str(found.locate_file("")))
        said = lay(package, Path(tree), Path(out), site, installed)
        return {**said, "fixes": repair(Path(out), json.loads(Path(fixes).read_text()))}
    except metadata.PackageNotFoundError:
        return {"wrong": f"{package} is not installed in this image"}
    except Unfit as error:
        return {"wrong": str(error)}
    except apply_fixes.FixMismatch as error:
        return {"unfit": str(error)}


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    print(json.dumps(main(*sys.argv[1:])))
