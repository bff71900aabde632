"""Run the smoke of one image: mesh, trainings, kill and resume.

Owns the order of phases and their timing. `validate.judge` owns the verdict, `validate.training`
runs each training.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stackyard.definitions.project import INSIDE
from stackyard.definitions.spec import Smoke
from stackyard.mesh import certificates, nodes
from stackyard.mesh.node import MEETING_PORT, SITE, SMOKE_SITE, SSH_PORT
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError, MeshError, StackyardError
from stackyard.validate import judge, measure, training
from stackyard.validate.gpu_run import GpuRun, GpuWatch
from stackyard.validate.launches import launches
from stackyard.validate.outcome import Observation, Outcome, Phase
from stackyard.validate.record import Training
from stackyard.validate.training_log import TrainingPlan

_PROBES = ("mesh_probe.py", "inventory.py")
MESH_SECONDS = 6 * 3600
# Data loaders and NCCL pass tensors through shared memory; it takes memory only when used.
GPU_SHM_BYTES = 8 * 2**30
# Ranks on CPUs share the cores, and see no GPU, whatever the image and the host have.
NO_GPUS = {"OMP_NUM_THREADS": "1", "NVIDIA_VISIBLE_DEVICES": "void"}
Say = Callable[[str], None]


@dataclass
class SmokeWatcher:
    """Report the progress of a smoke, and carry the request to stop it."""

    phase: Say = lambda name: None
    loss: Callable[[str, int, float], None] = lambda label, step, loss: None
    over: Callable[[str, float], None] = lambda outcome, seconds: None
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass
class Phases:
    """Gather timed phases, counted from the first look at the clock."""

    found: list[Phase] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time the block, and add it to the phases however it ends."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds, at = time.monotonic() - began, began - self.started
            self.found.append(Phase(name=name, seconds=round(seconds, 2), at=round(at, 2)))


class Stopped(StackyardError):
    """Report that a smoke was stopped on request, without a verdict."""


@dataclass
class Progress:
    """Gather the trainings of a smoke while its phases run."""

    watcher: SmokeWatcher
    phases: Phases = field(default_factory=Phases)
    trainings: dict[str, Training] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase, and say that it begins.

        Raises:
            Stopped: the watcher asked for it.
        """
        if self.watcher.stop.is_set():
            raise Stopped("the smoke was stopped")
        self.watcher.phase(name)
        with self.phases.timed(name):
            yield


def node_settings(
    image: str, smoke: Smoke, files: Mapping[str, bytes], gpu: GpuRun | None = None
) -> nodes.NodeSettings:
    """Return the settings that a smoke's containers are started with."""
    found = _settings(image, smoke, files, gpus=gpu is not None)
    if gpu is None:
        return replace(found, env={**NO_GPUS, "GLOO_SOCKET_IFNAME": "eth0", **found.env})
    return replace(
        found, shm_bytes=GPU_SHM_BYTES, hardware=gpu.hardware, network=gpu.placement.network
    )


def host_settings(
    image: str, smoke: Smoke, files: Mapping[str, bytes], caller: Mapping[str, str]
) -> nodes.NodeSettings:
    """Return the settings of a smoke's containers on hosts, whose networks they share.

    Args:
        caller: the caller's own NCCL settings, which come before what is found on hosts.
    """
    on_gpus = smoke.device != "cpu"
    found = _settings(image, smoke, files, gpus=on_gpus)
    return replace(found, env={**(caller if on_gpus else NO_GPUS), **found.env})


def _settings(
    image: str, smoke: Smoke, files: Mapping[str, bytes], *, gpus: bool
) -> nodes.NodeSettings:
    """Return the settings that a smoke's containers have wherever they run."""
    # It lies beside the workload, which is on the path that Python imports from.
    beside = {"stackyard_record.py": (INSIDE / "stackyard_record.py").read_bytes()}
    if gpus:
        beside[measure.PROGRAM] = (measure.FOLDER / measure.PROGRAM).read_bytes()
    env = {
        "PYTHONPATH": f"{SITE}:{SMOKE_SITE}:{nodes.SMOKE_FOLDER}",
        "PYTHONUNBUFFERED": "1",
        **smoke.env,
    }
    probes = {name: (INSIDE / name).read_bytes() for name in _PROBES}
    return nodes.NodeSettings(image=image, env=env, files={**files, **beside}, probes=probes)


