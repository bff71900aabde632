"""Compare two smokes of one stack, an earlier and a later one: losses, resume, speed, packages.

Owns when loss curves part, what counts as a broken resume, when two speeds may be compared, and
which packages are suspects. Pure: it sees only the two records (docs/reference/report.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stackyard.build.locks.change import direction
from stackyard.report import shapes
from stackyard.report.records import as_json
from stackyard.validate.checks import FAILED, NOT_RUN, PASSED, OutcomeWord
from stackyard.validate.judge_training import gaps, largest_gap

Report = Mapping[str, Any]
# A layout this much slower or faster is reported. It fails nothing: CPU ranks share their cores.
SPEED_MARGIN = 0.1
# Speeds are compared only between machines that agree in these.
_KIND = ("cpus", "architecture", "memory_gib", "smokes_at_once")
_RESUME = "resume_equal"


def compare(before: Report, after: Report) -> shapes.Comparison:
    """Compare and judge two records; return the result, ready for JSON.

    `outcome` is `failed` when a curve parts or the resume broke, `not run` when no layout was
    trained in both, else `passed`. The tolerance is the later report's own (its check `parity`).
    """
    curves = _curves(before, after)
    resume = _resume(before, after)
    wrong = [curve["why"] for curve in curves if curve["outcome"] == FAILED]
    wrong += [resume["why"]] if resume["outcome"] == FAILED else []
    judged = any(curve["outcome"] != NOT_RUN for curve in curves)
    packages = _packages(before, after)
    changed = _changed(before, after)
    return {
        "outcome": FAILED if wrong else PASSED if judged else NOT_RUN,
        "why": "; ".join(wrong),
        "before": _said(before),
        "after": _said(after),
        "curves": curves,
        "resume": resume,
        "speeds": _speeds(before, after),
        "size": _size(before, after),
        "packages": packages,
        "changed": changed,
        "suspects": _suspects(packages, changed) if wrong else [],
    }


def _said(report: Report) -> shapes.ComparedReport:
    image = report["image"]
    return {
        "stack": report["stack"],
        "base": report["base"],
        "outcome": report["outcome"],
        "started": report["started"],
        "run": report["run"],
        "image": image["id"],
        "recipe": image["recipe"],
        "size_bytes": image["size_bytes"],
    }


# Loss curves


def tolerance_of(report: Report, curve: str) -> float:
    """Return how far two losses of a layout may differ, as the report's `parity` expected."""
    expected = _check(report, "parity").get("expected") or {}
    layout = curve.partition(",")[0]
    match expected.get(layout, expected.get("largest_difference")):
        case {"at_most": limit}:
            return float(limit)
        case str(text) if re.fullmatch(r"<= [0-9.e+-]+", text):  # stackyard.report/1
            return float(text[3:])
    return 1e-3


def _curves(before: Report, after: Report) -> list[shapes.CurveComparison]:
    old, new = before["curves"], after["curves"]
    names = [name for name in dict.fromkeys([*old, *new]) if not name.endswith(", killed")]
    return [_curve(name, before, after) for name in names]


def _curve(name: str, before: Report, after: Report) -> shapes.CurveComparison:
    value: shapes.CurveComparison = {"layout": name, "outcome": NOT_RUN, "why": ""}
    for which, report in (("later", after), ("earlier", before)):
        if name not in report["curves"]:
            return {**value, "why": f"{name} is not in the {which} report"}
    limit = tolerance_of(after, name)
    judged = [r for r in (before, after) if _updates(r)]
    last = min((_updates(r) for r in judged), default=0)
    old, new = (_points(report["curves"][name], last) for report in (before, after))
    missing = sorted(set(old) ^ set(new))
    found = gaps(old, new)
    worst, where = largest_gap(found)
    parts = next((step for step, gap in found.items() if gap > limit), None)
    why = ""
    if not found:
        why = f"{name}: no update was recorded in both"
    elif parts is not None:
        why = (
            f"{name}: the losses part at update {parts}"
            f" ({old[parts]:.6g} before, {new[parts]:.6g} now), by {worst:.3g} at most"
            f" (update {where}); {limit:g} is allowed"
        )
    elif missing:
        why = f"{name}: update {missing[0]} is in one report only ({len(found)} compared)"
    return {
        **value,
        "outcome": FAILED if why else PASSED,
        "why": why,
        "updates": len(found),
        "largest_difference": as_json(worst) if found else None,
        "at_update": where,
        "parts_at": parts,
        "tolerance": limit,
    }


def _updates(report: Report) -> int:
    """Return the last judged update; a training that is killed goes on past it for a while."""
    expected = _check(report, "parity").get("expected") or {}
    found = expected.get("updates", 0)
    return found if isinstance(found, int) else 0


def _points(points: Sequence[Sequence[Any]], last: int) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in points if not last or int(step) <= last}


# Resume


def _resume(before: Report, after: Report) -> shapes.ResumeComparison:
    old, new = (_check(report, _RESUME).get("outcome", NOT_RUN) for report in (before, after))
    why = ""
    outcome: OutcomeWord = PASSED
    if new != PASSED:
        said = _check(after, _RESUME).get("why", "")
        outcome = FAILED if old == PASSED else NOT_RUN
        why = f"resume: {new} now, {old} before" + (f": {said}" if said else "")
    return {"outcome": outcome, "before": old, "after": new, "why": why}


