"""Compute the results of a bench from its trainings: speed, start-up, pauses and memory.

Owns how a speed follows from the ranks' records. It must not judge: `validate.bench.judge` does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stackyard.validate.bench.plan import BenchPlan, Turn
from stackyard.validate.judge_gpu import GpuObservation
from stackyard.validate.outcome import Phase
from stackyard.validate.record import Training

# Updates that belong to the start-up: code is compiled, allocators and clocks settle.
START = 10
# An update is compared with this many on either side of it.
NEIGHBOURS = 3


@dataclass(frozen=True, kw_only=True)
class Played:
    """Hold one training that ran."""

    turn: Turn
    training: Training


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Hold everything that a bench observed.

    Attributes:
        left_out: turns that did not run, with the reason.
        broken: why the bench could not go on; empty if it ran to its end.
        devices: names of the GPUs in rank order; empty on CPU ranks.
        gpu: memory in use on GPUs before and after; None on CPU ranks.
    """

    run: str
    played: tuple[Played, ...] = ()
    left_out: Mapping[Turn, str] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    broken: str = ""
    devices: tuple[str, ...] = ()
    gpu: GpuObservation | None = None

    def find(self, side: str, ranks: int) -> list[Played]:
        """Return a side's trainings on this many ranks, in the order of rounds."""
        return [p for p in self.played if (p.turn.side, p.turn.ranks) == (side, ranks)]

    def groups(self) -> list[tuple[Played, ...]]:
        """Return the groups of trainings that ran at the same time, in the order of their runs."""
        found: dict[str, list[Played]] = {}
        for played in self.played:
            found.setdefault(played.turn.name, []).append(played)
        return [tuple(group) for group in found.values()]


def _windows(training: Training) -> dict[int, tuple[float, float]]:
    """Return tokens of all ranks together and seconds, by the last update of each window.

    A window takes as long as its slowest rank. One that not all ranks recorded is left out.
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
            found[step] = sum(window.tokens for window in windows), seconds
    return found


def window_speeds(training: Training) -> dict[int, float]:
    """Return tokens per second of all ranks together, by the last update of each window."""
    return {step: tokens / seconds for step, (tokens, seconds) in _windows(training).items()}


def speed(training: Training, warm: int) -> float | None:
    """Return the median speed of the windows after the warm-up; None if there are none."""
    counted = [value for step, value in window_speeds(training).items() if step > warm]
    return statistics.median(counted) if counted else None


def mean_speed(training: Training) -> float | None:
    """Return tokens a second over all updates after the start-up, with pauses; None without any."""
    windows = _windows(training)
    counted = [windows[step] for begin, step in pairwise([0, *windows]) if begin >= START]
    seconds = sum(taken for _, taken in counted)
    return sum(tokens for tokens, _ in counted) / seconds if counted else None


def update_seconds(training: Training) -> dict[int, float]:
    """Return seconds of each update on its slowest rank; none in older records."""
    found: dict[int, float] = {}
    for rank in training.ranks.values():
        for step, window in rank.windows.items():
            first = step - len(window.updates) + 1
            for update, seconds in enumerate(window.updates, start=first):
                found[update] = max(seconds, found.get(update, 0.0))
    return found


def longest_pause(training: Training) -> tuple[float, int] | None:
    """Return the longest pause after the start-up, in seconds, and its update.

    A pause is the excess over the median of the nearest updates on either side; a median, so that
    two pauses side by side do not hide each other. None if updates were not timed one by one.
    """
    seconds = {u: taken for u, taken in update_seconds(training).items() if u > START}
    found = []
    for update, taken in seconds.items():
        near = range(update - NEIGHBOURS, update + NEIGHBOURS + 1)
        others = [seconds[one] for one in near if one in seconds and one != update]
        if others:
            found.append((taken - statistics.median(others), update))
    return max(found, default=None)


def started(training: Training, update: int) -> float | None:
    """Return seconds from the launch to an update's end on its last rank; None if unrecorded."""
    found = []
    for rank in training.ranks.values():
        for step, window in rank.windows.items():
            after = step - update
            if training.began and window.time and 0 <= after < len(window.updates):
                later = sum(window.updates[len(window.updates) - after :])
                found.append(window.time - later - training.began)
    return max(found) if found and len(found) == training.wanted else None


