"""Run smokes as jobs of Slurm: submit each, have it followed, and leave nothing of it.

Owns the job's folder, cancelling, and refusing options that are about other places. What is known
of an image here is what its nodes are held against.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stackyard.build.builder import Builder, Built
from stackyard.build.choice import Choice, held_image
from stackyard.cli.console import Terminal
from stackyard.cli.options.trainings import SmokeRequest
from stackyard.cli.steps.clusters import uninterrupted
from stackyard.definitions.project import INSIDE, Project
from stackyard.report import smokes
from stackyard.report.shapes import SmokeReport
from stackyard.schedulers import slurm_client
from stackyard.schedulers.client import new_folder
from stackyard.schedulers.request import slurm_site
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError, StackyardError, UsageError
from stackyard.validate import slurm_plan
from stackyard.validate.slurm_plan import SlurmSmoke
from stackyard.validate.smoke import SmokeWatcher, workload_files

SLURM = "slurm"
NODES = 2
# Hashing the packages of an image for GPUs takes some of them.
IMAGE_SECONDS = 300


def require_fit(asked: SmokeRequest, typed: str) -> None:
    """Refuse options that do not go together with where the smoke is to run.

    Raises:
        UsageError: there is one, or the cluster is not Slurm.
    """
    if not asked.on:
        given = [f"--{name}" for name in ("site", "out") if getattr(asked, name)]
        if given:
            raise UsageError(
                f"{' and '.join(given)}: only for a smoke on Slurm", hint=f"{typed} --on slurm"
            )
        return
    if asked.on != SLURM:
        raise UsageError(
            f"a smoke runs on Slurm, not on {asked.on}", hint=f"{typed} --on slurm, or --hosts"
        )
    other = [f"--{name}" for name in ("hosts", "placement") if getattr(asked, name)]
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
    tag = "" if asked.image.startswith("/") else asked.image
    with Engine() as engine:
        if tag:
            images = [held_image(project, engine, tag, asked.stack, asked.base)]
        else:
            images = Builder(project, engine, terminal.say).build_all(
                list(chosen.stacks), chosen.base.name
            )
        plans = [_plan(project, engine, built, chosen, asked, nodes, each, terminal)
                 for built in images]  # fmt: skip
    return [
        _smoke_one(project, plan, installed, built, watched(built), terminal)
        for built, (plan, installed) in zip(images, plans, strict=True)
    ]


def _plan(
    project: Project,
    engine: Engine,
    built: Built,
    chosen: Choice,
    asked: SmokeRequest,
    nodes: int,
    each: int,
    terminal: Terminal,
) -> tuple[SlurmSmoke, dict[str, dict[str, str]]]:
    """Return a smoke's plan, and the versions that are installed in its image."""
    stack = built.image.stack.name
    declared = built.image.stack.smoke_on(chosen.device)
    assert declared is not None, "the command line asked for a smoke that is not declared"
    site, binds, notes = slurm_site(asked.site, asked.image, built.tag)
    for note in notes:
        terminal.note(note)
    terminal.say(stack, "reading the image")
    run = f"{stack}-{secrets.token_hex(4)}"
    plan = SlurmSmoke(
        run=run,
        stack=stack,
        base=built.image.base.name,
        image=built.tag,
        image_id=built.info.id,
        digest=_told(engine, built, slurm_plan.DIGEST)["digest"],
        smoke=declared,
        site=site,
        nodes=nodes,
        per_node=each,
        folder=Path(asked.out or f"smoke-{run}").resolve(),
        files=workload_files(project.root / "images" / stack / "smoke"),
        binds=binds,
    )
    slurm_plan.contents(plan)  # refused before anything is submitted
    return plan, _told(engine, built, "inventory.py")


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


def _smoke_one(
    project: Project,
    plan: SlurmSmoke,
    installed: dict[str, dict[str, str]],
    built: Built,
    watcher: SmokeWatcher,
    terminal: Terminal,
) -> SmokeReport:
    with _submitted(plan, terminal) as job:
        terminal.done(plan.stack, f"job {job}: {plan.nodes} nodes, from {plan.folder}")
        return smokes.smoke_on_slurm(project, plan, job, built, watcher, installed)


@contextlib.contextmanager
def _submitted(plan: SlurmSmoke, terminal: Terminal) -> Iterator[str]:
    """Submit a smoke; at the end its job is over, and its folder gone, also after an error."""
    job = ""
    new_folder(plan.folder, lambda part: _write(part, slurm_plan.contents(plan)))
    try:
        with uninterrupted():
            job = slurm_client.submit(plan.folder)
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
