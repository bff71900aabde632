"""Run `invoke compare` and `invoke smoke --against`: compare two records, or a record and a run.

Owns the output and the exit codes: 0 the same training, 1 curves differ or the resume broke, 2 a
report that cannot be compared, 3 nothing that both have. `report.comparison` gives the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stackyard.cli import tables
from stackyard.cli.answer import EXIT_CODES
from stackyard.cli.console import Terminal
from stackyard.definitions.project import Project
from stackyard.report import comparison, comparison_view, records, smokes
from stackyard.report.earlier import read_report
from stackyard.report.shapes import Comparison, SmokeReport
from stackyard.system.errors import UsageError

if TYPE_CHECKING:
    pass


def compare(terminal: Terminal, before: str, after: str) -> tuple[Comparison, int]:
    """Run `invoke compare REPORT REPORT`, with the earlier report first."""
    old = read_report(Path(before))
    new = read_report(Path(after), stack=old["stack"])
    value = comparison.compare(old, new)
    show(value, terminal)
    return value, EXIT_CODES[value["outcome"]]


def show(value: Comparison, terminal: Terminal) -> None:
    """Print a comparison."""
    terminal.table(tables.comparison_table(value))
    for line in comparison_view.comparison_lines(value):
        terminal.text(f"{value['after']['stack']}: {line}")


def earlier_reports(
    against: str, project: Project, stacks: Sequence[str], base: str, gpus: int
) -> dict[str, dict[str, Any]]:
    """Return the records that `--against` names, by stack; none where it was not given.

    Raises:
        UsageError: a record cannot be used, or is of one stack while several will be smoked.
    """
    if not against:
        return {}
    path = Path(against)
    if len(stacks) > 1 and not path.is_dir():
        of = read_report(path)["stack"]
        raise UsageError(
            f"{path} is of {of} alone, and {len(stacks)} stacks will be smoked",
            hint=f"invoke smoke {of} --against {path}; for all stacks name a folder laid out as"
            " reports/",
        )
    device = "cuda" if gpus else "cpu"
    cpu_ranks = device != project.definitions.bases[base].device
    kind = f"smoke-{records.CPU_RANKS}" if cpu_ranks else "smoke"
    found = {stack: read_report(path, stack=stack, base=base, kind=kind) for stack in stacks}
    for stack, value in found.items():
        declared = project.definitions.stacks[stack].smoke_on(device, gpus)
        layouts = {layout.name for layout in declared.layouts} if declared else set()
        if not layouts & set(value["curves"]):
            raise UsageError(
                f"{path} has no layout that a smoke of {stack} on {base} trains",
                why=f"it has {', '.join(value['curves']) or 'none'};"
                f" the smoke has {', '.join(sorted(layouts))}",
                hint="name a report of the same kind of ranks (CPU or GPU)",
            )
    return found


def hold_against(
    project: Project,
    earlier: dict[str, dict[str, Any]],
    reports: Sequence[SmokeReport],
    terminal: Terminal,
) -> int:
    """Compare reports with earlier ones; write and show the results; return the exit code."""
    codes = [0]
    for value in reports:
        if value["stack"] in earlier:
            value["against"] = comparison.compare(earlier[value["stack"]], value)
            smokes.write_reports(project.root, value)
            show(value["against"], terminal)
            codes.append(EXIT_CODES[value["against"]["outcome"]])
    return 1 if 1 in codes else max(codes)
