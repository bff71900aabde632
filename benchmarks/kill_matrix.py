"""Time the kill matrix: seconds until nothing of a run is left, for every cell, several rounds.

Owns the rounds and the table; a cell is run by `tests/smoke/matrix.py`. The three stacks' cells
run at the same time, so every run ends beside two others. The node that is hit changes with each
round.

    benchmarks/run kill_matrix [ROUNDS]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import common
from stackyard.cli.console import Terminal
from stackyard.system.engine import Engine
from tests.smoke import matrix


def table(cells: Sequence[matrix.Cell]) -> str:
    """Return a Markdown table: a line for each target and signal, a column for each stack."""
    rounds = len(cells) // (len(matrix.CELLS) * len(matrix.STACKS))
    lines = [
        f"Seconds until nothing was left, fastest to slowest of {rounds} rounds"
        f" ({matrix.ALLOWED_SECONDS:.0f} allowed).",
        "",
        f"| target | signal | {' | '.join(matrix.STACKS)} |",
        "|---|---|" + "---|" * len(matrix.STACKS),
    ]
    for target, name in matrix.CELLS:
        found = [
            common.ended(
                [c.seconds for c in cells if (c.stack, c.target, c.signal) == (stack, target, name)]
            )
            for stack in matrix.STACKS
        ]
        lines.append(f"| {target} | {name} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def measure(terminal: Terminal, engine: Engine) -> common.Measured:
    """Run every round."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    cells: list[matrix.Cell] = []
    every = dict.fromkeys(matrix.STACKS, matrix.CELLS)
    for number in range(rounds):
        node = ("node2", "node1")[number % 2]
        terminal.note(f"round {number + 1} of {rounds}: {node} is hit")
        with tempfile.TemporaryDirectory(prefix="kill-matrix-") as folder:
            cells += matrix.play_all(engine, Path(folder), node=node, cells=every)
        common.RESULTS.mkdir(exist_ok=True)
        (common.RESULTS / "kill_matrix.md").write_text(table(cells), encoding="utf-8")
    series = {
        stack: [
            [
                matrix.ALLOWED_SECONDS if cell.seconds is None else cell.seconds
                for cell in cells
                if (cell.stack, cell.target, cell.signal) == (stack, *key)
            ]
            for key in matrix.CELLS
        ]
        for stack in matrix.STACKS
    }
    names = [f"{target} {name.removeprefix('SIG')}" for target, name in matrix.CELLS]
    left = sum(cell.seconds is None for cell in cells)
    return common.Measured(
        title="Seconds until nothing of a killed run is left",
        runs=[asdict(cell) for cell in cells],
        panels=[
            common.Panel(
                title="from the signal to nothing left", unit="s", x=names, series=series,
                limit=[matrix.ALLOWED_SECONDS] * len(names),
            )
        ],
        verdicts=[common.Verdict(what="cells with something left after 10 s", value=left, goal=0)],
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(common.main("kill_matrix", measure))
