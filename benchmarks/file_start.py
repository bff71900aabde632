"""Measure seconds from a release's file to the first update of a training on two CPU ranks.

One side starts a squashfs file as a Slurm node does, with squashfuse in namespaces. The other gives
an empty engine the image's archive (`docker load`) and runs a container. Both run the same script
with the same job; before each first start the page cache is dropped. Second starts follow at once.

    benchmarks/run file_start [--stack fairseq] [--rounds 3]

It needs root, squashfs-tools, squashfuse and /dev/fuse.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Measured, Panel, Verdict
from benchmarks.private_engine import private_engine
from stackyard.build.builder import Builder, Built
from stackyard.cli.console import Terminal
from stackyard.launch.job import Job
from stackyard.release import squashfs
from stackyard.release.spool import Spool
from stackyard.schedulers import entering, slurm
from stackyard.schedulers.slurm_site import SlurmSite
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import NothingToRunOn, StackyardError
from tests.fleet.slurm_smoke import PROJECT, job, losses

FILE, LOADED = "squashfs file", "docker load and run"
FIRST, AGAIN = "first start", "second start"
PORT = 29873
START_SECONDS = 300.0


class Bench:
    """Hold one image as both kinds of file, and start the same job from each.

    Attributes:
        bytes: of each side's file.
    """

    def __init__(self, folder: Path, engine: Engine, built: Built) -> None:
        self._folder, self._built = folder, built
        self._file, self._archive = folder / "image.sqsh", folder / "image.tar"
        with self._archive.open("wb") as archive:
            archive.writelines(engine.saved(built.tag))
        spool = Spool(folder / "layers")
        saved = spool.save(engine.saved(built.info.id), {})
        layers = [spool.path(layer) for layer in saved.layers]
        squashfs.make(self._file, layers, built.info.env, release="benchmark", image="benchmark")
        shutil.rmtree(folder / "layers")
        self.bytes = {FILE: self._file.stat().st_size, LOADED: self._archive.stat().st_size}
        self._started = 0

    def _job(self) -> tuple[Job, SlurmSite, Path]:
        """Return a new job of two ranks on this machine, and the folder of its records."""
        self._started += 1
        place = self._folder / f"job-{self._started}"
        place.mkdir()
        made = job(self._built.image.stack.name, place, nodes=1, per_node=2)
        return made, SlurmSite(runtime="squashfs", image=str(self._file)), place

    def file(self) -> dict[str, float]:
        """Start the squashfs file twice; return seconds to the first update of each."""
        drop_caches()
        return {which: self._start_file() for which in (FIRST, AGAIN)}

    def _start_file(self) -> float:
        made, site, place = self._job()
        before = " ".join(entering.words_before(made, site))
        script = f'enter=$1; shift; exec {before} bash -s -- "$@"'
        words = ["bash", "-c", script, "-", entering.enter_script(made, site), *_meeting()]
        return self._first_update(words, made, site, place, lambda: None)

    def loaded(self) -> dict[str, float]:
        """Load the archive into an empty engine and run it, twice; return seconds to an update."""
        with private_engine(self._folder) as engine:
            drop_caches()
            began = time.monotonic()
            process.run(["docker", "load", "-q", "-i", str(self._archive)], timeout=1800)
            loading = time.monotonic() - began
            first = loading + self._start_container(engine)
            return {FIRST: first, AGAIN: self._start_container(engine), "loading": loading}

    def _start_container(self, engine: Engine) -> float:
        made, site, place = self._job()
        name = f"stackyard-benchmark-{self._started}"
        words = ["docker", "run", "-i", "--name", name, "--network", "host", "--entrypoint",
                 "bash", "--volume", f"{place}:{place}", self._built.tag, "-s", "--",
                 *_meeting()]  # fmt: skip
        end = ["docker", "rm", "-f", name]
        return self._first_update(words, made, site, place, lambda: process.run(end, check=False))

    def _first_update(
        self, words: Sequence[str], made: Job, site: SlurmSite, place: Path,
        end: Callable[[], object],
    ) -> float:  # fmt: skip
        """Start a job; return the seconds until its first rank has made an update.

        Raises:
            StackyardError: it ended before that, or left a mount.
        """
        started = time.monotonic()
        child = process.Companion(words, held=True)
        try:
            child.write(slurm.node_script(made, site).encode())
            child.finish(0)  # closes its input
            while not losses(place, 0):
                if not child.running or time.monotonic() - started > START_SECONDS:
                    raise StackyardError("the training made no update", why=child.said)
                time.sleep(0.01)
            seconds = time.monotonic() - started
        finally:
            end()
            child.end()
        if "squashfuse" in Path("/proc/mounts").read_text(encoding="utf-8"):
            raise StackyardError("a mount was left")
        return round(seconds, 2)


def _meeting() -> list[str]:
    """Return the arguments of a node's script: address, port and number of the job."""
    return ["127.0.0.1", str(PORT), "1"]


def drop_caches() -> None:
    """Write all files to the disk and forget them, so that both sides read from there."""
    process.run(["sync"], timeout=600)
    Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="utf-8")


def measure(stack: str, rounds: int) -> Callable[[Terminal, Engine], Measured]:
    """Return the benchmark."""

    def measured(terminal: Terminal, engine: Engine) -> Measured:
        if not shutil.which("squashfuse"):
            raise NothingToRunOn("squashfuse is not here", hint="apt-get install squashfuse")
        built = Builder(PROJECT, engine, lambda one, text: None).build(stack, "cpu")
        runs: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="file-start-") as name:
            bench = Bench(Path(name), engine, built)
            for number in range(rounds):
                for side, start in ((FILE, bench.file), (LOADED, bench.loaded)):
                    run = {"round": number, "side": side, "bytes": bench.bytes[side], **start()}
                    runs.append(run)
                    terminal.done("start", json.dumps(run))
        return summarise(stack, runs)

    return measured


def summarise(stack: str, runs: Sequence[Mapping[str, Any]]) -> Measured:
    """Return the bars and the verdicts."""

    def of(side: str, key: str) -> list[float]:
        return [run[key] for run in runs if run["side"] == side]

    panels = [
        Panel(title="seconds to the first update", unit="s", x=[FIRST, AGAIN],
              series={side: [of(side, which) for which in (FIRST, AGAIN)]
                      for side in (FILE, LOADED)}),
        Panel(title="size of the file", unit="MB", x=[stack],
              series={side: [[of(side, "bytes")[0] / 1e6]] for side in (FILE, LOADED)}),
    ]  # fmt: skip
    ratios = {which: common.median_ratio(of(FILE, which), of(LOADED, which))
              for which in (FIRST, AGAIN)}  # fmt: skip
    return Measured(
        title=f"From a file to the first update of {stack}, two CPU ranks",
        runs=runs,
        panels=panels,
        verdicts=[
            Verdict(what="seconds of the first start, against docker load and run",
                    value=ratios[FIRST], goal=0.5),
            Verdict(what="seconds of the second start, against docker run",
                    value=ratios[AGAIN], goal=1.5),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stack", default="fairseq")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sys.exit(common.main("file_start", measure(given.stack, given.rounds)))
