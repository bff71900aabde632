"""Define a finished smoke: its observations, its checks, and the time of each phase.

Values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stackyard.validate.checks import Check, OutcomeWord, verdict
from stackyard.validate.judge_gpu import GpuObservation
from stackyard.validate.record import Training


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Hold everything that a smoke observed.

    Attributes:
        environment: variables that every node's containers were started with.
        own: further variables of single nodes, by node.
        gpu: observations that only a smoke on GPUs makes; None on CPU ranks.
        recorded: losses of the reference layout on CPU ranks, to compare GPUs with.
        reach: answers of the logins that must work, by source and target node.
        refusals: answers of the logins that must fail, by name.
        trainings: the uninterrupted training of each layout.
        installed: versions by name, of `python` and `debian`, as found in node 1's image.
        broken: why the smoke could not go on; empty if it ran to its end.
        no_logins: why there are no logins between nodes where a launch has none; else empty.
    """

    nodes: tuple[str, ...]
    environment: Mapping[str, str]
    pairs: tuple[tuple[str, str], ...] = ()
    reach: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sessions: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    refusals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trainings: Mapping[str, Training] = field(default_factory=dict)
    killed: Training | None = None
    resumed: Training | None = None
    broken: str = ""
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpu: GpuObservation | None = None
    recorded: Mapping[int, float] = field(default_factory=dict)
    installed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    no_logins: str = ""

    @property
    def everything(self) -> dict[str, Training]:
        """Return all trainings by name: the layouts', the killed one if not among them, resumed."""
        found = dict(self.trainings)
        if self.killed and self.killed not in self.trainings.values():
            found[f"{self.killed.layout}, killed"] = self.killed
        if self.resumed:
            found[f"{self.resumed.layout}, resumed"] = self.resumed
        return found


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Hold one timed part of a smoke.

    Attributes:
        at: when it began, in seconds after the start of the whole.
    """

    name: str
    seconds: float
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Hold a finished smoke."""

    run: str
    checks: tuple[Check, ...]
    phases: tuple[Phase, ...]
    observation: Observation

    @property
    def verdict(self) -> OutcomeWord:
        """Return `passed`, `failed` or `not run`."""
        return verdict(self.checks)
