"""Render a report as one self-contained page: checks, phases, and the loss curves drawn.

Owns the geometry of the drawing; the words come from the report, the look from the template.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stackyard.report.comparison_view import comparison_lines, curve_rows
from stackyard.report.records import figure
from stackyard.system import template

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 14, 34
# Okabe and Ito's palette: most colour-blind readers can distinguish its colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def render_page(report: Mapping[str, Any]) -> str:
    """Return the page of one smoke report."""
    curves = {name: _numbers(points) for name, points in report["curves"].items()}
    total = sum(phase["seconds"] for phase in report["phases"]) or 1.0
    values: dict[str, object] = {
        "report": report,
        "checks": [{"figure": figure(check), **check_row(check)} for check in report["checks"]],
        "phases": [
            {**phase, "percent": round(100 * phase["seconds"] / total, 2)}
            for phase in report["phases"]
        ],
        "chart": chart(curves),
        "gpus": report.get("gpus", {}),
        "against": report.get("against", {}),
        "against_rows": curve_rows(report["against"]) if "against" in report else [],
        "against_lines": comparison_lines(report["against"]) if "against" in report else [],
        "speeds": speeds(report.get("gpus", {})),
        "commands": {
            name: " ".join(_short(word) for word in words)
            for name, words in report["commands"].items()
        },
    }
    return template.render("report.html.j2", values)


def check_row(check: Mapping[str, Any]) -> dict[str, Any]:
    """Return a check as a page shows it: its figures as text, and bounds in words."""
    texts = {key: json.dumps(_in_words(check[key]), indent=1, ensure_ascii=False)
             for key in ("measured", "expected")}  # fmt: skip
    return {"why": "", **check, **texts}


def _in_words(value: Any) -> Any:
    match value:
        case {"at_most": limit}:
            return f"at most {limit:g}"
        case {"at_least": limit}:
            return f"at least {limit:g}"
        case dict():
            return {name: _in_words(one) for name, one in value.items()}
    return value


def speeds(gpus: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return rows of text with the GPUs' measurements beside the bare host's."""
    here, bare = gpus.get("measured", {}), gpus.get("bare", {})
    rows = []
    for size, entry in here.get("allreduce", {}).items():
        other = bare.get("allreduce", {}).get(size, {}).get("busbw_gb_s")
        name = f"all-reduce of {int(size) // 2**20} MiB, bus bandwidth in GB/s"
        rows.append(_speed(name, entry["busbw_gb_s"], other, ".1f"))
    if "training" in here:
        other = bare.get("training", {}).get("tokens_s")
        rows.append(_speed("GPT-2 small, tokens/s", here["training"]["tokens_s"], other, ",.0f"))
    return rows


def _speed(what: str, here: float, bare: float | None, form: str) -> dict[str, str]:
    return {
        "what": what,
        "here": format(here, form),
        "bare": format(bare, form) if bare else "",
        "ratio": f"{here / bare:.3f}" if bare else "",
    }


def _short(word: str) -> str:
    return word if len(word) <= 2000 else word[:2000] + "..."


def _numbers(points: Sequence[Sequence[Any]]) -> list[tuple[int, float]]:
    found = [(int(step), float(loss)) for step, loss in points]
    return [(step, loss) for step, loss in found if math.isfinite(loss)]


def chart(curves: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, Any]:
    """Return coordinates of axes, ticks and lines, in the units of the drawing.

    Curves that lie on each other are the expected case: each is drawn thinner than the one
    before, so that all stay visible.
    """
    steps = [step for points in curves.values() for step, _ in points]
    losses = [loss for points in curves.values() for _, loss in points]
    last = max(steps, default=1)
    low, high = _range(losses)

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / last, 1)

    def y(loss: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low), 1)

    lines = []
    for number, (name, points) in enumerate(curves.items()):
        lines.append(
            {
                "name": name,
                "colour": COLOURS[number % len(COLOURS)],
                "width": round(max(1.4, 6 - 1.3 * number), 1),
                "points": " ".join(f"{x(step)},{y(loss)}" for step, loss in points),
            }
        )
    return {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT,
        "top": TOP, "bottom": HEIGHT - BOTTOM, "lines": lines,
        "x_ticks": [{"at": x(v), "label": str(v)} for v in _whole_ticks(last)],
        "y_ticks": [{"at": y(v), "label": f"{v:g}"} for v in _ticks(low, high)],
    }  # fmt: skip


def _range(losses: Sequence[float]) -> tuple[float, float]:
    if not losses:
        return 0.0, 1.0
    low, high = min(losses), max(losses)
    margin = (high - low) * 0.06 or 0.5
    return max(0.0, low - margin) if low >= 0 else low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    step = _nice((high - low) / 5)
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step) + 1)]


def _whole_ticks(last: int) -> list[int]:
    step = max(1, int(_nice(last / 6)))
    return list(range(0, last + 1, step))


def _nice(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return float(next(power * n for n in (1, 2, 5, 10) if power * n >= rough))
