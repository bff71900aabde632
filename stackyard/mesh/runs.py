"""Start runs on hosts, follow them, stop them and take them down.

Owns the order of steps and what is undone when one fails. It must not print: `cli.run_view` does. A
training that no controller follows is ended by its supervisor (inside/supervisor.py).

Over 300 lines: the steps of one run, each short.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from stackyard.gpu import nccl, transport
from stackyard.gpu.nccl import NcclLog
from stackyard.gpu.transport import Offer, PathValue
from stackyard.launch import deepspeed_config
from stackyard.launch.job import Job
from stackyard.mesh import settings, standing, sync
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.jobs import Selection, replaced_lines, start_request
from stackyard.mesh.link import HostError, Link, linked, on_each
from stackyard.mesh.node import nccl_words
from stackyard.mesh.node_plan import HostProblem, MeshRequest, StandingPlan, fabric_of
from stackyard.mesh.nodes import NodeSettings, put_files
from stackyard.mesh.preflight import Muster, muster, plan_run
from stackyard.mesh.standing import PortTaken, Standing
from stackyard.mesh.supervisor import Event, Talk
from stackyard.mesh.survey import HostFacts
from stackyard.system import cleanup
from stackyard.system.errors import MeshError, StackyardError, UsageError

PORT_TRIES = 4
# A job that is killed has ended everywhere after this.
END_SECONDS = 20.0
# Why a job ended whose command got Ctrl-C.
INTERRUPTED = "it was interrupted"
SILENT_SECONDS = 5.0
# Where no log ends: nothing of it is wanted.
PAST_THE_LOG = 2**40
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Hold the hosts of an inventory: links to those that answer, errors of the others."""

    fleet: Fleet
    links: dict[str, Link]
    failed: dict[str, HostError]

    def without(self, names: Collection[str]) -> Reached:
        """Return the same without some hosts, as if the inventory lacked them."""
        kept = [host.name for host in self.fleet.hosts if host.name not in names]
        return Reached(
            fleet=self.fleet.only(kept),
            links={name: link for name, link in self.links.items() if name in kept},
            failed={name: error for name, error in self.failed.items() if name in kept},
        )


@contextlib.contextmanager
def reached(fleet: Fleet, *, engines: bool = True) -> Iterator[Reached]:
    """Log in to all hosts; the connections end with the block.

    Args:
        engines: whether hosts need a container engine.
    """
    with (
        cleanup.folder("hosts") as folder,
        linked(fleet.hosts, Path(folder), engines=engines) as (links, failed),
    ):
        yield Reached(fleet=fleet, links=links, failed=failed)


def up(
    hosts: Reached,
    wanted: MeshRequest,
    say: Say,
    *,
    owner: float = 0.0,
    check: Callable[[StandingPlan], object] = lambda plan: None,
    smoke: Callable[[StandingPlan, Muster], NodeSettings] | None = None,
) -> tuple[Standing, list[HostProblem]]:
    """Start a mesh; if that fails, remove what was started.

    Args:
        check: called with the plan before anything starts; raises for what does not fit it.
        owner: seconds without the controller's heartbeat after which it ends; 0: only `down`
            ends it.
        smoke: called with the plan and what hosts answered; returns what nodes of a smoke get.

    Raises:
        NotReady: a host has a problem; nothing was started.
        MeshError, EngineError: a node did not come up.
    """
    say(f"asking {len(hosts.fleet.hosts)} hosts")
    found = muster(hosts.links, hosts.failed, hosts.fleet)
    for attempt in range(PORT_TRIES):
        plan, warnings = plan_run(hosts.links, hosts.fleet, found, wanted)
        check(plan)
        say(f"starting {len(plan.nodes)} nodes: {plan.why}, sshd at port {plan.nodes[0].port}")
        try:
            links = {host: hosts.links[host] for host in {node.host for node in plan.nodes}}
            given = smoke(plan, found) if smoke else None
            run = standing.start(links, hosts.fleet, found.facts, plan, owner=owner, smoke=given)
            return run, warnings
        except PortTaken:
            if attempt == PORT_TRIES - 1:
                raise
            found = _without_ports(found, plan)
            say("another program took a port meanwhile: trying others")
    raise AssertionError


