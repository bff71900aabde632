"""Make the record of a bench, one JSON object (docs/howto/bench.md).

Owns the schema. Pure: the clock, the image and the machine are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from stackyard.build.catalog import ResolvedImage
from stackyard.definitions.spec import Failure
from stackyard.gpu import transport
from stackyard.report import records
from stackyard.report.shapes import (
    BenchGpus,
    BenchReport,
    ModelValue,
    PauseValue,
    PlayedValue,
    ResultValue,
    SideValue,
    SpentValue,
)
from stackyard.system.image import ImageInfo
from stackyard.validate.bench import flops
from stackyard.validate.bench.definition import Model, Peak, Side
from stackyard.validate.bench.plan import BenchPlan
from stackyard.validate.bench.result import (
    START,
    Line,
    Played,
    Seen,
    Spent,
    lines,
    longest_pause,
    mean_speed,
    peak_bytes,
    speed,
    started,
    window_speeds,
)
from stackyard.validate.checks import Check, verdict
from stackyard.validate.diagnose import diagnose_all, diagnosis_value
from stackyard.validate.record import Training

SCHEMA: Final = "stackyard.bench/2"


def bench_report(
    image: ResolvedImage,
    info: ImageInfo,
    plan: BenchPlan,
    seen: Seen,
    checks: tuple[Check, ...],
    *,
    peaks: tuple[Peak, ...],
    started: str,
    seconds: float,
    host: Mapping[str, str],
    gpus: BenchGpus,
    failures: Iterable[Failure],
) -> BenchReport:
    """Return the record of one bench.

    Args:
        started: UTC time in ISO 8601.
        seconds: wall time of the bench, without the build.
        gpus: driver, settings and devices; empty on CPU ranks.
        failures: known failures, to recognise in trainings that failed.
    """
    peak, no_mfu = flops.find_peak(seen.devices, peaks)
    size = plan.size
    outcome = verdict(checks)
    tails = {p.turn.label: p.training.tail for p in seen.played if p.training.failed}
    return {
        "schema": SCHEMA,
        "kind": "bench",
        "stack": image.stack.name,
        "base": image.base.name,
        "outcome": outcome,
        "started": started,
        "seconds": round(seconds, 2),
        "run": seen.run,
        "what": f"{plan.bench.what}; {size.what}",
        "unit": plan.bench.unit,
        "image": records.image_value(image, info),
        "host": dict(host),
        "gpus": gpus,
        "model": model_value(size.model),
        "peak": {"flops": peak.flops, "source": peak.source} if peak else None,
        "no_mfu": no_mfu,
        "batch": size.batch,
        "updates": size.updates,
        "warm": size.warm,
        "window": size.window,
        "rounds": plan.rounds,
        "counts": list(plan.counts),
        "available": plan.available,
        "sides": {side.name: _side(plan, side) for side in plan.sides},
        "results": [_line(plan, line, peak) for line in lines(plan, seen)],
        "runs": [_played(plan, played) for played in seen.played],
        "checks": [records.check_value(check) for check in checks],
        "diagnoses": [diagnosis_value(found) for found in diagnose_all(tails, failures, "run")],
        "phases": [records.phase_value(phase) for phase in seen.phases],
        "last_lines": tails,
    }


def model_value(model: Model) -> ModelValue:
    """Return a model's dimensions and its FLOPs a token as data."""
    return {
        "layers": model.layers,
        "width": model.width,
        "heads": model.heads,
        "inner": model.inner,
        "vocabulary": model.vocabulary,
        "context": model.context,
        "multiplied": flops.multiplied(model),
        "flops_per_token": flops.flops_per_token(model),
    }


def _side(plan: BenchPlan, side: Side) -> SideValue:
    return {
        "what": side.what,
        "env": dict(side.env),
        "args": list(side.args),
        "against": plan.bench.against(side),
    }


def _line(plan: BenchPlan, line: Line, peak: Peak | None) -> ResultValue:
    share = None
    if line.speed is not None:
        share = flops.mfu(plan.size.model, line.speed, line.ranks, peak)
    return {
        "side": line.side,
        "ranks": line.ranks,
        "speed": _rounded(line.speed, 1),
        "speeds": [round(value, 1) for value in line.speeds],
        "ratio": _rounded(line.ratio, 4),
        "scaling": _rounded(line.scaling, 4),
        "mfu": _rounded(share, 4),
        "peak_bytes": line.peak_bytes,
        "mean": _rounded(line.mean, 1),
        "mean_ratio": _rounded(line.mean_ratio, 4),
        "start_seconds": _start(line.first, line.tenth),
        "pause_seconds": _rounded(line.pause, 3),
        "spent": _spent(line.spent),
    }


def _spent(found: Spent | None) -> SpentValue | None:
    if found is None:
        return None
    return {
        "update": round(found.update, 6),
        "watched": round(found.watched, 6),
        "compute": round(found.compute, 6),
        "alone": round(found.alone, 6),
        "idle": round(found.idle, 6),
        "beside": round(found.beside, 6),
    }


def _start(first: float | None, tenth: float | None) -> dict[str, float | None]:
    """Return seconds from the launch to the end of an update, by its number."""
    return {"1": _rounded(first, 2), str(START): _rounded(tenth, 2)}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _played(plan: BenchPlan, played: Played) -> PlayedValue:
    turn, training = played.turn, played.training
    return {
        "side": turn.side,
        "ranks": turn.ranks,
        "round": turn.round,
        "group": turn.group,
        "label": turn.label,
        "gpus": list(plan.gpus(turn)),
        "failed": training.failed,
        "why": training.stopped or (f"exit code {training.code}" if training.failed else ""),
        "seconds": round(training.seconds, 2),
        "speed": _rounded(speed(training, plan.size.warm), 1),
        "mean": _rounded(mean_speed(training), 1),
        "start_seconds": _start(started(training, 1), started(training, START)),
        "pause": _pause(training),
        "transport": [path.value() for path in carried(training)],
        "windows": [[step, round(value, 1)] for step, value in window_speeds(training).items()],
        "losses": [[step, records.as_json(loss)] for step, loss in sorted(training.losses.items())],
        "peak_bytes": peak_bytes(training),
        "command": list(training.command),
    }


def carried(training: Training) -> tuple[transport.Path, ...]:
    """Return what carried a training's data between GPUs, by NCCL's log."""
    return transport.paths(training.nccl, transport.Offer()) if training.nccl else ()


def _pause(training: Training) -> PauseValue | None:
    found = longest_pause(training)
    return {"seconds": round(found[0], 3), "at": found[1]} if found else None
