"""Say where one bench runs (on this machine, over hosts, on Slurm), in one value.

Owns what a bench's report needs to be told of each place. `validate.bench` runs the trainings.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stackyard.build.builder import Built
from stackyard.definitions.project import Project
from stackyard.gpu import access
from stackyard.mesh.spread import Spread
from stackyard.report import records, smokes
from stackyard.report.shapes import BenchGpus, HostsValue, SlurmValue
from stackyard.system.engine import Engine
from stackyard.validate import gpu_run
from stackyard.validate.bench import play, slurm
from stackyard.validate.bench.plan import BenchPlan
from stackyard.validate.bench.result import Seen
from stackyard.validate.gpu_hosts import HostGpus
from stackyard.validate.gpu_run import GpuPlan, GpuRun
from stackyard.validate.judge_gpu import GpuObservation
from stackyard.validate.slurm_follower import Follower


@dataclass(frozen=True, kw_only=True)
class Place:
    """Hold where one bench is played: on this machine, or over hosts.

    Attributes:
        facts: of the (first) machine.
        hosts: None on this machine.
        slurm: None elsewhere.
    """

    facts: Callable[[], Mapping[str, str]]
    play: Callable[[play.BenchWatcher], Seen]
    gpus: Callable[[], BenchGpus]
    hosts: Callable[[], HostsValue | None] = lambda: None
    slurm: SlurmValue | None = None


def here(
    project: Project, held: Engine, built: Built, plan: BenchPlan, gpu_plan: GpuPlan | None
) -> Place:
    """Return a bench in one container of this machine."""
    name = built.image.stack.name
    run, env = f"{name}-{secrets.token_hex(4)}", built.info.environment
    gpu = None
    if gpu_plan is not None:
        gpu = gpu_run.start_run(gpu_plan, run, env.get("LD_LIBRARY_PATH", ""))
    settings = play.settings(built.info.id, plan, play.files(project.root, name), gpu)
    facts = held.facts()  # before the start: the engine may be gone at the end
    return Place(
        facts=lambda: facts,
        play=lambda watcher: play.run_bench(
            held, plan, settings, run=run, gpu=gpu, watcher=watcher
        ),
        gpus=lambda: gpus_value(gpu),
    )


def there(made: Spread, plan: BenchPlan) -> Place:
    """Return a bench over hosts."""
    gpu = HostGpus(spread=made) if plan.size.device == "cuda" else None

    facts = next(iter(made.hosts.links.values())).engine.facts()
    return Place(
        facts=lambda: facts,
        play=lambda watcher: play.bench_in(
            made.running(), plan, run=made.wanted.run, gpu=gpu, watcher=watcher
        ),
        gpus=lambda: _observed(gpu.observed()) if gpu and made.plan else {},
        hosts=lambda: smokes.hosts_value(made),
    )


def on_slurm(follower: Follower, plan: BenchPlan) -> Place:
    """Return a bench as a job of Slurm, which was submitted."""
    on_gpus = plan.size.device == "cuda"
    return Place(
        facts=lambda: follower.nodes.machine if follower.nodes else {},
        play=lambda watcher: slurm.run(follower, plan, watcher),
        gpus=lambda: _observed(follower.nodes.gpus) if follower.nodes and on_gpus else {},
        hosts=lambda: smokes.nodes_value(follower.nodes) if follower.nodes else None,
        slurm={"job": follower.job, "runtime": follower.asked.site.runtime},
    )


def _observed(seen: GpuObservation) -> BenchGpus:
    return {
        "placement": seen.placement.name, "driver": seen.driver,
        "devices": records.devices(seen.placement.gpus),
    }  # fmt: skip


def gpus_value(gpu: GpuRun | None) -> BenchGpus:
    """Return the GPUs of a run on this machine as data; empty on CPU ranks."""
    if gpu is None:
        return {}
    placed = gpu.placement
    return {
        "placement": placed.name,
        "driver": gpu.plan.host.driver,
        "way": access.explain(gpu.plan.way),
        "settings": {**placed.env, **gpu.plan.settings},
        "devices": records.devices(placed.gpus),
    }