def _without_ports(found: Muster, plan: StandingPlan) -> Muster:
    """Return the same hosts, with a failed plan's ports counted as taken."""
    ports = {node.port for node in plan.nodes}
    facts = {name: replace(f, ports=f.ports | ports) for name, f in found.facts.items()}
    return replace(found, facts=facts)


def find(hosts: Reached, name: str) -> Standing:
    """Return a run by its name.

    Raises:
        MeshError: the hosts that answer have no such run.
    """
    runs, _ = standing.find(hosts.links)
    if name in runs:
        return runs[name]
    silent = ", ".join(hosts.failed)
    raise MeshError(
        f"no run {name!r} is on these hosts",
        why=(f"there: {', '.join(runs) or 'none'}" + (f"; not asked: {silent}" if silent else "")),
        hint="invoke up STACK --name ..., or invoke status",
    )


def down(
    hosts: Reached, run: Standing, *, lost: bool = False
) -> tuple[list[str], dict[str, StackyardError]]:
    """Remove a run from every host that answers; return what was removed, and errors by host.

    Args:
        lost: its first node does not answer any more, so nothing is announced there.
    """
    if not lost:
        standing.give_up(hosts.links, run)
    removed, failed = standing.remove(hosts.links, run.plan.run)
    for name, error in hosts.failed.items():
        if any(node.host == name for node in run.plan.nodes):
            failed[name] = error
    return removed, failed


def end_job(
    talk: Talk,
    job: str,
    reason: str = INTERRUPTED,
    seconds: float = 0.0,
    *,
    line: Callable[[Event], None] = lambda entry: None,
    start: int = PAST_THE_LOG,
) -> Event | None:
    """End a job, wait until none of its processes runs, and return its record.

    Returns None for a job that never began, or of which nothing is heard: then its lease ends it.

    Args:
        seconds: ranks that catch SIGTERM get it and may save for this long; 0: they are killed.
        line: called with each line of its log from `start` on; the whole log of a long job would
            take longer to come than the sender of a signal waits.
    """
    try:
        talk.send("stop", job=job, reason=reason, seconds=seconds)
        talk.send("follow", job=job, **{"from": start})
        for event in talk.events(seconds + END_SECONDS):
            for entry in event["lines"] if event["event"] == "log" else ():
                line(entry)
            if event["event"] == "ended":
                record: Event = event["job"]
                return record
            if event["event"] == "refused":
                break
    except StackyardError:
        pass
    return None


def lost_nodes(hosts: Reached, run: Standing, ended: Ended) -> list[str]:
    """Return the nodes that a job lost, by its supervisor or by silence of their hosts.

    If contact with node 1 was lost, return node 1. Nodes that took no part do not count.
    """
    if ended.lost:
        return [run.plan.names[0]]
    took_part = ended.nodes or run.plan.names
    found = [name for name in ended.lost_nodes if name in took_part]
    links = {name: hosts.links.get(run.plan.node(name).host) for name in took_part}
    silent = [name for name, link in links.items() if link is None or not link.answers()]
    return list(dict.fromkeys([*found, *silent]))


def unequal(hosts: Reached, run: Standing, job: Job, nodes: tuple[str, ...]) -> list[str]:
    """Describe how the folders of a job's program and working directory differ between hosts."""
    folders = {job.folder, *(str(PurePosixPath(w).parent) for w in job.program[:1] if "/" in w)}
    found = []
    for folder in sorted(folders):
        try:
            _, shared = sync.place_of(hosts.fleet, folder)
        except UsageError:
            continue  # the folder is the image's, which is the same everywhere
        if not shared and len(nodes) > 1:
            found += sync.differences(hosts.links, run, nodes, [folder])
    return found


_CONFIG = 'f="${HF_HOME:-$HOME/.cache/huggingface}/accelerate/default_config.yaml"; ls "$f"'


