"""Run benchmarks and write their results; all benchmarks share this module.

Owns the files under `benchmarks/results`, facts of the machine, and verdicts. It must not measure
anything itself, and knows nothing of matplotlib: pictures are drawn from the results by
`benchmarks/plot.py`.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stackyard.cli import command as cli
from stackyard.cli.console import Terminal
from stackyard.definitions.project import ROOT
from stackyard.system.engine import Engine

# Files that building and locking do not read, or that a copy must not have.
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "reports", "results", "tests", "__pycache__", ".*_cache"
)
RESULTS = Path(__file__).resolve().parent / "results"
LABEL = "stackyard.benchmark"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Hold one picture: the values of each side at each place on the x axis.

    Attributes:
        x: names (drawn as groups of bars) or numbers (drawn as a curve).
        series: by side, one list of single values for each entry of `x`; empty where there is none.
        limit: the goal at each entry of `x`, None where there is none.
    """

    title: str
    unit: str
    x: Sequence[str | int]
    series: Mapping[str, Sequence[Sequence[float]]]
    limit: Sequence[float | None] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Hold one goal and the measured value, which must be at most `goal`."""

    what: str
    value: float
    goal: float

    @property
    def met(self) -> bool:
        """Return whether the goal is reached; NaN never reaches it."""
        return self.value <= self.goal


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Hold the single runs of one benchmark, with its panels and verdicts."""

    title: str
    runs: Sequence[Mapping[str, Any]]
    panels: Sequence[Panel]
    verdicts: Sequence[Verdict]


def ended(seconds: Sequence[float | None]) -> str:
    """Return the fastest and slowest of all rounds, or how often something was left (None)."""
    there = sorted(value for value in seconds if value is not None)
    if len(there) < len(seconds) or not there:
        return f"LEFT in {len(seconds) - len(there)} of {len(seconds)}"
    return f"{there[0]:.1f} to {there[-1]:.1f}"


def middle(values: Sequence[float]) -> float:
    """Return the median.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("nothing was measured")
    return statistics.median(values)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Divide the median of the first values by the median of the second.

    Raises:
        ValueError: one side has no values.
    """
    return middle(ours) / middle(theirs)


def cpu_model(cpuinfo: str) -> str:
    """Return the processor's name from the text of /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def machine(engine: Engine) -> dict[str, Any]:
    """Return facts of this machine and its engine; `load` is from before the benchmark."""
    return {
        **engine.facts(),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def as_result(
    name: str, facts: Mapping[str, Any], measured: Measured, started: str
) -> dict[str, Any]:
    """Build the record of one benchmark, as it is written."""
    return {
        "benchmark": name,
        "title": measured.title,
        "started": started,
        "machine": dict(facts),
        "verdicts": [{**asdict(verdict), "met": verdict.met} for verdict in measured.verdicts],
        "runs": [dict(run) for run in measured.runs],
        "panels": [asdict(panel) for panel in measured.panels],
    }


def copy_project(target: Path) -> Path:
    """Copy the project below `target`, so that nobody changes it during the benchmark."""
    return Path(shutil.copytree(ROOT, target, ignore=_LEFT_OUT))


def main(name: str, measure: Callable[[Terminal, Engine], Measured]) -> int:
    """Run one benchmark, write `results/NAME.json` and print its verdicts.

    Returns:
        0 when every goal is met, 1 when one is not; other codes as `cli.command` has them.
    """

    def command(terminal: Terminal) -> tuple[Any, int]:
        started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        with Engine() as engine:
            facts = machine(engine)
            measured = measure(terminal, engine)
        result = as_result(name, facts, measured, started)
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
        for verdict in measured.verdicts:
            met = "met" if verdict.met else "NOT MET"
            terminal.text(f"{verdict.what}: {verdict.value:.3g}, goal {verdict.goal:g}: {met}")
        return result, 0 if all(verdict.met for verdict in measured.verdicts) else 1

    return cli.run(command, as_json=False)
