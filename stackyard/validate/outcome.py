"""A finished smoke: what was seen, how it was judged, how long each part took. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from stackyard.validate import judge


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One timed part of a smoke."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished smoke."""

    run: str
    checks: tuple[judge.Check, ...]
    phases: tuple[Phase, ...]
    observation: judge.Observation

    @property
    def verdict(self) -> str:
        """`passed`, `failed` or `not run`."""
        return judge.verdict(self.checks)