def remarks(hosts: Reached, run: Standing, job: Job, selection: Selection) -> list[str]:
    """Return warnings for the user before a job starts, with what to do.

    Raises:
        UsageError: a DeepSpeed configuration that the program names is missing or does not fit.
    """
    nodes = selection.nodes
    found = [*replaced_lines(job, selection), *_deepspeed(hosts, run, job, selection)]
    found += [
        f"{line}; invoke sync brings the same files to all"
        for line in unequal(hosts, run, job, nodes)
    ]
    if job.launcher == "accelerate":
        first = run.plan.node(nodes[0])
        engine = hosts.links[first.host].engine
        there = engine.exec(run.containers[first.name], ["sh", "-c", _CONFIG], seconds=20)
        if there.code == 0:
            said = there.output.strip()
            found.append(
                f"{said} on {first.name} is not read: this run has a configuration of its own"
            )
    return found


def _deepspeed(hosts: Reached, run: Standing, job: Job, selection: Selection) -> list[str]:
    """Return warnings about the DeepSpeed configurations of a job, as its first node has them."""
    first = run.plan.node(selection.nodes[0])
    ranks = sum(len(slots) for slots in selection.slots.values())

    def read(path: str) -> bytes | None:
        if path in job.files:
            return job.files[path]
        words = ["head", "-c", str(deepspeed_config.MOST_BYTES), path]
        link = hosts.links[first.host]
        done = link.engine.exec(run.containers[first.name], words, seconds=20)
        return done.output.encode() if done.code == 0 else None

    return deepspeed_config.examine(job, ranks, read)


def require_valid(hosts: Reached, run: Standing, names: Collection[str], now: float) -> None:
    """Require that a mesh's certificates are still valid, and that nodes of it can be reached.

    Raises:
        MeshError: they have expired, or a node is gone or its host does not answer.
    """
    silent = {name for name in names if run.plan.node(name).host not in hosts.links}
    gone = [name for name in names if name not in run.containers or name in silent]
    if gone:
        why = [f"{name}: {_state(hosts, run, name, silent)}" for name in gone]
        raise MeshError(
            f"{', '.join(gone)} of run {run.plan.run} cannot take part",
            why="\n".join(why),
            hint=f"--exclude {'@'.join(gone)}, or: invoke down --name {run.plan.run}, then up",
        )
    if run.plan.until < now:
        raise MeshError(
            f"the certificates of run {run.plan.run} have ended",
            why=time.strftime("they were valid until %d %b %H:%M", time.localtime(run.plan.until)),
            hint=f"invoke down --name {run.plan.run}, then invoke up again (--days says how long)",
        )


def _state(hosts: Reached, run: Standing, name: str, silent: Collection[str]) -> str:
    """Describe why a node cannot take part."""
    host = run.plan.node(name).host
    if name not in silent:
        return f"its container is {run.states.get(name) or 'gone'}"
    error = hosts.failed.get(host)
    return error.what if error else f"host {host} is not in this inventory"


def deliver(
    hosts: Reached,
    run: Standing,
    files: Mapping[str, bytes],
    names: tuple[str, ...],
    own: Mapping[str, Mapping[str, bytes]] | None = None,
) -> None:
    """Put files into nodes, by absolute path, readable by their user only.

    Args:
        own: files of one node, by its name.

    Raises:
        EngineError: a node did not take them.
    """
    if not files and not own:
        return

    def one(link: Link) -> None:
        for node in run.plan.nodes:
            if node.host == link.host.name and node.name in names:
                given = {**files, **(own or {}).get(node.name, {})}
                put_files(link.engine, run.containers[node.name], node.name, given)

    wanted = {n.host for n in run.plan.nodes if n.name in names}
    _, failed = on_each({name: hosts.links[name] for name in wanted}, one)
    for error in failed.values():
        raise error


def files_below(
    hosts: Reached, run: Standing, names: Collection[str], folder: str, depth: int
) -> set[str]:
    """Return the files below a folder in nodes, as paths from it; nodes that are gone have none."""
    words = ["find", "-L", folder, "-maxdepth", str(depth), "-type", "f", "-printf", "%P\\n"]
    found: set[str] = set()
    for name in names:
        link = hosts.links.get(run.plan.node(name).host)
        if link is None or name not in run.containers:
            continue
        with contextlib.suppress(StackyardError):
            done = link.engine.exec(run.containers[name], words, seconds=60)
            found |= set(done.output.splitlines()) if done.code == 0 else set()
    return found


