"""Load the definitions under `images/` strictly, and report every problem at once.

Owns which files there are. It must not resolve (`build.catalog` decides which fix applies on which
base), and must not touch an engine or the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from stackyard.definitions import lock
from stackyard.definitions.document import Mapping, parse_document
from stackyard.definitions.read.baseline import check_gpus, read_baseline
from stackyard.definitions.read.failures import FOLDER, check_brings, read_failure
from stackyard.definitions.read.files import read_base, read_common, read_stack, read_wheel
from stackyard.definitions.read.fix import LIMITS, read_fix, read_limit
from stackyard.definitions.references import check_references
from stackyard.definitions.spec import Common, Definitions, Failure, Fix
from stackyard.system.errors import DefinitionError, Problem

T = TypeVar("T")
_STACKS = "*/stack.yml"
ADDED = "images/fixes/files"
_OTHERS = ("baselines", "bases", "failures", "fixes", "limits", "wheels")


def load_definitions(root: Path, *, locks_required: bool = True) -> Definitions:
    """Load and check everything below `root/images`.

    Args:
        locks_required: whether a missing or stale lock is a problem; false to make one.

    Raises:
        DefinitionError: there are problems; holds those of all files.
    """
    problems: list[Problem] = []
    common = _load(root, "images", "common.yml", lambda top, _: read_common(top), problems)
    bases = {b.name: b for b in _load(root, "images/bases", "*.yml", read_base, problems)}
    added = _added(root, problems)
    fix = partial(read_fix, added=added)
    fixes = {f.id: f for f in _load(root, "images/fixes", "*.yml", fix, problems)}
    problems += _unused(added, fixes.values())
    wheels = {w.package: w for w in _load(root, "images/wheels", "*.yml", read_wheel, problems)}
    stacks = {s.name: s for s in _load(root, "images", _STACKS, read_stack, problems)}
    baselines = {
        b.name: b for b in _load(root, "images/baselines", "*.yml", read_baseline, problems)
    }
    problems += check_gpus(baselines)
    limit = partial(read_limit, stacks=[one.name for one in stacks.values()])
    wanted = tuple(sorted({name for stack in stacks.values() for name in stack.system}))
    definitions = Definitions(
        common=replace(common[0] if common else _no_common(problems), stack_system=wanted),
        bases=bases,
        fixes=fixes,
        wheels=wheels,
        stacks=stacks,
        failures=_failures(root, problems),
        limits={one.id: one for one in _load(root, LIMITS, "*.yml", limit, problems)},
        baselines=baselines,
        locks=_load_locks(root, problems),
    )
    problems += check_references(root, definitions, locks_required=locks_required)
    if problems:
        raise DefinitionError(problems)
    return definitions


def load_failures(root: Path) -> dict[str, Failure]:
    """Load the known failures only, by id; a log can be read while other definitions are wrong.

    Raises:
        DefinitionError: there are problems; holds those of all their files.
    """
    problems: list[Problem] = []
    failures = _failures(root, problems)
    if problems:
        raise DefinitionError(problems)
    return failures


def _failures(root: Path, problems: list[Problem]) -> dict[str, Failure]:
    known = [path.stem for path in (root / FOLDER).glob("*.yml")]
    read = partial(read_failure, known=known)
    failures = {f.id: f for f in _load(root, FOLDER, "*.yml", read, problems)}
    problems += check_brings(failures)
    return failures


def _added(root: Path, problems: list[Problem]) -> dict[str, str]:
    """Read the modules that fixes may add, by their path below site-packages."""
    folder = root / ADDED
    texts = {
        path.relative_to(folder).as_posix(): _read_text(
            path, path.relative_to(root).as_posix(), problems
        )
        for path in sorted(folder.glob("**/*.py"))
    }
    return {path: text for path, text in texts.items() if text is not None}


def _unused(added: Iterable[str], fixes: Iterable[Fix]) -> list[Problem]:
    used = {path for fix in fixes for path in fix.remedy.add}
    return [
        Problem(file=f"{ADDED}/{path}", line=1, key="", message="no fix adds it")
        for path in added
        if path not in used
    ]


def _no_common(problems: list[Problem]) -> Common:
    if not any(problem.file == "images/common.yml" for problem in problems):
        message = "cannot be read: no such file"
        problems.append(Problem(file="images/common.yml", line=1, key="", message=message))
    return Common(system=(), build_system=(), text_packages=(), env={})


def _load_locks(root: Path, problems: list[Problem]) -> dict[str, str]:
    shared: dict[str, str] = {}
    own: dict[str, str] = {}
    for path in sorted((root / "images").glob("*/*.lock")):
        file = path.relative_to(root).as_posix()
        text = _read_text(path, file, problems)
        if text is not None:
            shared |= lock.spread(file, text)
            own[file] = shared[file]
    return {**shared, **own}


def _load(
    root: Path,
    folder: str,
    pattern: str,
    read: Callable[[Mapping, str], T],
    problems: list[Problem],
) -> list[T]:
    found: list[T] = []
    for path in sorted((root / folder).glob(pattern)):
        if pattern == _STACKS and path.parent.name in _OTHERS:
            continue  # a base, fix or wheel named `stack` is no stack
        name = path.parent.name if pattern == _STACKS else path.name.removesuffix(".yml")
        top = _open(path, path.relative_to(root).as_posix(), problems)
        if top is not None:
            found.append(read(top, name))
            top.done()
    return found


def _open(path: Path, file: str, problems: list[Problem]) -> Mapping | None:
    text = _read_text(path, file, problems)
    return None if text is None else parse_document(text, file=file, problems=problems)


def _read_text(path: Path, file: str, problems: list[Problem]) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot be read: {why_unreadable(error)}"
        problems.append(Problem(file=file, line=1, key="", message=message))
        return None


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Return why a file cannot be read, without its path."""
    return (error.strerror or "") if isinstance(error, OSError) else str(error)
