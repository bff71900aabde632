"""Start the nodes of a run on one engine, join them to a mesh, test it, and remove them.

Owns the life of a run's containers, network and volume, all found again by the run's label, and the
test of a mesh, also of one over hosts (`mesh.spread`). It must not judge: what the mesh answered
goes to `validate.judge` unchanged.

Over 300 lines: one life of containers, from their start over the trial of their mesh to the end.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from stackyard.gpu.access import Access, NodeHardware
from stackyard.mesh import certificates
from stackyard.mesh.node import CAPABILITIES, NODE_PROGRAM, TMPFS, program_files
from stackyard.mesh.supervisor import Processes, Talk, supervise
from stackyard.system import cleanup
from stackyard.system.archive import pack
from stackyard.system.engine import (
    NODE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    ContainerSpec,
    Engine,
    ExecResult,
)
from stackyard.system.errors import EngineError, MeshError
from stackyard.system.process import last_lines

SHARED = "/shared"
SMOKE_FOLDER = "/srv/smoke"
PROBE_FOLDER = "/run/stackyard/probe"
# The lease of a run on this engine: this plus the removal of the run stays below 10 s.
LEASE_SECONDS = 6.0


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Hold the settings that the containers of a run start with.

    Attributes:
        files: copied into every node below /srv/smoke, by relative path.
        probes: the controller's own programs, by name.
        shm_bytes: size of /dev/shm; the engine's default of 64 MiB is too small for training.
        hardware: each node's access to the machine's GPUs; empty on CPU ranks.
        network: `bridge` (an internal network of the run's own) or `host`.
    """

    image: str
    env: Mapping[str, str]
    files: Mapping[str, bytes]
    probes: Mapping[str, bytes]
    shm_bytes: int = 2**30
    hardware: tuple[NodeHardware, ...] = ()
    network: str = "bridge"


@dataclass
class Mesh:
    """Hold a running mesh: its containers by node name, and the conversations with them.

    Attributes:
        engines: the engine of each node.
        shared: a folder of this run that all nodes share.
        lease: seconds without a beat after which it ends.
        own: variables of single nodes, beyond those that all were started with.
        asks: the nodes' network has other users, so free ports are asked for.
    """

    plan: certificates.MeshPlan
    containers: dict[str, str]
    talk: Talk
    engines: Mapping[str, Engine]
    shared: str = SHARED
    lease: float = LEASE_SECONDS
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    asks: bool = False

    def port(self, usual: int) -> int:
        """Return a port of the first node for a rendezvous: `usual`, or one that is free there."""
        if not self.asks:
            return usual
        address = self.plan.addresses.get(self.head, "")
        return int(self.talk.ask("port", "port", address=address)["port"])

    def exec(self, node: str, words: Sequence[str], *, seconds: float, **more: Any) -> ExecResult:
        """Run a command in a node, as `Engine.exec` does."""
        return self.engines[node].exec(self.containers[node], words, seconds=seconds, **more)

    def put(self, node: str, files: Mapping[str, bytes]) -> None:
        """Put files into a node, as `put_files` does."""
        put_files(self.engines[node], self.containers[node], node, files)

    def close(self) -> None:
        """End the conversation with the nodes, before these are removed."""
        self.talk.rest()
        self.talk.close()

    @property
    def lost(self) -> str:
        """Return which node is gone and why; empty while none is known to be."""
        return self.talk.lost

    @property
    def head(self) -> str:
        """Return the name of the first node."""
        return self.plan.nodes[0]

    @property
    def engine(self) -> Engine:
        """Return the engine of the first node."""
        return self.engines[self.head]

    @property
    def first(self) -> str:
        """Return the container of the first node."""
        return self.containers[self.head]

    def strays(self, *, kill: bool = False) -> Processes:
        """Return the processes on each node that are not part of the node's own service.

        A node that is gone has none.
        """
        found = self.talk.processes(kill=kill)
        return {node: found.get(node, []) for node in self.plan.nodes}


def run_label(run: str) -> str:
    """Return the label that everything of a run carries."""
    return f"{RUN_LABEL}={run}"


def remove(engine: Engine, run: str) -> None:
    """Remove everything of a run, whatever state it is in."""
    engine.remove_run(run_label(run))


