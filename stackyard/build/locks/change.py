"""Compare two versions of a lock: packages added, removed or moved, and changed files.

Owns the comparison and its text. Pure: both texts are arguments. It must not find or write locks:
`build.locks.locking` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from packaging.version import InvalidVersion, Version

from stackyard.definitions import lock

_IMAGE = "the image"
_OF_WHEEL = "the wheel of "


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Describe a package with a new version; `way` is the result of `direction`."""

    name: str
    old: str
    new: str
    way: str


@dataclass(frozen=True, kw_only=True)
class Rehashed:
    """Describe a package with the same version, but other files.

    Attributes:
        gone: hashes that the index no longer offers: files were yanked or uploaded again.
        new: hashes of files that were added to the release.
    """

    name: str
    version: str
    gone: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LockChange:
    """Describe the difference between a lock and the one before it.

    Attributes:
        subject: what the lock is of: a stack, the torch layer or the image of a base, or a wheel.
        base: empty for a wheel, whose lock serves every base.
        first: there was no lock before.
        redeclared: its definitions (packages, fixes, base) have changed.
    """

    path: str
    subject: str
    base: str
    first: bool
    redeclared: bool
    added: Mapping[str, str]
    removed: Mapping[str, str]
    moved: tuple[Moved, ...]
    rehashed: tuple[Rehashed, ...]

    @property
    def nothing(self) -> bool:
        """Say if both locks hold the same packages with the same hashes."""
        return not (self.first or self.added or self.removed or self.moved or self.rehashed)


def compare_locks(path: str, old: str | None, new: str) -> LockChange:
    """Compare two texts of one lock file; `old` is None where there was none."""
    before = {item.name: item for item in lock.parse_lock(old or "")}
    after = {item.name: item for item in lock.parse_lock(new)}
    both = sorted(set(before) & set(after))
    subject, base = subject_of(path)
    subject = _IMAGE if lock.locked_digest(new) else subject
    return LockChange(
        path=path,
        subject=subject,
        base=base,
        first=old is None,
        redeclared=old is not None and lock.locked_inputs(old) != lock.locked_inputs(new),
        added={name: after[name].version for name in sorted(set(after) - set(before))},
        removed={name: before[name].version for name in sorted(set(before) - set(after))},
        moved=tuple(
            Moved(
                name=name,
                old=before[name].version,
                new=after[name].version,
                way=direction(before[name].version, after[name].version),
            )
            for name in both
            if before[name].version != after[name].version
        ),
        rehashed=tuple(
            Rehashed(
                name=name,
                version=after[name].version,
                gone=tuple(sorted(set(before[name].hashes) - set(after[name].hashes))),
                new=tuple(sorted(set(after[name].hashes) - set(before[name].hashes))),
            )
            for name in both
            if before[name].version == after[name].version
            and set(before[name].hashes) != set(after[name].hashes)
        ),
    )


def direction(old: str, new: str) -> str:
    """Return `up` or `down` by PEP 440, or `to` where it orders neither before the other."""
    try:
        before, after = Version(old), Version(new)
    except InvalidVersion:
        return "to"
    if before == after:
        return "to"
    return "up" if after > before else "down"


def subject_of(path: str) -> tuple[str, str]:
    """Return what a lock file is of, and its base (empty for a wheel), from its path."""
    _, folder, file = path.split("/")
    name = file.removesuffix(".lock")
    if folder == "bases":
        return "the torch layer", name
    if folder != "wheels":
        return folder, name
    return f"{_OF_WHEEL}{name}", ""


# Its key `from` is a word of Python.
MoveValue = TypedDict("MoveValue", {"name": str, "from": str, "to": str, "way": str})


class RehashedValue(TypedDict):
    """Hold a package whose version has other files than before."""

    name: str
    version: str
    gone: list[str]
    new: list[str]


class LockChanged(TypedDict):
    """Hold how one lock changed."""

    lock: str
    of: str
    base: str
    first: bool
    redeclared: bool
    added: dict[str, str]
    removed: dict[str, str]
    moved: list[MoveValue]
    rehashed: list[RehashedValue]


def change_value(change: LockChange) -> LockChanged:
    """Return a change as data, for `--json`."""
    return {
        "lock": change.path,
        "of": change.subject,
        "base": change.base,
        "first": change.first,
        "redeclared": change.redeclared,
        "added": dict(change.added),
        "removed": dict(change.removed),
        "moved": [{"name": m.name, "from": m.old, "to": m.new, "way": m.way} for m in change.moved],
        "rehashed": [
            {"name": r.name, "version": r.version, "gone": list(r.gone), "new": list(r.new)}
            for r in change.rehashed
        ],
    }


def change_lines(changes: Iterable[LockChange]) -> list[str]:
    """Return all changes as text: changed locks in detail, the others in one line a base."""
    lines: list[str] = []
    same: dict[str, list[str]] = {}
    for change in changes:
        if change.nothing and not change.redeclared:
            same.setdefault(change.base, []).append(change.subject)
            continue
        lines.append(f"{change.subject}{_on(change.base)}: {_summary(change)}")
        lines += [f"  {line}" for line in _details(change)]
    for base, subjects in same.items():
        shown = subjects if base else [_count(len(subjects), "wheel")]
        lines.append(f"nothing changed{_on(base)}: {', '.join(shown)}")
    return lines


def _on(base: str) -> str:
    return f" on {base}" if base else ""


def _summary(change: LockChange) -> str:
    if change.first:
        return f"locked for the first time, {_count(len(change.added), 'package')}"
    if change.nothing:
        return "the same packages, from changed definitions"
    counted = (
        (len(change.added), "added"),
        (len(change.removed), "removed"),
        (sum(m.way == "up" for m in change.moved), "up"),
        (sum(m.way == "down" for m in change.moved), "down"),
        (sum(m.way == "to" for m in change.moved), "renumbered"),
        (len(change.rehashed), "with other files"),
    )
    return ", ".join(f"{number} {word}" for number, word in counted if number)


def _details(change: LockChange) -> list[str]:
    if change.first and change.subject == _IMAGE:
        return []  # hundreds of packages that nobody has chosen
    return [
        *(f"added    {name} {version}" for name, version in change.added.items()),
        *(f"removed  {name} {version}" for name, version in change.removed.items()),
        *(f"{m.way:<8} {m.name} {m.old} -> {m.new}" for m in change.moved),
        *(_rehash_line(entry) for entry in change.rehashed),
    ]


def _rehash_line(entry: Rehashed) -> str:
    what = f"{entry.name} {entry.version}"
    if not entry.gone:
        return f"files    {what}: {_count(len(entry.new), 'file')} more of the same version"
    more = f", {len(entry.new)} new" if entry.new else ""
    why = "files of a release were uploaded again" if entry.new else "files of a release were taken"
    return f"WARNING  {what}: {_count(len(entry.gone), 'hash', 'hashes')} gone{more}: {why}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