def nccl_log(hosts: Reached, run: Standing, names: Sequence[str], job: str) -> NcclLog:
    """Return what NCCL wrote of a job, on all of its nodes at the same time."""

    def lines(name: str) -> list[str]:
        link = hosts.links.get(run.plan.node(name).host)
        if link is None or name not in run.containers:
            return []
        with contextlib.suppress(StackyardError):
            done = link.engine.exec(run.containers[name], nccl_words(job), seconds=60)
            return done.output.splitlines()
        return []

    with ThreadPoolExecutor(min(32, len(names))) as pool:
        return nccl.read_log([line for found in pool.map(lines, names) for line in found])


def offer_of(
    plan: StandingPlan, facts: Mapping[str, HostFacts], nvlinked: Collection[str] = ()
) -> Offer:
    """Return what the hosts of a run offer between GPUs, by node.

    Args:
        nvlinked: hosts whose GPUs are joined by NVLink, where that is known.
    """
    used = {node.host for node in plan.nodes}
    ports = fabric_of(plan, facts).ports if used <= set(facts) else {}
    here = {node.name: tuple(ports.get(node.host, ())) for node in plan.nodes}
    return Offer(
        ports={name: found for name, found in here.items() if found},
        nvlinks=frozenset(node.name for node in plan.nodes if node.host in nvlinked),
    )


def transport_of(
    hosts: Reached, run: Standing, names: Sequence[str], job: str
) -> tuple[list[PathValue], list[str]]:
    """Return what carried data between a job's GPUs, and warnings where hosts offer more."""
    log = nccl_log(hosts, run, names, job)
    if not log.taken:
        return [], []
    asked = {run.plan.node(name).host for name in names}
    links = {name: link for name, link in hosts.links.items() if name in asked}
    found = muster(links, hosts.failed, hosts.fleet)
    offer = offer_of(run.plan, found.facts)
    return [path.value() for path in transport.paths(log, offer)], transport.warnings(log, offer)


@dataclass
class RunWatcher:
    """Hold the callbacks that report what a running job does."""

    line: Callable[[Event], None] = lambda entry: None
    bar: Callable[[Event], None] = lambda entry: None
    note: Say = lambda text: None
    step: Say = lambda text: None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Hold how a job ended, as far as the controller knows.

    Attributes:
        lost: why contact was lost before the job's end; empty if it was not.
        lost_nodes: nodes that were lost while it ran.
        nodes: those that took part; empty where that is not known.
        transport: what carried data between its GPUs; empty on CPU ranks and for a lone GPU.
        warnings: where it used less than its hosts offer.
    """

    job: Event
    lost: str = ""
    lost_nodes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    transport: tuple[PathValue, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether the job exited with 0, without a reason against it or a lost contact."""
        return not self.lost and self.job.get("code") == 0 and not self.job.get("reason")


def begin(
    hosts: Reached, run: Standing, talk: Talk, job: Job, selection: Selection, lease: float
) -> Event:
    """Start a job, and return the supervisor's description of it.

    Args:
        lease: seconds that it goes on without the controller's heartbeat; 0: forever.

    Raises:
        Refused: another job runs there, or a node is gone.
        UsageError: the launcher cannot start it like this.
    """
    first = run.plan.node(selection.nodes[0])
    away = first != run.plan.nodes[0]
    # Node 1 answers, which has its own addresses alone: for another one, a port free on all of its.
    port = int(talk.ask("port", "port", address="" if away else first.address)["port"])
    by_host = {host.name: host.env for host in hosts.fleet.hosts}
    named = {name: by_host.get(run.plan.node(name).host, {}) for name in selection.nodes}
    own = settings.by_node(job, named)
    value, launch = start_request(run.plan, job, selection, port, lease, own)
    texts = {path: text.encode() for path, text in launch.files.items() if launch.everywhere}
    variables = settings.files(job, own, away=away)
    deliver(hosts, run, {**job.files, **texts}, selection.nodes, variables)
    started: Event = talk.ask("start", "started", **{"job": value, **value})["job"]
    return started


