"""Whether a fix belongs to what is being built: versions, Python and device.

Owns the comparison, by PEP 440; it must not read files or decide what to do about the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stackyard.definitions.spec import Fix, Limit

_LONGEST = 200  # characters of a version or a specifier: more is not one


def specifier_problem(specifier: str) -> str:
    """Why `specifier` is not a PEP 440 specifier; empty when it is one."""
    if len(specifier) > _LONGEST:
        return f"it has more than {_LONGEST} characters"
    try:
        SpecifierSet(specifier)
    except InvalidSpecifier as error:
        return str(error)
    return ""


def version_problem(version: str) -> str:
    """Why `version` is not an exact PEP 440 version; empty when it is one."""
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
    """A distribution's name as locks have it."""
    return str(canonicalize_name(name))


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version (pre-releases and local versions included) satisfies a specifier."""
    return SpecifierSet(specifier).contains(Version(version), prereleases=True)


def why_not(
    fix: Fix | Limit, versions: Mapping[str, str], *, python: str = "", device: str = ""
) -> str:
    """Why a fix or a limit does not apply; empty when it does.

    Args:
        versions: locked (or pinned) version of each distribution, by canonical name.
        python: Python of the base, such as `3.11`; empty to leave it out of the question.
        device: `cpu` or `cuda`; empty to leave it out of the question.
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
