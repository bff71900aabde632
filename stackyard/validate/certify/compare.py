"""Compare measured speeds of GPUs and links with baselines, or with their neighbours.

Owns that comparison. Pure: it is given readings and baselines, and must not measure. What was not
measured, or has nothing to be compared with, is `not run`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stackyard.definitions.spec import Baseline, Measure
from stackyard.validate.checks import FAILED, NOT_RUN, PASSED

SUSPICIOUS = "suspicious"
# A GPU that reaches less than this part of its neighbours' median is suspicious.
NEIGHBOUR_RATIO = 0.95


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Hold one measurement.

    Attributes:
        place: what was measured: a GPU (`HOST:INDEX`), a host, or two of them joined by a link.
        gpu: the driver's name of the GPU.
        kind: as in `spec.Measure`; as are `ranks` and `bytes`.
        value: None where it was not measured, and `why` says why.
    """

    place: str
    gpu: str
    kind: str
    ranks: int
    bytes: int = 0
    value: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Hold a reading's outcome.

    Attributes:
        outcome: `passed`, `failed` (below the baseline's bound, or far below its neighbours),
            `suspicious` (below its neighbours) or `not run`.
        against: the value that it is compared with; None where there is none.
        at_least: the value from which on it passes.
        by: what it is compared with, in words.
    """

    reading: Reading
    outcome: str
    against: float | None = None
    at_least: float | None = None
    by: str = ""


def compare(
    readings: Sequence[Reading],
    baselines: Iterable[Baseline],
    *,
    suspicious: float = NEIGHBOUR_RATIO,
    bad: float = 0.0,
) -> tuple[Compared, ...]:
    """Compare each reading with its GPU's baseline; where there is none, with its neighbours.

    Neighbours are the readings of the same kind on GPUs of the same model, elsewhere.

    Args:
        suspicious: the part of its neighbours' median below which a reading is suspicious.
        bad: the part below which it has failed.
    """
    known = {gpu: one for one in baselines for gpu in one.gpus}
    bounds = (suspicious, bad)
    return tuple(_compare(one, readings, known.get(one.gpu), bounds) for one in readings)


def _compare(
    one: Reading,
    readings: Sequence[Reading],
    baseline: Baseline | None,
    bounds: tuple[float, float],
) -> Compared:
    if one.value is None or not math.isfinite(one.value):
        return Compared(reading=one, outcome=NOT_RUN, by=one.why or "it was not measured")
    measure = find_measure(baseline, one)
    if baseline is not None and measure is not None:
        return Compared(
            reading=one,
            outcome=PASSED if one.value >= measure.bound else FAILED,
            against=measure.value,
            at_least=measure.bound,
            by=f"the baseline of {baseline.name} ({measure.count} measurements)",
        )
    others = [other.value for other in readings
              if other.place != one.place and _key(other) == _key(one)
              and other.value is not None and math.isfinite(other.value)]  # fmt: skip
    if not others:
        why = f"there is no baseline of {one.kind} for {one.gpu}, and no neighbour of its model"
        return Compared(reading=one, outcome=NOT_RUN, by=why)
    middle = statistics.median(others)
    least, bad = (ratio * middle for ratio in bounds)
    count = f"{len(others)} neighbour{'s' if len(others) > 1 else ''}"
    return Compared(
        reading=one,
        outcome=PASSED if one.value >= least else SUSPICIOUS if one.value >= bad else FAILED,
        against=middle,
        at_least=least,
        by=f"the median of {count} with the same GPU",
    )


def find_measure(baseline: Baseline | None, one: Reading) -> Measure | None:
    """Return the measure of a baseline that a reading is of."""
    measures = baseline.measures if baseline is not None else ()
    wanted = (one.kind, one.ranks, one.bytes)
    return next((m for m in measures if (m.kind, m.ranks, m.bytes) == wanted), None)


def _key(one: Reading) -> tuple[str, str, int, int]:
    return one.gpu, one.kind, one.ranks, one.bytes
