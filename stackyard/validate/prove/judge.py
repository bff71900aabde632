"""Judge what was observed of one proof.

Owns the verdicts. It must not run anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stackyard.validate.prove.plan import Proof

PROVEN = "proven"
STALE = "stale"
OTHER = "other symptom"
NOT_REPAIRED = "not repaired"
NOT_LEFT_OUT = "not left out"
_TIMED_OUT = (124, 137)


@dataclass(frozen=True, kw_only=True)
class Witnessed:
    """Hold the run of a witness: its exit code, both streams, seconds."""

    code: int
    output: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Hold the verdict on a proof.

    Attributes:
        word: `proven`, or what is wrong.
        why: what is wrong in a sentence; empty when it is proven.
        symptom: the line of the output that shows the recorded symptom; empty when none does.
        without: the run without the fix; None if it could not be left out.
    """

    proof: Proof
    word: str
    why: str
    symptom: str
    with_: Witnessed
    without: Witnessed | None

    @property
    def seconds(self) -> float:
        """Return the seconds of both runs."""
        return self.with_.seconds + (self.without.seconds if self.without else 0.0)


def judge(proof: Proof, with_: Witnessed, without: Witnessed | str) -> Verdict:
    """Return the verdict on one proof; `without` is a reason if the fix could not be left out."""
    seen = None if isinstance(without, str) else without
    symptom = "" if seen is None else symptom_line(proof.witness.fails_with, seen.output)
    word, why = _verdict(proof, with_, without, symptom)
    return Verdict(proof=proof, word=word, why=why, symptom=symptom, with_=with_, without=seen)


def _verdict(
    proof: Proof, with_: Witnessed, without: Witnessed | str, symptom: str
) -> tuple[str, str]:
    fix, limit = proof.kind == "fix", proof.kind == "limit"
    if with_.code != 0:
        how = "with the fix" if fix else "the right way"
        return NOT_REPAIRED, f"its witness fails {how}: {_ended(proof, with_)}"
    if isinstance(without, str):
        return NOT_LEFT_OUT, without
    how = "without the fix" if fix else "the wrong way"
    if without.code == 0:
        rest = "" if limit else ": the packages no longer need it, or the witness shows nothing"
        return STALE, f"its witness passes {how}{rest}"
    if without.code in _TIMED_OUT:
        return OTHER, f"its witness {_ended(proof, without)} {how}"
    if not symptom:
        said = f"{how} it says other than {proof.witness.fails_with!r}: {_ended(proof, without)}"
        return OTHER, said
    return PROVEN, ""


def _ended(proof: Proof, seen: Witnessed) -> str:
    if seen.code in _TIMED_OUT:
        return f"did not end in {proof.witness.seconds} s"
    lines = [line for line in seen.output.splitlines() if line.strip()]
    return (
        f"exit code {seen.code}, {lines[-1].strip()[:200]}" if lines else f"exit code {seen.code}"
    )


def symptom_line(pattern: str, output: str) -> str:
    """Return the whole last line of a pattern's match in an output; empty without a match."""
    match = re.search(pattern, output)
    if match is None:
        return ""
    start = output.rfind("\n", 0, max(match.end() - 1, 0)) + 1
    end = output.find("\n", match.end())
    return output[start : end if end >= 0 else None].strip() or match.group(0).strip()
