"""Show a bench, from its report alone: rows of its tables, and its page.

Pure. What is here reads older reports, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stackyard.report import chart, page
from stackyard.system import template
from stackyard.validate.bench.result import START

GIB = 2**30
# What an update's time goes into: the report's keys, and the columns of `spent_rows`.
SPENT_KEYS: Final = ("update", "watched", "compute", "alone", "idle", "beside")
SPENT: Final = (
    "variant", "ranks", "an update", "watched", "computing", "communicating alone", "idle",
    "communicating beside",
)  # fmt: skip


def render_page(value: Mapping[str, Any]) -> str:
    """Return the page of one bench."""
    value = _completed(value)
    columns = [column for column in zip(headings(value), *rows(value), strict=True)
               if any(column[1:])]  # fmt: skip
    values: dict[str, object] = {
        "report": value,
        "headings": [heading for heading, *_ in columns],
        "rows": list(zip(*(cells for _, *cells in columns), strict=True)),
        "spent_headings": SPENT,
        "spent_rows": spent_rows(value),
        "unwatched": unwatched(value),
        "at_once": min(value["counts"]) * 2 <= value["available"],
        "checks": page.check_rows(page.read_checks(value["checks"])),
        "chart": chart.line_chart(curves(value), "loss, as the stack logs it"),
        "speeds": chart.line_chart(
            curves(value, "windows", value["warm"]), f"{value['unit']} a second"
        ),
    }
    return template.render("bench.html.j2", values)


def _completed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report with the keys that it lacks if no trainings ran at the same time then."""
    runs = [
        {"group": 1, "gpus": [], "label": f"{run['side']}-{run['ranks']}-{run['round']}", **run}
        for run in value["runs"]
    ]
    return {"available": max(value["counts"]), **value, "runs": runs}


def curves(
    value: Mapping[str, Any], kind: str = "losses", after: int = 0
) -> dict[str, list[tuple[int, float]]]:
    """Return losses or speeds as points, by side, of its first training on the most ranks."""
    most = max(value["counts"])
    return {
        f"{run['side']} on {run['ranks']}": [
            (step, number)
            for step, number in run[kind]
            if isinstance(number, float) and step > after
        ]
        for run in value["runs"]
        if (run["round"], run["group"], run["ranks"]) == (1, 1, most) and not run["failed"]
    }


def rows(value: Mapping[str, Any]) -> list[list[str]]:
    """Return the results as text, under `headings`."""
    return [
        [
            entry["side"],
            str(entry["ranks"]),
            _text(entry["speed"], "{:,.0f}"),
            _ratio(value, entry),
            _ratio(value, entry, "mean_ratio"),
            _text(entry["mfu"] and 100 * entry["mfu"], "{:.1f} %"),
            _text(entry["peak_bytes"] and entry["peak_bytes"] / GIB, "{:.1f} GiB"),
            _text(entry["scaling"], "{:.3f}"),
            _text(entry.get("pause_seconds"), "{:.2f} s"),
            ", ".join(_text(s, "{:.1f} s") for s in entry.get("start_seconds", {}).values() if s),
        ]
        for entry in value["results"]
    ]


def _ratio(value: Mapping[str, Any], entry: Mapping[str, Any], key: str = "ratio") -> str:
    against = value["sides"][entry["side"]]["against"]
    return "" if against == entry["side"] else _text(entry.get(key), f"{{:.3f}} of {against}")


def _text(number: float | None, form: str) -> str:
    return "" if number is None else form.format(number)


def spent_rows(value: Mapping[str, Any]) -> list[list[str]]:
    """Return what updates' time goes into as text, under `SPENT`; none where it was not measured.

    Beside each time stands by how much it is longer than on one rank.
    """
    found = {
        (entry["side"], entry["ranks"]): entry["spent"]
        for entry in value["results"] if entry.get("spent")
    }  # fmt: skip
    return [
        [side, str(ranks), *(_more(part, found.get((side, 1), part), key) for key in SPENT_KEYS)]
        for (side, ranks), part in found.items()
    ]


def unwatched(value: Mapping[str, Any]) -> str:
    """Return which results on GPUs lack it, as a sentence; empty for none, and in older reports."""
    lack = [f"{entry['side']} on {entry['ranks']}" for entry in value["results"]
            if value["gpus"] and "spent" in entry and entry["spent"] is None]  # fmt: skip
    why = "a training failed, or the profiler of a rank, whose output says why"
    return f"where the time goes was not measured: {', '.join(lack)}: {why}" if lack else ""


def _more(part: Mapping[str, float], one: Mapping[str, float], key: str) -> str:
    # What rounds to zero loses its minus sign by the addition.
    time, more = (round(1000 * seconds, 1) + 0.0 for seconds in (part[key], part[key] - one[key]))
    return f"{time:.1f} ms" + (f" ({more:+.1f})" if part is not one else "")


def headings(value: Mapping[str, Any]) -> list[str]:
    """Return the headings of the columns of `rows`."""
    return [
        "variant",
        "ranks",
        f"{value['unit']}/s",
        "ratio",
        f"of all after {START}",
        "MFU",
        "memory",
        "scaling",
        "longest pause",
        f"start-up (1, {START})",
    ]
