"""Time a run over hosts by its number of nodes: up, status, one command everywhere, down.

Three emulated hosts (containers with an engine and an sshd of their own, tests/fleet) share this
machine; each gets a third of the nodes. Engines, logins and handshakes share its cores, so the
times are an upper bound for as many real hosts. By hand: `docker run -d` over ssh on each host, one
after another as in a shell loop, without keys, checks or anything that joins the nodes.

    benchmarks/run fleet_scale [--nodes 3 6 12 24 48]
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Measured, Panel, Verdict
from stackyard.cli.console import Terminal
from stackyard.system import process
from stackyard.system.engine import Engine
from tests.fleet import emulated

COUNTS = (3, 6, 12, 24, 48, 96)
HOSTS = ("study", "train", "depot")
IMAGE = "stackyard/megatron:cpu"
UP, STATUS, EACH, DOWN = "up", "status", "run on every node", "down"
BARE = "docker run -d over ssh"
MEMORY = "node 1's ssh to the others"
# Memory of a machine's ssh processes, shared pages by their share, in KiB.
HELD = "for at in $(pgrep -x ssh); do grep ^Pss: /proc/$at/smaps_rollup; done"


def spread(yard: emulated.Yard, count: int) -> emulated.Yard:
    """Return the same hosts with `count` nodes in all."""
    share = count // len(HOSTS)
    text = (yard.folder / "hosts.yml").read_text(encoding="utf-8")
    folder = yard.folder / f"of-{count}"
    folder.mkdir(exist_ok=True)
    text = text.replace("defaults:\n", f"defaults:\n  nodes: {share}\n")
    (folder / "hosts.yml").write_text(text, encoding="utf-8")
    return emulated.Yard(folder=folder, hosts=yard.hosts)


def one(yard: emulated.Yard, count: int) -> dict[str, float]:
    """Measure seconds of each command at one size, and MiB of node 1's lines to the others."""
    at, found, name = spread(yard, count), {}, f"scale-{secrets.token_hex(3)}"

    def timed(what: str, *words: str) -> str:
        started = time.monotonic()
        said = at.invoke(*words, seconds=580).stdout
        found[what] = round(time.monotonic() - started, 2)
        return str(said)

    up = json.loads(timed(UP, "up", "megatron", "--gpus", "0", "--name", name, "--json"))
    assert len(up["nodes"]) == count
    try:
        lines = at.hosts[up["nodes"][0]["host"]].run("sh", "-c", HELD).splitlines()
        assert len(lines) >= count - 1
        found[MEMORY] = round(sum(int(line.split()[1]) for line in lines) / 1024, 1)
        timed(STATUS, "status", "--name", name)
        words = ["run", "megatron", "--name", name, "--launcher", "each"]
        said = timed(EACH, *words, "--", "hostname")
        names = {line.partition("|")[2].strip() for line in said.splitlines() if "|" in line}
        assert {node["name"] for node in up["nodes"]} <= names
    finally:
        timed(DOWN, "down", "--name", name)
    assert at.left() == {}
    return found


def bare(yard: emulated.Yard, count: int) -> float:
    """Return the seconds that as many containers by hand take."""
    config = str(yard.folder / "ssh_config")
    started = time.monotonic()
    for number in range(count):
        host = yard.hosts[HOSTS[number % len(HOSTS)]]
        remote = f"docker run -d --rm --network host --entrypoint sleep {IMAGE} 3600"
        process.run(["ssh", "-F", config, host.address, remote], timeout=120)
    seconds = time.monotonic() - started
    for host in yard.hosts.values():
        host.run("sh", "-c", "docker rm -f $(docker ps -q)")
    return round(seconds, 2)


def summarise(runs: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> Measured:
    """Return the curves."""
    sides = (UP, BARE, STATUS, EACH, DOWN)
    series = {
        side: [[r[side] for r in runs if r["nodes"] == count and side in r] for count in counts]
        for side in sides
    }
    return Measured(
        title="A run over three emulated hosts on one machine, by its number of nodes",
        runs=runs,
        panels=[
            Panel(title="seconds by nodes", unit="s", x=list(counts), series=series),
            Panel(
                title="memory of the lease's lines", unit="MiB", x=list(counts),
                series={MEMORY: [[r[MEMORY] for r in runs if r["nodes"] == n] for n in counts]},
            ),
        ],
        verdicts=[
            Verdict(
                what=f"up of {runs[-1]['nodes']} nodes, joined and checked, against bare containers"
                " in a loop",
                value=runs[-1][UP] / runs[-1][BARE],
                goal=1.0,
            )
        ],
    )  # fmt: skip


def measure(counts: Sequence[int]) -> Callable[[Terminal, Engine], Measured]:
    """Return the benchmark."""

    def measured(terminal: Terminal, engine: Engine) -> Measured:
        runs: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="fleet-scale-") as name:
            folder = Path(name)
            with emulated.hosts(HOSTS, [IMAGE], folder) as found:
                yard = emulated.Yard(folder=folder, hosts={host.name: host for host in found})
                for count in counts:
                    run: dict[str, Any] = {"nodes": count, **one(yard, count)}
                    run[BARE] = bare(yard, count)
                    terminal.done(f"{count} nodes", json.dumps(run))
                    runs.append(run)
        return summarise(runs, counts)

    return measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=list(COUNTS))
    sys.exit(common.main("fleet_scale", measure(parser.parse_args().nodes)))
