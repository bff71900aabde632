"""Run `invoke diagnose`, and print the known failures that other commands recognise.

Owns the output. The patterns are in `images/failures/`; `validate.diagnose` matches them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.tables import outcome_text
from stackyard.definitions.load import load_failures
from stackyard.definitions.project import ROOT
from stackyard.report import records
from stackyard.system.errors import UsageError
from stackyard.validate.diagnose import diagnose as diagnoses_of
from stackyard.validate.diagnose import diagnosis_text, diagnosis_value


def diagnose(terminal: Terminal, file: str) -> Answer:
    """Print the known failures that a log shows; exit code 1 when it shows none."""
    found = recognised(ROOT, _read_log(file))
    show(found["diagnoses"], terminal.text)
    if not found["diagnoses"]:
        known = f"{found['known']} failures are known (images/failures)"
        terminal.text(f"nothing was recognised in {file}: {known}, and it shows none of them")
    return {"file": file, **found}, 0 if found["diagnoses"] else 1


def recognised(root: Path, text: str, step: str = "") -> dict[str, Any]:
    """Return the known failures recognised in a text, and how many are known.

    Args:
        step: the step that said it, as failures name steps; empty where it is not known.

    Raises:
        DefinitionError: the failures' definitions are invalid.
    """
    failures = load_failures(root)
    found = [
        diagnosis_value(diagnosis) for diagnosis in diagnoses_of(text, failures.values(), step)
    ]
    return {"known": len(failures), "diagnoses": found}


def show(found: Iterable[Mapping[str, Any]], say: Callable[[str], None]) -> None:
    """Print each recognised failure with its cause and remedy."""
    for value in found:
        say(diagnosis_text(value))


def show_end(terminal: Terminal, name: str, value: Mapping[str, Any]) -> None:
    """Print the end of a report: its checks, recognised failures, last lines, and where it is."""
    checks = Table(title="checks", title_justify="left", show_header=False)
    for check in value["checks"]:
        checks.add_row(check["name"], outcome_text(check["outcome"]), escape(check.get("why", "")))
    terminal.table(checks)
    show(value["diagnoses"], lambda text: terminal.text(f"{name}: {text}"))
    for label, tail in value["last_lines"].items():
        shown = "\n".join(tail.splitlines()[-40:])
        terminal.text(f"{name}: last lines of {label}:\n{shown}")
    terminal.text(f"{name}: report in {records.path_of_report(value, 'html')}")


def _read_log(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        hint = "invoke diagnose FILE, or - for standard input"
        raise UsageError(
            f"{file} cannot be read", why=error.strerror or str(error), hint=hint
        ) from error
    return data.decode("utf-8", errors="replace")
