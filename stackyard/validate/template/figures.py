"""Hold what was seen of a template, and compute its figures and those of a plain loop beside it.

Pure. It must not judge: `validate.template.judge` does.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from stackyard.validate.judge_gpu import GpuObservation
from stackyard.validate.outcome import Phase
from stackyard.validate.record import WORK_UPDATES, Training
from stackyard.validate.template.plan import (
    KILLED,
    PLAIN,
    RESUMED,
    WARM,
    TemplatePlan,
    measured_after,
)

# Of a plain loop's tokens/s: a template that has fewer must show what costs the rest.
PLAIN_SPEED = 0.95
# The label of the speed that a template would have if its GPUs never waited, and the end of that of
# one without a part; it explains no speed below so much of the plain loop's.
HOST, HOST_LEAST = "host", 0.5


@dataclass(frozen=True, kw_only=True)
class TemplateSeen:
    """Hold what was seen of a template.

    Attributes:
        plain: a plain loop of the same model and batches; None where there was none.
        costs: the template without one part, by label; empty where it is as fast as the loop.
        names: what lies in the folder of checkpoints at the end; None where nobody looked.
        broken: why the run did not come to its end; empty if it did.
    """

    run: str
    killed: Training | None = None
    resumed: Training | None = None
    plain: Training | None = None
    costs: Mapping[str, Training] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    broken: str = ""
    phases: tuple[Phase, ...] = ()
    gpu: GpuObservation | None = None
    devices: tuple[str, ...] = ()

    @property
    def trainings(self) -> dict[str, Training]:
        """Return the launches that were made, in order."""
        found = {KILLED: self.killed, RESUMED: self.resumed, PLAIN: self.plain, **self.costs}
        return {name: one for name, one in found.items() if one is not None}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Hold the speed and memory of a launch; None where they are not known.

    Attributes:
        updates_s: from the median time of an update, which checkpoints and validations do not move.
        mean_updates_s: over all updates after the warm-up, checkpoints and validations included.
        peak_bytes: the most that tensors took on any GPU.
    """

    updates_s: float | None
    mean_updates_s: float | None
    tokens_s: float | None
    peak_bytes: int | None


def figures(plan: TemplatePlan, seen: TemplateSeen) -> Figures:
    """Return the figures of the launch that came to the end."""
    return _figures(plan, seen.resumed)


def plain_figures(plan: TemplatePlan, seen: TemplateSeen) -> Figures:
    """Return the figures of the plain loop, which trains on the same tokens in an update."""
    return _figures(plan, seen.plain)


def _figures(plan: TemplatePlan, training: Training | None, warm: int = WARM) -> Figures:
    if training is None or training.failed:
        return Figures(updates_s=None, mean_updates_s=None, tokens_s=None, peak_bytes=None)
    times = next((r.times for _, r in sorted(training.ranks.items()) if r.times), {})
    steps = sorted(times)[warm:]
    each = [
        (times[after] - times[before]) / (after - before)
        for before, after in itertools.pairwise(steps)
    ]
    median = statistics.median(each) if each else 0.0
    whole = times[steps[-1]] - times[steps[0]] if each else 0.0
    speed = 1 / median if median > 0 else None
    peaks = [r.memory.get("allocated", 0) for r in training.ranks.values()]
    return Figures(
        updates_s=speed,
        mean_updates_s=(steps[-1] - steps[0]) / whole if whole > 0 else None,
        tokens_s=speed * plan.tokens if speed else None,
        peak_bytes=max(peaks, default=0) or None,
    )


def of_plain(plan: TemplatePlan, seen: TemplateSeen) -> float | None:
    """Return the template's tokens/s over those of the plain loop; None where one is not known."""
    return _share(figures(plan, seen), plain_figures(plan, seen))


def costs(plan: TemplatePlan, seen: TemplateSeen) -> dict[str, tuple[Figures, float | None]]:
    """Return figures, and the share of the plain loop's tokens/s, without each part.

    The last is the host, which starts kernels, loads data and writes: the speed is that of an
    update in which the GPU that works the longest never waits for it. Without another part and
    without the host is one more, where the first is not enough.
    """
    loop = plain_figures(plan, seen)
    found: dict[str, Figures] = {}
    # The updates that a profiler watched, and the pause at its end, do not count.
    watched = measured_after(plan) + WORK_UPDATES if plan.device == "cuda" else 0
    for label, one in seen.costs.items():
        changed = plan.changed(plan.costs[label])
        found[label] = _figures(changed, one, max(WARM, watched))
        if host := _without_waits(changed, found[label], one, loop):
            found[no_wait(label)] = host
    if host := _without_waits(plan, figures(plan, seen), seen.killed, loop):
        found[no_wait()] = host
    return {label: (one, _share(one, loop)) for label, one in found.items()}


def no_wait(label: str = "") -> str:
    """Return the label of the template without waits for the host, and without a part, if any."""
    return f"{label}-{HOST}" if label else HOST


def _without_waits(
    plan: TemplatePlan, found: Figures, watched: Training | None, loop: Figures
) -> Figures | None:
    """Return the figures of GPUs that never wait; None if unknown, or if nothing is missing.

    The profiler, and waits for another rank, make what a GPU works longer: where that is no less
    than an update takes, nothing is known of its waits.
    """
    share, work = _share(found, loop), gpu_work(watched)
    if not work or share is None or share >= PLAIN_SPEED or work * (found.updates_s or 0) >= 1:
        return None
    return Figures(
        updates_s=1 / work, mean_updates_s=None, tokens_s=plan.tokens / work, peak_bytes=None
    )


def gpu_work(training: Training | None) -> float | None:
    """Return the seconds of an update in which the busiest GPU works; None if not measured.

    Kernels that wait for another rank count as work.
    """
    ranks = training.ranks.values() if training else ()
    return max((one.work.seconds for one in ranks if one.work), default=None)


def _share(one: Figures, other: Figures) -> float | None:
    return one.tokens_s / other.tokens_s if one.tokens_s and other.tokens_s else None


def losses(seen: TemplateSeen) -> dict[int, float]:
    """Return the losses of the whole training: of the first launch up to where the second began."""
    resumed = seen.resumed.losses if seen.resumed else {}
    first = min(resumed, default=None)
    killed = seen.killed.losses if seen.killed else {}
    return {**{at: one for at, one in killed.items() if first is None or at < first}, **resumed}


def valid_losses(seen: TemplateSeen) -> dict[int, float]:
    """Return the validation losses of both launches; the later one's, where both validated."""
    return {
        at: value
        for training in (seen.killed, seen.resumed)
        if training is not None
        for _, record in sorted(training.ranks.items(), reverse=True)
        for at, value in record.valid.items()
    }
