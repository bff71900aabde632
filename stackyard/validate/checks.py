"""A named check and its outcome. Values only; what is checked is `judge`'s and `judge_gpu`'s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One named check.

    Attributes:
        measured: plain data; numbers are numbers, also those that JSON lacks, and what they are of
            is in their names (`left_bytes`, `busbw_gb_s`).
        expected: the same; bounds are `at_most` and `at_least`.
    """

    name: str
    outcome: str
    measured: Any
    expected: Any
    why: str = ""


def at_most(limit: float) -> dict[str, float]:
    """Return an upper bound, as `expected` has it."""
    return {"at_most": limit}


def at_least(limit: float) -> dict[str, float]:
    """Return a lower bound, as `expected` has it."""
    return {"at_least": limit}


def check(name: str, measured: Any, expected: Any, wrong: Sequence[str]) -> Check:
    """A check that was made: failed for the reasons in `wrong`, passed where there are none."""
    return Check(
        name=name,
        outcome=FAILED if wrong else PASSED,
        measured=measured,
        expected=expected,
        why="; ".join(wrong),
    )


def not_run(name: str, expected: Any, why: str, measured: Any = None) -> Check:
    """Return a check that could not be made, with the reason and any figures that there are."""
    return Check(name=name, outcome=NOT_RUN, measured=measured, expected=expected, why=why)


def verdict(checks: Sequence[Check]) -> str:
    """`failed` when any check failed, `not run` when any was not run, else `passed`."""
    outcomes = {check.outcome for check in checks}
    for outcome in (FAILED, NOT_RUN):
        if outcome in outcomes:
            return outcome
    return PASSED if checks else NOT_RUN
