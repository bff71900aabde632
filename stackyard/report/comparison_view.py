"""Turn a comparison of two smokes into rows and lines, for a terminal and for the page.

Owns the words; `report.comparison` owns the verdict. It must not print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stackyard.report.comparison import move_lines

SHOWN = 12


def curve_rows(value: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return one row per layout: outcome, updates, largest difference, where it parts, speed."""
    speeds = {row["layout"]: row for row in value["speeds"]["layouts"]}
    rows = []
    for curve in value["curves"]:
        judged = curve["outcome"] != "not run"
        parts = curve.get("parts_at")
        rows.append(
            {
                "layout": curve["layout"],
                "outcome": curve["outcome"],
                "updates": str(curve["updates"]) if judged else "",
                "difference": _difference(curve) if judged else curve["why"],
                "parts": f"update {parts}" if parts is not None else "nowhere" if judged else "",
                "tolerance": f"{curve['tolerance']:g}" if judged else "",
                "speed": _speed(speeds.pop(curve["layout"], None)),
            }
        )
    for name, row in speeds.items():
        empty = dict.fromkeys(("outcome", "updates", "difference", "parts", "tolerance"), "")
        rows.append({"layout": name, **empty, "speed": _speed(row)})
    return rows


def _difference(curve: Mapping[str, Any]) -> str:
    gap = curve["largest_difference"]
    if isinstance(gap, str) or gap is None:
        return str(gap)
    return f"{gap:.2g} at {curve['at_update']}" if gap else "0"


def _speed(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['before']:,.4g} -> {row['after']:,.4g} ({row['ratio']}), {row['says']}"


def comparison_lines(value: Mapping[str, Any]) -> list[str]:
    """Return lines on speed, size, packages, other changes and suspects: all but the curves."""
    size, packages = value["size"], value["packages"]
    lines = []
    if value["speeds"]["why"]:
        lines.append(f"speeds are not judged: {value['speeds']['why']}")
    lines.append(
        f"image: {size['before'] / 1e6:,.1f} MB before, {size['after'] / 1e6:,.1f} MB now"
        f" ({size['difference'] / 1e6:+,.1f} MB)"
    )
    if value["before"]["image"] == value["after"]["image"]:
        lines.append("it is the very same image")
    for kind, name in (("python", "Python"), ("debian", "Debian")):
        if packages[kind] is not None:
            moved = move_lines(packages[kind])
            lines.append(f"{name} packages that moved: {_some(moved) or 'none'}")
    if packages["why"]:
        lines.append(packages["why"])
    if value["changed"]:
        lines.append(f"also changed: {_some(value['changed'])}")
    if value["why"]:
        lines.append(f"failed: {value['why']}")
        suspects = _some(value["suspects"])
        lines.append(
            f"suspects: {suspects}"
            if suspects
            else "no package, fix, command or machine moved: look at what the smoke itself runs"
        )
    return lines


def _some(found: list[str]) -> str:
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
