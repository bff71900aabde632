"""What moved upstream since a stack was locked, and which recorded fixes would not cover it.

Owns which packages are told of and when one is behind. Pure: the versions are given.
`build.locks.outdated` asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stackyard.build.locks.change import direction
from stackyard.definitions import compat
from stackyard.definitions.spec import Base, Definitions, Fix, Stack


def direct(stack: Stack, base: Base) -> dict[str, str]:
    """What is asked for by name, by canonical name, with where it is written."""
    found: dict[str, str] = {
        str(canonicalize_name(Requirement(word).name)): f"images/bases/{base.name}.yml"
        for word in base.torch
    }
    for name in stack.packages:
        found[str(canonicalize_name(name))] = f"images/{stack.name}/stack.yml"
    for name in stack.builds:
        found[str(canonicalize_name(name))] = f"images/wheels/{name}.yml"
    return found


def fixes_of(definitions: Definitions, stack: Stack) -> list[Fix]:
    """The fixes of a stack and of the wheels that are built for it."""
    names = [*stack.fixes, *(f for w in stack.builds for f in definitions.wheels[w].fixes)]
    return [definitions.fixes[name] for name in dict.fromkeys(names)]


def told(
    locked: Mapping[str, str], allowed: Mapping[str, str], asked: Iterable[str]
) -> tuple[str, ...]:
    """The packages that are told of: those asked for by name, and those that a lock would move."""
    wanted = {name for name in asked if name in locked}
    wanted |= {name for name, version in locked.items() if allowed.get(name, version) != version}
    return tuple(sorted(wanted))


def rows(
    locked: Mapping[str, str],
    allowed: Mapping[str, str],
    newest: Mapping[str, tuple[str, str]],
    written: Mapping[str, str],
    fixes: Iterable[Fix],
) -> list[dict[str, Any]]:
    """One row a package, by name; ready for JSON.

    Args:
        locked: what the locks name.
        allowed: what they would name if they were made now.
        newest: the newest release of each that is told of, with its day.
        written: where a version is asked for by name.
        fixes: those whose `applies_to` is looked at.
    """
    known = list(fixes)
    found = []
    for name in told(locked, allowed, written):
        version, day = newest.get(name, ("", ""))
        found.append(
            {
                "name": name,
                "locked": locked[name],
                "allowed": allowed.get(name, locked[name]),
                "newest": version,
                "released": day,
                "asked_in": written.get(name, ""),
                "behind": bool(version) and direction(_public(locked[name]), version) == "up",
                "fixes_not_covering": uncovered(name, locked[name], version, known),
            }
        )
    return found


def uncovered(name: str, locked: str, newest: str, fixes: Iterable[Fix]) -> list[str]:
    """The fixes that apply to the locked version of a package and not to the newest."""
    if not newest or compat.version_problem(newest) or compat.version_problem(locked):
        return []
    return [
        fix.id
        for fix in fixes
        for package, specifier in fix.versions.items()
        if canonicalize_name(package) == name
        and compat.satisfies(locked, specifier)
        and not compat.satisfies(newest, specifier)
    ]


def _public(version: str) -> str:
    """Without the local part: `2.13.0+cpu` is no other release than `2.13.0`."""
    return version.partition("+")[0]
