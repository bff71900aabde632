"""Read an earlier smoke's record, to compare it with a later one.

Owns finding the file and refusing what is no such record. It must not compare:
`report.comparison` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stackyard.definitions.load import why_unreadable
from stackyard.report import records
from stackyard.system.errors import UsageError, shown

_WHERE = "reports/<stack>/<base>/smoke.json is what a smoke writes"
# Keys that a comparison reads, each with its type.
_NEEDED = {
    "stack": str, "base": str, "outcome": str, "started": str, "run": str, "image": dict,
    "host": dict, "nodes": list, "checks": list, "curves": dict, "commands": dict,
}  # fmt: skip
_IMAGE = {"id": str, "recipe": str, "size_bytes": int, "fixes": list}


def read_report(
    path: Path, *, stack: str = "", base: str = "", kind: str = "smoke"
) -> dict[str, Any]:
    """Read a smoke's record.

    Args:
        path: the file; or a folder laid out as `reports`, where `stack`, `base` and `kind` choose.
        stack: the stack that it must be of; empty for any.

    Raises:
        UsageError: it is missing, not such a record, of a newer schema than is known here, or of
            another stack.
    """
    if path.is_dir() and stack:
        path = path / stack / base / f"{kind}.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read", why=why_unreadable(error), hint=_WHERE
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON", why=str(error)[:200], hint=_WHERE) from error
    problem = _problem(value)
    if problem:
        raise UsageError(f"{path} is no report of a smoke that can be compared", why=problem,
                         hint=_WHERE)  # fmt: skip
    if stack and value["stack"] != stack:
        raise UsageError(
            f"{path} is of {shown(value['stack'])}, not of {stack}",
            why="only smokes of one stack can be held against each other",
            hint=f"invoke smoke {shown(value['stack'])} --against {path}, or an earlier report of"
            f" {stack}",
        )
    found: dict[str, Any] = value
    return found


def _problem(value: Any) -> str:
    """Return why a value is no record that can be compared; empty if it is one."""
    if not isinstance(value, dict):
        return "it is not an object"
    schema = str(value.get("schema", ""))
    number = re.fullmatch(r"stackyard\.report/(\d+)", schema)
    known = int(records.SCHEMA.rpartition("/")[2])
    if not number:
        return f"its schema is {shown(schema) or 'missing'}, not {records.SCHEMA}"
    if int(number.group(1)) > known:
        return f"it was written by a newer stackyard ({schema}; {records.SCHEMA} is known here)"
    if value.get("kind") != "smoke":
        return f"its kind is {shown(str(value.get('kind')))}, not smoke"
    wrong = _wrong_types(value, _NEEDED) or _wrong_types(value["image"], _IMAGE, "image.")
    if wrong:
        return wrong
    if not all(isinstance(c, dict) and {"name", "outcome"} <= c.keys() for c in value["checks"]):
        return "its checks are not as reports have them"
    if not all(_is_curve(points) for points in value["curves"].values()):
        return "its curves are not lists of [update, loss]"
    return ""


def _wrong_types(value: Mapping[str, Any], needed: Mapping[str, type], prefix: str = "") -> str:
    for key, kind in needed.items():
        if not isinstance(value.get(key), kind):
            return f"{prefix}{key} is missing or not a {kind.__name__}"
    return ""


def _is_curve(points: Any) -> bool:
    try:
        return all(int(step) >= 0 and isinstance(float(loss), float) for step, loss in points)
    except (TypeError, ValueError):
        return False