def workload_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a workload folder, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def run_smoke(
    engine: Engine,
    smoke: Smoke,
    settings: nodes.NodeSettings,
    *,
    run: str,
    node_count: int = 2,
    image_env: Mapping[str, str],
    watcher: SmokeWatcher | None = None,
    gpu: GpuRun | None = None,
    recorded: Mapping[int, float] | None = None,
) -> Outcome:
    """Run a smoke to its verdict; everything of the run is removed however it ends.

    Raises:
        Stopped: the watcher asked for it.
        KeyboardInterrupt, SystemExit: after everything was removed.
    """
    names = tuple(f"node{number + 1}" for number in range(node_count))
    on_host = settings.network == "host"
    plan = certificates.MeshPlan(
        run=run,
        nodes=names,
        port=SSH_PORT,
        seconds=MESH_SECONDS,
        addresses=certificates.loopback_addresses(run, names) if on_host else {},
    )
    seen = Observation(
        nodes=names,
        environment={**image_env, **settings.env},
        own={name: own.env for name, own in zip(names, settings.hardware, strict=False)},
        pairs=certificates.pairs(names),
        gpu=gpu.observed() if gpu else None,
        recorded=recorded or {},
    )
    started = nodes.running_mesh(engine, plan, settings, now=int(time.time()))
    return smoke_in(started, smoke, seen, run=run, watcher=watcher, gpu=gpu)


def smoke_in(
    started: contextlib.AbstractContextManager[nodes.Mesh],
    smoke: Smoke,
    seen: Observation,
    *,
    run: str,
    watcher: SmokeWatcher | None = None,
    gpu: GpuWatch | None = None,
) -> Outcome:
    """Run a smoke in a mesh, on this machine or over hosts, to its verdict.

    Args:
        started: starts the mesh, and removes it at the end.
        seen: what is known before the start.

    Raises:
        Stopped: the watcher asked for it.
        KeyboardInterrupt, SystemExit: after everything was removed.
    """
    progress = Progress(watcher=watcher or SmokeWatcher())
    running: nodes.Mesh | None = None
    with contextlib.ExitStack() as stack:
        try:
            with progress.phase("start nodes"):
                running = stack.enter_context(started)
                seen = replace(seen, own={**seen.own, **running.own})
                if gpu and seen.gpu is None:  # hosts are only known now
                    seen = replace(seen, gpu=gpu.observed())
            seen = _try_mesh(running, seen, progress)
            seen = _train_all(running, smoke, seen, progress, gpu)
        except (MeshError, EngineError) as error:
            if progress.watcher.stop.is_set():
                raise Stopped("the smoke was stopped") from error
            lost = running.lost if running is not None else ""
            seen = _broken(seen, lost or str(error), progress)
        if gpu and running is not None and not running.lost:
            with progress.phase("memory freed"):
                seen = replace(seen, gpu=gpu.freed(seen.gpu))
        with progress.phase("remove nodes"):
            stack.close()
    return Outcome(
        run=run,
        checks=judge.judge(smoke, seen),
        phases=tuple(progress.phases.found),
        observation=seen,
    )


def _broken(seen: Observation, why: str, progress: Progress) -> Observation:
    return replace(seen, trainings=progress.trainings, broken=why)


def _try_mesh(running: nodes.Mesh, seen: Observation, progress: Progress) -> Observation:
    with progress.phase("log in between nodes"):
        reach = nodes.wait_reachable(running)
    with progress.phase("try forbidden logins"):
        refusals = nodes.try_refusals(running, now=int(time.time()))
    sessions = {
        (source, target): nodes.session_environment(answer["environment"])
        for source, answers in reach.items()
        for target, answer in answers.items()
        if answer["environment"]
    }
    return replace(seen, reach=reach, refusals=refusals, sessions=sessions)


def _train_all(
    running: nodes.Mesh,
    smoke: Smoke,
    seen: Observation,
    progress: Progress,
    gpu: GpuWatch | None,
) -> Observation:
    with progress.phase("prepare data"):
        training.prepare(running, smoke)
        seen = replace(seen, installed=nodes.installed(running))
    ports = iter(range(MEETING_PORT, MEETING_PORT + 100))
    if gpu:
        with progress.phase("measure"):
            port = running.port(next(ports))
            seen = replace(seen, gpu=gpu.measured(running, seen.gpu, port))

    def one(plan: TrainingPlan) -> Training:
        takes = gpu.takes(len(plan.nodes), plan.per_node) if gpu else ()
        return training.train(
            running, smoke, replace(plan, gpus=takes, run=running.plan.run),
            port=running.port(next(ports)), on_loss=progress.watcher.loss,
        )  # fmt: skip

    plans = launches(smoke, running.plan.nodes, running.shared)
    return train_in_turn(smoke, plans, seen, progress, one)


def train_in_turn(
    smoke: Smoke,
    plans: Sequence[TrainingPlan],
    seen: Observation,
    progress: Progress,
    train: Callable[[TrainingPlan], Training],
) -> Observation:
    """Run the launches of a smoke, as `launches` orders them, until one fails.

    Args:
        train: runs one to its end.
    """
    *layouts, last = plans
    for plan in layouts:
        with progress.phase(f"train {plan.label}"):
            progress.trainings[plan.label] = found = train(plan)
        if found.failed:
            why = f"{plan.label} failed, and nothing was started after it"
            return replace(seen, trainings=progress.trainings, broken=why)
    with progress.phase(f"train {last.label}"):
        resumed = train(last)
    killed = progress.trainings[smoke.resume]
    return replace(seen, trainings=progress.trainings, killed=killed, resumed=resumed)
