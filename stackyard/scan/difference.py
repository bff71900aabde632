"""Compare the files of two images, and name each difference with the package that it is of.

Owns what counts as a difference. Pure: it must not know how either image was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stackyard.scan.contents import FileEntry
from stackyard.scan.installed import DebianPackage, Distribution, Installed

MISSING, ADDED, KIND = "missing", "added", "kind"
SETTINGS = ("Env", "Entrypoint", "Cmd", "WorkingDir", "User", "ExposedPorts", "Volumes",
            "StopSignal", "Healthcheck", "Shell")  # fmt: skip
_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Hold what differs at one path.

    Attributes:
        path: with its leading slash; a setting of the image's configuration has none.
        what: `missing` or `added` in the second image, else each of `kind`, `content`, `mode`,
            `owner`, `link`, `time` and `attributes` that differs.
        package: the package that has the file, with its version; empty where none has.
    """

    path: str
    what: tuple[str, ...]
    package: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {', '.join(self.what)}"


def differences(one: Installed, other: Installed) -> tuple[Difference, ...]:
    """Return what differs between the files that containers of two images see, by path."""
    return tuple(_differences(one, other))


def _differences(one: Installed, other: Installed) -> Iterator[Difference]:
    before, after = one.contents.files, other.contents.files
    for path in sorted({*before, *after}):
        if path not in after:
            found: tuple[str, ...] = (MISSING,)
        elif path not in before:
            found = (ADDED,)
        else:
            found = _what(before[path].entry, after[path].entry)
        if found:
            whose = other if path not in before else one
            yield Difference(path=f"/{path}", what=found, package=_package(whose, path))


def _what(one: FileEntry, other: FileEntry) -> tuple[str, ...]:
    if _kind(one) != _kind(other):
        return (KIND,)
    # Of names that share a file, any may come first in a layer: only the content is compared.
    links = _kind(one) in ("symlink", "device")
    pairs: Mapping[str, tuple[Any, Any]] = {
        "content": ((one.sha256, one.size), (other.sha256, other.size)),
        "mode": (one.mode, other.mode),
        "owner": (one.owner, other.owner),
        "link": (one.link, other.link) if links else (None, None),
        "time": (one.mtime, other.mtime),
        "attributes": (one.attributes, other.attributes),
    }
    return tuple(name for name, (before, after) in pairs.items() if before != after)


def _kind(entry: FileEntry) -> str:
    return "file" if entry.kind == "hardlink" else entry.kind


def _package(whose: Installed, path: str) -> str:
    owner = whose.owners.get(path)
    if isinstance(owner, Distribution):
        return f"{owner.key} {owner.version} (Python)"
    return f"{owner.name} {owner.version} (Debian)" if isinstance(owner, DebianPackage) else ""


def setting_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the settings in which the configurations of two images differ.

    Labels are left out: they name the images, and the times at which these were made.
    """
    before, after = (value.get("config") or {} for value in (one, other))
    return tuple(
        Difference(path=f"configuration {name}", what=("content",))
        for name in SETTINGS
        if (before.get(name) or None) != (after.get(name) or None)
    )


def difference_lines(found: Sequence[Difference]) -> list[str]:
    """Return lines for people: differences by package, the first ones of each."""
    lines = []
    for package, number in Counter(one.package for one in found).most_common():
        of = [str(one) for one in found if one.package == package]
        lines.append(f"{package or 'of no package'}: {number} of {len(found)} differences")
        lines += [f"  {text}" for text in of[:_SHOWN]]
        if number > _SHOWN:
            lines.append(f"  and {number - _SHOWN} more")
    return lines
