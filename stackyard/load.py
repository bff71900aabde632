"""Load the definitions under `images/`: strictly, and with every problem at once.

Owns which files there are. It must not resolve (which fix applies on which base is
`stackyard.catalog`'s) and must not touch an engine or the network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stackyard.document import Mapping, parse_document
from stackyard.errors import DefinitionError, Problem
from stackyard.read import read_base, read_common, read_fix, read_stack, read_wheel
from stackyard.references import check_references
from stackyard.spec import Common, Definitions

T = TypeVar("T")


def load_definitions(root: Path, *, locks_required: bool = True) -> Definitions:
    """Load and check everything below `root/images`.

    Args:
        locks_required: whether a missing or stale lock is a problem (not for making one).

    Raises:
        DefinitionError: with all problems of all files.
    """
    problems: list[Problem] = []
    common = _load(root, "images", "common.yml", lambda top, _: read_common(top), problems)
    bases = {b.name: b for b in _load(root, "images/bases", "*.yml", read_base, problems)}
    fixes = {f.id: f for f in _load(root, "images/fixes", "*.yml", read_fix, problems)}
    wheels = {w.package: w for w in _load(root, "images/wheels", "*.yml", read_wheel, problems)}
    stacks = {s.name: s for s in _load(root, "images", "*/stack.yml", read_stack, problems)}
    definitions = Definitions(
        common=common[0] if common else _no_common(problems),
        bases=bases,
        fixes=fixes,
        wheels=wheels,
        stacks=stacks,
        locks={
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted((root / "images").glob("*/*.lock"))
        },
    )
    problems += check_references(root, definitions, locks_required=locks_required)
    if problems:
        raise DefinitionError(problems)
    return definitions


def _no_common(problems: list[Problem]) -> Common:
    if not any(problem.file == "images/common.yml" for problem in problems):
        message = "cannot be read: no such file"
        problems.append(Problem(file="images/common.yml", line=1, key="", message=message))
    return Common(system=(), build_system=(), text_packages=(), env={})


def _load(
    root: Path,
    folder: str,
    pattern: str,
    read: Callable[[Mapping, str], T],
    problems: list[Problem],
) -> list[T]:
    found: list[T] = []
    for path in sorted((root / folder).glob(pattern)):
        name = path.parent.name if path.name == "stack.yml" else path.stem
        top = _open(path, path.relative_to(root).as_posix(), problems)
        if top is not None:
            found.append(read(top, name))
            top.done()
    return found


def _open(path: Path, file: str, problems: list[Problem]) -> Mapping | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(file=file, line=1, key="", message=f"cannot be read: {error}"))
        return None
    return parse_document(text, file=file, problems=problems)