def sweep(engine: Engine) -> dict[str, str]:
    """Remove the runs whose owner on this machine has died, where its warden died, too.

    What cannot be removed harms no other run, and is only reported.

    Returns:
        For each run: empty, or why a part of it remains.
    """
    found: dict[str, str] = {}
    for run, owner in engine.runs().items():
        if cleanup.owner_is_gone(owner):
            found[run] = ""
            try:
                engine.remove_run(run_label(run), patience=0)
            except EngineError as error:
                found[run] = f"{error.why} ({error.hint})" if error.hint else error.why
    return found


@contextlib.contextmanager
def running_mesh(
    engine: Engine, plan: certificates.MeshPlan, settings: NodeSettings, *, now: int
) -> Iterator[Mesh]:
    """Start the nodes, join them, and remove everything at the end, also after an error.

    Raises:
        MeshError: a node did not become reachable; names it and gives the reason.
        EngineError: the engine refused.
    """
    running = None
    cleanup.promise(cleanup.RUN, plan.run)
    try:
        running = start(engine, plan, settings, now=now)
        yield running
    finally:
        if running is not None:
            running.close()
        remove(engine, plan.run)
        cleanup.kept(cleanup.RUN, plan.run)  # not reached when the engine refused: the warden tries


def start(engine: Engine, plan: certificates.MeshPlan, settings: NodeSettings, *, now: int) -> Mesh:
    """Start the nodes, and return when every sshd has its keys."""
    labels = {RUN_LABEL: plan.run, OWNER_LABEL: cleanup.owner()}
    network = volume = f"stackyard-{plan.run}"
    if settings.network == "host":
        network = "host"
    else:
        engine.create_network(network, labels, internal=True)
    engine.create_volume(volume, labels)
    authority = certificates.Authority()
    material = certificates.node_material(plan, authority, now=now)
    archive = node_archive(settings.files)

    def one(node: str, first: str = "") -> str:
        hardware = _hardware_of(settings, plan.nodes.index(node))
        spec = ContainerSpec(
            name=f"stackyard-{plan.run}-{node}",
            image=settings.image,
            hostname=node,
            network=network,
            env={**settings.env, **hardware.env},
            labels={**labels, NODE_LABEL: node},
            volumes={volume: SHARED},
            capabilities=CAPABILITIES,
            tmpfs=TMPFS,
            shm_bytes=settings.shm_bytes,
            hosts=plan.addresses,
            devices=hardware.access.devices,
            requests=hardware.access.requests,
            binds=hardware.access.binds,
            ipc=f"container:{first}" if hardware.ipc == "first" else hardware.ipc,
            limits=hardware.limits,
        )
        container = engine.start(spec)
        engine.put(container, "/", archive)
        install(engine, container, node, {**material[node], **probe_files(settings.probes)})
        return container

    first, *others = plan.nodes
    with ThreadPoolExecutor(min(8, len(plan.nodes))) as pool:
        if any(hardware.ipc == "first" for hardware in settings.hardware):
            containers = {first: one(first)}
            rest = {n: pool.submit(one, n, containers[first]) for n in others}
        else:
            containers = {}
            rest = {n: pool.submit(one, n) for n in plan.nodes}
        containers |= {node: future.result() for node, future in rest.items()}
    talk = supervise(
        engine, containers[first], plan.nodes, LEASE_SECONDS, LEASE_SECONDS,
        lambda: kill_all(engine, containers.values()),
    )  # fmt: skip
    return Mesh(
        plan=plan, containers=containers, talk=talk, engines=dict.fromkeys(plan.nodes, engine)
    )


def node_archive(files: Mapping[str, bytes]) -> bytes:
    """Return what is unpacked into every node: the programs of nodes, and a smoke's files."""
    own = {f"{SMOKE_FOLDER[1:]}/{path}": data for path, data in files.items()}
    return pack({**own, **program_files(), f"{SMOKE_FOLDER[1:]}/.keep": b""}, mode=0o755)


