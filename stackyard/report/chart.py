"""Compute the drawings of report pages: lines over updates, their differences, and phases in time.

Owns geometry only: coordinates, ticks and labels. The templates draw them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 90, 24, 44, 48
# Okabe and Ito's palette: most colour-blind readers can distinguish its colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# A label takes this much room beside its mark on a narrow screen, in units of the drawing.
_LABEL = 290

Curves = Mapping[str, Sequence[tuple[int, float]]]
Marks = Sequence[tuple[int, str]]


def line_chart(curves: Curves, title: str, marks: Marks = ()) -> dict[str, Any]:
    """Return axes, ticks, marks and lines of curves over updates, in units of the drawing.

    Curves that lie on each other are the expected case: each is drawn thinner than the one
    before, so that all stay visible.

    Args:
        title: quantity and unit of the vertical axis.
        marks: updates at which something happened, with what.
    """
    low, high = _range([value for points in curves.values() for _, value in points])

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)

    ticks = [{"at": y(value), "label": f"{value:,g}"} for value in _ticks(low, high)]
    return _drawn(curves, title, marks, y, ticks)


def difference_chart(
    curves: Curves,
    against: Mapping[str, str],
    bounds: Mapping[float, str],
    title: str,
    marks: Marks = (),
) -> dict[str, Any]:
    """Return a drawing of how far curves are from others, with each bound as a line.

    The vertical axis is logarithmic; equal values lie on its lowest tick, 0.

    Args:
        against: the curve that each curve is compared with, by name.
        bounds: the largest differences that pass, each with the words at its line.
    """
    gaps = {name: differences(curves[name], curves[other]) for name, other in against.items()}
    positive = [gap for points in gaps.values() for _, gap in points if gap > 0]
    top = math.ceil(math.log10(max([*bounds, *positive])) + 1e-9)
    least = math.floor(math.log10(min([min(bounds) / 100, *positive])) + 1e-9)

    def y(gap: float) -> float:
        level = math.log10(gap) if gap > 0 else least - 1
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (top - level) / (top - least + 1), 1)

    every = max(1, round((top - least) / 6))
    ticks = [{"at": y(10.0**n), "label": f"1e{n}"} for n in range(least, top + 1, every)]
    drawn = _drawn(gaps, title, marks, y, [{"at": y(0), "label": "0"}, *ticks])
    lines = [{"at": y(bound), "label": label} for bound, label in bounds.items()]
    return {**drawn, "bounds": lines}


def differences(
    points: Sequence[tuple[int, float]], others: Sequence[tuple[int, float]]
) -> list[tuple[int, float]]:
    """Return the distance of two curves at each update that both have."""
    known = dict(others)
    return [(step, abs(value - known[step])) for step, value in points if step in known]


def timeline(phases: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return phases with their start and length as percentages of the whole.

    Phases of older reports have no start: each begins at the end of the one before.
    """
    rows, end = [], 0.0
    for phase in phases:
        at = phase.get("at", end)
        end = at + phase["seconds"]
        rows.append({**phase, "at": at})
    whole = max((row["at"] + row["seconds"] for row in rows), default=0.0) or 1.0
    return [
        {**row, "start": round(100 * row["at"] / whole, 2),
         "percent": round(100 * row["seconds"] / whole, 2)}
        for row in rows
    ]  # fmt: skip


def _drawn(
    curves: Curves, title: str, marks: Marks, y: Any, y_ticks: list[dict[str, Any]]
) -> dict[str, Any]:
    steps = [step for points in curves.values() for step, _ in points]
    last = max([1, *steps, *(step for step, _ in marks)])

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / last, 1)

    lines = [
        {"name": name, "colour": COLOURS[number % len(COLOURS)],
         "width": round(max(1.2, 7 * 0.55**number), 1),
         "points": " ".join(f"{x(step)},{y(value)}" for step, value in points)}
        for number, (name, points) in enumerate(curves.items())
    ]  # fmt: skip
    return {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT,
        "top": TOP, "bottom": HEIGHT - BOTTOM, "title": title, "lines": lines,
        "x_ticks": [{"at": x(v), "label": f"{v:,}"} for v in _whole_ticks(last)],
        "y_ticks": y_ticks,
        "marks": [
            {"at": x(step), "label": label, "row": number,
             "left": x(step) + _LABEL > WIDTH - RIGHT}
            for number, (step, label) in enumerate(marks)
        ],
    }  # fmt: skip


def _range(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
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
