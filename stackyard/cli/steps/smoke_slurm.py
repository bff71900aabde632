"""Run smokes as jobs of Slurm, and make what a bench there shares with them: images, plans, jobs.

Owns the job's folder, cancelling, and refusing options that are about other places. What is known
of an image here is what its nodes are held against.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackyard.build.builder import Builder, Built
from stackyard.build.choice import Choice, held_image
from stackyard.cli.console import Terminal
from stackyard.cli.options.trainings import BenchRequest, SmokeRequest
from stackyard.cli.steps.clusters import uninterrupted
from stackyard.definitions.project import INSIDE, Project
from stackyard.definitions.spec import Smoke
from stackyard.report import smokes
from stackyard.report.shapes import SmokeReport
from stackyard.schedulers import slurm_client
from stackyard.schedulers.client import new_folder
from stackyard.schedulers.request import load_site, slurm_site
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError, StackyardError, UsageError, shown
from stackyard.validate import slurm_plan
from stackyard.validate.slurm_follower import Follower
from stackyard.validate.slurm_plan import SlurmRun, SlurmTraining
from stackyard.validate.smoke import SmokeWatcher, workload_files

SLURM = "slurm"
NODES = 2
# Hashing the packages of an image for GPUs takes some of them.
IMAGE_SECONDS = 300


def on_nodes(asked: SmokeRequest | BenchRequest) -> bool:
    """Return whether the image that was named is a path on the nodes of Slurm."""
    return bool(asked.on) and asked.image.startswith("/")


def require_fit(asked: SmokeRequest | BenchRequest, typed: str) -> None:
    """Refuse options that do not go together with where a smoke or bench is to run.

    Raises:
        UsageError: there is one, or the cluster is not Slurm.
    """
    smoke = isinstance(asked, SmokeRequest)
    kind = "smoke" if smoke else "bench"
    if not asked.on:
        # A smoke has its --nodes on this machine, too.
        given = [f"--{name}" for name in ("site", "out", *(() if smoke else ("nodes",)))
                 if getattr(asked, name)]  # fmt: skip
        if given:
            raise UsageError(
                f"{' and '.join(given)}: only for a {kind} on Slurm", hint=f"{typed} --on slurm"
            )
        return
    if asked.on != SLURM:
        raise UsageError(
            f"a {kind} runs on Slurm, not on {shown(asked.on)}",
            hint=f"{typed} --on slurm, or --hosts",
        )
    other = [f"--{name}" for name in ("hosts", "placement") if getattr(asked, name, "")]
    if other:
        raise UsageError(
            f"{' and '.join(other)} cannot be given with --on slurm",
            why="Slurm gives the nodes and the GPUs",
            hint=f"{typed} --on slurm",
        )


def smoke_each(
    project: Project,
    chosen: Choice,
    asked: SmokeRequest,
    watched: Callable[[Built], SmokeWatcher],
    terminal: Terminal,
    typed: str,
) -> list[SmokeReport]:
    """Smoke stacks on Slurm, one after another.

    Raises:
        NotReady: a node has another image; nothing was trained.
        UsageError: the numbers, or the site's settings, do not do.
    """
    nodes = asked.nodes or NODES
    each, rest = divmod(max(chosen.gpus or 0, NODES), nodes)
    if rest or nodes > NODES:
        raise UsageError(
            f"a smoke on Slurm runs 2 ranks, which {nodes} nodes cannot share",
            hint=f"{typed} --on slurm --nodes 2",
        )

    def parts(stack: str, folder: Path) -> Parts:
        declared = project.definitions.stacks[stack].smoke_on(chosen.device, chosen.gpus or 0)
        assert declared is not None, "the command line asked for a smoke that is not declared"
        return Parts(
            smoke=declared,
            trainings=slurm_plan.of_smoke(declared, nodes, folder),
            files=workload_files(project.root / "images" / stack / "smoke"),
        )

    runs = planned(project, chosen, asked, nodes, each, parts, terminal)
    with Engine() as engine:
        installed = [_told(engine, built, "inventory.py") for built, _ in runs]
    found = []
    for (built, plan), inside in zip(runs, installed, strict=True):
        with submitted(plan, terminal) as job:
            follower = Follower(plan, job)
            found.append(
                smokes.smoke_on_slurm(project, follower, built, watched(built), inside)
            )  # fmt: skip
    return found


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Hold what a smoke or bench of one stack runs.

    Attributes:
        smoke: what prepares the data, and the device.
        files: of the trainings, by relative path.
    """

    smoke: Smoke
    trainings: tuple[SlurmTraining, ...]
    files: Mapping[str, bytes]


def planned(
    project: Project,
    chosen: Choice,
    asked: SmokeRequest | BenchRequest,
    nodes: int,
    each: int,
    parts: Callable[[str, Path], Parts],
    terminal: Terminal,
) -> list[tuple[Built, SlurmRun]]:
    """Return the image and the plan of every stack; all of them fit the site.

    Args:
        nodes: how many, with `each` ranks at most on each.
        parts: says what a stack runs, from a folder that all nodes see.

    Raises:
        UsageError: the site's settings do not do.
    """
    kind = "smoke" if isinstance(asked, SmokeRequest) else "bench"
    load_site(SLURM, asked.site)  # before anything is built
    tag = "" if on_nodes(asked) else asked.image
    with Engine() as engine:
        if tag:
            images = [held_image(project, engine, tag, asked.stack, asked.base)]
        else:
            images = Builder(project, engine, terminal.say).build_all(
                list(chosen.stacks), chosen.base.name
            )
        found = []
        for built in images:
            stack = built.image.stack.name
            site, binds, notes = slurm_site(asked.site, asked.image, built.tag)
            for note in notes:
                terminal.note(note)
            terminal.say(stack, "reading the image")
            run = f"{stack}-{secrets.token_hex(4)}"
            folder = Path(asked.out or f"{kind}-{run}").resolve()
            own = parts(stack, folder)
            plan = SlurmRun(
                run=run,
                stack=stack,
                base=built.image.base.name,
                image=built.tag,
                image_id=built.info.id,
                digest=_told(engine, built, slurm_plan.DIGEST)["digest"],
                smoke=own.smoke,
                trainings=own.trainings,
                site=site,
                nodes=nodes,
                per_node=each,
                folder=folder,
                files=own.files,
                binds=binds,
            )
            slurm_plan.contents(plan)  # refused before anything is submitted
            found.append((built, plan))
    return found


def _told(engine: Engine, built: Built, program: str) -> dict[str, Any]:
    """Return the JSON that a program of `inside/` prints in an image.

    Raises:
        EngineError: it printed none.
    """
    text = (INSIDE / program).read_text(encoding="utf-8")
    output = engine.run_once(built.info.id, ["python3", "-c", text], seconds=IMAGE_SECONDS)
    try:
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise EngineError(f"{program} told nothing in {built.tag}", why=output[-500:]) from error
    return found


@contextlib.contextmanager
def submitted(plan: SlurmRun, terminal: Terminal) -> Iterator[str]:
    """Submit a run; at the end its job is over, and its folder gone, also after an error."""
    job = ""
    new_folder(plan.folder, lambda part: _write(part, slurm_plan.contents(plan)))
    try:
        with uninterrupted():
            job = slurm_client.submit(plan.folder)
        terminal.done(plan.stack, f"job {job}: {plan.nodes} nodes, from {plan.folder}")
        yield job
    finally:
        try:
            if job:
                slurm_client.cancel(job)
        except StackyardError as error:
            terminal.note(f"invoke stop --on slurm --job {job}: it may still run: {error.what}")
        shutil.rmtree(plan.folder, ignore_errors=True)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