def probe_files(probes: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the controller's own programs as files of a node, kept in memory with its keys."""
    return {f"probe/{name}": data for name, data in probes.items()}


def _hardware_of(settings: NodeSettings, number: int) -> NodeHardware:
    if not settings.hardware:
        return NodeHardware(access=Access(how="none"), ipc="private", env={}, limits={})
    return settings.hardware[number]


def kill_all(engine: Engine, containers: Iterable[str]) -> None:
    """Send SIGKILL to all nodes, as a run that has lost one of them is over."""
    threads = [threading.Thread(target=engine.kill, args=(c,), daemon=True) for c in containers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def install(engine: Engine, container: str, node: str, material: Mapping[str, bytes]) -> None:
    """Put a node's keys and other files into its container.

    Raises:
        MeshError: the node did not take them.
    """
    # Keys go through standard input into memory, so that no argv, environment or layer holds them.
    archive = pack(material, mode=0o600)
    done = engine.exec(container, ["python3", NODE_PROGRAM, "install"], seconds=30, stdin=archive)
    if done.code != 0:
        raise MeshError(
            f"{node} did not take its keys (exit code {done.code})",
            why=f"{done.output}\n{engine.container_log(container)}",
            hint="the image must be one that stackyard built: its command waits for the mesh",
        )


def put_files(engine: Engine, container: str, node: str, files: Mapping[str, bytes]) -> None:
    """Put files into a running node, by absolute path, readable by their user only.

    It goes by a command in the node: the engine itself cannot write below a mount in memory.

    Raises:
        EngineError: the node did not take them.
    """
    archive = pack({path.lstrip("/"): data for path, data in files.items()}, mode=0o600)
    done = engine.exec(container, ["tar", "-x", "-C", "/"], seconds=60, stdin=archive)
    if done.code != 0:
        raise EngineError(f"{node} did not take its files", why=done.output)


def _ended(running: Mesh) -> str:
    """Return a node whose container has ended; empty if all run."""
    for node, container in running.containers.items():
        if not running.engines[node].running(container):
            return node
    return ""


def wait_reachable(running: Mesh) -> dict[str, dict[str, Any]]:
    """Log in between nodes (`certificates.pairs`); return what every login answered, by node.

    It first waits until every node has joined, which is soon after it got its keys.

    Raises:
        MeshError: a node did not answer; names it and quotes ssh.
    """
    wanted: dict[str, list[str]] = {}
    for source, target in certificates.pairs(running.plan.nodes):
        wanted.setdefault(source, []).append(target)
    try:
        running.talk.wait_joined(running.plan.nodes, ended=lambda: _ended(running))
        running.talk.expect(running.lease)
    except MeshError as error:
        logs = {n: running.engines[n].container_log(c) for n, c in running.containers.items()}
        said = [f"{node}: {last_lines(log, 5)}" for node, log in logs.items() if log.strip()]
        why = [*([error.why] if error.why else []), *(said or ["the nodes' logs are empty"])]
        raise MeshError(error.what, why="\n".join(why)) from error

    def reach(source: str) -> dict[str, Any]:
        words = ["python3", f"{PROBE_FOLDER}/mesh_probe.py", "reach", *wanted[source]]
        done = running.exec(source, words, seconds=60)
        return _json(done, f"the probe on {source}")

    with ThreadPoolExecutor(min(4, len(wanted))) as pool:
        return dict(zip(wanted, pool.map(reach, wanted), strict=True))


def try_refusals(running: Mesh, *, now: int) -> dict[str, dict[str, Any]]:
    """Attempt every forbidden login from the first node to the last; return the answers.

    Raises:
        MeshError: the sshd of a foreign authority, which must be refused, could not be started.
    """
    source, target = running.plan.nodes[0], running.plan.nodes[-1]
    foreign = certificates.foreign_material(running.plan, target, now=now)
    keys = json.dumps({n: base64.b64encode(data).decode() for n, data in foreign.items()})
    program, ready = ["python3", f"{PROBE_FOLDER}/mesh_probe.py"], threading.Event()
    impostor = running.engines[target].converse(
        running.containers[target], [*program, "impostor"], lambda line: ready.set()
    )
    try:
        impostor.send(keys)
        if not ready.wait(20):
            raise MeshError(f"no sshd with a foreign certificate could be started on {target}")
        done = running.exec(
            source,
            [*program, "refuse", target, str(running.plan.port_of(target))],
            seconds=60,
            stdin=f"{keys}\n".encode(),
        )
        return _json(done, f"the refusals tried on {source}")
    finally:
        impostor.close()


def installed(running: Mesh) -> dict[str, dict[str, str]]:
    """Return the installed versions that a node reports, by name, for `python` and `debian`.

    Raises:
        MeshError: the node gave no answer.
    """
    words = ["python3", f"{PROBE_FOLDER}/inventory.py"]
    return _json(running.exec(running.head, words, seconds=60), "the inventory")


def _json(done: ExecResult, what: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    except (ValueError, IndexError) as error:
        what = f"{what} gave no answer (exit code {done.code})"
        raise MeshError(what, why=done.output) from error
    return answer


def session_environment(encoded: str) -> dict[str, str]:
    """Return the environment of a login, from the base64 of its /proc/self/environ."""
    entries = base64.b64decode(encoded).decode("utf-8", errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
