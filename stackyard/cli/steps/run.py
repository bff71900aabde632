"""Run `invoke up` and `invoke run` on hosts, from their arguments to the output.

Owns the meaning of their arguments. `mesh.runs` takes the steps, `cli.run_view` draws.

Over 300 lines: one command, from its arguments over each of its starts to what is said of its end.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from stackyard.build.choice import decide
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import RunRequest, UpRequest
from stackyard.cli.run_view import RunView, runs_table
from stackyard.cli.steps import diagnose, mount
from stackyard.cli.steps.hosts import load_fleet, plan_value, row
from stackyard.cli.steps.run_job import Own, chosen, own_of, work_of
from stackyard.cli.typed import typed
from stackyard.data import sharded
from stackyard.definitions.examples import Example
from stackyard.definitions.job_source import load_example, require_work
from stackyard.definitions.project import ROOT, Project, load_project
from stackyard.gpu import fused, transport
from stackyard.launch.job import Job
from stackyard.mesh import again, host_health, runs, standing
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.mounts import require_there, together, with_mounts
from stackyard.mesh.node_plan import MeshRequest, StandingPlan, require_name
from stackyard.mesh.runs import Ended, Follower, Reached, RunWatcher, reached
from stackyard.mesh.standing import Standing
from stackyard.mesh.supervisor import Event
from stackyard.system.errors import Terminated, UsageError
from stackyard.system.files import replace_texts

# The folder of records and lines of runs, below the root.
RUNS = "reports/runs"
_ENDED = "the training has ended on all hosts"
_UNHEARD = "nothing is heard of the training: if it runs, its lease ends it"


def up(terminal: Terminal, arguments: UpRequest) -> Answer:
    """Run `invoke up STACK`."""
    project = load_project()
    fleet = load_fleet(arguments.hosts)
    wanted = wanted_of(project, arguments, fleet)
    fleet = with_mounts(fleet, wanted.mounts)
    with reached(fleet) as hosts:
        started = time.monotonic()
        run, warnings = runs.up(hosts, wanted, lambda text: terminal.say(wanted.run, text))
        for warning in warnings:
            terminal.note(f"{warning.host}: {warning.what}")
    seconds = time.monotonic() - started
    terminal.done(wanted.run, f"{len(run.plan.nodes)} nodes are up in {seconds:.1f} s")
    terminal.table(runs_table([row(run, None)]))
    return {**plan_value(run.plan), "seconds": round(seconds, 2)}, 0


def wanted_of(project: Project, arguments: UpRequest, fleet: Fleet) -> MeshRequest:
    """Return the requirements of a mesh of this stack on its hosts.

    Raises:
        UsageError: there is no such stack or base, or the run's name is invalid.
    """
    begins = f"invoke up {arguments.stack}"
    chosen = decide(
        project, arguments.stack, arguments.base, gpus=arguments.gpus, image=arguments.image,
        typed=begins,
    )  # fmt: skip
    stack = chosen.stack
    if not 0 < arguments.days <= 90:
        what = f"--days must be more than 0 and at most 90, not {arguments.days:g}"
        raise UsageError(what, hint=f"{begins} --days 7")
    return MeshRequest(
        run=require_name(arguments.name or stack),
        stack=stack,
        base=chosen.base.name,
        tag=chosen.tag,
        named=bool(arguments.image),
        mounts=tuple(mount.parse_all(project, stack, arguments.overlay, fleet)),
        device=chosen.device,
        images={},
        network=arguments.network,
        lease=arguments.lease,
        keep_seconds=int(arguments.days * 86400),
        bases=project.definitions.bases,
    )


def run(terminal: Terminal, wanted: RunRequest) -> Answer:
    """Run `invoke run STACK --example NAME` or `-- COMMAND`."""
    if wanted.detach and wanted.restarts:
        raise UsageError(
            "--restarts does not go with --detach",
            why="this command starts the training again, so it has to stay",
            hint="leave one of them out",
        )
    project = load_project()
    own = own_of(wanted, os.environ)
    if own.caller:
        terminal.note(f"from your environment, for every rank: {', '.join(own.caller)}")
    fleet = load_fleet(wanted.hosts)
    asked = wanted_of(project, wanted.mesh, fleet)
    fleet = with_mounts(fleet, asked.mounts)
    example = load_example(project.root, asked.stack, wanted.example)
    require_work(work_of(wanted), asked.stack, project.root, f"invoke run {asked.stack}")
    with reached(fleet) as hosts:
        mesh = standing.find(hosts.links)[0].get(asked.run)
        _require_mesh(mesh, asked, wanted, hosts)
        looked_at = hosts.links if asked.device == "cuda" and not wanted.detach else {}
        before = host_health.read_all(looked_at)
        ended, away = _attempts(project, hosts, mesh, asked, example, wanted, terminal, own)
        answering = {name: link for name, link in looked_at.items() if name not in away}
        health = host_health.appeared(before, host_health.read_all(answering))
    value, code = _conclude(ended, wanted, terminal, health)
    if not wanted.detach:
        kept = f"{RUNS}/{asked.run}/{value['name']}"
        record = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        try:
            replace_texts(ROOT, {f"{kept}.json": record})
            terminal.note(f"every line is in {kept}.log, the record in {value['name']}.json")
        except OSError as error:  # as with the log: the outcome is the training's
            terminal.note(f"{kept}.json cannot be written: {error.strerror}")
    return value, code


def _require_mesh(
    mesh: Standing | None, asked: MeshRequest, wanted: RunRequest, hosts: Reached
) -> None:
    """Check that a running mesh is of this stack, and that one is up where it is needed."""
    if mesh is not None:
        again = f"invoke up {asked.stack} --name {asked.run}"
        require_there(asked.mounts, mesh.plan.mounts, asked.run, f"{again} --overlay ...")
        link = hosts.links.get(mesh.plan.nodes[0].host) if asked.named else None
        held = link.engine.image(asked.tag) if link else None
        if link and (held is None or held.id != mesh.plan.image):
            raise UsageError(
                f"run {asked.run!r} is up with another image than {asked.tag}",
                why=f"it has {mesh.plan.image[7:19]}",
                hint=f"invoke down --name {asked.run}, then: {again} --image {asked.tag}",
            )
    if mesh is None and wanted.detach:
        raise UsageError(
            f"no run {asked.run!r} is up, and --detach needs one that stays",
            hint=typed("up", wanted.mesh),
        )
    if mesh is not None and mesh.plan.stack != asked.stack:
        raise UsageError(
            f"run {asked.run!r} is a mesh of {mesh.plan.stack}, not of {asked.stack}",
            hint=f"invoke run {mesh.plan.stack} --name {asked.run}, or another --name",
        )


def _attempts(
    project: Project,
    hosts: Reached,
    up_already: Standing | None,
    asked: MeshRequest,
    example: Example | None,
    wanted: RunRequest,
    terminal: Terminal,
    own: Own,
) -> tuple[Ended, set[str]]:
    """Run the job; after a failure, start it again while restarts are left and it may help.

    Returns the last end, and the hosts that did not answer when their nodes were removed.
    """
    lost, away = set[str](), set[str]()
    failures, shards = list[again.Failure](), None

    def check(plan: StandingPlan) -> None:
        chosen(plan, example, wanted, lost, own)

    for attempt in range(wanted.restarts + 1):
        mesh = up_already
        if mesh is None:
            mesh, _ = runs.up(
                hosts, asked, lambda text: terminal.say(asked.run, text), owner=asked.lease,
                check=check,
            )  # fmt: skip
        silent = False
        try:
            ended = _run(
                project, hosts, mesh, example, wanted, asked, terminal, lost, own,
                stays=up_already is not None,
            )  # fmt: skip
            silent = bool(ended.lost)
            if not ended.passed and attempt < wanted.restarts:
                shards = _shards(hosts, mesh, wanted.save, mesh.plan.names)
        finally:
            if up_already is None:
                for host, error in runs.down(hosts, mesh, lost=silent)[1].items():
                    away.add(host)
                    terminal.note(f"{host}: its node ends by itself: {error.what}")
        if ended.passed or attempt == wanted.restarts:
            break
        gone = runs.lost_nodes(hosts, mesh, ended)
        if ended.job.get("stopped") and not gone:
            break
        failures.append(again.failure_of(ended.job, ended.lost))
        names, why = _left(hosts, mesh, gone, shards, stays=up_already is not None)
        why = again.why_not(failures) or why
        if why:
            terminal.note(f"not started again: {why}")
            break
        without = [host.name for host in hosts.fleet.hosts if host.name not in names]
        lost |= {node for node in gone if mesh.plan.node(node).host in without}
        if up_already is None:
            hosts = hosts.without(without)
        what = f"{', '.join(gone)} lost" if gone else "it failed"
        terminal.note(f"{what}: starting again on {', '.join(names)}"
                      f" ({attempt + 1} of {wanted.restarts} restarts)")  # fmt: skip
    return ended, away


def _left(
    hosts: Reached, mesh: Standing, gone: Collection[str], shards: int | None, *, stays: bool
) -> tuple[tuple[str, ...], str]:
    """Return the hosts of the next start, or the reason against one.

    Args:
        stays: the mesh is not started anew: its lost nodes stay lost.
    """
    if stays and mesh.plan.names[0] in gone:
        return (), f"{mesh.plan.names[0]}, the first node, is lost: invoke down, then invoke up"
    away = {mesh.plan.node(node).host for node in gone}
    answer = {host for host in away if not stays and hosts.links[host].answers()}
    return again.hosts_left([host.name for host in hosts.fleet.hosts], away, answer, shards)


def _shards(hosts: Reached, mesh: Standing, save: str, nodes: Collection[str]) -> int | None:
    """Return the ranks that the newest checkpoint in a folder is cut over; None for any number."""
    if not save:
        return None  # every job has a new folder then
    return sharded.ranks_of(runs.files_below(hosts, mesh, nodes, save, sharded.DEPTH))


def _run(
    project: Project,
    hosts: Reached,
    mesh: Standing,
    example: Example | None,
    wanted: RunRequest,
    asked: MeshRequest,
    terminal: Terminal,
    lost: Collection[str],
    own: Own,
    *,
    stays: bool,
) -> Ended:
    """Run one job in a mesh, which `stays` or is removed afterwards."""
    plan, lease = mesh.plan, asked.lease
    job, selection = chosen(plan, example, wanted, lost, own)
    runs.require_valid(hosts, mesh, selection.nodes, time.time())
    talk = standing.connect(hosts.links, mesh)
    follower = None
    try:
        if not wanted.detach:
            talk.send("attach")  # the lease of a new mesh now needs beats of this command
        job = mount.lay(
            project, hosts, mesh, job, selection.nodes, together(asked.mounts, plan.mounts),
            wanted.despite, terminal.note,
        )  # fmt: skip
        ranks = sum(len(slots) for slots in selection.slots.values())
        shards = _shards(hosts, mesh, wanted.save, selection.nodes)
        again.require_shards(wanted.save, shards, ranks)
        for remark in runs.remarks(hosts, mesh, job, selection):
            terminal.note(remark)
        runs.begin(hosts, mesh, talk, job, selection, 0 if wanted.detach else lease)
        places = "1 node" if len(selection.nodes) == 1 else f"{len(selection.nodes)} nodes"
        terminal.done(plan.run, f"{job.name}: {ranks} ranks on {places} by {job.launcher}")
        if wanted.detach:
            return Ended(job={"name": job.name, "state": "running", "code": None, "reason": ""})
        log = ROOT / RUNS / plan.run / f"{job.name}.log"
        with RunView(plan, job.name, terminal, log=log) as view:
            watcher = RunWatcher(line=view.line, bar=view.bar, note=terminal.note, step=view.step)
            follower = Follower(
                hosts=hosts, run=mesh, talk=talk, job=job.name, lease=lease, watcher=watcher
            )
            try:
                ended = replace(follower.follow(), nodes=selection.nodes)
            except Terminated:
                _save(follower, wanted.grace, terminal)
                raise
        return _with_transport(hosts, mesh, selection.nodes, job, ended)
    except BaseException:
        record = runs.end_job(follower.talk if follower else talk, job.name)
        if stays:
            terminal.interrupted = (
                f"{_ENDED if record else _UNHEARD}; the mesh is still up (invoke down removes it)"
            )
        raise
    finally:
        (follower.talk if follower else talk).close()


def _with_transport(
    hosts: Reached, mesh: Standing, nodes: Sequence[str], job: Job, ended: Ended
) -> Ended:
    """Add to the end of a job on GPUs what carried data between them.

    A lost node is not asked: the others would wait for its host before they are removed.
    """
    if job.device != "cuda" or ended.lost:
        return ended
    heard = [node for node in nodes if node not in ended.lost_nodes]
    taken, warned = runs.transport_of(hosts, mesh, heard, job.name)
    return replace(ended, transport=tuple(taken), warnings=tuple(warned))


def _save(follower: Follower, grace: float, terminal: Terminal) -> None:
    """End a job whose command got SIGTERM; it may save first."""
    terminal.note(f"SIGTERM: {follower.job} may save for {grace:g} s")
    record = follower.end("it was stopped by SIGTERM", grace)
    terminal.note(
        f"{follower.job}: {record['reason'] if record else 'nothing is heard of its end'}"
    )


def fused_warnings(job: Event) -> list[str]:
    """Return a warning for each fused part that is on but does not run; old images list none."""
    said = {int(rank): found.get("fused", {}) for rank, found in job.get("ranks", {}).items()}
    try:
        return fused.warnings({rank: fused.read_parts(parts) for rank, parts in said.items()})
    except (KeyError, TypeError, AttributeError):
        return []  # a rank's wrong file does not fail a finished training


def _conclude(
    ended: Ended, wanted: RunRequest, terminal: Terminal, health: Sequence[str] = ()
) -> tuple[Any, int]:
    job = ended.job
    warnings = [*fused_warnings(job), *ended.warnings, *health]
    value = {
        "outcome": "passed" if ended.passed else "failed",
        "lost": ended.lost,
        "warnings": warnings,
        "transport": list(ended.transport),
        **job,
    }
    if wanted.detach:
        terminal.text(f"{job['name']} runs on; invoke logs --follow, invoke status, invoke stop")
        return {**value, "outcome": "running"}, 0
    if ended.lost:
        terminal.text(f"{job['name']}: contact was lost: {ended.lost}")
    elif not ended.passed:
        reason = job["reason"] or f"the launcher ended with exit code {job['code']}"
        terminal.text(f"{job['name']} failed: {reason}")
        if job.get("hang") and job["hang"] not in reason:
            terminal.text(f"{job['name']} did not get on: {job['hang']}")
        found = diagnose.recognised(ROOT, terminal.tail, "run")["diagnoses"]
        diagnose.show(found, terminal.text)
    else:
        seconds = float(job["ended"]) - float(job["started"])
        terminal.text(f"{job['name']} is done: {len(job['ranks'])} ranks, {seconds:.1f} s")
    for path in ended.transport:
        terminal.text(f"{job['name']}: NCCL: {transport.words(path)}")
    for warning in warnings:
        terminal.text(f"{job['name']}: warning: {warning}")
    if job.get("left"):
        left = ", ".join(f"{n} {len(p)}" for n, p in job["left"].items())
        terminal.text(f"{job['name']}: its launcher left processes, which were ended: {left}")
    return value, 0 if ended.passed else 1
