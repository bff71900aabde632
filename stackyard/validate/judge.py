"""Judge a smoke by named checks, each with what was measured and what was expected.

Owns every threshold and every failure message. Pure: it sees only what was recorded. A check that
could not be made is `not run`; so is the verdict, unless another check failed. A check of something
that a launch does not have is none of its checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stackyard.definitions.spec import Smoke
from stackyard.validate.checks import Check, at_least, at_most, check, not_run
from stackyard.validate.judge_gpu import judge_gpu
from stackyard.validate.judge_mesh import mesh
from stackyard.validate.judge_training import (
    gaps,
    largest_gap,
    left_behind,
    never_joined,
    not_finite,
    unfinished,
)
from stackyard.validate.outcome import Observation
from stackyard.validate.record import Training

MIN_UPDATES = 40
LOSS_RATIO = 0.7


def judge(smoke: Smoke, seen: Observation) -> tuple[Check, ...]:
    """Return all checks that apply, in a fixed order."""
    checks: Sequence[Callable[[Smoke, Observation], Check]] = (
        *(() if seen.no_logins else (mesh,)),
        world_size, loss_falls, ranks_agree, parity, resume_equal, no_strays,
    )  # fmt: skip
    found = tuple(one(smoke, seen) for one in checks)
    if seen.gpu is None:
        return found
    parts = {layout.name: smoke.fused_of(layout.name) for layout in smoke.layouts}
    return (*found, *judge_gpu(seen.gpu, list(seen.everything.items()), seen.broken, parts))


def not_applicable(seen: Observation) -> dict[str, str]:
    """Return the checks of something that this launch does not have, each with the reason."""
    return {mesh.__name__: seen.no_logins} if seen.no_logins else {}


def _not_run(name: str, expected: Any, seen: Observation, missing: str) -> Check:
    return not_run(name, expected, seen.broken or missing)


def world_size(smoke: Smoke, seen: Observation) -> Check:
    """Check that all ranks joined one world: launchers can start lone jobs and exit 0."""
    expected = {layout.name: layout.ranks for layout in smoke.layouts}
    if not seen.trainings:
        return _not_run("world_size", expected, seen, "nothing was trained")
    wrong, measured = [], {}
    for name, training in seen.everything.items():
        views = {f"rank {r.rank}": r.world_size for r in training.ranks.values()}
        measured[name] = views
        wrong += [f"{name}: {reason}" for reason in never_joined(training)]
        hosts = {record.host for record in training.ranks.values()}
        if len(training.ranks) == training.wanted and len(hosts) != len(training.nodes):
            wrong.append(f"{name}: all ranks ran on {', '.join(sorted(hosts))}")
        for view, size in views.items():
            if size != training.wanted:
                wrong.append(f"{name}: {view} sees a world of {size}, not {training.wanted}")
    return check("world_size", measured, expected, wrong)


def loss_falls(smoke: Smoke, seen: Observation) -> Check:
    """Check that every layout trains to its end, with finite losses that fall."""
    expected = {"updates": at_least(MIN_UPDATES), "last/first": at_most(LOSS_RATIO)}
    meshed = bool(seen.no_logins or (seen.reach and seen.refusals))
    if not seen.trainings and not (seen.broken and meshed):
        return _not_run("loss_falls", expected, seen, "nothing was trained")
    wrong, measured = [], {}
    if seen.broken:
        missing = [x.name for x in smoke.layouts if x.name not in seen.trainings]
        wrong.append(f"{', '.join(missing) or 'the resume'} was not trained: {seen.broken}")
    for name, training in seen.trainings.items():
        losses = training.losses
        steps = sorted(losses)
        first, last = (losses[steps[0]], losses[steps[-1]]) if steps else (math.nan, math.nan)
        ratio = last / first if steps and first else math.nan
        measured[name] = {
            "updates": len(steps),
            "first": first,
            "last": last,
            "last/first": round(ratio, 4),
        }
        wrong += [f"{name}: {reason}" for reason in unfinished(training, smoke.updates)]
        bad = not_finite(training)
        if bad:
            wrong.append(f"{name}: {bad}")
        elif len(steps) < MIN_UPDATES:
            wrong.append(f"{name}: {len(steps)} updates")
        elif not ratio <= LOSS_RATIO:
            wrong.append(f"{name}: the loss went from {first:.4f} to {last:.4f} only")
    return check("loss_falls", measured, expected, wrong)


def ranks_agree(smoke: Smoke, seen: Observation) -> Check:
    """Check that ranks with the same parameters hold the same bits at every recorded update."""
    expected = "one hash for each update and group of replicated parameters"
    if not seen.trainings:
        return _not_run("ranks_agree", expected, seen, "nothing was trained")
    wrong, measured, compared = [], {}, 0
    for name, training in seen.trainings.items():
        if training.wanted == 1:
            continue
        by_key: dict[tuple[int, str], dict[int, str]] = {}
        for record in training.ranks.values():
            for key, digest in record.params.items():
                by_key.setdefault(key, {})[record.rank] = digest
        shared = {key: hashes for key, hashes in by_key.items() if len(hashes) > 1}
        compared += len(shared)
        measured[name] = {
            "compared": len(shared),
            "last": {f"rank {rank}": digest[:12] for rank, digest in
                     sorted(shared[max(shared)].items())} if shared else {},
        }  # fmt: skip
        for (step, group), hashes in sorted(shared.items()):
            if len(set(hashes.values())) > 1:
                who = ", ".join(f"rank {r} {h[:12]}" for r, h in sorted(hashes.items()))
                wrong.append(f"{name}: parameters ({group}) differ after update {step}: {who}")
                break
    if not compared and not wrong and seen.broken:
        return _not_run("ranks_agree", expected, seen, "")
    if not compared and not wrong:
        wrong.append("no two ranks recorded the same group of parameters")
    return check("ranks_agree", measured, expected, wrong)


def parity(smoke: Smoke, seen: Observation) -> Check:
    """Check that the same global batch gives the same loss in every layout, at every update."""
    limits = {layout.name: smoke.tolerance_of(layout.name) for layout in smoke.layouts}
    expected: dict[str, Any] = {
        "largest_difference": at_most(smoke.tolerance),
        "updates": smoke.updates,
        **{n: at_most(limit) for n, limit in limits.items() if limit != smoke.tolerance},
    }
    reference = seen.trainings.get(smoke.reference)
    others = {n: t for n, t in seen.trainings.items() if n != smoke.reference}
    if reference is None or not others:
        return _not_run("parity", expected, seen, f"{smoke.reference} or its peers did not train")
    wrong: list[str] = []
    measured: dict[str, Any] = {}
    if seen.recorded:
        wrong += _against_cpu(smoke, reference, seen.recorded, measured)
    for name, training in others.items():
        measured[name], worst, where, count = _compared(
            reference.losses, training.losses, smoke.reference
        )
        if count < smoke.updates:
            wrong.append(f"{name}: only {count} updates to compare with {smoke.reference}")
        if worst > limits[name]:
            wrong.append(f"{name}: loss differs by {worst:.3g} at update {where}")
    return check("parity", measured, expected, wrong)


def _compared(
    one: Mapping[int, float], other: Mapping[int, float], against: str
) -> tuple[dict[str, Any], float, int, int]:
    """Return two curves' figures, their largest difference, its update, and the count compared."""
    found = gaps(one, other)
    worst, where = largest_gap(found)
    figures = {
        "against": against,
        "updates": len(found),
        "largest_difference": worst,
        "at_update": where,
    }
    return figures, worst, where, len(found)


