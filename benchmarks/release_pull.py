"""Time the pull of a release onto 1, 2, 4 and 8 hosts, and count the bytes that the registry sends.

Eight emulated hosts with empty engines and a real registry share this machine. The sending rate of
each is limited (`tc`), and so is its processor: a host gets the same share, however many take part,
as if it were a machine of its own. By hand: `docker pull` on all hosts at the same time.

    benchmarks/run release_pull [--stack megatron]     (40 minutes)

Eight hosts on two cores have 0.22 of a core each, so with a fast link the processor is the limit.
With 50 Mbit/s and 0.22 of a core everything is eight times slower than with 400 Mbit/s and 1.76
cores (time dilation: Gupta et al., To infinity and beyond: time-warped network emulation, NSDI
2006), so both sides are measured at that rate, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Measured, Panel, Verdict
from stackyard.cli.console import Terminal
from stackyard.system.engine import Engine
from tests.fleet import emulated
from tests.release.conftest import Site, make_publisher
from tests.release.registry import registry, shape

HOSTS = ("study", "train", "depot", "forge", "attic", "cellar", "hall", "barn")
COUNTS = (1, 2, 4, 8)
SLOW, FAST = 50, 400
DILATION = FAST // SLOW
# The rest of the two cores is for the registry and the machine that pulls.
CPUS = 0.22
OURS, PLAIN = "invoke pull", "docker pull on all"


class Field:
    """Pull onto hosts from a registry with one release, each time from nothing."""

    def __init__(self, site: Site, stack: str) -> None:
        self._site, self._stack = site, stack

    def limit(self, megabits: int) -> None:
        """Limit the sending rate of all containers, and the processor of each host."""
        hosts = [host.container for host in self._site.yard.hosts.values()]
        for container in (self._site.registry.container, *hosts):
            shape(container, megabits)
        emulated.docker("update", "--cpus", str(CPUS), *hosts)

    def _forget(self) -> None:
        """Empty the hosts' engines and the cache here."""
        self._site.forget()
        shutil.rmtree(self._site.cache, ignore_errors=True)

    def ours(self, count: int) -> dict[str, float]:
        """Run `invoke pull` onto `count` hosts, from a machine that has nothing."""
        self._forget()
        site = dataclasses.replace(self._site, yard=self._site.yard.only(*HOSTS[:count]))
        before, started = site.registry.sent(), time.monotonic()
        pulled = site.pull(self._stack, seconds=900)
        seconds = time.monotonic() - started
        assert {mark["state"] for mark in pulled["hosts"].values()} == {"pulled"}
        return self._told(seconds, before)

    def plain(self, count: int, reference: str) -> dict[str, float]:
        """Run `docker pull` on `count` hosts at the same time."""
        self._forget()
        hosts = [self._site.yard.hosts[name] for name in HOSTS[:count]]
        login = self._site.registry.folder / "docker" / "config.json"
        for host in hosts:
            emulated.docker("exec", host.container, "mkdir", "-p", "/root/.docker")
            emulated.docker("cp", str(login), f"{host.container}:/root/.docker/config.json")
        before, started = self._site.registry.sent(), time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda host: host.run("docker", "pull", "-q", reference), hosts))
        return self._told(time.monotonic() - started, before)

    def _told(self, seconds: float, before: int) -> dict[str, float]:
        return {"seconds": round(seconds, 1), "sent": self._site.registry.sent() - before}


def measure(stack: str) -> Callable[[Terminal, Engine], Measured]:
    """Return the benchmark."""

    def measured(terminal: Terminal, engine: Engine) -> Measured:
        runs: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="release-pull-") as name:
            folder = Path(name)
            with (
                emulated.hosts(HOSTS, [], folder) as found,
                registry(folder / "registry", emulated.Yard(
                    folder=folder, hosts={h.name: h for h in found}).network) as reg,
            ):  # fmt: skip
                yard = emulated.Yard(folder=folder, hosts={host.name: host for host in found})
                site = Site(folder=folder, registry=reg, yard=yard, cache=folder / "cache")
                make_publisher(site)
                site.invoke("build", stack, "--base", "cpu", seconds=900)
                done = site.publish(stack, "--unproven")
                size = sum(layer["size"] for layer in done["layers"])
                reference = f"{site.place}@{done['digest']}"
                field = Field(site, stack)
                for megabits in (SLOW, FAST):
                    field.limit(megabits)
                    for count in COUNTS:
                        run = {"megabits": megabits, "hosts": count, "image": size}
                        runs.append({**run, "side": OURS, **field.ours(count)})
                        terminal.done("pull", json.dumps(runs[-1]))
                        if megabits == FAST or count in (1, COUNTS[-1]):
                            runs.append({**run, "side": PLAIN, **field.plain(count, reference)})
                            terminal.done("pull", json.dumps(runs[-1]))
        return summarise(runs)

    return measured


def _values(
    runs: Sequence[Mapping[str, Any]], megabits: int, side: str, key: str
) -> list[list[float]]:
    return [
        [r[key] for r in runs if (r["megabits"], r["side"], r["hosts"]) == (megabits, side, count)]
        for count in COUNTS
    ]


def summarise(runs: Sequence[Mapping[str, Any]]) -> Measured:
    """Return the curves and the verdicts."""
    panels = [
        Panel(title=f"seconds at {megabits} Mbit/s, by hosts", unit="s", x=list(COUNTS),
              series={side: _values(runs, megabits, side, "seconds") for side in (OURS, PLAIN)})
        for megabits in (SLOW, FAST)
    ]  # fmt: skip
    images = [{**r, "images": r["sent"] / r["image"]} for r in runs]
    panels.append(
        Panel(title="images that the registry sends, by hosts", unit="images", x=list(COUNTS),
              series={side: _values(images, FAST, side, "images") for side in (OURS, PLAIN)})
    )  # fmt: skip

    def one(megabits: int, side: str, hosts: int) -> Mapping[str, Any]:
        return next(
            r for r in images if (r["megabits"], r["side"], r["hosts"]) == (megabits, side, hosts)
        )

    eight = one(SLOW, OURS, 8)
    alone = one(SLOW, PLAIN, 1)
    return Measured(
        title="A release onto hosts with limited links, emulated on one machine",
        runs=runs,
        panels=panels,
        verdicts=[
            Verdict(what=f"images out of the registry for 8 hosts at {SLOW} Mbit/s",
                    value=eight["images"], goal=1.2),
            Verdict(what=f"seconds for 8 hosts at {SLOW} Mbit/s, against docker pull on one",
                    value=eight["seconds"] / alone["seconds"], goal=2.0),
            Verdict(what=f"seconds for 8 hosts at {SLOW} Mbit/s, against invoke pull on one",
                    value=eight["seconds"] / one(SLOW, OURS, 1)["seconds"], goal=2.0),
            Verdict(what=f"seconds for 8 hosts at {FAST} Mbit/s and {DILATION * CPUS:.2f} cores, "
                    f"all {DILATION} times slower, against docker pull on all",
                    value=eight["seconds"] / one(SLOW, PLAIN, 8)["seconds"], goal=1.0),
            Verdict(what=f"seconds for 8 hosts at {FAST} Mbit/s and {CPUS} cores, "
                    "against docker pull on all",
                    value=one(FAST, OURS, 8)["seconds"] / one(FAST, PLAIN, 8)["seconds"], goal=1.0),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stack", default="megatron")
    sys.exit(common.main("release_pull", measure(parser.parse_args().stack)))
