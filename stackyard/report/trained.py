"""Make the record of a template's training, one JSON object, and its page.

Owns the schema `stackyard.template/1` (docs/howto/templates.md). Pure: the clock, the image and the
machine are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from stackyard.build.catalog import ResolvedImage
from stackyard.definitions.spec import Failure
from stackyard.report import chart, page, records
from stackyard.report.bench import model_value
from stackyard.report.bench_page import GIB
from stackyard.report.shapes import (
    BenchGpus,
    MadeValue,
    TemplateBeside,
    TemplateCost,
    TemplateLaunch,
    TemplatePlain,
    TemplateReport,
    TemplateSpeed,
)
from stackyard.system import template
from stackyard.system.image import ImageInfo
from stackyard.validate.bench import flops
from stackyard.validate.bench.definition import Peak
from stackyard.validate.checks import Check, verdict
from stackyard.validate.diagnose import diagnose_all, diagnosis_value
from stackyard.validate.record import Training
from stackyard.validate.template.figures import (
    TemplateSeen,
    costs,
    figures,
    losses,
    no_wait,
    of_plain,
    plain_figures,
    valid_losses,
)
from stackyard.validate.template.plan import TemplatePlan, model_of

SCHEMA: Final = "stackyard.template/1"
NO_PLAIN = "the template has no plain loop beside it"
NOT_RUN = "not run"
NO_WAIT = "if its GPUs never waited for the host (to start kernels, load data, write)"


def template_report(
    image: ResolvedImage,
    info: ImageInfo,
    plan: TemplatePlan,
    seen: TemplateSeen,
    checks: tuple[Check, ...],
    *,
    peaks: tuple[Peak, ...],
    started: str,
    seconds: float,
    host: Mapping[str, str],
    gpus: BenchGpus,
    failures: Iterable[Failure],
    made: MadeValue,
) -> TemplateReport:
    """Return the record of one template.

    Args:
        started: UTC time in ISO 8601.
        seconds: wall time, without the build.
        gpus: driver, settings and devices; empty on CPU ranks.
        failures: known failures, to recognise in launches that failed.
        made: the command that made it.
    """
    tails = {name: t.tail for name, t in seen.trainings.items() if t.failed}
    device: Literal["cpu", "cuda"] = "cuda" if plan.device == "cuda" else "cpu"
    return {
        "made": made,
        "schema": SCHEMA,
        "kind": "template",
        "stack": image.stack.name,
        "base": image.base.name,
        "example": plan.example.name,
        "outcome": verdict(checks),
        "started": started,
        "seconds": round(seconds, 2),
        "run": seen.run,
        "what": plan.example.summary,
        "size": plan.size,
        "ranks": device,
        "count": plan.ranks,
        "image": records.image_value(image, info),
        "host": dict(host),
        "gpus": gpus,
        "updates": plan.updates,
        "save_at": plan.save_at,
        "kill_after": plan.kill_after,
        "values": dict(plan.values),
        "tokens": plan.tokens,
        **_speed(plan, seen, peaks),
        **_beside(plan, seen),
        "losses": _points(losses(seen)),
        "valid": _points(valid_losses(seen)),
        "launches": [_launch(name, one) for name, one in seen.trainings.items()],
        "checks": [records.check_value(check) for check in checks],
        "diagnoses": [diagnosis_value(found) for found in diagnose_all(tails, failures, "run")],
        "phases": [records.phase_value(phase) for phase in seen.phases],
        "last_lines": tails,
    }  # fmt: skip


def _speed(plan: TemplatePlan, seen: TemplateSeen, peaks: tuple[Peak, ...]) -> TemplateSpeed:
    """Return the figures, with what the MFU is computed from, or why there is none."""
    model, no_model = model_of(plan.values)
    peak, no_peak = flops.find_peak(seen.devices, peaks)
    # Peaks are those of half precision.
    full = plan.values.get("precision") == "no"
    no_mfu = no_peak or no_model or ("it computes in fp32, and peaks are of fp16" if full else "")
    found = figures(plan, seen)
    share = None
    if model and not no_mfu and found.tokens_s:
        share = flops.mfu(model, found.tokens_s, plan.ranks, peak)
    return {
        "model": model_value(model) if model else None,
        "peak": {"flops": peak.flops, "source": peak.source} if peak else None,
        "no_mfu": no_mfu,
        "figures": {
            "updates_s": _rounded(found.updates_s, 4),
            "mean_updates_s": _rounded(found.mean_updates_s, 4),
            "tokens_s": _rounded(found.tokens_s, 1),
            "peak_bytes": found.peak_bytes,
            "mfu": _rounded(share, 4),
        },
    }


def _beside(plan: TemplatePlan, seen: TemplateSeen) -> TemplateBeside:
    """Return the plain loop, or why there is none, and what the template lost to it."""
    loop = plan.example.plain
    if loop is None:
        return {"plain": None, "no_plain": NO_PLAIN, "costs": []}
    if seen.plain is None:
        why = "it was not run, as the template did not come to its end"
        return {"plain": None, "no_plain": why, "costs": []}
    if seen.plain.failed:
        return {"plain": None, "no_plain": "it failed", "costs": []}
    found = plain_figures(plan, seen)
    value: TemplatePlain = {
        "what": loop.what,
        "of_plain": _rounded(of_plain(plan, seen), 4),
        "updates": plan.beside,
        "updates_s": _rounded(found.updates_s, 4),
        "tokens_s": _rounded(found.tokens_s, 1),
        "peak_bytes": found.peak_bytes,
    }
    return {"plain": value, "no_plain": "", "costs": _costs(plan, seen)}


def _costs(plan: TemplatePlan, seen: TemplateSeen) -> list[TemplateCost]:
    said = {no_wait(): NO_WAIT}
    for name, cost in plan.costs.items():
        said |= {name: cost.what, no_wait(name): f"{cost.what}, and {NO_WAIT}"}
    return [
        {
            "label": label,
            "what": said[label],
            "of_plain": _rounded(share, 4),
            "tokens_s": _rounded(found.tokens_s, 1),
        }
        for label, (found, share) in costs(plan, seen).items()
    ]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _points(found: Mapping[int, float]) -> list[list[Any]]:
    return [[step, records.as_json(loss)] for step, loss in sorted(found.items())]


def _launch(label: str, one: Training) -> TemplateLaunch:
    return {
        "label": label,
        "failed": one.failed,
        "why": one.stopped or (f"exit code {one.code}" if one.failed else ""),
        "seconds": round(one.seconds, 2),
        "losses": _points(one.losses),
        "command": list(one.command),
    }


def rows(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures as text; what is not known is `not run`, with the reason."""
    found = value["figures"]
    why_mfu = f"{NOT_RUN}: {value['no_mfu']}" if value["no_mfu"] else NOT_RUN
    memory = found["peak_bytes"] and found["peak_bytes"] / GIB
    return [
        ("updates/s, median", _text(found["updates_s"], "{:.3f}")),
        ("updates/s, with validations and checkpoints", _text(found["mean_updates_s"], "{:.3f}")),
        ("tokens/s", _text(found["tokens_s"], "{:,.0f}")),
        ("peak GPU memory", _text(memory, "{:.1f} GiB")),
        ("MFU", _text(found["mfu"], "{:.1%}", why_mfu)),
        ("of a plain loop's speed", _of_plain(value)),
        *((f"of it, {cost['what']}", _text(cost["of_plain"], "{:.3f}")) for cost in value["costs"]),
    ]


def _of_plain(value: Mapping[str, Any]) -> str:
    loop = value["plain"]
    if loop is None:
        return f"{NOT_RUN}: {value['no_plain']}"
    speed, memory = _text(loop["tokens_s"], "{:,.0f} tokens/s"), loop["peak_bytes"]
    more = f", {memory / GIB:.1f} GiB" if memory else ""
    return f"{_text(loop['of_plain'], '{:.3f}')} ({loop['what']}: {speed}{more})"


def _text(number: float | None, form: str, otherwise: str = NOT_RUN) -> str:
    return otherwise if number is None else form.format(number)


def render_page(value: Mapping[str, Any]) -> str:
    """Return the page of one template."""
    curves = {
        one["label"]: [(at, loss) for at, loss in one["losses"] if isinstance(loss, float)]
        for one in value["launches"]
    }
    curves["validation"] = [(at, loss) for at, loss in value["valid"] if isinstance(loss, float)]
    values: dict[str, object] = {
        "report": value,
        "rows": rows(value),
        "checks": page.check_rows(value["checks"]),
        "chart": chart.line_chart(
            {name: points for name, points in curves.items() if points},
            "loss, as the stack logs it",
        ),
    }
    return template.render("template.html.j2", values)