def _against_cpu(
    smoke: Smoke, reference: Training, recorded: Mapping[int, float], measured: dict[str, Any]
) -> list[str]:
    """Compare losses on GPUs with those on CPU ranks: same program, data and seed, in fp32."""
    measured[smoke.reference], worst, where, count = _compared(
        reference.losses, recorded, "the curve recorded on CPU ranks"
    )
    if count < smoke.updates:
        return [f"{smoke.reference}: only {count} updates to compare with CPU ranks"]
    if worst > smoke.tolerance:
        return [f"{smoke.reference}: loss differs from CPU ranks' by {worst:.3g} at update {where}"]
    return []


def resume_equal(smoke: Smoke, seen: Observation) -> Check:
    """Check that a training saved, killed and resumed equals one that was never interrupted."""
    expected = {
        "resumed_from": smoke.save_at,
        "updates": smoke.updates - smoke.save_at,
        "largest_difference": at_most(smoke.tolerance_of(smoke.resume)),
    }
    whole = seen.trainings.get(smoke.resume)
    if whole is None or seen.killed is None or seen.resumed is None:
        return _not_run("resume_equal", expected, seen, f"{smoke.resume} was not resumed")
    wrong: list[str] = []
    if not seen.killed.killed:
        said = "; ".join(unfinished(seen.killed, smoke.updates)) or "it ended before"
        wrong.append(f"the run that was to be killed was not: {said}")
    wrong += unfinished(seen.resumed, smoke.updates)
    found = gaps(whole.losses, seen.resumed.losses, after=smoke.save_at, last=smoke.updates)
    worst, where = largest_gap(found)
    loaded = sorted({step for r in seen.resumed.ranks.values() for step in r.loaded})
    if loaded != [smoke.save_at]:
        wrong.append(f"resumed from {loaded or 'nothing'}, not from update {smoke.save_at}")
    early = [step for step in seen.resumed.losses if step <= smoke.save_at]
    if early:
        wrong.append(f"update {min(early)} was trained again")
    wanted = smoke.updates - smoke.save_at
    if len(found) < wanted:
        wrong.append(f"only {len(found)} of {wanted} updates to compare")
    if worst > smoke.tolerance_of(smoke.resume):
        wrong.append(f"loss differs by {worst:.3g} at update {where}")
    measured = {
        "layout": smoke.resume,
        "killed_after": max([r.last for r in seen.killed.ranks.values()], default=0),
        "resumed_from": loaded[0] if len(loaded) == 1 else loaded,
        "updates": len(found),
        "largest_difference": worst,
        "at_update": where,
    }
    return check("resume_equal", measured, expected, wrong)


def no_strays(smoke: Smoke, seen: Observation) -> Check:
    """Check that no process is left on any node, however a training ended."""
    trainings = seen.everything if seen.trainings else {}
    return left_behind({name: [one] for name, one in trainings.items()}, seen.broken)
