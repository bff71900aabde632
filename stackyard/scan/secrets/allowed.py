"""Read `images/gate.yml`: the public secrets that may be published, in which file, and why.

Owns that file's format, and which findings an entry allows. It must not look for secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stackyard.definitions import document
from stackyard.scan.secrets.rules import SECRETS
from stackyard.system.errors import DefinitionError, Problem

_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Allow some public secrets in one file.

    Attributes:
        path: matches the whole path of the files that hold them.
        digests: their fingerprints, as findings name them; no other secret is allowed.
        why: who ships them, and why they are public.
    """

    path: re.Pattern[str]
    rule: str
    digests: frozenset[str]
    why: str


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Hold all entries of `images/gate.yml`."""

    entries: tuple[Entry, ...] = ()

    def lets(self, rule: str, path: str, digest: str) -> bool:
        """Say if this secret may be published."""
        return any(
            entry.rule == rule and digest in entry.digests and entry.path.fullmatch(path)
            for entry in self.entries
        )


NOTHING = Allowed()


def read_allowed(text: str, file: str) -> Allowed:
    """Read the text of `images/gate.yml`; `file` is its name in problems.

    Raises:
        DefinitionError: with every problem and its line.
    """
    problems: list[Problem] = []
    top = document.parse_document(text, file=file, problems=problems)
    found = read_top(top) if top else NOTHING
    if problems:
        raise DefinitionError(problems)
    return found


def read_top(top: document.Mapping) -> Allowed:
    """Read the top mapping of `images/gate.yml`."""
    entries = tuple(_read_entry(one) for one in top.mappings("allowed"))
    if not top.has("allowed"):
        top.missing("allowed")
    top.done()
    return Allowed(entries=entries)


def _read_entry(one: document.Mapping) -> Entry:
    rule, path = one.one_of("rule", SECRETS), one.single_line("path")
    digests, why = one.texts("digests"), one.text("why")
    wrong = document.pattern_problem(path)
    if wrong:
        one.problem(f"not a regular expression: {path!r}: {wrong}", key="path")
    elif re.fullmatch(path, "/"):
        one.problem(f"fits every path: {path!r}", key="path")
    if not digests:
        one.problem("lets nothing through: give a fingerprint", key="digests")
    for digest in digests:
        if not _DIGEST.fullmatch(digest):
            one.problem(f"not 16 hexadecimal digits: {digest!r}", key="digests")
    if not why.strip() and one.has("why"):
        one.problem("must say who ships it and why it is public", key="why")
    one.done()
    return Entry(
        path=re.compile("" if wrong else path), rule=rule, digests=frozenset(digests), why=why
    )