def _check(report: Report, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((c for c in report["checks"] if c["name"] == name), {})
    return found


# Speed


def _speeds(before: Report, after: Report) -> shapes.SpeedComparison:
    old, new = _rates(before), _rates(after)
    other = _other_machine(before, after)
    rows: list[shapes.SpeedRow] = []
    for name in [name for name in new if name in old]:
        ratio = new[name] / old[name] if old[name] else math.nan
        rows.append(
            {
                "layout": name,
                "before": old[name],
                "after": new[name],
                "ratio": as_json(round(ratio, 3)),
                "says": "not judged" if other else _speed_word(ratio),
            }
        )
    why = other
    if not rows:
        lacking = [w for w, r in (("earlier", old), ("later", new)) if not r]
        why = f"{_which(lacking)} a speed" if lacking else "no layout's speed is in both"
    return {"judged": bool(rows) and not other, "why": why, "layouts": rows}


def _rates(report: Report) -> dict[str, float]:
    """Return updates per second by layout, and on GPUs tokens per second of GPT-2 small."""
    found = {
        name: float(speed["updates_s"])
        for name, speed in report.get("speeds", {}).items()
        if speed["updates_s"]
    }
    tokens = report.get("gpus", {}).get("measured", {}).get("training", {}).get("tokens_s")
    return {**found, **({"GPT-2 small, tokens/s": float(tokens)} if tokens else {})}


def _speed_word(ratio: float) -> shapes.SpeedWord:
    if not math.isfinite(ratio):
        return "not judged"
    if ratio < 1 - SPEED_MARGIN:
        return "slower"
    return "faster" if ratio > 1 + SPEED_MARGIN else "as before"


def _other_machine(before: Report, after: Report) -> str:
    """Return why speeds may not be compared; empty if the machines are of one kind."""
    old, new = _machine(before), _machine(after)
    other = [f"{key} {old.get(key)} and {new.get(key)}" for key in new if old.get(key) != new[key]]
    return f"not the same kind of machine: {', '.join(other)}" if other else ""


def _machine(report: Report) -> dict[str, Any]:
    gpus = report.get("gpus", {})
    kind = {key: report["host"].get(key) for key in _KIND}
    kind["GPUs"] = ", ".join(g["name"] for g in gpus.get("devices", [])) or "none"
    kind["placement"] = gpus.get("placement", "none")
    return {**kind, "nodes": len(report["nodes"])}


# Changes


def _size(before: Report, after: Report) -> shapes.SizeComparison:
    old, new = (int(report["image"]["size_bytes"]) for report in (before, after))
    return {"before": old, "after": new, "difference": new - old}


def _packages(before: Report, after: Report) -> shapes.PackageComparison:
    """Return the packages that moved between the images, as found in both, else as locked."""
    found = [report["image"].get("installed") for report in (before, after)]
    if all(found):
        python, debian = (
            moves(found[0].get(kind, {}), found[1].get(kind, {})) for kind in ("python", "debian")
        )
        return {"from": "installed", "why": "", "python": python, "debian": debian}
    which = [w for w, f in (("earlier", found[0]), ("later", found[1])) if not f]
    # A base's own packages are locked without a version: nothing is known of them.
    locked = [report["image"].get("packages", {}) for report in (before, after)]
    unknown = {name for packages in locked for name, version in packages.items() if not version}
    old, new = ({n: v for n, v in one.items() if n not in unknown} for one in locked)
    return {
        "from": "locked",
        "why": f"{_which(which)} what is installed: Python packages are compared as far as"
        " their versions were locked, Debian's not at all",
        "python": moves(old, new),
        "debian": None,
    }


def _which(lacking: Sequence[str]) -> str:
    """Return the start of a sentence about reports that lack something."""
    if len(lacking) == 1:
        return f"the {lacking[0]} report does not tell"
    return "the reports do not tell"


def moves(old: Mapping[str, str], new: Mapping[str, str]) -> shapes.MovesValue:
    """Return the names that were added or removed, and the versions that moved, with direction."""
    both = [name for name in sorted(new) if name in old and old[name] != new[name]]
    return {
        "added": {name: new[name] for name in sorted(set(new) - set(old))},
        "removed": {name: old[name] for name in sorted(set(old) - set(new))},
        "moved": [
            {"name": n, "from": old[n], "to": new[n], "way": direction(old[n], new[n])}
            for n in both
        ],
    }


def _changed(before: Report, after: Report) -> list[str]:
    """Return what else changed: base, fixes, recipe, commands, machine."""
    found = []
    if before["base"] != after["base"]:
        found.append(f"the base: {before['base']} before, {after['base']} now")
    old, new = before["image"]["fixes"], after["image"]["fixes"]
    found += [f"fix {name} is new" for name in new if name not in old]
    found += [f"fix {name} is gone" for name in old if name not in new]
    for name, words in after["commands"].items():
        if before["commands"].get(name, words) != words:
            found.append(f"the command of {name}")
    for key in ("architecture", "kernel", "engine"):
        was, now = before["host"].get(key), after["host"].get(key)
        if was != now:
            found.append(f"{key}: {was} before, {now} now")
    if before["image"]["recipe"] != after["image"]["recipe"]:
        found.append("the image's recipe")
    return found


def _suspects(packages: Mapping[str, Any], changed: Sequence[str]) -> list[str]:
    """Return possible causes, the likeliest first: Python packages, then all else that moved."""
    found = [line for kind in ("python", "debian") for line in move_lines(packages[kind])]
    return [*found, *changed]


def move_lines(found: Mapping[str, Any] | None) -> list[str]:
    """Return moves in words, one per package."""
    if not found:
        return []
    return [
        *(f"{m['name']} {m['from']} -> {m['to']}" for m in found["moved"]),
        *(f"{name} {version} is new" for name, version in found["added"].items()),
        *(f"{name} {version} is gone" for name, version in found["removed"].items()),
    ]  # fmt: skip
