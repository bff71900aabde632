"""Judge a template's training by the records of its ranks.

Owns every failure message. Pure. It judges speed only beside a plain loop on the same GPUs, as no
other bound holds on all machines.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from typing import Any

from stackyard.validate import judge_gpu
from stackyard.validate.checks import Check, at_least, at_most, check, not_run
from stackyard.validate.judge_training import (
    gaps,
    largest_gap,
    left_behind,
    never_joined,
    not_finite,
    unfinished,
)
from stackyard.validate.template.figures import (
    HOST_LEAST,
    PLAIN_SPEED,
    TemplateSeen,
    costs,
    losses,
    no_wait,
    of_plain,
    valid_losses,
)
from stackyard.validate.template.plan import TemplatePlan

# The bound that templates of the reduced size are tested with, too.
LOSS_RATIO = 0.9
# Dropout draws other numbers after a resume where a program does not keep their state, and sums in
# half precision differ from run to run: one update's loss may differ by a little more than all do.
GAP, MEAN_GAP = 0.3, 0.05
# The loop begins with the same weights and batches. In fp32 without dropout only rounding differs;
# otherwise DeepSpeed keeps weights in half precision, and dropout draws other numbers.
SAME, ALIKE = 0.01, 0.3
# Names of checkpoints: of accelerate's and of megatron's templates, and of fairseq.
_NAME = re.compile(r"(?:update-|global_step)(\d+)|checkpoint_\d+_(\d+)(?:-shard\d+)?\.pt")


def judge(plan: TemplatePlan, seen: TemplateSeen) -> tuple[Check, ...]:
    """Return all checks, in a fixed order; `plain` only of a template that has a plain loop."""
    checks: list[Callable[[TemplatePlan, TemplateSeen], Check]] = [
        launched, loss, validated, resumed, kept,
    ]  # fmt: skip
    if plan.example.plain is not None:
        checks.append(plain)
    found = [one(plan, seen) for one in checks]
    found.append(left_behind({n: [t] for n, t in seen.trainings.items()}, seen.broken))
    if plan.device == "cuda":
        found.append(freed(seen))
    return tuple(found)


def launched(plan: TemplatePlan, seen: TemplateSeen) -> Check:
    """Check that every rank joined, on a device of its own, and came to the last update."""
    expected = {"ranks": plan.ranks, "updates": plan.updates, "device": plan.device}
    if seen.killed is None:
        return not_run("launched", expected, seen.broken or "nothing was trained")
    wrong = [seen.broken] if seen.broken else []
    if not seen.killed.killed:
        said = "; ".join(unfinished(seen.killed, plan.updates)) or "it ended before"
        wrong.append(f"the launch that was to be killed was not: {said}")
    if seen.resumed is None:
        wrong.append("it was not resumed")
    else:
        wrong += unfinished(seen.resumed, plan.updates)
    measured: dict[str, Any] = {}
    for name, training in seen.trainings.items():
        ranks = list(training.ranks.values())
        measured[name] = {f"rank {r.rank}": [r.world_size, r.device, r.last] for r in ranks}
        wrong += [f"{name}: {reason}" for reason in never_joined(training)]
        for record in ranks:
            if record.world_size != plan.ranks:
                wrong.append(f"{name}: rank {record.rank} sees a world of {record.world_size}")
            if record.device.partition(":")[0] != plan.device:
                wrong.append(f"{name}: rank {record.rank} computes on {record.device}")
        used = [record.gpu for record in ranks if record.gpu]
        if len(set(used)) < len(used):
            wrong.append(f"{name}: two ranks compute on one GPU")
    return check("launched", measured, expected, wrong)


def loss(plan: TemplatePlan, seen: TemplateSeen) -> Check:
    """Check that the losses of the whole training are finite, and that they fall."""
    expected = {"last/first": at_most(LOSS_RATIO)}
    found = losses(seen)
    if len(found) < 2:
        return not_run("loss", expected, seen.broken or "fewer than two losses are recorded")
    first, last = found[min(found)], found[max(found)]
    ratio = last / first if first else float("nan")
    wrong = [f"{name}: {bad}" for name, t in seen.trainings.items() if (bad := not_finite(t))]
    if not wrong and not ratio <= LOSS_RATIO:
        wrong.append(f"the loss went from {first:.4f} to {last:.4f} only")
    measured = {"updates": len(found), "first": first, "last": last, "last/first": round(ratio, 4)}
    return check("loss", measured, expected, wrong)


def validated(plan: TemplatePlan, seen: TemplateSeen) -> Check:
    """Check that the template validated when it should, and that the validation loss fell."""
    expected: dict[str, Any] = {"validations": at_least(2), "falls": True}
    if plan.evaluations:
        expected["updates"] = list(plan.evaluations)
    found = valid_losses(seen)
    if seen.resumed is None or seen.resumed.failed:
        return not_run("validated", expected, seen.broken or "the training did not come to its end")
    steps = sorted(found)
    wrong = [f"update {at} was not validated" for at in plan.evaluations if at not in found]
    if len(found) < 2:
        wrong.append(f"{len(found)} validations are recorded")
    elif not found[steps[-1]] < found[steps[0]]:
        wrong.append(
            f"the validation loss went from {found[steps[0]]:.4f} to {found[steps[-1]]:.4f}"
        )
    return check("validated", {"losses": [[at, found[at]] for at in steps]}, expected, wrong)


def resumed(plan: TemplatePlan, seen: TemplateSeen) -> Check:
    """Check that the second launch goes on from the checkpoint, with the losses of the first.

    The checkpoint is that of `save_at`, or a later one that all ranks completed before they were
    killed: fairseq also saves at the end of an epoch.
    """
    ranks = seen.killed.ranks.values() if seen.killed else ()
    start = max(plan.save_at, min((max(r.saved, default=0) for r in ranks), default=0))
    expected = {
        "resumed_from": start,
        "updates": plan.kill_after - start,
        "largest_difference": at_most(GAP),
        "mean_difference": at_most(MEAN_GAP),
    }
    if seen.killed is None or seen.resumed is None:
        return not_run("resumed", expected, seen.broken or "it was not resumed")
    wrong: list[str] = []
    loaded = sorted({step for r in seen.resumed.ranks.values() for step in r.loaded})
    if loaded != [start]:
        wrong.append(f"resumed from {loaded or 'nothing'}, not from update {start}")
    early = [step for step in seen.resumed.losses if step <= start]
    if early:
        wrong.append(f"update {min(early)} was trained again")
    found = gaps(seen.killed.losses, seen.resumed.losses, after=start, last=plan.kill_after)
    worst, where = largest_gap(found)
    shared = sorted(found)
    mean = 0.0
    if shared:
        one, other = (t.losses for t in (seen.killed, seen.resumed))
        mean = abs(statistics.fmean(other[at] - one[at] for at in shared))
    if len(shared) < plan.kill_after - start:
        wrong.append(f"only {len(shared)} updates can be compared")
    if not worst <= GAP:
        wrong.append(f"the loss differs by {worst:.3g} at update {where}")
    if not mean <= MEAN_GAP:
        wrong.append(f"the mean loss differs by {mean:.3g}")
    measured = {
        "resumed_from": loaded[0] if len(loaded) == 1 else loaded,
        "updates": len(shared),
        "largest_difference": worst,
        "at_update": where,
        "mean_difference": mean,
    }
    return check("resumed", measured, expected, wrong)


def kept(plan: TemplatePlan, seen: TemplateSeen) -> Check:
    """Check that the checkpoints of the updates that the rules name are there, and no others."""
    expected = {"updates": list(plan.kept)}
    if seen.names is None:
        return not_run("kept", expected, seen.broken or "the training did not come to its end")
    there = sorted({at for name in seen.names if (at := update_of(name)) is not None})
    wrong = []
    if missing := [at for at in plan.kept if at not in there]:
        wrong.append(f"the checkpoint of update {missing[0]} is missing")
    if more := [at for at in there if at not in plan.kept]:
        wrong.append(f"the checkpoint of update {more[0]} should be gone")
    return check("kept", {"updates": there, "names": sorted(seen.names)}, expected, wrong)


def plain(plan: TemplatePlan, seen: TemplateSeen) -> Check:
    """Check that the plain loop has the same losses and, on GPUs, that it is hardly faster.

    A template below the bound passes where the part that costs the rest is known: without it, it is
    above. That part may be the host, for which its GPUs wait, down to half of the loop's speed, or
    the host and one other.
    """
    half = plan.values.get("precision") != "no" or plan.values.get("dropout", "").strip("0.")
    # In fp32 DeepSpeed counts the tied words of both ends of a pipeline in the norm to clip.
    limit = ALIKE if half or int(plan.values.get("pp", 1)) > 1 else SAME
    expected: dict[str, Any] = {"updates": plan.beside, "mean_difference": at_most(limit)}
    if plan.device == "cuda":
        expected["of_plain"] = at_least(PLAIN_SPEED)
    if seen.plain is None or seen.killed is None:
        return not_run("plain", expected, seen.broken or "no plain loop was run beside it")
    wrong = unfinished(seen.plain, plan.beside)
    found = gaps(seen.killed.losses, seen.plain.losses, last=plan.beside)
    mean = statistics.fmean(found.values()) if found else math.inf
    if len(found) < plan.beside:
        wrong.append(f"only {len(found)} updates can be compared")
    elif not mean <= limit:
        wrong.append(f"its losses differ by {mean:.3g} in the mean: it is not the same training")
    share, without = of_plain(plan, seen), costs(plan, seen)
    known = {label: one for label, (_, one) in without.items() if one is not None}
    wrong += [f"{label} was not timed" for label in without if label not in known]
    if plan.device == "cuda" and not wrong:
        whole = share or 0.0
        # Without waits only what has half of the loop's speed with them explains anything.
        few = {no_wait(label) for label, one in {"": whole, **known}.items() if one < HOST_LEAST}
        best = max([whole, *(one for label, one in known.items() if label not in few)])
        if not best >= PLAIN_SPEED:
            tried = (
                f"at most {best:.3f} by leaving out a part, the host or both"
                if known
                else "no part was tried"
            )
            wrong.append(f"{share or 0:.3f} of its speed, {tried}: what costs the rest is unknown")
    measured = {
        "updates": len(found),
        "mean_difference": mean,
        "of_plain": share,
        **{label: round(one, 4) for label, one in known.items()},
    }
    return check("plain", measured, expected, wrong)


def update_of(name: str) -> int | None:
    """Return the update of a checkpoint by its name; None for other names, such as epochs'."""
    found = _NAME.fullmatch(name)
    return int(found[1] or found[2]) if found else None


def freed(seen: TemplateSeen) -> Check:
    """Check that GPUs hold no more memory than before the training."""
    return judge_gpu.freed(seen.gpu, seen.broken)
