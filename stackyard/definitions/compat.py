"""Decide by versions, Python and device whether a fix or a limit applies.

Owns the comparison, by PEP 440. It must not read files, or decide what to do about the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stackyard.definitions.spec import Fix, Limit

_LONGEST = 200  # characters; no real version or specifier is longer


def specifier_problem(specifier: str) -> str:
    """Return why `specifier` is not a PEP 440 specifier; empty when it is one."""
    if len(specifier) > _LONGEST:
        return f"it has more than {_LONGEST} characters"
    try:
        SpecifierSet(specifier)
    except InvalidSpecifier as error:
        return str(error)
    return ""


def version_problem(version: str) -> str:
    """Return why `version` is not an exact PEP 440 version; empty when it is one."""
    if len(version) > _LONGEST:
        return f"it has more than {_LONGEST} characters"
    if version != version.strip():
        return f"there is space around it: {version!r}"
    try:
        Version(version)
    except InvalidVersion as error:
        return str(error)
    return ""


def canonical(name: str) -> str:
    """Return a distribution's canonical name, as locks use it."""
    return str(canonicalize_name(name))


def satisfies(version: str, specifier: str) -> bool:
    """Return whether a version, also a pre-release or a local one, satisfies a specifier."""
    return SpecifierSet(specifier).contains(Version(version), prereleases=True)


def why_not(
    fix: Fix | Limit, versions: Mapping[str, str], *, python: str = "", device: str = ""
) -> str:
    """Return why a fix or a limit does not apply; empty when it does.

    Args:
        versions: locked (or pinned) version of each distribution, by canonical name.
        python: Python of the base, such as `3.11`; empty for any.
        device: `cpu` or `cuda`; empty for any.
    """
    for package, specifier in fix.versions.items():
        version = versions.get(canonicalize_name(package))
        if version is None:
            return f"{package} is not installed"
        if version_problem(version) or not satisfies(version, specifier):
            return f"{package} {version} is not {specifier}"
    if python and fix.python and not satisfies(python, fix.python):
        return f"Python {python} is not {fix.python}"
    if device and device not in fix.devices:
        return f"only for {' and '.join(fix.devices)}"
    return ""
