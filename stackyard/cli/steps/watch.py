"""Run `invoke status --watch`: show runs, their jobs and what all GPUs do, until no job runs.

Owns the loop. `mesh.host_health` reads GPUs, `cli.run_view` draws.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import StatusRequest
from stackyard.cli.run_view import loads_table, runs_table
from stackyard.cli.steps.hosts import load_fleet, rows_of
from stackyard.gpu.health import GpuHealth, HostHealth
from stackyard.mesh import host_health
from stackyard.mesh.link import cause, on_each
from stackyard.mesh.runs import Reached, reached
from stackyard.system.errors import Terminated

if TYPE_CHECKING:
    from stackyard.cli.answers import GpuLoad, HostLoad

# Between two looks: in a terminal, and where every look is printed below the last.
SECONDS, PRINT_SECONDS = 2.0, 10.0
Show = Callable[[Mapping[str, Any]], None]


def watch(terminal: Terminal, asked: StatusRequest) -> Answer:
    """Show the same as `invoke status` and the GPUs, again and again; with --json once."""
    live = sys.stdout.isatty() and not terminal.json
    answer: dict[str, Any] = {}
    with reached(load_fleet(asked.hosts)) as hosts, _shown(terminal, live=live) as show:
        try:
            while not answer or (_runs(answer) and not terminal.json):
                if answer:
                    time.sleep(SECONDS if live else PRINT_SECONDS)
                answer = _look(hosts, asked.name)
                show(answer)
        except KeyboardInterrupt as stop:
            if isinstance(stop, Terminated) or not answer:
                raise
    return answer, 0


def _look(hosts: Reached, name: str) -> dict[str, Any]:
    on_each(hosts.links, lambda link: link.renew())
    rows, silent = rows_of(hosts, name)
    wanted = {host for row in rows for host in row["hosts"]} if name else {*hosts.links, *silent}
    links = {host: link for host, link in hosts.links.items() if host in wanted - {*silent}}
    found = host_health.read_all(links, load=True)
    for host in wanted & {*silent}:
        found[host] = HostHealth(unread=cause(host, silent[host]))
    order = [host.name for host in hosts.fleet.hosts if host.name in found]
    loads = [load_of(host, found[host]) for host in order]
    return {"runs": rows, "silent": sorted(silent), "gpus": loads}


def load_of(name: str, host: HostHealth) -> HostLoad:
    """Return what the GPUs of a host do, as it is shown."""
    why = host.unread or host.nvml or host.no_gpus
    return {"host": name, "unread": why, "gpus": [_gpu(gpu) for gpu in host.gpus]}


def _gpu(gpu: GpuHealth) -> GpuLoad:
    def scaled(name: str, unit: float) -> float | None:
        value = gpu.values.get(name)
        return None if value is None else round(value / unit, 2)

    return {
        "index": gpu.index,
        "name": gpu.name,
        "busy_percent": gpu.values.get("busy_percent"),
        "power_watts": scaled("power_mw", 1000),
        "power_limit_watts": scaled("power_limit_mw", 1000),
        "memory_used_gib": scaled("memory_used_bytes", 2**30),
        "memory_gib": scaled("memory_bytes", 2**30),
        "waits": gpu.waits,
        "unread": gpu.lost or gpu.unread.get("gpu", ""),
    }


def _runs(answer: Mapping[str, Any]) -> bool:
    """Return whether a job runs, or a run cannot be asked whether one does."""
    return any(
        row["error"] or any(job["state"] != "ended" for job in row["jobs"])
        for row in answer["runs"]
    )


@contextlib.contextmanager
def _shown(terminal: Terminal, *, live: bool) -> Iterator[Show]:
    """Yield a function that shows a look: in place of the last one, or below it."""
    if not live:
        yield lambda answer: terminal.table(Group(*_tables(answer)))
        return
    with Live(console=Console(highlight=False), auto_refresh=False) as drawn:
        yield lambda answer: drawn.update(Group(*_tables(answer)), refresh=True)


def _tables(answer: Mapping[str, Any]) -> list[RenderableType]:
    runs = runs_table(answer["runs"]) if answer["runs"] else Text("no run is on these hosts")
    return [runs, loads_table(answer["gpus"])]
