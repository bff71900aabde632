"""What was played, as numbers: speed, memory and losses of every training.

Owns how a speed comes out of what ranks recorded. It must not judge: `stackyard.bench.judge` does.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stackyard.bench.plan import BenchPlan, Turn
from stackyard.judge_gpu import GpuObservation
from stackyard.outcome import Phase
from stackyard.record import Training


@dataclass(frozen=True, kw_only=True)
class Played:
    """One training that was played."""

    turn: Turn
    training: Training


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything a bench saw.

    Attributes:
        left_out: turns that were not played, with why.
        broken: what kept the bench from going on; empty when it went to its end.
        devices: names of the GPUs in rank order; empty on CPU ranks.
        gpu: what GPUs held before and after; None on CPU ranks.
    """

    run: str
    played: tuple[Played, ...] = ()
    left_out: Mapping[Turn, str] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    broken: str = ""
    devices: tuple[str, ...] = ()
    gpu: GpuObservation | None = None

    def find(self, side: str, ranks: int) -> list[Played]:
        """A side's trainings on that many ranks, in the order of rounds."""
        return [p for p in self.played if (p.turn.side, p.turn.ranks) == (side, ranks)]

    def groups(self) -> list[tuple[Played, ...]]:
        """The trainings that ran at the same time, in the order in which they did."""
        found: dict[str, list[Played]] = {}
        for played in self.played:
            found.setdefault(played.turn.name, []).append(played)
        return [tuple(group) for group in found.values()]


def window_speeds(training: Training) -> dict[int, float]:
    """Tokens a second of all ranks together, by the last update of each window.

    A window takes as long as it took the slowest rank. One that not all ranks recorded is left out.
    """
    ranks = list(training.ranks.values())
    if len(ranks) < training.wanted:
        return {}
    shared = set.intersection(*(set(rank.windows) for rank in ranks))
    found = {}
    for step in sorted(shared):
        windows = [rank.windows[step] for rank in ranks]
        seconds = max(window.seconds for window in windows)
        if seconds > 0:
            found[step] = sum(window.tokens for window in windows) / seconds
    return found


def speed(training: Training, warm: int) -> float | None:
    """The median over the windows after the warm-up; None where there is none."""
    counted = [value for step, value in window_speeds(training).items() if step > warm]
    return statistics.median(counted) if counted else None


def peak_bytes(training: Training) -> int | None:
    """The most memory that tensors took on any GPU in the whole training; None on CPU ranks."""
    peaks = [w.peak_bytes for rank in training.ranks.values() for w in rank.windows.values()]
    return max(peaks, default=0) or None


@dataclass(frozen=True, kw_only=True)
class Line:
    """What a side made on a number of ranks, over all rounds.

    Attributes:
        speed: tokens a second of all ranks of one training: the median of the rounds; None where
            none was measured.
        speeds: of each round: the mean of the trainings that ran at the same time.
        ratio: to the side it is held against, on as many ranks.
        scaling: speed(n) / (n x speed(1)).
        peak_bytes: the most of any GPU in any round.
    """

    side: str
    ranks: int
    speed: float | None
    speeds: tuple[float, ...]
    ratio: float | None
    scaling: float | None
    peak_bytes: int | None


def lines(plan: BenchPlan, seen: Seen) -> tuple[Line, ...]:
    """One for each side and number of ranks, in the order of numbers."""
    speeds = {
        (side.name, ranks): _speeds(plan, seen, side.name, ranks)
        for ranks in plan.counts
        for side in plan.sides
    }
    medians = {key: statistics.median(found) if found else None for key, found in speeds.items()}
    found = []
    for (name, ranks), value in medians.items():
        trainings = [played.training for played in seen.find(name, ranks)]
        against = plan.bench.against(plan.bench.side(name))
        found.append(
            Line(
                side=name,
                ranks=ranks,
                speed=value,
                speeds=speeds[name, ranks],
                ratio=_ratio(value, medians.get((against, ranks))),
                scaling=_ratio(value, medians.get((name, 1)), times=ranks),
                peak_bytes=max((peak_bytes(t) or 0 for t in trainings), default=0) or None,
            )
        )
    return tuple(found)


def group_speed(group: Sequence[Played], warm: int) -> float | None:
    """The mean of trainings that ran at the same time.

    None unless all of them were timed to their end: fewer are not the load that was asked for.
    """
    found = [None if p.training.failed else speed(p.training, warm) for p in group]
    timed = [value for value in found if value is not None]
    whole = bool(group) and len(timed) == group[0].turn.groups
    return statistics.fmean(timed) if whole else None


def _speeds(plan: BenchPlan, seen: Seen, side: str, ranks: int) -> tuple[float, ...]:
    groups = (g for g in seen.groups() if (g[0].turn.side, g[0].turn.ranks) == (side, ranks))
    found = (group_speed(group, plan.size.warm) for group in groups)
    return tuple(value for value in found if value is not None)


def _ratio(value: float | None, other: float | None, times: int = 1) -> float | None:
    return value / (times * other) if value and other else None
