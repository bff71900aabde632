"""Run a template in one container: its data, its two launches, and a plain loop after them.

Owns the order of phases. It must not judge: `validate.template.judge` does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace

from stackyard.mesh import certificates, nodes
from stackyard.mesh.node import MEETING_PORT, SSH_PORT
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError, MeshError
from stackyard.system.process import last_lines
from stackyard.validate import smoke, training
from stackyard.validate.gpu_run import GpuRun
from stackyard.validate.record import Training
from stackyard.validate.template.figures import PLAIN_SPEED, TemplateSeen, of_plain
from stackyard.validate.template.plan import (
    KILLED,
    PLAIN,
    RESUMED,
    TemplatePlan,
    as_smoke,
    job,
    launch,
    save_folder,
    with_node,
)

NODE = "node1"
# A corpus of the text in the image, or the sample index of one that the user named.
PREPARE_SECONDS = 1800.0


def run_template(
    engine: Engine,
    image: str,
    plan: TemplatePlan,
    files: Mapping[str, bytes],
    *,
    run: str,
    gpu: GpuRun | None = None,
    watcher: smoke.SmokeWatcher | None = None,
) -> TemplateSeen:
    """Train a template in one container, which is removed however it ends.

    Args:
        files: the programs of the template, by their place in the node.

    Raises:
        KeyboardInterrupt, SystemExit: after everything was removed.
    """
    progress = smoke.Progress(watcher=watcher or smoke.SmokeWatcher())
    neutral = with_node(as_smoke(plan, job(plan, files, KILLED, nodes.SHARED)))
    made = certificates.MeshPlan(
        run=run, nodes=(NODE,), port=SSH_PORT, seconds=smoke.MESH_SECONDS, addresses={}
    )
    settings = smoke.node_settings(image, neutral, {}, gpu)
    seen = TemplateSeen(run=run)
    if gpu:
        seen = replace(seen, devices=tuple(g.name for g in gpu.placement.gpus))
    with contextlib.ExitStack() as stack:
        try:
            with progress.phase("start the node"):
                started = nodes.running_mesh(engine, made, settings, now=int(time.time()))
                running = stack.enter_context(started)
                nodes.wait_reachable(running)
            with progress.phase("prepare data"):
                running.put(NODE, files)
                _prepare(running, plan, files)
            with progress.phase(f"train {KILLED}"):
                seen = replace(seen, killed=_train(running, plan, files, KILLED, progress, gpu))
            if seen.killed is not None and seen.killed.killed:
                with progress.phase(f"train {RESUMED}"):
                    found = _train(running, plan, files, RESUMED, progress, gpu)
                    seen = replace(seen, resumed=found)
                if not found.failed:
                    seen = replace(seen, names=_names(running))
                    seen = _beside(running, plan, files, seen, progress, gpu)
        except (MeshError, EngineError) as error:
            seen = replace(seen, broken=": ".join(part for part in (error.what, error.why) if part))
        if gpu and seen.killed is not None:
            with progress.phase("memory freed"):
                seen = replace(seen, gpu=gpu.freed(None))
        with progress.phase("remove the node"):
            stack.close()
    return replace(seen, phases=tuple(progress.phases.found))


def _beside(
    running: nodes.Mesh,
    plan: TemplatePlan,
    files: Mapping[str, bytes],
    seen: TemplateSeen,
    progress: smoke.Progress,
    gpu: GpuRun | None,
) -> TemplateSeen:
    """Train in the plain loop; where that is faster, also without each part that may cost speed."""
    if plan.example.plain is None:
        return seen
    with progress.phase(f"train {PLAIN}"):
        seen = replace(seen, plain=_train(running, plan, files, PLAIN, progress, gpu))
    share = of_plain(plan, seen)
    if share is None or share >= PLAIN_SPEED:
        return seen
    for label in plan.costs:
        with progress.phase(f"train {label}"):
            found = _train(running, plan, files, label, progress, gpu)
            seen = replace(seen, costs={**seen.costs, label: found})
    return seen


def _prepare(running: nodes.Mesh, plan: TemplatePlan, files: Mapping[str, bytes]) -> None:
    one = job(plan, files, KILLED, running.shared)
    for words in one.prepare:
        done = running.exec(
            NODE, words, seconds=PREPARE_SECONDS, folder=one.folder, env=dict(one.env)
        )
        if done.code != 0:
            raise EngineError(
                f"preparing the data failed with exit code {done.code}: {' '.join(words)[:200]}",
                why=last_lines(done.output),
            )


def _train(
    running: nodes.Mesh,
    plan: TemplatePlan,
    files: Mapping[str, bytes],
    label: str,
    progress: smoke.Progress,
    gpu: GpuRun | None,
) -> Training:
    one = as_smoke(plan, job(plan, files, label, running.shared))
    started = launch(plan, one, label, running.plan.run, running.shared)
    started = replace(started, gpus=gpu.takes(1, plan.ranks) if gpu else ())
    number = (KILLED, RESUMED, PLAIN, *plan.costs).index(label)
    port = running.port(MEETING_PORT + number)
    return training.train(running, one, started, port=port, on_loss=progress.watcher.loss)


def _names(running: nodes.Mesh) -> tuple[str, ...]:
    """Return the names in the folder of checkpoints."""
    done = running.exec(NODE, ["ls", "-A", save_folder(running.shared)], seconds=60)
    if done.code != 0:
        raise EngineError("the folder of checkpoints cannot be read", why=done.output)
    return tuple(done.output.split())