@dataclass
class Follower:
    """Follow a job to its end, and connect again when the line to node 1 breaks.

    Attributes:
        lease: seconds without a heartbeat after which the job ends; for so long it reconnects.
    """

    hosts: Reached
    run: Standing
    talk: Talk
    job: str
    lease: float
    watcher: RunWatcher
    attached: bool = True
    _offset: int = 0
    _lost: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> Ended:
        """Follow until the job has ended, or contact is lost for longer than its lease."""
        if self.attached:
            threading.Thread(target=self._watch_engines, daemon=True).start()
        try:
            while True:
                self.talk.send("follow", job=self.job, **{"from": self._offset})
                ended = self._listen()
                if ended is not None:
                    return ended
                if not self._again():
                    return Ended(job={"name": self.job}, lost=self._why())
        except MeshError as error:
            return Ended(job={"name": self.job}, lost=str(error))
        finally:
            self._stop.set()

    def end(self, reason: str, seconds: float) -> Event | None:
        """End the job, as `end_job` does, and show its last lines."""
        return end_job(
            self.talk, self.job, reason, seconds, line=self.watcher.line, start=self._offset
        )

    def _listen(self) -> Ended | None:
        """Handle events until the job ends; return None where node 1 falls silent before it."""
        while not self.talk.over and time.monotonic() - self.talk.heard < SILENT_SECONDS:
            for event in self.talk.events(1.0):
                kind = event["event"]
                if kind == "log":
                    self._offset = int(event["next"])
                    for entry in event["lines"]:
                        if "record" not in entry:
                            self.watcher.line(entry)
                elif kind == "bar":
                    self.watcher.bar(event)
                elif kind == "step":
                    self.watcher.step(event["what"])
                elif kind == "lost":
                    self._lost.append(str(event["node"]))
                    self.watcher.note(f"node {event['node']} is gone: {event['why']}")
                elif kind == "ended":
                    return Ended(job=event["job"], lost_nodes=tuple(self._lost))
                elif kind == "refused":
                    return Ended(job={"name": self.job}, lost=str(event["why"]))
        return None

    def _again(self) -> bool:
        """Connect to node 1 again; return False where that fails for the lease's time."""
        first = self.run.plan.nodes[0]
        end = self.talk.heard + (self.lease or 60.0)
        self.watcher.note(f"the line to {first.name} is broken: {self._why()}; trying again")
        silent = not self.talk.over
        while time.monotonic() < end and not self._stop.wait(1.0):
            try:
                link = self.hosts.links[first.host]
                self.talk.close()
                link.renew(force=silent)
                silent = False
                self.talk = Talk(link.engine, self.run.containers[first.name])
                self.talk.ask("state", "state", min(10.0, max(1.0, end - time.monotonic())))
                if self.attached:
                    self.talk.send("attach")
                return True
            except StackyardError:
                continue
        return False

    def _why(self) -> str:
        first = self.run.plan.nodes[0]
        silent = time.monotonic() - self.talk.heard
        said = self.talk.said or (f"nothing was heard for {silent:.0f} s" if silent > 1 else "")
        return f"{first.name} on {first.host} does not answer{': ' + said if said else ''}"

    def _watch_engines(self) -> None:
        """End an attached job when a host's engine is gone, as nothing controls its node then."""
        silent: dict[str, float] = {}
        others = [
            node for node in self.run.plan.nodes[1:]
            if node.name in self.run.containers and node.host in self.hosts.links
        ]  # fmt: skip
        while not self._stop.wait(2.0):
            for node in others:
                link = self.hosts.links[node.host]
                with contextlib.suppress(StackyardError):
                    link.renew()
                if link.answers():
                    silent.pop(node.host, None)
                    continue
                since = silent.setdefault(node.host, time.monotonic())
                # An engine that refuses is gone; a host that cannot be reached may come back.
                patience = SILENT_SECONDS if link.alive else max(self.lease, SILENT_SECONDS)
                if time.monotonic() - since > patience:
                    reason = f"the container engine of {node.host} does not answer any more"
                    with contextlib.suppress(MeshError):
                        self.talk.send("stop", job=self.job, reason=reason)
                    return
