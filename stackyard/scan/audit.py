"""Judge what is known of vulnerabilities in an image's packages, and what the project accepts.

Owns findings, `images/accepted.yml` and the verdict. Pure: answers of the indexes and today's date
are arguments; `scan.advisories` asks the indexes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from stackyard.definitions import document
from stackyard.scan.installed import DebianPackage
from stackyard.system.errors import DefinitionError, Problem, ReleaseError

ACCEPTED = "images/accepted.yml"
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Accept one vulnerability of one package for some time.

    Attributes:
        id: the vulnerability or an alias of it; of a system package the version that fixes it.
        until: the last day on which it is accepted.
        why: the reason.
    """

    package: str
    id: str
    until: date
    why: str


@dataclass(frozen=True, kw_only=True)
class Vulnerability:
    """Hold one known vulnerability of one package.

    Attributes:
        ids: its names; of a system package the version that fixes it.
        fixed: the versions without it; none where no fix is known.
        accepted: the entry that accepts it today.
    """

    package: str
    version: str
    ids: tuple[str, ...]
    fixed: tuple[str, ...]
    accepted: Entry | None = None

    @property
    def blocks(self) -> bool:
        """Return whether it blocks a publication: a fix is known, and nobody accepted it."""
        return bool(self.fixed) and self.accepted is None

    def value(self) -> dict[str, Any]:
        """Return the finding as data for JSON."""
        entry = self.accepted
        accepted = {"until": entry.until.isoformat(), "why": entry.why} if entry else None
        return {
            "package": self.package, "version": self.version, "ids": list(self.ids),
            "fixed": list(self.fixed), "accepted": accepted,
        }  # fmt: skip

    def __str__(self) -> str:
        fix = f"fixed in {', '.join(self.fixed)}" if self.fixed else "no fix is known"
        entry = f"; accepted until {self.accepted.until}" if self.accepted else ""
        return f"{self.package} {self.version}: {', '.join(self.ids)}, {fix}{entry}"


