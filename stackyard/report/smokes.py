"""Run several smokes at the same time, and write their records.

Owns how many run at once, that all of them end when the command is interrupted, and the writing of
reports. `validate.smoke` runs each smoke.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

from stackyard.build.builder import Built
from stackyard.definitions.project import Project
from stackyard.definitions.spec import SMOKE_GPUS, Smoke
from stackyard.gpu.infiniband import Fabric
from stackyard.mesh import certificates, nodes
from stackyard.mesh.hosts import node_names
from stackyard.mesh.node_plan import StandingPlan
from stackyard.mesh.spread import Spread
from stackyard.mesh.survey import HostFacts
from stackyard.report import page, pages, records, vouch
from stackyard.report.shapes import HostsValue, HostValue, SmokeReport
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError
from stackyard.validate import gpu_run, slurm_smoke, smoke
from stackyard.validate.gpu_hosts import HostGpus
from stackyard.validate.gpu_run import GpuPlan
from stackyard.validate.outcome import Observation
from stackyard.validate.slurm_follower import Follower
from stackyard.validate.slurm_nodes import Placed


def at_once(facts: Mapping[str, str], wanted: int) -> int:
    """Return how many smokes a machine can run at the same time.

    Starting a rank is single-threaded work with waits in between: one more smoke than cores keeps
    these busy. A smoke's ranks and launchers take up to 3 GiB.
    """
    return max(1, min(wanted, int(facts["cpus"]) + 1, int(float(facts["memory_gib"]) / 3)))


def smoke_all(
    project: Project,
    engine: Engine,
    images: Sequence[Future[Built]],
    node_count: int,
    watched: Callable[[Built], smoke.SmokeWatcher],
    plan: GpuPlan | None = None,
) -> list[SmokeReport]:
    """Run the smokes of several images, some at the same time; return the records in order.

    A smoke begins when its image is there; after a build that failed, no further smoke begins.

    Args:
        plan: the GPUs they run on, one smoke after another; None for CPU ranks.

    Raises:
        StackyardError: the first that left a smoke without a verdict, once all others have ended.
    """
    facts = engine.facts()
    count = at_once(facts, len(images)) if plan is None else 1
    host = {**facts, "smokes_at_once": str(count)}
    jobs: dict[Future[Built], Future[SmokeReport]] = {}
    begun: list[tuple[str, smoke.SmokeWatcher]] = []
    with ThreadPoolExecutor(count) as pool:
        try:
            for image in as_completed(images) if plan is None else images:
                if image.exception() is not None:
                    break
                built = image.result()
                run = f"{built.image.stack.name}-{secrets.token_hex(4)}"
                watcher = watched(built)
                begun.append((run, watcher))
                jobs[image] = pool.submit(
                    smoke_one, project, engine, built, node_count, watcher,
                    run=run, host=host, plan=plan,
                )  # fmt: skip
            wait(images)
            wait(jobs.values())
        except BaseException:
            # Interrupted: without its nodes each smoke ends at once, and removes what is its own.
            for _, watcher in begun:
                watcher.stop.set()
            for job in jobs.values():
                job.cancel()
            for run, _ in begun:
                # If removal fails here, the smoke itself tries again, and then the warden.
                with contextlib.suppress(EngineError):
                    nodes.remove(engine, run)
            raise
    for image in images:
        image.result()
    return [jobs[image].result() for image in images]


def smoke_one(
    project: Project,
    engine: Engine,
    built: Built,
    node_count: int,
    watcher: smoke.SmokeWatcher,
    *,
    run: str,
    host: Mapping[str, str],
    plan: GpuPlan | None = None,
) -> SmokeReport:
    """Run the smoke of one image, write its reports and evidence, return the record."""
    image = built.image
    started = datetime.datetime.now(datetime.timezone.utc)
    clock = time.monotonic()
    declared = image.stack.smoke_on("cuda" if plan else "cpu", len(plan.chosen) if plan else 0)
    assert declared is not None, "the command line asked for a smoke that is not declared"
    folder = project.root / "images" / image.stack.name / "smoke"
    env = built.info.environment
    gpu = None
    if plan is not None:
        gpu = gpu_run.start_run(plan, run, env.get("LD_LIBRARY_PATH", ""))
    outcome = smoke.run_smoke(
        engine,
        declared,
        smoke.node_settings(built.info.id, declared, smoke.workload_files(folder), gpu),
        run=run,
        node_count=node_count,
        image_env=env,
        watcher=watcher,
        gpu=gpu,
        recorded=recorded_curve(project.root, image.stack.name, declared),
    )
    value = records.smoke_report(
        image,
        built.info,
        outcome,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - clock,
        host=host,
        ranks="cuda" if plan else "cpu",
        build_seconds=built.seconds,
        failures=project.definitions.failures.values(),
    )
    _keep(project, value, built, watcher)
    return value


def smoke_on_hosts(
    project: Project, spread: Spread, declared: Smoke, built: Built, watcher: smoke.SmokeWatcher
) -> SmokeReport:
    """Run the smoke of one image over hosts, write its reports and evidence, return the record.

    Raises:
        NotReady: a host has a problem; nothing was started.
    """
    started = datetime.datetime.now(datetime.timezone.utc)
    clock, plan = time.monotonic(), spread.wanted
    names = tuple(name for host in spread.hosts.fleet.hosts for name in node_names(host))
    on_gpus = declared.device != "cpu"
    seen = Observation(
        nodes=names,
        environment={**built.info.environment, **spread.settings.env},
        pairs=certificates.pairs(names),
        recorded=recorded_curve(project.root, plan.stack, declared),
    )
    host = next(iter(spread.hosts.links.values())).engine.facts()
    outcome = smoke.smoke_in(
        spread.running(), declared, seen, run=plan.run, watcher=watcher,
        gpu=HostGpus(spread=spread) if on_gpus else None,
    )  # fmt: skip
    value = records.smoke_report(
        built.image,
        built.info,
        outcome,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - clock,
        host=host,
        ranks=declared.device,
        build_seconds=built.seconds,
        failures=project.definitions.failures.values(),
    )
    value["hosts"] = hosts_value(spread)
    _keep(project, value, built, watcher)
    return value


def smoke_on_slurm(
    project: Project,
    follower: Follower,
    built: Built,
    watcher: smoke.SmokeWatcher,
    installed: Mapping[str, Mapping[str, str]],
) -> SmokeReport:
    """Follow the smoke of one image on Slurm, write its reports and evidence, return the record.

    Args:
        follower: of its job, which was submitted.
        installed: versions found in the image, whose content all nodes have.

    Raises:
        NotReady: a node has another image; nothing was trained.
    """
    started = datetime.datetime.now(datetime.timezone.utc)
    clock, declared = time.monotonic(), follower.asked.smoke
    device = declared.device
    seen = Observation(
        nodes=(),
        environment={**built.info.environment, **follower.asked.env(declared)},
        recorded=recorded_curve(project.root, follower.asked.stack, declared),
        installed=installed,
    )
    outcome, placed = slurm_smoke.run(follower, declared, seen, watcher), follower.nodes
    value = records.smoke_report(
        built.image,
        built.info,
        outcome,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - clock,
        host=placed.machine if placed else {},
        ranks=device,
        build_seconds=built.seconds,
        failures=project.definitions.failures.values(),
    )
    value["slurm"] = {"job": follower.job, "runtime": follower.asked.site.runtime}
    if placed:
        value["hosts"] = nodes_value(placed)
    _keep(project, value, built, watcher)
    return value


def hosts_value(spread: Spread) -> HostsValue:
    """Return the hosts of a run as data; empty lists before the hosts were asked."""
    if spread.plan is None or spread.fabric is None:
        return {"network": "", "nccl": "", "hosts": []}
    return _hosts_value(spread.plan, spread.facts, spread.fabric)


def nodes_value(placed: Placed) -> HostsValue:
    """Return the nodes that Slurm gave a run as data."""
    return _hosts_value(placed.plan, placed.facts, placed.fabric)


def _hosts_value(
    plan: StandingPlan, facts: Mapping[str, HostFacts], fabric: Fabric
) -> HostsValue:  # fmt: skip
    found: list[HostValue] = []
    for name in dict.fromkeys(node.host for node in plan.nodes):
        own = [node for node in plan.nodes if node.host == name]
        here = facts[name]
        used = {gpu for node in own for gpu in node.gpus}
        link = next((i for i in here.interfaces if i.name == own[0].interface), None)
        found.append({
            "name": name,
            "nodes": [node.name for node in own],
            "image": plan.image,
            "address": own[0].address,
            "interface": own[0].interface,
            "mbit_s": link.speed if link else 0,
            "ports": [port.words() for port in here.infiniband.ports],
            "driver": here.driver.version if here.driver else "",
            "gpus": records.devices(g for g in here.gpus if g.index in used),
        })  # fmt: skip
    nccl = fabric.why if any(node.gpus for node in plan.nodes) else ""
    return {"network": plan.why, "nccl": nccl, "hosts": found}


def _keep(project: Project, value: SmokeReport, built: Built, watcher: smoke.SmokeWatcher) -> None:
    """Write a record with its page and evidence, and say that the smoke is over."""
    value["made"] = pages.made_by(project.root)
    write_reports(project.root, value)
    vouch.write(project.root, value, built.info.layers, Path.home())
    watcher.over(value["outcome"], value["seconds"])


def recorded_curve(root: Path, stack: str, declared: Smoke) -> dict[int, float]:
    """Return the losses of a stack's reference layout on CPU ranks, for a smoke on two GPUs.

    Empty if none are recorded; on more GPUs an update may have other samples.
    `scripts/record-curve STACK` writes them from a passed smoke.
    """
    if declared.device == "cpu" or max(one.ranks for one in declared.layouts) > SMOKE_GPUS[0]:
        return {}
    try:
        text = (root / "images" / stack / "curve.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return {int(step): float(loss) for step, loss in json.loads(text)["curve"]}


def write_reports(root: Path, value: Mapping[str, Any]) -> None:
    """Write the JSON record and the page, each as a whole."""
    path = records.path_of_report(value, "json")
    pages.write(root, value, path, page.render_page(value))
