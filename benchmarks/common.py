"""What all benchmarks share: a result's shape, facts of the machine, verdicts, the entry point.

Owns the files under `benchmarks/results`. It must not measure anything itself, and knows nothing
of matplotlib: pictures are drawn from the results by `benchmarks/plot.py`.
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

# What building and locking do not read, or must not be carried along.
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "reports", "results", "tests", "__pycache__", ".*_cache"
)
RESULTS = Path(__file__).resolve().parent / "results"
LABEL = "stackyard.benchmark"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture: for each place on the x axis, every value that each side had there.

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
    """One goal and what was measured against it; `value` must be at most `goal`."""

    what: str
    value: float
    goal: float

    @property
    def met(self) -> bool:
        """Whether the goal is reached; a value that is no number never is."""
        return self.value <= self.goal


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one benchmark saw: every single run, and what follows from them."""

    title: str
    runs: Sequence[Mapping[str, Any]]
    panels: Sequence[Panel]
    verdicts: Sequence[Verdict]


def ended(seconds: Sequence[float | None]) -> str:
    """Fastest and slowest of all rounds; or how often something was left (None)."""
    there = sorted(value for value in seconds if value is not None)
    if len(there) < len(seconds) or not there:
        return f"LEFT in {len(seconds) - len(there)} of {len(seconds)}"
    return f"{there[0]:.1f} to {there[-1]:.1f}"


def middle(values: Sequence[float]) -> float:
    """The median.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("nothing was measured")
    return statistics.median(values)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of ours over the median of theirs.

    Raises:
        ValueError: one side has no values.
    """
    return middle(ours) / middle(theirs)


def cpu_model(cpuinfo: str) -> str:
    """The processor's name, from the text of /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def machine(engine: Engine) -> dict[str, Any]:
    """Facts of this machine and its engine; `load` tells whether it was quiet beforehand."""
    return {
        **engine.facts(),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def as_result(
    name: str, facts: Mapping[str, Any], measured: Measured, started: str
) -> dict[str, Any]:
    """The record of one benchmark, as it is written."""
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
    """The project of this moment, below `target`: somebody may be working on it meanwhile."""
    return Path(shutil.copytree(ROOT, target, ignore=_LEFT_OUT))


def main(name: str, measure: Callable[[Terminal, Engine], Measured]) -> int:
    """Run one benchmark, write `results/NAME.json` and say its verdicts.

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
