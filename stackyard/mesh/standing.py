"""Start, find and remove meshes that run on hosts until they are taken down.

Owns the containers of a run over several engines. Without node 1's heartbeat they end by themselves
(inside/agent.py), and their engines then remove them. It must not decide where nodes go
(`mesh.node_plan`) or what runs in them (`mesh.jobs`).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from stackyard.gpu import access
from stackyard.gpu.access import Access
from stackyard.mesh import certificates, nodes, survey
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.link import Link, on_each
from stackyard.mesh.node import CAPABILITIES, NODE_PROGRAM, TMPFS, program_files
from stackyard.mesh.node_plan import (
    HOST_NETWORK,
    NodePlan,
    StandingPlan,
    node_environment,
    parse_plan,
)
from stackyard.mesh.supervisor import JOIN_SECONDS, Talk, supervise
from stackyard.mesh.survey import HostFacts
from stackyard.system.archive import pack
from stackyard.system.engine import NODE_LABEL, RUN_LABEL, ContainerSpec, Engine
from stackyard.system.errors import MeshError, StackyardError
from stackyard.system.process import last_lines

PLAN_LABEL = "stackyard.standing"
TOKEN_LABEL = "stackyard.token"
SHM_BYTES = 8 * 2**30
IN_USE = "Address already in use"  # as sshd says it
ENDING_SECONDS = 2.0  # until an engine has noticed that a container ended


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Describe a run by its containers.

    Attributes:
        containers: ids of running containers, by node.
        states: the engine's word for each node's container; a node without one is missing.
    """

    plan: StandingPlan
    containers: Mapping[str, str]
    states: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the nodes that have no running container."""
        return tuple(name for name in self.plan.names if name not in self.containers)


class PortTaken(MeshError):
    """Report that a node's sshd could not listen, as another program took the port meanwhile."""


def find(links: Mapping[str, Link]) -> tuple[dict[str, Standing], dict[str, StackyardError]]:
    """Return all runs on the hosts that answer, by name, and the errors of other hosts."""
    found, failed = on_each(links, lambda link: link.engine.containers(PLAN_LABEL))
    plans: dict[str, StandingPlan] = {}
    running: dict[str, dict[str, str]] = {}
    states: dict[str, dict[str, str]] = {}
    for containers in found.values():
        for container in containers:
            plan = parse_plan(container.labels.get(PLAN_LABEL, ""))
            node = container.labels.get(NODE_LABEL, "")
            if plan is None or node not in plan.names:
                continue
            plans.setdefault(plan.run, plan)
            states.setdefault(plan.run, {})[node] = container.state
            if container.state == "running":
                running.setdefault(plan.run, {})[node] = container.id
    runs = {
        run: Standing(plan=plan, containers=running.get(run, {}), states=states[run])
        for run, plan in sorted(plans.items())
    }
    return runs, failed


def start(
    links: Mapping[str, Link],
    fleet: Fleet,
    facts: Mapping[str, HostFacts],
    plan: StandingPlan,
    *,
    owner: float = 0.0,
    smoke: nodes.NodeSettings | None = None,
) -> Standing:
    """Start the nodes, join them and start their supervisor; if that fails, remove them.

    Args:
        owner: seconds without the controller's heartbeat after which the mesh ends; 0: it stays.
        smoke: files, probes and variables of every node of a smoke or bench; its nodes also get
            the variables of hosts.yml, as far as it does not set them.

    Raises:
        PortTaken: another program took a node's port.
        MeshError: a node did not come up; names it and gives the reason.
        EngineError: an engine refused.
    """
    now = int(time.time())
    mesh_plan = plan.mesh(now)
    material = certificates.node_material(mesh_plan, certificates.Authority(), now=now)
    archive = nodes.node_archive(smoke.files) if smoke else pack(program_files(), mode=0o755)
    probes = nodes.probe_files(smoke.probes) if smoke else {}
    # A job in a standing mesh gets the variables of hosts.yml by itself, as they may change.
    env = {host.name: {**host.env, **smoke.env} for host in fleet.hosts} if smoke else {}
    # Two commands may start runs of the same name at once: each removes only its own containers.
    token = secrets.token_hex(8)
    labels = {RUN_LABEL: plan.run, PLAN_LABEL: plan.text(), TOKEN_LABEL: token}

    def one(node: NodePlan) -> str:
        link = links[node.host]
        own = {**labels, NODE_LABEL: node.name}
        spec = _spec(plan, node, fleet, facts, link.engine, env.get(node.host, {}), own)
        container = link.engine.start(spec)
        try:
            link.engine.put(container, "/", archive)
            nodes.install(link.engine, container, node.name, {**material[node.name], **probes})
        except StackyardError as error:
            why = (error.what, error.why, _taken(link, plan, node, container))
            raise _failure(f"node {node.name} did not start", why, error.hint) from error
        return container

    try:
        with ThreadPoolExecutor(min(32, len(plan.nodes))) as pool:
            started = {node.name: pool.submit(one, node) for node in plan.nodes}
            containers = {name: future.result() for name, future in started.items()}
        standing = Standing(plan=plan, containers=containers)
        _supervise(links, standing, owner)
    except BaseException:
        on_each(links, lambda link: link.engine.remove_run(f"{TOKEN_LABEL}={token}"))
        raise
    return standing


