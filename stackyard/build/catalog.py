"""Resolve a stack on a base to one image: every value, and its origin.

Owns the decisions that depend on both a stack and a base: which fixes apply, which system packages
must be installed, and the environment. It must not render or read files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from stackyard.build.source.naming import Source
from stackyard.definitions import compat, lock
from stackyard.definitions.document import nearest
from stackyard.definitions.spec import Base, Common, Definitions, Fix, Stack, Wheel
from stackyard.system.errors import UsageError

# NVIDIA's wheels of the parts of CUDA that `facts` reports.
_CUDA_PART = re.compile(r"nvidia-(nccl|cudnn)-cu\d+")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Hold one resolved value with its origin, as `invoke show` prints it."""

    value: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ResolvedWheel:
    """Describe a package built from source on this base, with the fixes that apply to it.

    Attributes:
        needs: distributions of its lock that its build installs: those that the base lacks.
        source: the users' own tree, which is built in place of the locked sdist.
    """

    wheel: Wheel
    fixes: tuple[Fix, ...]
    env: Mapping[str, str]
    needs: tuple[str, ...] = ()
    source: Source | None = None


@dataclass(frozen=True, kw_only=True)
class ResolvedImage:
    """Describe a stack on a base, fully resolved.

    Attributes:
        declared: every fix that the stack names.
        fixes: those that apply here.
        left_out: declared fixes that do not apply here, with the reason.
        packages: every locked distribution of the stack itself, with its origin.
        provided: distributions of the base that the build must not change.
        replaced: distributions of the base that the stack's lock has in another version.
        system: system packages that the base lacks.
        build_system: system packages that compiling wheels needs and the base lacks.
        locked: true if this combination has a lock; a base that nobody has built has none.
    """

    stack: Stack
    base: Base
    common: Common
    declared: tuple[Fix, ...]
    fixes: tuple[Fix, ...]
    left_out: Mapping[str, str]
    packages: Mapping[str, Setting]
    provided: Mapping[str, Setting]
    replaced: tuple[str, ...]
    system: tuple[str, ...]
    build_system: tuple[str, ...]
    env: Mapping[str, Setting]
    wheels: tuple[ResolvedWheel, ...]
    locks: Mapping[str, str]
    locked: bool


def choose(kind: str, name: str, known: Mapping[str, object]) -> str:
    """Return `name` if it is known.

    Raises:
        UsageError: it is not; names the nearest known one.
    """
    if name not in known:
        hint = f"invoke list shows every {kind}"
        raise UsageError(f"there is no {kind} {name!r}", why=nearest(name, known), hint=hint)
    return name


def choose_base(definitions: Definitions, name: str) -> Base:
    """Return the base of that name; a pulled one with the digest in its lock.

    Raises:
        UsageError: there is none.
    """
    return lock.pinned(
        definitions.bases[choose("base", name, definitions.bases)], definitions.locks
    )


def resolve(definitions: Definitions, stack_name: str, base_name: str) -> ResolvedImage:
    """Decide everything about one stack on one base.

    Raises:
        UsageError: the stack or the base does not exist.
    """
    stack = definitions.stacks[choose("stack", stack_name, definitions.stacks)]
    base = choose_base(definitions, base_name)
    locks = {
        path: definitions.locks[path]
        for path in (
            lock.base_lock_path(base.name),
            lock.lock_path(stack.name, base.name),
            *(lock.wheel_lock_path(wheel) for wheel in stack.builds),
        )
        if path in definitions.locks
    }
    packages = _packages(definitions, stack, base, locks)
    own = lock.versions(lock.parse_lock(locks.get(lock.lock_path(stack.name, base.name), "")))
    provided = {n: s for n, s in _provided(base, locks).items() if n not in own}
    versions = {name: s.value for name, s in {**provided, **packages}.items()}
    fixes, left_out = _fixes(definitions, stack, base, versions)
    wheels = tuple(
        resolve_wheel(definitions, definitions.wheels[name], base, versions)
        for name in stack.builds
    )
    present = set(base.given_system)
    if base.bootstrap is not None:
        present |= {*base.bootstrap.packages, *definitions.common.system}
    wanted = (*definitions.common.system, *stack.system)
    return ResolvedImage(
        stack=stack,
        base=base,
        common=definitions.common,
        declared=tuple(definitions.fixes[name] for name in stack.fixes),
        fixes=fixes,
        left_out=left_out,
        packages=packages,
        provided=provided,
        replaced=tuple(name for name in sorted(base.replaceable) if name in own),
        system=tuple(p for p in wanted if p not in present),
        build_system=tuple(p for p in definitions.common.build_system if p not in present),
        env=_environment(definitions.common, base, stack, fixes),
        wheels=wheels,
        locks=locks,
        locked=lock.lock_path(stack.name, base.name) in locks
        and bool(base.digest or not base.pulled),
    )


