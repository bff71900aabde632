"""Change the installed packages to what they would be without one fix, for `invoke prove`.

Owns the way back in one container: files that fixes touch become the installed ones again, then the
image's own fix step runs with the fixes that are left. Standard library only. It must not fetch
anything, nor judge: the controller runs the witness afterwards.

    python3 take_back.py FOLDER

FOLDER holds `all.json` (the image's fixes), `kept.json` (all but one), `files/` (every file that a
fix touches, as installed) and optionally `back/` (distributions that replace installed ones).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import sysconfig
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from apply_fixes import FixMismatch, apply_all  # type: ignore[import-not-found]


class CannotTakeBack(Exception):
    """Report that the image differs from its parts, or that other fixes need the removed one."""


def restore(root: Path, files: Path, fixes: list[dict[str, Any]]) -> None:
    """Restore every file that `fixes` touch to the installed one; remove added modules."""
    for fix in fixes:
        for name in fix.get("add", {}):
            (root / name).unlink(missing_ok=True)
        for rule in fix["replace"]:
            shutil.copyfile(files / rule["file"], root / rule["file"])


def touched(root: Path, fixes: list[dict[str, Any]]) -> dict[str, str | None]:
    """Return the text of every file that `fixes` touch or add; None for missing files."""
    names = {rule["file"] for fix in fixes for rule in fix["replace"]}
    names |= {name for fix in fixes for name in fix.get("add", {})}
    paths = {name: root / name for name in sorted(names)}
    return {
        name: path.read_text(encoding="utf-8") if path.exists() else None
        for name, path in paths.items()
    }


def exchange(root: Path, tree: Path) -> None:
    """Replace installed distributions with those of the same names in `tree`."""
    names = {plain(found.metadata["Name"]) for found in distributions(path=[str(tree)])}
    for found in distributions(path=[str(root)]):
        if plain(found.metadata["Name"]) in names:
            remove(found)
    shutil.copytree(tree, root, dirs_exist_ok=True)


def remove(found: Distribution) -> None:
    """Remove the files that a distribution's RECORD names, their bytecode, and its metadata."""
    files = list(found.files or ())
    for path in files:
        place = Path(str(found.locate_file(path)))
        place.unlink(missing_ok=True)
        for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*.pyc"):
            compiled.unlink()
    # An empty metadata folder would still be found, as a distribution without a name.
    for path in files:
        if path.name == "RECORD":
            shutil.rmtree(Path(str(found.locate_file(path))).parent, ignore_errors=True)


def plain(name: str) -> str:
    """Return a distribution's canonical name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def take_back(folder: Path, root: Path) -> None:
    """Restore, check that all fixes make the image's own files, then apply the fixes that are kept.

    Raises:
        CannotTakeBack: the files differ, or one of the kept fixes does not fit.
    """
    every, kept = (json.loads((folder / f"{n}.json").read_text()) for n in ("all", "kept"))
    before = touched(root, every)
    restore(root, folder / "files", every)
    apply_all(every, "installed", root)
    differing = [name for name, text in touched(root, every).items() if text != before[name]]
    if differing:
        raise CannotTakeBack(f"the fix step does not make the image's own {', '.join(differing)}")
    restore(root, folder / "files", every)
    if (folder / "back").is_dir():
        exchange(root, folder / "back")
    try:
        apply_all(kept, "installed", root)
    except FixMismatch as error:
        found = "; ".join(f"fix {p['fix']}: {p['file']}: {p['outcome']}" for p in error.problems)
        raise CannotTakeBack(f"the other fixes need this one: {found}") from error


def main(argv: list[str]) -> int:
    """Run the command line; return 0 when the container is ready for the witness, else 1."""
    try:
        take_back(Path(argv[0]), Path(sysconfig.get_path("purelib")))
    except (CannotTakeBack, FixMismatch, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
