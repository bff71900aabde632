"""Resolve the locks of `invoke lock`, compare them, and find locks that would become stale.

Owns which locks a command is about, and that all are resolved before any is written.
`build.locks.resolve` asks the network, `build.locks.change` compares.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from stackyard.system.errors import CommandError, EngineError, UsageError

Say = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Locking:
    """Hold locks that were resolved, but not written yet.

    Attributes:
        files: texts by path: locks, and the rendered files that depend on them.
        gone: paths of locks that another file holds now.
        changes: the difference between each lock and the existing one.
        written: the paths in `files` whose text has changed, and those in `gone`.
        stale: locks of other stacks that do not fit the definitions, with the command for each.
        outgrown: bases whose torch layer fitted the definitions, but not the stack.
        rebuilt: bases by stack, where a locked image comes to have other locks; besides the stack
            that is locked alone.
    """

    files: Mapping[str, str]
    gone: tuple[str, ...]
    changes: tuple[LockChange, ...]
    written: tuple[str, ...]
    stale: Mapping[str, str]
    outgrown: tuple[str, ...]
    rebuilt: Mapping[str, tuple[str, ...]]


def locked_bases(project: Project, stack: str) -> list[str]:
    """Return the default bases of `invoke lock`.

    These are bases on which one of the stacks has a lock, since it would become stale, and bases
    that are bootstrapped.
    """
    definitions = project.definitions
    return [
        base.name
        for base in sorted(definitions.bases.values(), key=lambda base: base.name)
        if base.bootstrap is not None
        or any(lock.lock_path(n, base.name) in definitions.locks for n in project.stacks(stack))
    ]


def resolve_all(project: Project, stack: str, base: str, say: Say) -> Locking:
    """Resolve the locks of a stack (or `all`) on one base or on every base that has some.

    A stack alone keeps the torch layers of bases, which other stacks share, where it fits them.

    Raises:
        UsageError: there is no such stack or base, or the stack's locks on other bases would not
            fit; raised before the network is used.
        CommandError: uv found no solution.
    """
    definitions = project.definitions
    names = [catalog.choose("stack", n, definitions.stacks) for n in project.stacks(stack)]
    if base:
        catalog.choose("base", base, definitions.bases)
        require_whole(project, stack, base)
    bases = [base] if base else locked_bases(project, stack)
    locks: dict[str, str] = {}
    for name in bases:
        locks |= resolve_on(project, names, name, say, locks, keep=stack != "all")
    for path in {lock.wheel_lock_path(wheel) for wheel in definitions.wheels} & set(locks):
        locks[path] = lock.extended(locks[path], definitions.locks.get(path, ""))
    changes = tuple(
        compare_locks(path, definitions.locks.get(path), text)
        for path, text in sorted(locks.items())
    )
    then = replace(project, definitions=replace(definitions, locks={**definitions.locks, **locks}))
    held = lock.files(then.definitions.locks)
    gone = tuple(
        path for path in then.definitions.locks
        if path not in held and (project.root / path).exists()
    )  # fmt: skip
    files = {**held, **_rendered(then)}
    written = tuple(path for path, text in files.items() if not _is_there(project, path, text))
    return Locking(
        files=files,
        gone=gone,
        changes=changes,
        written=(*written, *gone),
        stale=stale_locks(then),
        outgrown=tuple(
            name for name in bases
            if stack != "all"
            and (kept := _kept_layer(project, definitions.bases[name]))
            and kept.items() - locks.items()
        ),
        rebuilt=_rebuilt(project, then, set(definitions.stacks) - {stack}),
    )  # fmt: skip


def stale_locks(project: Project) -> dict[str, str]:
    """Return the locks that are missing or do not fit the definitions; by path, the command."""
    found: dict[str, str] = {}
    for name in sorted(project.definitions.stacks):
        for base in sorted(project.definitions.bases):
            for path in _stale_of(project, name, base):
                found.setdefault(path, f"invoke lock {name} --base {base}")
    return found


def require_whole(project: Project, stack: str, base: str) -> None:
    """Check that locking on one base alone leaves no stale lock of the stack.

    Raises:
        UsageError: the stack's locks on other bases do not fit the definitions.
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
        f"{stack} cannot be locked on {base} alone: nothing was resolved or written",
        why=f"its locks on other bases do not fit the definitions: {shown}; no command"
        " would load the project with them",
        hint=f"{typed} (locks on every base that has locks)",
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
    *,
    keep: bool = False,
) -> dict[str, str]:
    """Return new locks of some stacks on one base, by path, without writing them.

    Args:
        others: locks that were just made for other bases; wheels are locked once for all.
        keep: keep the base's lock where it fits its definition and the stacks.

    Raises:
        CommandError: uv found no solution.
    """
    definitions = project.definitions
    base = definitions.bases[base_name]
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    kept = _kept_layer(project, base) if keep else {}
    files = dict(kept)
    if base.bootstrap is not None:
        if not kept:
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
    # Packages that are built here, and those that users may build from their own source.
    wheels = dict.fromkeys(w for name in names for w in fork.buildable(definitions, name))
    for wheel in wheels:
        say(base.name, f"resolving the build of {wheel}")
        path = lock.wheel_lock_path(wheel)
        files |= resolve.lock_wheel(definitions.wheels[wheel], base, caller, others.get(path, ""))
    for name in names:
        say(name, f"resolving on {base.name}")
        try:
            files |= resolve.lock_stack(
                definitions.stacks[name], base, definitions.fixes, given, caller
            )
        except CommandError:
            if not kept:
                raise
            say(name, f"no solution on the locked torch layer of {base.name}: resolving both")
            return resolve_on(project, names, base_name, say, others)
    return files


def _kept_layer(project: Project, base: Base) -> dict[str, str]:
    """Return the lock of a base's torch layer, if it is there and fits the base's definition."""
    path = lock.base_lock_path(base.name)
    there = project.definitions.locks.get(path, "")
    fits = lock.locked_inputs(there) == lock.base_inputs(base)
    if base.bootstrap is None or not fits or lock.other_builds(base, lock.parse_lock(there)):
        return {}
    return {path: there}


def _lock_pulled(project: Project, base: Base, there: str, say: Say) -> str:
    """Return a pulled base's existing lock while its reference is unchanged, else make a new one.

    So all stacks are locked on the same image, which the engine need not hold.
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


def _rebuilt(project: Project, then: Project, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return on which bases each stack's locked image has other locks then."""
    found = {
        name: tuple(
            base
            for base in sorted(project.definitions.bases)
            if (before := catalog.resolve(project.definitions, name, base)).locked
            and before.locks != catalog.resolve(then.definitions, name, base).locks
        )
        for name in sorted(names)
    }
    return {name: bases for name, bases in found.items() if bases}


def _rendered(project: Project) -> dict[str, str]:
    files: dict[str, str] = {}
    for name in sorted(project.definitions.stacks):
        for base in sorted(project.definitions.bases):
            files |= dockerfile.render_files(catalog.resolve(project.definitions, name, base))
    return files


def _is_there(project: Project, path: str, text: str) -> bool:
    target = project.root / path
    return target.is_file() and target.read_text(encoding="utf-8") == text
