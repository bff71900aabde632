"""Time the kill matrix of runs over hosts: seconds until nothing of a run is left, several rounds.

Owns the rounds and the table; a cell is run by `tests/fleet/matrix.py`, one after another.

    benchmarks/run fleet_kill [ROUNDS]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import common
from stackyard.build import dockerfile
from stackyard.cli.console import Terminal
from stackyard.system.engine import Engine
from tests.fleet import emulated, matrix

HOSTS = ("study", "train", "depot")


def table(cells: Sequence[matrix.Cell]) -> str:
    """Return a Markdown table with a line for each target and a column for each stack."""
    stacks = list(matrix.EXAMPLES)
    rounds = -(-len(cells) // (len(matrix.TARGETS) * len(stacks)))
    lines = [
        f"Seconds until nothing was left on any host, fastest to slowest of {rounds} rounds;"
        f" the lease is {matrix.LEASE_SECONDS:.0f} s ({matrix.ALLOWED_SECONDS:.0f} allowed).",
        "",
        f"| target | {' | '.join(stacks)} |",
        "|---|" + "---|" * len(stacks),
    ]
    for target in matrix.TARGETS:
        found = [
            common.ended([c.seconds for c in cells if (c.stack, c.target) == (stack, target)])
            for stack in stacks
        ]
        lines.append(f"| {target} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def measure(terminal: Terminal, engine: Engine) -> common.Measured:
    """Run every round."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    images = [dockerfile.image_tag(stack, "cpu") for stack in matrix.EXAMPLES]
    cells: list[matrix.Cell] = []
    with tempfile.TemporaryDirectory(prefix="fleet-kill-") as name:
        folder = Path(name)
        with emulated.hosts(HOSTS, images, folder) as found:
            yard = emulated.Yard(folder=folder, hosts={host.name: host for host in found})
            for number in range(rounds):
                terminal.note(f"round {number + 1} of {rounds}")
                for target in matrix.TARGETS:
                    for stack in matrix.EXAMPLES:
                        cells.append(matrix.play(yard, stack, target))
                common.RESULTS.mkdir(exist_ok=True)
                (common.RESULTS / "fleet_kill.md").write_text(table(cells), encoding="utf-8")
    return summarise(cells)


def summarise(cells: Sequence[matrix.Cell]) -> common.Measured:
    """Return the picture and the verdict."""
    series = {
        stack: [
            [
                matrix.ALLOWED_SECONDS if cell.seconds is None else cell.seconds
                for cell in cells
                if (cell.stack, cell.target) == (stack, target)
            ]
            for target in matrix.TARGETS
        ]
        for stack in matrix.EXAMPLES
    }
    left = sum(cell.seconds is None for cell in cells)
    return common.Measured(
        title="Seconds until nothing of a killed run over hosts is left",
        runs=[asdict(cell) for cell in cells],
        panels=[
            common.Panel(
                title="from the kill to nothing left", unit="s", x=list(matrix.TARGETS),
                series=series, limit=[matrix.ALLOWED_SECONDS] * len(matrix.TARGETS),
            )
        ],
        verdicts=[common.Verdict(what="cells in which something was left", value=left, goal=0)],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(common.main("fleet_kill", measure))
