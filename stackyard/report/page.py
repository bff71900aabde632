"""Render a report as one self-contained page: checks, phases, and the loss curves drawn.

Owns what a page shows in which words. `report.chart` computes the drawings; the look is the
template's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stackyard.report import chart
from stackyard.report.comparison_view import comparison_lines, curve_rows
from stackyard.report.figures import figure
from stackyard.system import template

LOSS = "loss, nats a token"
GAP = "difference of losses"
GAPS = "largest_difference"
_SIGNS = {"<=": "at_most", ">=": "at_least"}
_BOUND = re.compile(r"(<=|>=) ([0-9.e+-]+)")


def render_page(report: Mapping[str, Any]) -> str:
    """Return the page of one smoke report."""
    curves = _curves(report)
    marks = kill_and_resume(report["checks"])
    checks = read_checks(report["checks"])
    values: dict[str, object] = {
        "report": report,
        "checks": check_rows(checks),
        "phases": chart.timeline(report["phases"]),
        "chart": losses(report),
        "gaps": _gaps(checks, curves, marks),
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


def losses(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawing of a smoke's losses by update."""
    return chart.line_chart(_curves(report), LOSS, kill_and_resume(report["checks"]))


def _curves(report: Mapping[str, Any]) -> dict[str, list[tuple[int, float]]]:
    return {name: _numbers(points) for name, points in report["curves"].items()}


def kill_and_resume(checks: Iterable[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Return the updates at which a smoke's training was killed and went on."""
    found = next((c["measured"] for c in checks if c["name"] == "resume_equal"), None) or {}
    words = {"resumed_from": "goes on from update", "killed_after": "killed after update"}
    return [(int(found[key]), f"{said} {found[key]}")
            for key, said in words.items() if isinstance(found.get(key), int)]  # fmt: skip


def _gaps(
    checks: Iterable[Mapping[str, Any]],
    curves: Mapping[str, Sequence[tuple[int, float]]],
    marks: Sequence[tuple[int, str]],
) -> dict[str, Any] | None:
    """Return the drawing of differences that checks bound; None where nothing was compared."""
    against: dict[str, str] = {}
    bounds: dict[float, str] = {}
    for check in checks:
        measured, expected = check["measured"], check["expected"]
        if check["name"] == "parity" and measured:
            against |= {name: entry["against"] for name, entry in measured.items()}
        elif check["name"] == "resume_equal" and measured:
            against[f"{measured['layout']}, resumed"] = measured["layout"]
        else:
            continue
        own = {name: value for name, value in expected.items() if name in against}
        for name, value in {"": expected[GAPS], **own}.items():
            match value:
                case {"at_most": bound}:
                    bounds.setdefault(bound, f"{name}: at most {bound:g}".removeprefix(": "))
    known = {name: other for name, other in against.items() if {name, other} <= set(curves)}
    if not known or not bounds:
        return None
    return chart.difference_chart(curves, known, bounds, GAP, marks)


def read_checks(checks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return checks with their bounds as numbers; the first schema wrote them as text."""
    return [{**check, "expected": _as_bound(check["expected"])} for check in checks]


def _as_bound(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_bound(one) for name, one in value.items()}
    found = _BOUND.fullmatch(value) if isinstance(value, str) else None
    return {_SIGNS[found[1]]: float(found[2])} if found else value


def check_rows(checks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return checks as a page shows them, each with its most important figure."""
    rows = [check_row(check) for check in checks]
    return [{**row, "figure": figure(row) or _first_bounded(row["rows"])} for row in rows]


def _first_bounded(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the first measured value with a bound, for checks without a figure of their own."""
    found = (f"{row['name']}: {row['measured']}" for row in rows
             if row["measured"] and row["expected"])  # fmt: skip
    return next(found, "")


def check_row(check: Mapping[str, Any]) -> dict[str, Any]:
    """Return a check as a page shows it: each measured figure with what was expected beside it."""
    expected = dict(_expected(check))
    said = "" if () not in expected else str(expected.pop(()))
    used, rows = set(), []
    for path, value in _leaves(check["measured"]):
        bound = _bound_of(path, expected)
        used.add(bound)
        beside = _in_words(expected[bound]) if bound is not None else ""
        rows.append({"name": ", ".join(path), "measured": _in_words(value), "expected": beside})
    rows += [
        {"name": ", ".join(path), "measured": "", "expected": _in_words(value)}
        for path, value in expected.items() if path not in used
    ]  # fmt: skip
    bounds = [
        f"{_bounded(path)} {_in_words(value)}".strip()
        for path, value in _expected(check)
        if path and (isinstance(value, Mapping) or str(value).startswith((">= ", "<= ")))
    ]
    return {
        "why": "",
        **check,
        "rows": rows,
        "said": said,
        "bounds": ", ".join(dict.fromkeys(bounds)),
    }


def _bounded(path: tuple[str, ...]) -> str:
    """Return the name of a bounded figure; the largest difference has that of its layout."""
    return "".join(path[:-1]) if path[-1] == GAPS else path[-1]


def _expected(check: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what is expected with its path; a layout's own bound is of its largest difference."""
    measured = check["measured"]
    for path, value in _leaves(check["expected"]):
        of = measured.get(path[0]) if path and isinstance(measured, Mapping) else None
        own = isinstance(value, Mapping) and isinstance(of, Mapping) and GAPS in of
        yield (*path, GAPS) if own else path, value


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of nested mappings with their paths; a bound is one value."""
    is_group = isinstance(value, Mapping) and not set(value) & {"at_most", "at_least"}
    if is_group and (value or not path):
        for name, one in value.items():
            yield from _leaves(one, (*path, str(name)))
    elif value is not None:
        yield path, value


def _bound_of(path: tuple[str, ...], expected: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the path of what is expected of a figure: its own, its end, or its beginning."""
    fits = [
        (len(one), one) for one in expected
        if path[-len(one):] == one or path[: len(one)] == one
    ]  # fmt: skip
    return max(fits)[1] if fits else None


def _in_words(value: Any) -> str:
    match value:
        case {"at_most": limit}:
            return f"at most {_limit(limit)}"
        case {"at_least": limit}:
            return f"at least {_limit(limit)}"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.6g}"
        case str():
            return value.replace(">=", "at least").replace("<=", "at most")
        case list() | dict() if not value:
            return "none"
        case list() if all(isinstance(one, str | int | float) for one in value):
            return ", ".join(map(_in_words, value))
    return json.dumps(value, ensure_ascii=False)


def _limit(limit: float) -> str:
    return f"{limit:,.0f}" if float(limit).is_integer() else f"{limit:,g}"


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
