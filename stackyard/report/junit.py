"""Write the checks and proofs of reports as JUnit XML, which CI systems read.

Owns the file's form: one suite a report, one test case a check or proof (docs/reference/report.md).
It must not judge: outcomes and reasons are the report's own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from stackyard.system.errors import UsageError
from stackyard.system.files import replace_file
from stackyard.validate.checks import FAILED, NOT_RUN, PASSED
from stackyard.validate.prove.judge import PROVEN

# Characters that XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Hold one test case.

    Attributes:
        seconds: 0 for a check, which is judged from records when the trainings are over.
        detail: further lines about a failure.
    """

    name: str
    outcome: str
    seconds: float = 0.0
    why: str = ""
    detail: str = ""


def require_place(path: Path) -> None:
    """Check that a file can be written, and remove an earlier one.

    A command that ends early leaves none, so that nobody takes an earlier result for its own.

    Raises:
        UsageError: its folder is missing or cannot be written, or the path is a folder or device.
    """
    why = ""
    if path.exists() and not path.is_file():
        why = "it is there, and is no file"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path.parent, os.W_OK):
        why = f"you may not write to {path.parent}"
    if why:
        hint = "name a file in a folder that is there: --junit results.xml"
        raise UsageError(f"--junit: {path} cannot be written", why=why, hint=hint)
    path.unlink(missing_ok=True)


def write(path: Path, reports: Iterable[Mapping[str, Any]]) -> None:
    """Write the results of several reports to one file, whole."""
    replace_file(path, [render(reports)])


def render(reports: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the results of several reports as the bytes of an XML document."""
    top = ElementTree.Element("testsuites")
    for report in reports:
        _add_suite(top, report, cases(report))
    ElementTree.indent(top, " ")
    text = ElementTree.tostring(top, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def cases(report: Mapping[str, Any]) -> list[Case]:
    """Return a report's checks or proofs, and its comparison with an earlier report."""
    found = [_check(check) for check in report.get("checks", ())]
    found += [_proof(proof) for proof in report.get("proofs", ())]
    if "against" in report:
        against = report["against"]
        found.append(Case(name="against", outcome=against["outcome"], why=against["why"]))
    return found


def _check(check: Mapping[str, Any]) -> Case:
    shown = {key: check[key] for key in ("measured", "expected")}
    return Case(
        name=check["name"],
        outcome=check["outcome"],
        why=check.get("why", ""),
        detail=json.dumps(shown, indent=1, ensure_ascii=False),
    )


def _proof(proof: Mapping[str, Any]) -> Case:
    runs = [proof["with"], *([proof["without"]] if proof["without"] else [])]
    return Case(
        name=proof["id"],
        outcome=PASSED if proof["verdict"] == PROVEN else FAILED,
        seconds=sum(run["seconds"] for run in runs),
        why=f"{proof['verdict']}: {proof['why']}" if "why" in proof else "",
        detail=proof.get("last_lines", ""),
    )


def _add_suite(top: ElementTree.Element, report: Mapping[str, Any], found: Sequence[Case]) -> None:
    outcomes = [case.outcome for case in found]
    suite = ElementTree.SubElement(
        top,
        "testsuite",
        name=f"{report['kind']} {report['stack']} on {report['base']}",
        tests=str(len(found)),
        failures=str(outcomes.count(FAILED)),
        errors="0",
        skipped=str(outcomes.count(NOT_RUN)),
        time=f"{report['seconds']:.3f}",
        timestamp=report["started"],
    )
    for case in found:
        entry = ElementTree.SubElement(
            suite,
            "testcase",
            classname=report["stack"],
            name=_text(case.name),
            time=f"{case.seconds:.3f}",
        )
        if case.outcome == FAILED:
            failure = ElementTree.SubElement(entry, "failure", message=_text(case.why))
            failure.text = _text(case.detail)
        elif case.outcome == NOT_RUN:
            ElementTree.SubElement(entry, "skipped", message=_text(case.why))


def _text(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return _FORBIDDEN.sub("\ufffd", text)
