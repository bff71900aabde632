"""Time a mesh from nothing to reachable against as many bare `docker run -d`.

A mesh: network, volume, containers, keys, sshd, and the logins that prove the mesh. Bare: the same
image asleep, started one after another as in a shell loop, without keys, ssh or any proof. All that
was started is removed after each measurement, outside the clock.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import common
from benchmarks.common import LABEL, Measured, Panel, Verdict
from stackyard.build import buildkit
from stackyard.build.builder import Builder
from stackyard.cli.console import Terminal
from stackyard.definitions.document import parse_document
from stackyard.definitions.project import ROOT, load_project
from stackyard.definitions.read.files import read_stack
from stackyard.mesh import certificates, nodes
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import DefinitionError, Problem
from stackyard.validate import smoke

COUNTS = (2, 4, 8, 16, 32)
# Seconds; a longer time is allowed up to FACTOR times that of bare `docker run`.
GOALS: Mapping[int, float] = {2: 2.0, 8: 4.0, 32: 20.0}
FACTOR = 2.5
OURS, BARE = "stackyard: reachable mesh", "bare docker run -d"
EXAMPLE = ROOT / "examples" / "ddp"


def example_settings(image: str) -> nodes.NodeSettings:
    """Return the settings of the example's nodes, on a given image."""
    problems: list[Problem] = []
    text = (EXAMPLE / "stack.yml").read_text(encoding="utf-8")
    top = parse_document(text, file="stack.yml", problems=problems)
    if top is None or problems:
        raise DefinitionError(problems)
    declared = read_stack(top, "ddp").smoke
    return smoke.node_settings(image, declared, smoke.workload_files(EXAMPLE / "smoke"))


def start_mesh(engine: Engine, settings: nodes.NodeSettings, count: int) -> float:
    """Return the seconds from nothing until every pair that is tried has logged in."""
    names = tuple(f"node{number + 1}" for number in range(count))
    run = f"benchmark-{secrets.token_hex(4)}"
    plan = certificates.MeshPlan(run=run, nodes=names, port=smoke.SSH_PORT, seconds=3600)
    started = time.monotonic()
    with nodes.running_mesh(engine, plan, settings, now=int(time.time())) as running:
        nodes.wait_reachable(running)
        return time.monotonic() - started


def start_bare(client: str, image: str, count: int) -> float:
    """Return the seconds that `docker run -d` of as many sleeping containers takes."""
    label = f"{LABEL}={secrets.token_hex(4)}"
    words = [client, "run", "-d", "--label", label, "--entrypoint", "sleep", image, "3600"]
    started = time.monotonic()
    try:
        for _ in range(count):
            process.run(words, timeout=120)
        return time.monotonic() - started
    finally:
        listed = [client, "ps", "-aq", "--no-trunc", "--filter", f"label={label}"]
        found = process.run(listed, timeout=60).output.split()
        if found:
            process.run([client, "rm", "-f", *found], timeout=300)


def goal(count: int, bare: float) -> float | None:
    """Return the seconds that a mesh of that size may take; None where no goal was set."""
    return max(GOALS[count], FACTOR * bare) if count in GOALS else None


def summarise(runs: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> Measured:
    """Return the curve and the verdicts that follow from the runs."""

    def values(side: str, count: int) -> list[float]:
        return [r["seconds"] for r in runs if r["side"] == side and r["nodes"] == count]

    limits = [goal(count, common.middle(values(BARE, count))) for count in counts]
    return Measured(
        title="A mesh of containers on one machine, from nothing to reachable",
        runs=runs,
        panels=[
            Panel(
                title="seconds by nodes", unit="s", x=list(counts),
                series={side: [values(side, n) for n in counts] for side in (OURS, BARE)},
                limit=limits,
            )
        ],
        verdicts=[
            Verdict(
                what=f"seconds to a reachable mesh of {count}",
                value=common.middle(values(OURS, count)),
                goal=limit,
            )
            for count, limit in zip(counts, limits, strict=True)
            if limit is not None
        ],
    )  # fmt: skip


def measure(repetitions: int, counts: Sequence[int]) -> Callable[[Terminal, Engine], Measured]:
    """Return the benchmark: both sides of a size right after each other, each first in turn."""

    def measured(terminal: Terminal, engine: Engine) -> Measured:
        client = buildkit.find_client(os.environ.get("PATH", "")).path
        image = Builder(load_project(ROOT), engine, terminal.say).build("megatron", "cpu").info.id
        settings = example_settings(image)
        sides: dict[str, Callable[[int], float]] = {
            OURS: lambda count: start_mesh(engine, settings, count),
            BARE: lambda count: start_bare(client, image, count),
        }
        runs = []
        for count in counts:
            for number in range(repetitions):
                for side in sides if number % 2 == 0 else reversed(sides):
                    seconds = sides[side](count)
                    terminal.done(side, f"{count} nodes in {seconds:.2f} s")
                    run = {"repetition": number, "side": side, "nodes": count, "seconds": seconds}
                    runs.append(run)
        return summarise(runs, counts)

    return measured


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(COUNTS))
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    sys.exit(common.main("mesh_nodes", measure(given.repetitions, given.nodes)))
