"""Time `invoke build` with nothing changed against three cached `docker build` in a row.

Owns both command lines, and the check that neither side builds anything while it is timed. Images
of the by-hand side have names of their own and are removed at the end.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import common
from stackyard.build import base_image, buildkit, catalog, dockerfile, mirrors
from stackyard.cli.console import Terminal
from stackyard.definitions.project import ROOT, Project, load_project
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import BuildError

BASE = "cpu"
RUNS = 10
SECONDS = 0.5


def by_hand(project: Project, engine: Engine, secrets: Path) -> list[list[str]]:
    """Return the commands that a person types, as the heads of the Dockerfiles state them.

    Args:
        secrets: an empty folder for the caller's package settings: the run that is not counted
            builds, since the locks have comments here that `invoke build` leaves out.
    """
    client = buildkit.find_client(os.environ["PATH"])
    base = project.definitions.bases[BASE]
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    found = []
    for stack in sorted(project.definitions.stacks):
        provided = catalog.resolve(project.definitions, stack, BASE).provided
        wanted = [(name, setting.value) for name, setting in provided.items()]
        tools = base_image.ensure_tools(engine, caller, wanted)
        given = []
        for name, data in sorted(caller.secrets.items()):
            (secrets / name).write_bytes(data)
            given += ["--secret", f"id={name},src={secrets / name}"]
        path = dockerfile.dockerfile_path(stack, BASE)
        found.append([client.path, "build", "--build-arg", f"TOOLS={tools}", *given, "-f", path,
                      "-t", f"stackyard-benchmark/{stack}:{BASE}", "."])  # fmt: skip
    return found


def seconds(action: Callable[[], object]) -> float:
    """Return the wall seconds of an action."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def measure(terminal: Terminal, engine: Engine) -> common.Measured:
    """Time both sides in turn, after one run of each that is not counted.

    Raises:
        BuildError: an image was built while the runs were timed.
    """
    with tempfile.TemporaryDirectory(prefix="build-current-") as folder:
        return _measured(terminal, engine, Path(folder))


def _measured(terminal: Terminal, engine: Engine, secrets: Path) -> common.Measured:
    project = load_project()
    ours = [str(Path(sys.executable).with_name("invoke")), "build", "--base", BASE, "--json"]
    typed = by_hand(project, engine, secrets)
    made: list[str] = []

    def build_ours() -> None:
        said = process.run(ours, cwd=ROOT).output
        images = json.loads(said[said.index("{\n") :])["images"]
        made.extend(image["stack"] for image in images if image["made"])

    def build_by_hand() -> None:
        for argv in typed:
            process.run(argv, cwd=ROOT, env={"DOCKER_BUILDKIT": "1"})

    sides = {"invoke build": build_ours, "docker build, 3 times": build_by_hand}
    try:
        for action in sides.values():
            action()
        made.clear()
        runs = []
        for number in range(RUNS):
            runs.append({name: seconds(action) for name, action in sides.items()})
            terminal.say("build_current", f"run {number + 1}: {runs[-1]}")
    finally:
        process.run([typed[0][0], "rmi", *(argv[-2] for argv in typed)], check=False)
    if made:
        raise BuildError(f"built while it was timed: {', '.join(sorted(set(made)))}")
    found = result(runs, engine)
    medians = {name: statistics.median(run[name] for run in runs) for name in sides}
    ratio = found.verdicts[-1].value
    terminal.text(json.dumps({"median_seconds": medians, "ratio": ratio}, indent=1))
    return found


def result(runs: list[dict[str, float]], engine: Engine) -> common.Measured:
    """Return the medians, their ratio, and the verdicts."""
    ours, theirs = ([run[name] for run in runs] for name in runs[0])
    panel = common.Panel(
        title="three images, nothing changed",
        unit="s",
        x=["wall time"],
        series={name: [[run[name] for run in runs]] for name in runs[0]},
        limit=[SECONDS],
    )
    verdicts = [
        common.Verdict(what="invoke build, median s", value=statistics.median(ours), goal=SECONDS),
        common.Verdict(
            what="of docker build, median", value=common.median_ratio(ours, theirs), goal=1.0
        ),
    ]
    return common.Measured(
        title=f"A build with nothing to do (engine {engine.version})",
        runs=runs,
        panels=[panel],
        verdicts=verdicts,
    )


if __name__ == "__main__":
    sys.exit(common.main("build_current", measure))
