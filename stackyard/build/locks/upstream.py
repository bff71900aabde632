"""List newer releases of a stack's packages, and the fixes that do not cover them.

Owns which packages are listed, and when one is behind. Pure: versions are arguments, which
`build.locks.outdated` gets from the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stackyard.build.locks.change import direction
from stackyard.definitions import compat
from stackyard.definitions.spec import Base, Definitions, Fix, Stack


def direct(stack: Stack, base: Base) -> dict[str, str]:
    """Return the direct requirements, by canonical name, with the file that names each."""
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
    """Return the fixes of a stack and of the wheels that are built for it."""
    names = [*stack.fixes, *(f for w in stack.builds for f in definitions.wheels[w].fixes)]
    return [definitions.fixes[name] for name in dict.fromkeys(names)]


def told(
    locked: Mapping[str, str], allowed: Mapping[str, str], asked: Iterable[str]
) -> tuple[str, ...]:
    """Return the packages to list: direct requirements, and those that a new lock would move."""
    wanted = {name for name in asked if name in locked}
    wanted |= {name for name, version in locked.items() if allowed.get(name, version) != version}
    return tuple(sorted(wanted))


class OutdatedPackage(TypedDict):
    """Hold one package: its version in the lock, in a new lock, and the newest there is.

    Attributes:
        released: the day of the newest.
        asked_in: the file that asks for it by name; empty for what others require.
    """

    name: str
    locked: str
    allowed: str
    newest: str
    released: str
    asked_in: str
    behind: bool
    fixes_not_covering: list[str]


def rows(
    locked: Mapping[str, str],
    allowed: Mapping[str, str],
    newest: Mapping[str, tuple[str, str]],
    written: Mapping[str, str],
    fixes: Iterable[Fix],
) -> list[OutdatedPackage]:
    """Return one row for each package, sorted by name, ready for JSON.

    Args:
        locked: the versions in the locks.
        allowed: the versions that new locks would have.
        newest: the newest release of each listed package, with its day.
        written: the file that names each direct requirement.
        fixes: the fixes whose `applies_to` is checked.
    """
    known = list(fixes)
    found: list[OutdatedPackage] = []
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
    """Return the fixes that apply to the locked version of a package, but not to the newest."""
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
    """Return a version without its local part: `2.13.0+cpu` is the release `2.13.0`."""
    return version.partition("+")[0]