def _spec(
    plan: StandingPlan,
    node: NodePlan,
    fleet: Fleet,
    facts: Mapping[str, HostFacts],
    engine: Engine,
    env: Mapping[str, str],
    labels: Mapping[str, str],
) -> ContainerSpec:
    here = facts[node.host]
    several = sum(other.host == node.host for other in plan.nodes) > 1
    given = access_of(plan, node, here, engine)
    on_host = plan.network == HOST_NETWORK
    return ContainerSpec(
        name=f"stackyard-{plan.run}-{node.name}",
        image=plan.image,
        hostname=node.name,
        network=plan.network,
        env={"PYTHONUNBUFFERED": "1", **given.env, **node_environment(plan, facts, node), **env},
        labels=labels,
        volumes={},
        capabilities=CAPABILITIES,
        tmpfs=TMPFS,
        shm_bytes=SHM_BYTES,
        hosts={other.name: other.address for other in plan.nodes} if on_host else {},
        devices=(*given.devices, *(here.infiniband.devices if node.gpus else ())),
        requests=given.requests,
        binds={
            **given.binds,
            **{
                place: here.folders[place].path for place, f in fleet.folders.items() if f.read_only
            },
        },
        ipc="host" if several and node.gpus else "private",
        limits=access.LIMITS if node.gpus else {},
        mounts={
            place: folder.source.removeprefix("volume:")
            if folder.source.startswith("volume:")
            else here.folders[place].path
            for place, folder in fleet.folders.items()
            if not folder.read_only
        },
        fleeting=True,
        command=("python3", NODE_PROGRAM, "--join-within", f"{JOIN_SECONDS * 2:g}"),
    )


def access_of(plan: StandingPlan, node: NodePlan, here: HostFacts, engine: Engine) -> Access:
    """Return how a node's container gets at its GPUs; nodes of one host see those of all of them.

    Args:
        here: what the node's host said about itself.
    """
    if not node.gpus:
        return Access(how="none")
    info = engine.image(plan.image)
    path = info.environment if info else {}
    wanted = {gpu for other in plan.nodes if other.host == node.host for gpu in other.gpus}
    seen = [gpu for gpu in here.gpus if gpu.index in wanted]
    assert here.driver is not None
    way = access.choose_way(engine.info(), here.cdi)
    return access.access(way, seen, here.driver, path.get("LD_LIBRARY_PATH", ""))


def _supervise(links: Mapping[str, Link], standing: Standing, owner: float) -> None:
    """Start the supervisor and wait until every node has joined its lease."""
    plan = standing.plan
    first = plan.nodes[0]
    engine = links[first.host].engine
    try:
        talk = supervise(engine, standing.containers[first.name], plan.names, plan.lease, owner)
        with contextlib.closing(talk):
            talk.wait_joined(plan.names)
    except StackyardError as error:
        with ThreadPoolExecutor(min(32, len(plan.nodes))) as pool:
            said = list(pool.map(lambda node: _said(links, standing, node), plan.nodes))
        logs = [f"{name}: {text}" for name, text in zip(plan.names, said, strict=True) if text]
        raise _failure(error.what, (error.why, *logs), error.hint) from error


def _failure(what: str, why: Iterable[str], hint: str = "") -> MeshError:
    text = "\n".join(part for part in why if part)
    return (PortTaken if IN_USE in text else MeshError)(what, why=text, hint=hint)


def _said(links: Mapping[str, Link], standing: Standing, node: NodePlan) -> str:
    link, container = links[node.host], standing.containers[node.name]
    taken = _taken(link, standing.plan, node, container)
    try:
        return taken or last_lines(link.engine.container_log(container), 5)
    except StackyardError as error:
        return error.what


def _taken(link: Link, plan: StandingPlan, node: NodePlan, container: str) -> str:
    """Return that a node has ended while something listens at its port; empty if not so.

    The engine removes a node that ends, and with it the log in which its sshd says so.
    """
    end = time.monotonic() + ENDING_SECONDS
    try:
        while link.engine.running(container):
            if time.monotonic() > end:
                return ""
            time.sleep(0.1)
        facts = survey.parse(link.shell(survey.SCRIPT, "/"), 0.0, 0.0)
    except StackyardError:
        return ""
    if facts is None or node.port not in facts.ports or plan.network != HOST_NETWORK:
        return ""
    return f"{IN_USE}: another program listens at port {node.port} of {node.host}"


def connect(links: Mapping[str, Link], standing: Standing) -> Talk:
    """Connect to a run's supervisor.

    Raises:
        MeshError: node 1 is gone, and the supervisor with it.
    """
    first = standing.plan.nodes[0]
    if first.name not in standing.containers or first.host not in links:
        raise MeshError(
            f"{first.name}, the first node of run {standing.plan.run}, is gone",
            why=f"its container is {standing.states.get(first.name, 'not there')}"
            if first.host in links
            else f"host {first.host} does not answer",
            hint=f"invoke down --name {standing.plan.run}, then invoke up again",
        )
    return Talk(links[first.host].engine, standing.containers[first.name])


def remove(links: Mapping[str, Link], run: str) -> tuple[list[str], dict[str, StackyardError]]:
    """Remove everything of a run from the hosts that answer.

    Returns:
        What was removed, and hosts where that failed.
    """
    label = nodes.run_label(run)
    found, failed = on_each(links, lambda link: link.engine.remove_run(label))
    return [name for names in found.values() for name in names], failed


def give_up(links: Mapping[str, Link], standing: Standing) -> None:
    """Announce the removal of the nodes to the supervisor, if it still runs."""
    try:
        talk = connect(links, standing)
    except StackyardError:  # its node is gone, or paused, and its engine starts nothing there
        return
    try:
        talk.ask("down", "down", 5)
    except MeshError:
        pass
    finally:
        talk.close()
