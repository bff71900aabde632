"""Check definitions against each other: unknown or inapplicable fixes, wheels, and locks.

Owns the checks that need several files; `definitions.read` owns those within one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from packaging.utils import canonicalize_name

from stackyard.definitions import compat, lock
from stackyard.definitions.document import nearest
from stackyard.definitions.spec import Base, Definitions, Stack
from stackyard.system.errors import Problem


def check_references(root: Path, found: Definitions, *, locks_required: bool) -> Iterator[Problem]:
    """Yield every problem that shows only when the files are seen together."""
    for stack in found.stacks.values():
        file = f"images/{stack.name}/stack.yml"
        for key, message in _stack_problems(found, stack):
            line = _line_of(root / file, f"{key}:")
            yield Problem(file=file, line=line, key=key, message=message)
        if locks_required and all(name in found.wheels for name in stack.builds):
            typed, line = f"invoke lock {stack.name}", _line_of(root / file, "packages:")
            lacking = (_lock_problems(found, stack, base) for base in found.bases.values())
            for message in dict.fromkeys(chain.from_iterable(lacking)):
                said = f"{message}; type `{typed}`"
                yield Problem(file=file, line=line, key="packages", message=said, command=typed)
    for wheel in found.wheels.values():
        file = f"images/wheels/{wheel.package}.yml"
        pin: dict[str, str] = {canonicalize_name(wheel.package): wheel.version}
        for message in _fix_problems(found, wheel.fixes, [pin], "source"):
            line = _line_of(root / file, "fixes:")
            yield Problem(file=file, line=line, key="fixes", message=message)
    # Bases with the same packages share a file: only that one is there to be named.
    for file in sorted(set(lock.holders(found.locks).values())):
        for item in lock.parse_lock(found.locks[file]):
            wrong = compat.version_problem(item.version)
            if wrong:
                line = _line_of(root / file, f"{item.name}==")
                message = f"not a version: {wrong}"
                yield Problem(file=file, line=line, key=item.name, message=message)


def _stack_problems(found: Definitions, stack: Stack) -> Iterator[tuple[str, str]]:
    places = _versions_by_base(found, stack)
    for message in _fix_problems(found, stack.fixes, places, "installed"):
        yield "fixes", message
    for name in stack.builds:
        if name not in found.wheels:
            yield "builds", f"unknown wheel {name!r}; {nearest(name, found.wheels)}"
            continue
        pinned = {canonicalize_name(n): v for n, v in stack.packages.items()}
        version = pinned.get(canonicalize_name(name), found.wheels[name].version)
        if version != found.wheels[name].version:
            yield (
                "packages",
                f"{name} {version} must be built, but images/wheels/{name}.yml"
                f" builds {found.wheels[name].version}",
            )
    for name, version in stack.packages.items():
        wheel = found.wheels.get(canonicalize_name(name))
        if wheel is not None and name not in stack.builds and wheel.version != version:
            message = f"{name} {version}, but images/wheels/{name}.yml is for {wheel.version}"
            yield "packages", f"{message}; users' own source takes the place of the same release"


def _fix_problems(
    found: Definitions, names: Iterable[str], places: list[dict[str, str]], stage: str
) -> Iterator[str]:
    """Yield problems of a list of fixes; `places` are the versions on each possible base."""
    for name in names:
        if name not in found.fixes:
            yield f"unknown fix {name!r}; {nearest(name, found.fixes)}"
            continue
        fix = found.fixes[name]
        reasons = [compat.why_not(fix, versions) for versions in places]
        if reasons and all(reasons):
            yield f"fix {name!r} does not apply: {'; '.join(dict.fromkeys(reasons))}"
        source = bool(fix.remedy.build_env) or fix.remedy.stage == "source"
        if source != (stage == "source"):
            yield f"fix {name!r} belongs to {'a wheel' if source else 'a stack'}'s fixes"


def _versions_by_base(found: Definitions, stack: Stack) -> list[dict[str, str]]:
    """Return the versions installed on each base, as far as pins and locks say.

    A base without a lock cannot rule a fix out (a dependency's version is not known yet), so such
    bases count only when no base has a lock.
    """
    locked: list[dict[str, str]] = []
    pinned: list[dict[str, str]] = []
    for base in found.bases.values():
        pins: dict[str, str] = {
            canonicalize_name(name): version for name, version in stack.packages.items()
        }
        pins |= {canonicalize_name(name): fact.value for name, fact in base.provides.items()}
        pins |= lock.versions(lock.parse_lock("\n".join(base.torch)))
        path = lock.lock_path(stack.name, base.name)
        for text in (found.locks.get(path), found.locks.get(lock.base_lock_path(base.name))):
            pins |= lock.versions(lock.parse_lock(text or ""))
        for name in stack.builds:
            if name in found.wheels:
                pins[canonicalize_name(name)] = found.wheels[name].version
        (locked if path in found.locks else pinned).append(pins)
    return locked or pinned


def wanted_locks(found: Definitions, stack: Stack, base: Base) -> dict[str, str]:
    """Return the lock files of a stack on a base by path, with the digest of what decides each.

    A stack without a lock on a host base wants none: not every stack is for machines without a
    network, and a build there reports that the lock is missing.
    """
    base = lock.pinned(base, found.locks)
    own = lock.lock_path(stack.name, base.name)
    if base.host is not None and own not in found.locks:
        return {}
    wanted = {own: lock.stack_inputs(stack, base, found.fixes)}
    if base.bootstrap is not None:
        wanted[lock.base_lock_path(base.name)] = lock.base_inputs(base)
    elif base.pulled:
        wanted[lock.base_lock_path(base.name)] = lock.pulled_inputs(base)
    if base.never_built and own not in found.locks:
        return wanted  # nothing is built there, and a wheel's lock is also that of other bases
    for name in stack.builds:
        if name in found.wheels:
            wanted[lock.wheel_lock_path(name)] = lock.wheel_inputs(found.wheels[name])
    return wanted


def _lock_problems(found: Definitions, stack: Stack, base: Base) -> Iterator[str]:
    for path, inputs in wanted_locks(found, stack, base).items():
        if path not in found.locks:
            if not base.never_built:
                yield f"missing lock {path}"
        elif lock.locked_inputs(found.locks[path]) != inputs:
            if path == lock.base_lock_path(base.name):
                named = "`reference`" if base.pulled else "`torch`"
                yield f"{path} was made for another {named}, platform or Python"
            else:
                yield f"{path} was made from other packages or fixes than these"
        elif path == lock.base_lock_path(base.name):
            held = lock.parse_lock(found.locks[path])
            for name, version in lock.other_builds(base, held).items():
                yield f"{path} holds {name} {version}, not the build of the base"


def _line_of(path: Path, start: str) -> int:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith(start):
            return number
    return 1