def peak_bytes(training: Training) -> int | None:
    """Return the most memory that tensors took on any GPU in the training; None on CPU ranks."""
    peaks = [w.peak_bytes for rank in training.ranks.values() for w in rank.windows.values()]
    return max(peaks, default=0) or None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Hold what an update's time goes into, in seconds: the mean of all GPUs.

    Attributes:
        update: wall time of an update that counts.
        watched: that of one that a profiler watched, which the others are parts of.
        compute: the GPU runs a kernel that is none of NCCL's, or a copy.
        alone: it runs NCCL's only: it sends, or waits for another rank.
        idle: it runs nothing, between two kernels or because the host is late.
        beside: NCCL's kernels beside others, which they slow down.
    """

    update: float
    watched: float
    compute: float
    alone: float
    idle: float
    beside: float


def spent(trainings: Iterable[Training], plan: BenchPlan) -> Spent | None:
    """Return what an update's time goes into; None where a rank's GPU was not watched.

    Kernels were watched after the updates that count, whose time is the windows' median. A training
    that failed is left out.
    """
    work, seconds = [], []
    for training in trainings:
        timed = [taken for step, (_, taken) in _windows(training).items() if step > plan.size.warm]
        if training.failed or not timed:
            continue
        seconds.append(statistics.median(timed) / plan.size.window)
        work += [rank.work for rank in training.ranks.values()]
    watched = [one for one in work if one]
    if not watched or len(watched) < len(work):
        return None
    update = statistics.fmean(seconds)
    wall, busy, compute, sent = (
        statistics.fmean(getattr(one, name) for one in watched)
        for name in ("wall", "seconds", "compute", "communication")
    )
    return Spent(
        update=update, watched=wall, compute=compute, alone=busy - compute, idle=wall - busy,
        beside=compute + sent - busy,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Line:
    """Hold the results of a side on a number of ranks, over all rounds.

    Attributes:
        speed: tokens per second of all ranks of one training: the median of the rounds; None if
            none was measured.
        speeds: of each round: the mean of the trainings that ran at the same time.
        ratio: to the side it is compared with, on as many ranks.
        scaling: speed(n) / (n x speed(1)).
        peak_bytes: the most of any GPU in any round.
        mean: as `speed`, over all updates after the start-up.
        mean_ratio: as `ratio`, of `mean`.
        first, tenth: the longest time from a launch to the end of its update 1, and 10, in seconds.
        pause: the longest pause after the start-up, in seconds.
        spent: what an update's time goes into.
    """

    side: str
    ranks: int
    speed: float | None
    speeds: tuple[float, ...]
    ratio: float | None
    scaling: float | None
    peak_bytes: int | None
    mean: float | None = None
    mean_ratio: float | None = None
    first: float | None = None
    tenth: float | None = None
    pause: float | None = None
    spent: Spent | None = None


def lines(plan: BenchPlan, seen: Seen) -> tuple[Line, ...]:
    """Return a line for each side and number of ranks, in the order of numbers."""
    keys = [(side.name, ranks) for ranks in plan.counts for side in plan.sides]
    speeds = {key: _speeds(seen, *key, lambda one: speed(one, plan.size.warm)) for key in keys}
    medians = {key: _median(found) for key, found in speeds.items()}
    means = {key: _median(_speeds(seen, *key, mean_speed)) for key in keys}
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
                mean=means[name, ranks],
                mean_ratio=_ratio(means[name, ranks], means.get((against, ranks))),
                first=_most(started(t, 1) for t in trainings),
                tenth=_most(started(t, START) for t in trainings),
                pause=_most(p[0] if (p := longest_pause(t)) else None for t in trainings),
                spent=spent(trainings, plan),
            )
        )
    return tuple(found)


def group_speed(group: Sequence[Played], warm: int) -> float | None:
    """Return the mean speed of trainings at the same time, in windows after the warm-up."""
    return _group(group, lambda training: speed(training, warm))


def _group(group: Sequence[Played], measure: Callable[[Training], float | None]) -> float | None:
    """Return the mean of a measure over trainings that ran at the same time.

    None unless all of them were timed to their end: fewer are not the load that was asked for.
    """
    found = [None if p.training.failed else measure(p.training) for p in group]
    timed = [value for value in found if value is not None]
    whole = bool(group) and len(timed) == group[0].turn.groups
    return statistics.fmean(timed) if whole else None


def _speeds(
    seen: Seen, side: str, ranks: int, measure: Callable[[Training], float | None]
) -> tuple[float, ...]:
    groups = (g for g in seen.groups() if (g[0].turn.side, g[0].turn.ranks) == (side, ranks))
    found = (_group(group, measure) for group in groups)
    return tuple(value for value in found if value is not None)


def _median(found: Sequence[float]) -> float | None:
    return statistics.median(found) if found else None


def _most(found: Iterable[float | None]) -> float | None:
    return max((value for value in found if value is not None), default=None)


def _ratio(value: float | None, other: float | None, times: int = 1) -> float | None:
    return value / (times * other) if value and other else None
