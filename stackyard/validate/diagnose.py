"""Recognise known failures in the output of a training or a build.

Owns the order of the results: a cause before its consequences, the earliest first. Pure; the
failures that it recognises are data (`images/failures/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from stackyard.definitions.read.failures import KINDS
from stackyard.definitions.spec import Failure

MOST = 3
EVIDENCE_LENGTH = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_Line = tuple[int, str]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Describe a failure that was recognised.

    Attributes:
        evidence: the line that shows it, cut where it is very long.
        line: that line's number in its text, from 1.
        where: name of the text that it was found in.
    """

    failure: Failure
    evidence: str
    line: int
    where: str = ""


def diagnose(text: str, failures: Iterable[Failure], step: str = "") -> tuple[Diagnosis, ...]:
    """Return the failures recognised in one text: causes first, at most `MOST`."""
    return diagnose_all({"": text}, failures, step)


def diagnose_all(
    texts: Mapping[str, str], failures: Iterable[Failure], step: str = ""
) -> tuple[Diagnosis, ...]:
    """Return the failures recognised in several named texts of one run, each failure once.

    Only failures that can occur in `step` are looked for; all where the step is not known (empty).

    Failures that another one brings about are left out, also if they are in different texts: the
    rank that ran out of memory and the one that lost its peer seldom write to the same log.
    """
    known = tuple(one for one in failures if not step or step in one.steps)
    found: dict[str, tuple[int, Diagnosis]] = {}
    for place, (where, text) in enumerate(texts.items()):
        for diagnosis in _find(text, known, where):
            found.setdefault(diagnosis.failure.id, (place, diagnosis))
    brought = {other for _, diagnosis in found.values() for other in diagnosis.failure.brings}
    left = [entry for name, entry in found.items() if name not in brought]
    left.sort(key=lambda entry: (KINDS.index(entry[1].failure.kind), entry[0], entry[1].line))
    return tuple(diagnosis for _, diagnosis in left[:MOST])


def _find(text: str, failures: Sequence[Failure], where: str) -> list[Diagnosis]:
    text = _COLOUR.sub("", text)
    # A progress bar writes its line again and again: each time counts as the same line.
    lines = [(n, part) for n, line in enumerate(text.split("\n"), 1) for part in line.split("\r")]
    found = []
    for failure in failures:
        seen = _evidence(failure, text, lines)
        if seen is not None:
            number, line, start = seen
            evidence = _cut(line, start)
            found.append(Diagnosis(failure=failure, evidence=evidence, line=number, where=where))
    return found


def _evidence(failure: Failure, text: str, lines: Sequence[_Line]) -> tuple[int, str, int] | None:
    """Return the first line that shows a failure (number, text, column); None if no line does."""
    needed = [_first(pattern, text, lines) for pattern in failure.all_of]
    either = [_first(pattern, text, lines) for pattern in failure.any_of]
    shown = [seen for seen in (*either, *needed) if seen is not None]
    if None in needed or (failure.any_of and not any(either)):
        return None
    return min(shown)


def _first(pattern: str, text: str, lines: Sequence[_Line]) -> tuple[int, str, int] | None:
    compiled = re.compile(pattern, re.MULTILINE)
    if compiled.search(text) is None:  # one search of all text is much faster than many of lines
        return None
    for number, line in lines:
        match = compiled.search(line)
        if match:
            return number, line, match.start()
    return None


def _cut(line: str, start: int) -> str:
    """Return the part of a very long line around the place where the pattern was found."""
    if len(line) <= EVIDENCE_LENGTH:
        return line.strip()
    first = max(0, min(start - 60, len(line) - EVIDENCE_LENGTH))
    part = line[first : first + EVIDENCE_LENGTH].strip()
    return ("..." if first else "") + part + ("..." if first + EVIDENCE_LENGTH < len(line) else "")


class DiagnosisValue(TypedDict):
    """Hold a recognised failure as data.

    Attributes:
        evidence: the line that gave it away, and `line` its number in its text.
        where: which text; empty where there is only one.
    """

    id: str
    title: str
    kind: str
    cause: str
    remedy: str
    threads: list[str]
    evidence: str
    line: int
    where: str


def diagnosis_value(diagnosis: Diagnosis) -> DiagnosisValue:
    """Return a diagnosis as data, for reports and `--json`."""
    failure = diagnosis.failure
    return {
        "id": failure.id,
        "title": failure.title,
        "kind": failure.kind,
        "cause": failure.cause,
        "remedy": failure.remedy,
        "threads": list(failure.threads),
        "evidence": diagnosis.evidence,
        "line": diagnosis.line,
        "where": diagnosis.where,
    }


def diagnosis_text(value: Mapping[str, Any]) -> str:
    """Return a diagnosis (as data) as a few lines of text."""
    place = f"{value['where']}, line {value['line']}" if value["where"] else f"line {value['line']}"
    mark = "" if value["kind"] == "cause" else f" ({value['kind']})"
    lines = [
        f"recognised: {value['title']}{mark} [{value['id']}]",
        f"  seen in {place}: {value['evidence']}",
        f"  why: {value['cause']}",
        f"  do: {value['remedy']}",
        *(f"  thread: {thread}" for thread in value["threads"]),
    ]
    return "\n".join(lines)
