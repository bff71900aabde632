"""What a person sees: live progress on standard error, results on standard output.

Owns the terminal. In a terminal one live block shows each stack's phase, update and loss; elsewhere
every event is one plain line. Standard output carries results only, so that `--json` is clean.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from stackyard.report import figure

STYLES = {"passed": "bold green", "failed": "bold red", "not run": "bold yellow"}
SPARKS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float], width: int = 16) -> str:
    """A curve in one line of text: the last `width` points of it, evenly picked."""
    values = [value for value in values if math.isfinite(value)]
    if len(values) < 2:
        return ""
    picked = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(picked), max(picked)
    scale = (len(SPARKS) - 1) / ((high - low) or 1.0)
    return "".join(SPARKS[round((value - low) * scale)] for value in picked)


class Terminal:
    """Progress of one command; used as a context so that the live block is always closed."""

    def __init__(self, *, json: bool = False, live: bool | None = None) -> None:
        self.json = json
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)
        # Tables that go to a file or a pipe are not squeezed into rich's 80 columns.
        self.out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        self._live = self.err.is_terminal if live is None else live
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[stack]:<10}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self.err,
            transient=True,
        )
        self._tasks: dict[str, Any] = {}
        self._curves: dict[tuple[str, str], list[float]] = {}

    def __enter__(self) -> Terminal:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()

    def say(self, stack: str, text: str) -> None:
        """One event of a stack: a build step, a phase."""
        with self._lock:
            if self._live:
                self._show(stack, text[:90])
            else:
                seconds = time.monotonic() - self._started
                print(f"[{seconds:7.1f} s] {stack}: {text}", file=sys.stderr, flush=True)

    def done(self, stack: str, text: str) -> None:
        """A lasting line: something of a stack is finished."""
        with self._lock:
            seconds = time.monotonic() - self._started
            line = f"[{seconds:7.1f} s] {stack}: {text}"
            if self._live:
                self._progress.console.print(line, markup=False)
            else:
                print(line, file=sys.stderr, flush=True)

    def loss(self, stack: str, label: str, step: int, total: int, loss: float) -> None:
        """One update of a training: drawn live, every tenth as a plain line."""
        with self._lock:
            curve = self._curves.setdefault((stack, label), [])
            curve.append(loss)
            if self._live:
                self._show(stack, f"{label}  loss {loss:.3f} {spark(curve)}", step, total)
            elif step % 10 == 0 or step == total:
                seconds = time.monotonic() - self._started
                text = f"[{seconds:7.1f} s] {stack}: {label}: update {step}/{total} loss {loss:.4f}"
                print(text, file=sys.stderr, flush=True)

    def _show(self, stack: str, text: str, step: int = 0, total: int | None = None) -> None:
        if stack not in self._tasks:
            self._tasks[stack] = self._progress.add_task("", stack=stack, total=None)
        description = text.replace("[", "\\[")
        if not step:
            # A new phase: the clock beside it starts again.
            self._progress.reset(self._tasks[stack], total=None, description=description)
        else:
            self._progress.update(
                self._tasks[stack], description=description, completed=step, total=total
            )

    def note(self, text: str) -> None:
        """A remark that is no part of the result."""
        with self._lock:
            self.err.print(text, markup=False)

    def table(self, table: Table) -> None:
        """A result for people; silent when JSON was asked for."""
        if not self.json:
            self.out.print(table)

    def text(self, text: str) -> None:
        """A result line for people; silent when JSON was asked for."""
        if not self.json:
            self.out.print(text, markup=False, soft_wrap=True)


def outcome_text(outcome: str) -> str:
    """An outcome with its colour."""
    return f"[{STYLES.get(outcome, '')}]{outcome}[/]"


def smoke_table(reports: Sequence[Mapping[str, Any]]) -> Table:
    """Checks by stack: one row a check, one column a stack."""
    table = Table(title="smoke", title_justify="left")
    table.add_column("check", style="bold")
    for report in reports:
        table.add_column(f"{report['stack']} on {report['base']}")
    names = list(dict.fromkeys(c["name"] for r in reports for c in r["checks"]))
    for name in names:
        table.add_row(name, *(_cell(report, name) for report in reports))
    table.add_section()
    table.add_row("verdict", *(outcome_text(report["outcome"]) for report in reports))
    return table


def _cell(report: Mapping[str, Any], name: str) -> str:
    check = next((c for c in report["checks"] if c["name"] == name), None)
    if check is None:
        return ""
    return f"{outcome_text(check['outcome'])} {figure(check)}"


def phase_table(reports: Sequence[Mapping[str, Any]]) -> Table:
    """Seconds of every phase: two columns a stack, phases in their order."""
    table = Table(title="phases, seconds", title_justify="left")
    for report in reports:
        table.add_column(str(report["stack"]), no_wrap=True)
        table.add_column("s", justify="right")
    rows = max((len(report["phases"]) for report in reports), default=0)
    for row in range(rows):
        cells = []
        for report in reports:
            phases = report["phases"]
            known = row < len(phases)
            cells += [phases[row]["name"], f"{phases[row]['seconds']:.2f}"] if known else ["", ""]
        table.add_row(*cells)
    if not reports:
        return table
    table.add_section()
    totals = [f"{sum(p['seconds'] for p in report['phases']):.1f}" for report in reports]
    table.add_row(*(cell for total in totals for cell in ("all", total)))
    return table
