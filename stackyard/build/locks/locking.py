"""`invoke lock`, its steps: what is resolved, what it changes, and what would then not fit.

Owns which locks a command is about and that all of them are resolved before one is written. Asking
the network is `build.locks.resolve`'s, the comparison `build.locks.change`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from stackyard.build import catalog, dockerfile, mirrors
from stackyard.build.locks import resolve
from stackyard.build.locks.change import LockChange, compare_locks
from stackyard.build.source import fork
from stackyard.definitions import lock, references
from stackyard.definitions.project import Project
from stackyard.definitions.spec import Base
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError, UsageError

Say = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Locking:
    """Locks that were resolved, and nothing written yet.

    Attributes:
        files: text by path: locks, and the rendered files that depend on them.
        changes: each lock against the one that is there.
        written: the paths among `files` whose text is another one now.
        stale: locks of other stacks that do not fit the definitions, and what to type for each.
    """

    files: Mapping[str, str]
    changes: tuple[LockChange, ...]
    written: tuple[str, ...]
    stale: Mapping[str, str]


def locked_bases(project: Project, stack: str) -> list[str]:
    """The bases that `invoke lock` is about unless told otherwise: where one of the stacks has a
    lock already, which its change would make stale, and those that are made here."""
    definitions = project.definitions
    return [
        base.name
        for base in sorted(definitions.bases.values(), key=lambda base: base.name)
        if base.bootstrap is not None
        or any(lock.lock_path(n, base.name) in definitions.locks for n in project.stacks(stack))
    ]


def resolve_all(project: Project, stack: str, base: str, say: Say) -> Locking:
    """Resolve the locks of a stack (or `all`) on one base or on every base that has some.

    Raises:
        UsageError: no such stack or base; or the stack's locks on other bases would not fit, said
            before anything is asked of the network.
        CommandError: uv found no answer.
    """
    definitions = project.definitions
    names = [catalog.choose("stack", n, definitions.stacks) for n in project.stacks(stack)]
    if base:
        catalog.choose("base", base, definitions.bases)
        require_whole(project, stack, base)
    bases = [base] if base else locked_bases(project, stack)
    locks: dict[str, str] = {}
    for name in bases:
        locks |= resolve_on(project, names, name, say, locks)
    for path in {lock.wheel_lock_path(wheel) for wheel in definitions.wheels} & set(locks):
        locks[path] = lock.extended(locks[path], definitions.locks.get(path, ""))
    changes = tuple(
        compare_locks(path, definitions.locks.get(path), text)
        for path, text in sorted(locks.items())
    )
    then = replace(project, definitions=replace(definitions, locks={**definitions.locks, **locks}))
    files = {**locks, **_rendered(then)}
    written = tuple(path for path, text in files.items() if not _is_there(project, path, text))
    return Locking(files=files, changes=changes, written=written, stale=stale_locks(then))


def stale_locks(project: Project) -> dict[str, str]:
    """Every lock that is missing or was made from other definitions; by path, what makes it."""
    found: dict[str, str] = {}
    for name in sorted(project.definitions.stacks):
        for base in sorted(project.definitions.bases):
            for path in _stale_of(project, name, base):
                found.setdefault(path, f"invoke lock {name} --base {base}")
    return found


def require_whole(project: Project, stack: str, base: str) -> None:
    """See that a lock on one base alone leaves a stack whole.

    Raises:
        UsageError: on other bases its locks do not fit what is declared; says what to type.
    """
    left = [
        path
        for name in project.stacks(stack)
        for other in sorted(project.definitions.bases)
        if other != base
        for path in _stale_of(project, name, other)
    ]
    if not left:
        return
    typed = "invoke lock" if stack == "all" else f"invoke lock {stack}"
    where = sorted(set(left))
    shown = ", ".join(where[:4]) + (f" and {len(where) - 4} more" if len(where) > 4 else "")
    raise UsageError(
        f"{stack} cannot be locked on {base} alone: nothing was asked for or written",
        why=f"its locks on other bases do not fit what is declared now: {shown}; with them as they"
        " are no command would load the project",
        hint=f"{typed} (every base that has locks, in one go)",
    )


def _stale_of(project: Project, stack: str, base: str) -> list[str]:
    definitions = project.definitions
    chosen, on = definitions.stacks[stack], definitions.bases[base]
    return [
        path
        for path, inputs in references.wanted_locks(definitions, chosen, on).items()
        if (lock.locked_inputs(definitions.locks[path]) != inputs
            if path in definitions.locks else not on.never_built)
    ]  # fmt: skip


def resolve_on(
    project: Project,
    names: Sequence[str],
    base_name: str,
    say: Say,
    others: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The locks of some stacks on one base as they would be made now, by path; nothing is written.

    Args:
        others: locks that were just made for other bases; wheels are locked once for all.

    Raises:
        CommandError: uv found no answer.
    """
    definitions = project.definitions
    base = definitions.bases[base_name]
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    files: dict[str, str] = {}
    if base.bootstrap is not None:
        say(base.name, "resolving the shared layer")
        files |= resolve.lock_base(base, caller)
        given = lock.versions(lock.parse_lock(files[lock.base_lock_path(base.name)]))
    elif base.host is not None:
        given = base.provided
    else:
        path = lock.base_lock_path(base.name)
        files[path] = _lock_pulled(project, base, definitions.locks.get(path, ""), say)
        base = lock.pinned(base, files)
        given = lock.versions(lock.parse_lock(files[path]))
    # What is built here, and what users may build from their own source.
    wheels = dict.fromkeys(w for name in names for w in fork.buildable(definitions, name))
    for wheel in wheels:
        say(base.name, f"resolving the build of {wheel}")
        path = lock.wheel_lock_path(wheel)
        files |= resolve.lock_wheel(definitions.wheels[wheel], base, caller, others.get(path, ""))
    for name in names:
        say(name, f"resolving on {base.name}")
        files |= resolve.lock_stack(
            definitions.stacks[name], base, definitions.fixes, given, caller
        )
    return files


def _lock_pulled(project: Project, base: Base, there: str, say: Say) -> str:
    """Return a pulled base's existing lock while its reference is unchanged, else make a new one.

    So all stacks are locked on one image, and the image itself need not be here.
    """
    if lock.locked_inputs(there) == lock.pulled_inputs(base) and lock.locked_digest(there):
        return there
    say(base.name, f"reading what {base.reference} holds")
    digest, held = _survey(project, base)
    return lock.render_pulled(base, digest, held)


def _survey(project: Project, base: Base) -> tuple[str, dict[str, str]]:
    from stackyard.build import host
    from stackyard.build.builder import cannot_have

    needed = base.disk_bytes or host.NEEDED_BYTES
    try:
        with Engine() as engine:
            return resolve.survey(engine, base, lambda: host.require_space(engine, needed))
    except EngineError as error:
        raise cannot_have(project, base.name, error) from error


def _rendered(project: Project) -> dict[str, str]:
    files: dict[str, str] = {}
    for name in sorted(project.definitions.stacks):
        for base in sorted(project.definitions.bases):
            files |= dockerfile.render_files(catalog.resolve(project.definitions, name, base))
    return files


def _is_there(project: Project, path: str, text: str) -> bool:
    target = project.root / path
    return target.is_file() and target.read_text(encoding="utf-8") == text
