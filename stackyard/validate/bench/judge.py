"""Judge a bench: all sides must do the same training, each to its end.

Owns every failure message. Pure. It must not judge speed, as no bound holds on all machines; two
speeds can be compared only if both sides do the same work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stackyard.validate import judge_gpu
from stackyard.validate.bench.definition import Tolerance
from stackyard.validate.bench.plan import BenchPlan
from stackyard.validate.bench.result import START, Played, Seen, longest_pause, speed
from stackyard.validate.checks import Check, at_most, check, not_run
from stackyard.validate.judge_gpu import fused
from stackyard.validate.judge_training import (
    gaps,
    largest_gap,
    left_behind,
    never_joined,
    not_finite,
    unfinished,
)
from stackyard.validate.record import Training

# A later update that takes this many seconds more than its neighbours has compiled code again.
PAUSE_SECONDS = 1.0


def judge(plan: BenchPlan, seen: Seen) -> tuple[Check, ...]:
    """Return all checks, in a fixed order.

    `same_loss` is made only if there is something to compare; `steady`, `fused` and `freed` only on
    GPUs: the tiny size of CPU ranks says nothing about speed, and fused parts are for GPUs.
    """
    checks: list[Callable[[BenchPlan, Seen], Check]] = [trained, own_device]
    if any(plan.bench.against(side) != side.name for side in plan.sides):
        checks.append(same_loss)
    checks.append(no_strays)
    if plan.size.device == "cuda":
        checks += [steady, all_fused, freed]
    return tuple(one(plan, seen) for one in checks)


def trained(plan: BenchPlan, seen: Seen) -> Check:
    """Check that every turn ran to its last update, with finite losses that fall, and was timed."""
    turns = plan.turns()
    expected = {"trainings": len(turns), "updates": plan.size.updates}
    wrong = [seen.broken] if seen.broken else []
    for played in seen.played:
        label = played.turn.label
        wrong += [f"{label}: {reason}" for reason in _unfinished(played.training, plan)]
        if not played.training.failed and speed(played.training, plan.size.warm) is None:
            wrong.append(f"{label}: no window after update {plan.size.warm} was timed by all ranks")
    wrong += [f"{turn.label} did not run: {why}" for turn, why in seen.left_out.items()]
    known = {p.turn for p in seen.played} | set(seen.left_out)
    missing = [turn.label for turn in turns if turn not in known]
    if missing:
        wrong.append(f"did not run: {', '.join(missing)}")
    measured = {"trainings": len(seen.played), "updates": plan.size.updates}
    return check("trained", measured, expected, wrong)


def _unfinished(training: Training, plan: BenchPlan) -> list[str]:
    wrong, updates = unfinished(training, plan.updates), plan.size.updates
    if training.failed:
        return wrong
    wrong += never_joined(training)
    losses = training.losses
    if not losses or max(losses) != updates:
        return [*wrong, f"the last recorded update is {max(losses, default=0)}, not {updates}"]
    bad = not_finite(training)
    if bad:
        wrong.append(bad)
    elif losses[max(losses)] >= losses[min(losses)]:
        wrong.append(f"the loss does not fall ({losses[min(losses)]} to {losses[max(losses)]})")
    return wrong


def own_device(plan: BenchPlan, seen: Seen) -> Check:
    """Check that every rank sees the whole world, and on GPUs computes on one of its own.

    No other rank of the trainings that run at the same time may compute on it.
    """
    wrong: list[str] = []
    measured: dict[str, Any] = {}
    for played in seen.played:
        ranks, label = list(played.training.ranks.values()), played.turn.label
        measured[label] = {
            f"rank {r.rank}": [r.world_size, r.device, *([r.gpu] if r.gpu else [])] for r in ranks
        }
        for record in ranks:
            if record.world_size != played.turn.ranks:
                world = f"a world of {record.world_size}, not {played.turn.ranks}"
                wrong.append(f"{label}: rank {record.rank} sees {world}")
            if record.device.partition(":")[0] != plan.size.device:
                wrong.append(f"{label}: rank {record.rank} computes on {record.device}")
    if plan.size.device == "cuda":
        wrong += [sentence for group in seen.groups() for sentence in _shared_gpus(group)]
    expected = {"world": "as many as were started", "device": plan.size.device}
    if not seen.played:
        return not_run("own_device", expected, seen.broken or "nothing ran")
    return check("own_device", measured, expected, wrong)


def _shared_gpus(group: Sequence[Played]) -> list[str]:
    """Return what is wrong with the GPUs of trainings that ran at the same time."""
    wrong: list[str] = []
    users: dict[str, list[str]] = {}
    for played in group:
        for record in played.training.ranks.values():
            if not record.gpu:
                wrong.append(f"{played.turn.label}: rank {record.rank} does not name its GPU")
            else:
                users.setdefault(record.gpu, []).append(played.turn.label)
    for gpu, labels in users.items():
        if len(set(labels)) < len(labels):
            label = next(one for one in labels if labels.count(one) > 1)
            wrong.append(f"{label}: two ranks compute on one GPU ({gpu})")
        if len(set(labels)) > 1:
            names = " and ".join(sorted(set(labels)))
            wrong.append(f"{names} computed on one GPU at the same time ({gpu})")
    return wrong


def same_loss(plan: BenchPlan, seen: Seen) -> Check:
    """Check that every side has the losses of the side it is compared with, within bounds.

    All run on the same number of ranks. One program trained twice differs by itself, as sums on a
    GPU have no fixed order: the bounds count from the range that the trainings of the other side
    span at an update. The check also lists how wide that range gets.
    """
    expected = {side.name: _said(plan.size.bounds(side.name)) for side in plan.sides}
    wrong: list[str] = []
    measured: dict[str, Any] = {}
    for played in seen.played:
        others = _references(plan, seen, played)
        if not others:
            continue
        label, last = played.turn.label, plan.size.updates
        against = others[0].turn.label
        if len(others) > 1:
            against = f"all {len(others)} trainings of {others[0].turn.side}"
        bound = plan.size.bounds(played.turn.side)
        curves = [other.training.losses for other in others]
        found = _beyond(played.training.losses, curves, after=plan.size.warm)
        if last not in found:
            wrong.append(f"{label} has no losses in common with {against} to its end")
            continue
        worst, at = largest_gap(found)
        measured[label] = {
            "against": against,
            "largest": round(worst, 9),
            "at": at,
            "end": round(found[last], 9),
        }
        if worst > bound.curve:
            wrong.append(f"{label} differs from {against} by {worst:.3g} at update {at}")
        if found[last] > bound.end:
            wrong.append(f"{label} differs from {against} by {found[last]:.3g} at the end")
    if not measured and not wrong:
        why = seen.broken or "no two sides that are compared both ran"
        return not_run("same_loss", expected, why)
    return check("same_loss", {**measured, "rounds": _rounds(plan, seen)}, expected, wrong)


def steady(plan: BenchPlan, seen: Seen) -> Check:
    """Require that no update after the start-up takes much longer than its neighbours."""
    expected = {"longer_than_its_neighbours_s": at_most(PAUSE_SECONDS), "after_update": START}
    measured, wrong = {}, []
    for played in seen.played:
        if played.training.failed:
            continue
        label, found = played.turn.label, longest_pause(played.training)
        if found is None:
            wrong.append(f"{label}: its updates were not timed one by one")
            continue
        seconds, update = found
        measured[label] = {"seconds": round(seconds, 3), "at": update}
        if seconds > PAUSE_SECONDS:
            wrong.append(f"{label}: update {update} took {seconds:.1f} s more than its neighbours")
    if not measured and not wrong:
        return not_run("steady", expected, seen.broken or "no training came to its end")
    return check("steady", measured, expected, wrong)


def all_fused(plan: BenchPlan, seen: Seen) -> Check:
    """Check that every fused part that is on and has work runs, on all ranks."""
    expected = {side.name: list(side.fused) or "all that are on" for side in plan.sides}
    found = [
        fused(
            [(p.turn.label, p.training)],
            seen.broken,
            {p.training.layout: plan.bench.side(p.turn.side).fused},
        )
        for p in seen.played
        if p.training.ranks
    ]
    if not found:
        return not_run("fused", expected, seen.broken or "nothing ran")
    measured = {label: said for one in found for label, said in one.measured.items()}
    return check("fused", measured, expected, [one.why for one in found if one.why])


def _said(bound: Tolerance) -> dict[str, Any]:
    return {"largest": at_most(bound.curve), "end": at_most(bound.end)}


def _references(plan: BenchPlan, seen: Seen, played: Played) -> list[Played]:
    """Return the trainings to compare with: all of the other side on as many ranks."""
    against = plan.bench.against(plan.bench.side(played.turn.side))
    if against == played.turn.side or played.training.failed:
        return []
    return [p for p in seen.find(against, played.turn.ranks) if not p.training.failed]


def _beyond(
    one: Mapping[int, float], others: Sequence[Mapping[int, float]], *, after: int
) -> dict[int, float]:
    """Return how far a curve lies outside the range of others, at the updates that all have.

    A loss that is no number counts as infinitely far.
    """
    found = {}
    for at in sorted(set(one).intersection(*others)):
        if at > after:
            theirs = [other[at] for other in others]
            gap = max(min(theirs) - one[at], one[at] - max(theirs), 0.0)
            found[at] = gap if math.isfinite(one[at] + sum(theirs)) else math.inf
    return found


def _rounds(plan: BenchPlan, seen: Seen) -> dict[str, float]:
    """Return the largest difference between two trainings of one side, by side and ranks."""
    found = {}
    for name in {plan.bench.against(side): None for side in plan.sides}:
        for ranks in plan.counts:
            played = [p.training.losses for p in seen.find(name, ranks) if not p.training.failed]
            apart = [
                gap
                for number, one in enumerate(played)
                for other in played[:number]
                for gap in gaps(one, other, after=plan.size.warm).values()
            ]
            if apart:
                found[f"{name}-{ranks}"] = round(max(apart), 9)
    return found


def no_strays(plan: BenchPlan, seen: Seen) -> Check:
    """Check that no process is left behind, however a training ended."""
    groups = {
        ", ".join(played.turn.label for played in group): [played.training for played in group]
        for group in seen.groups()
    }
    return left_behind(groups, seen.broken)


def freed(plan: BenchPlan, seen: Seen) -> Check:
    """Check that GPUs hold no more memory than before the bench."""
    return judge_gpu.freed(seen.gpu, seen.broken)
