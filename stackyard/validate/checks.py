"""Define a named check and its outcome.

Values only: it must not know what is checked; `judge`, `judge_gpu` and `judge_mesh` do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

OutcomeWord = Literal["passed", "failed", "not run"]
PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_RUN: Final = "not run"


@dataclass(frozen=True, kw_only=True)
class Check:
    """Hold one named check and its outcome.

    Attributes:
        measured: plain data; numbers stay numbers, also those that JSON lacks, and their keys name
            the unit (`left_bytes`, `busbw_gb_s`).
        expected: the same; bounds are `at_most` and `at_least`.
    """

    name: str
    outcome: OutcomeWord
    measured: Any
    expected: Any
    why: str = ""


def at_most(limit: float) -> dict[str, float]:
    """Return an upper bound for `expected`."""
    return {"at_most": limit}


def at_least(limit: float) -> dict[str, float]:
    """Return a lower bound for `expected`."""
    return {"at_least": limit}


def check(name: str, measured: Any, expected: Any, wrong: Sequence[str]) -> Check:
    """Return a check that was made: failed for the reasons in `wrong`, passed without any."""
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


def verdict(checks: Sequence[Check]) -> OutcomeWord:
    """Return `failed` if any check failed, `not run` if any was not run, else `passed`.

    No checks at all are `not run`.
    """
    outcomes = {check.outcome for check in checks}
    if FAILED in outcomes:
        return FAILED
    return PASSED if checks and NOT_RUN not in outcomes else NOT_RUN