@dataclass(frozen=True, kw_only=True)
class IndexAnswer:
    """Hold the answer of one index.

    Attributes:
        packages: number of packages that were looked up.
        why: the reason for a part that was not run; empty for one that was.
        skipped: packages that the index cannot be asked about.
    """

    name: str
    packages: int = 0
    findings: tuple[Vulnerability, ...] = ()
    why: str = ""
    skipped: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """Return the outcome; a part that was not run has not passed."""
        if self.why:
            return NOT_RUN
        return FAILED if any(one.blocks for one in self.findings) else PASSED

    def value(self) -> dict[str, Any]:
        """Return the part as data for JSON."""
        return {
            "name": self.name, "outcome": self.outcome, "packages": self.packages,
            "why": self.why, "skipped": list(self.skipped),
            "found": [one.value() for one in self.findings],
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Hold the judged answers of all indexes."""

    day: date
    parts: tuple[IndexAnswer, ...]

    @property
    def outcome(self) -> str:
        """Return the worst outcome of all parts."""
        found = {part.outcome for part in self.parts}
        return next((one for one in (FAILED, NOT_RUN) if one in found), PASSED)

    def value(self) -> dict[str, Any]:
        """Return the audit as data for JSON and a release's statement."""
        return {
            "day": self.day.isoformat(), "outcome": self.outcome,
            "parts": [part.value() for part in self.parts],
        }  # fmt: skip


def judge(parts: Iterable[IndexAnswer], accepted: Sequence[Entry], today: date) -> Audit:
    """Return what the indexes answered, with what the project accepts today."""
    return Audit(
        day=today,
        parts=tuple(
            replace(
                part,
                findings=tuple(
                    replace(one, accepted=_accepting(one, accepted, today)) for one in part.findings
                ),
            )
            for part in parts
        ),
    )


def _accepting(found: Vulnerability, accepted: Sequence[Entry], today: date) -> Entry | None:
    for entry in accepted:
        if entry.package == found.package and entry.id in found.ids and today <= entry.until:
            return entry
    return None


def require_fixed(audit: Audit, name: str) -> None:
    """Check that no finding blocks a publication.

    Raises:
        ReleaseError: lists those that do, 40 of them at most.
    """
    blocking = [str(one) for part in audit.parts for one in part.findings if one.blocks]
    if not blocking:
        return
    more = [f"and {len(blocking) - 40} more"] if len(blocking) > 40 else []
    raise ReleaseError(
        f"{name} has known vulnerabilities that newer versions fix: {len(blocking)}",
        why="\n".join([*blocking[:40], *more]),
        hint="invoke lock, build and smoke it again (a base: invoke build --no-cache);"
        f" what stays is named in {ACCEPTED}, with a reason and a last day",
    )


# What the project accepts


def read_accepted(text: str, file: str = ACCEPTED) -> tuple[Entry, ...]:
    """Read the text of `images/accepted.yml`; `file` is its name in problems.

    Raises:
        DefinitionError: with every problem and its line.
    """
    problems: list[Problem] = []
    top = document.parse_document(text, file=file, problems=problems)
    entries = read_top(top) if top else ()
    if problems:
        raise DefinitionError(problems)
    return entries


def read_top(top: document.Mapping) -> tuple[Entry, ...]:
    """Return what the top mapping of `images/accepted.yml` accepts."""
    entries = tuple(_read_entry(one) for one in top.mappings("accepted"))
    if not top.has("accepted"):
        top.missing("accepted")
    top.done()
    return entries


def _read_entry(one: document.Mapping) -> Entry:
    package, name = one.single_line("package"), one.single_line("id")
    said, why = one.single_line("until"), one.text("why")
    until = date.min
    try:
        until = date.fromisoformat(said)
    except ValueError:
        if said:
            one.problem(f"not a day such as 2027-01-31: {said!r}", key="until")
    if one.has("why") and not why.strip():
        one.problem("must say why it is accepted", key="why")
    one.done()
    return Entry(package=package, id=name, until=until, why=why)


# Answers of the indexes


def python_findings(answer: str) -> tuple[Vulnerability, ...]:
    """Read the JSON of `pip-audit --format json`.

    Raises:
        ValueError: it is something else.
    """
    try:
        return tuple(
            Vulnerability(
                package=str(one["name"]), version=str(one["version"]),
                ids=(str(hole["id"]), *map(str, hole["aliases"])),
                fixed=tuple(map(str, hole["fix_versions"])),
            )
            for one in json.loads(answer)["dependencies"]
            for hole in one.get("vulns", ())
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no answer of pip-audit: {error!r}") from error


def system_findings(packages: Iterable[DebianPackage], index: str) -> tuple[Vulnerability, ...]:
    """Return the packages for which a security suite's Packages index has a newer version."""
    newest: dict[str, str] = {}
    for name, version in _stanzas(index):
        if name not in newest or _order(version) > _order(newest[name]):
            newest[name] = version
    return tuple(
        Vulnerability(package=one.name, version=one.version, ids=(fix,), fixed=(fix,))
        for one in packages
        if (fix := newest.get(one.name, "")) and _order(fix) > _order(one.version)
    )


def _stanzas(index: str) -> Iterator[tuple[str, str]]:
    for stanza in index.split("\n\n"):
        fields: Mapping[str, str] = dict(
            re.findall(r"^(Package|Version): *(\S+)", stanza, re.MULTILINE)
        )
        if len(fields) == 2:
            yield fields["Package"], fields["Version"]


Rank = tuple[tuple[tuple[int, ...], int], ...]


def _order(version: str) -> tuple[int, Rank, Rank]:
    """Return the sort key of a Debian version (deb-version(7))."""
    epoch, colon, rest = version.partition(":")
    rest = rest if colon else version
    upstream, hyphen, revision = rest.rpartition("-")
    upstream = upstream if hyphen else rest
    number = int(epoch) if colon and epoch.isdecimal() else 0
    return number, _rank(upstream), _rank(revision if hyphen else "")


def _rank(text: str) -> Rank:
    # Where one ends, `~` sorts before the end, letters after it, and other characters after those.
    parts = [*re.findall(r"(\D*)(\d*)", text)[:-1], ("", "")]
    return tuple(
        ((*(_weight(one) for one in letters), 0), int(digits or 0)) for letters, digits in parts
    )


def _weight(letter: str) -> int:
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256