def _packages(
    definitions: Definitions, stack: Stack, base: Base, locks: Mapping[str, str]
) -> dict[str, Setting]:
    found: dict[str, Setting] = {
        canonicalize_name(name): Setting(value=version, source=f"images/{stack.name}/stack.yml")
        for name, version in stack.packages.items()
    }
    path = lock.lock_path(stack.name, base.name)
    for item in lock.parse_lock(locks.get(path, "")):
        found[item.name] = Setting(value=item.version, source=path)
    for name in stack.builds:
        wheel = definitions.wheels[name]
        source = f"images/wheels/{name}.yml"
        found[canonicalize_name(wheel.package)] = Setting(value=wheel.version, source=source)
    return found


def resolve_wheel(
    definitions: Definitions, wheel: Wheel, base: Base, versions: Mapping[str, str]
) -> ResolvedWheel:
    """Resolve a package that is built, with the fixes of its source for these versions."""
    fixes = tuple(
        definitions.fixes[name]
        for name in wheel.fixes
        if not compat.why_not(
            definitions.fixes[name], versions, python=base.python, device=base.device
        )
    )
    env = dict(wheel.env)
    for fix in fixes:
        env |= fix.remedy.build_env
    locked = lock.parse_lock(definitions.locks.get(lock.wheel_lock_path(wheel.package), ""))
    here = {canonicalize_name(wheel.package), *base.provided}
    return ResolvedWheel(
        wheel=wheel,
        fixes=fixes,
        env=dict(sorted(env.items())),
        needs=tuple(item.name for item in locked if item.name not in here),
    )


def _provided(base: Base, locks: Mapping[str, str]) -> dict[str, Setting]:
    found: dict[str, Setting] = {
        canonicalize_name(name): Setting(value=fact.value, source=fact.source)
        for name, fact in base.provides.items()
    }
    path = lock.base_lock_path(base.name)
    for item in lock.parse_lock(locks.get(path, "")):
        found[item.name] = Setting(value=item.version, source=path)
    return found


def _fixes(
    definitions: Definitions, stack: Stack, base: Base, versions: Mapping[str, str]
) -> tuple[tuple[Fix, ...], dict[str, str]]:
    applied: list[Fix] = []
    left_out: dict[str, str] = {}
    for name in stack.fixes:
        fix = definitions.fixes[name]
        reason = compat.why_not(fix, versions, python=base.python, device=base.device)
        if reason:
            left_out[name] = reason
        else:
            applied.append(fix)
    return tuple(applied), left_out


def facts(image: ResolvedImage) -> dict[str, Setting]:
    """Return the facts that an image's base declares, and the CUDA parts in its lock."""
    found = {n: Setting(value=f.value, source=f.source) for n, f in image.base.facts.items()}
    for name, setting in image.provided.items():
        part = _CUDA_PART.fullmatch(name)
        if part and setting.value and part[1] not in found:
            found[part[1]] = setting
    return found


def _environment(
    common: Common, base: Base, stack: Stack, fixes: tuple[Fix, ...]
) -> dict[str, Setting]:
    origins = [
        ("images/common.yml", common.env),
        (f"images/bases/{base.name}.yml", base.env),
        (f"images/{stack.name}/stack.yml", stack.env),
        *((f"images/fixes/{fix.id}.yml", fix.remedy.env) for fix in fixes),
    ]
    found: dict[str, Setting] = {}
    for source, env in origins:
        for name, value in env.items():
            found[name] = Setting(value=value, source=source)
    return dict(sorted(found.items()))
