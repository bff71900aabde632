"""Train on groups of hosts in a mesh over them, and return what each group recorded.

Owns the launch of a round: one job of the mesh's supervisor for each group, all at the same time.
It must not judge (`certify.judge`) or choose groups (`certify.plan`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stackyard.definitions.project import ROOT
from stackyard.gpu.transport import Offer
from stackyard.launch import launched
from stackyard.launch.job import Job
from stackyard.launch.request import LaunchRequest
from stackyard.launch.settings import file_text
from stackyard.mesh import runs, settings
from stackyard.mesh.node import SCRATCH, nccl_environment, rank_environment
from stackyard.mesh.node_plan import StandingPlan, visible
from stackyard.mesh.runs import Reached
from stackyard.mesh.standing import Standing
from stackyard.mesh.supervisor import Event, Refused, Talk
from stackyard.system.errors import MeshError
from stackyard.system.process import last_lines
from stackyard.validate.certify.group import GroupRun, Members, Place
from stackyard.validate.certify.record import read_records

FOLDER = "/srv/stackyard/certify"
PROGRAM = f"{FOLDER}/fingerprint.py"
SOURCE = "images/measure/fingerprint.py"
SETTINGS = f"{SCRATCH}/certify/settings"
# Below the ports that the kernel gives to connections. Each group of a round has one of its own.
PORTS = range(20000, 32000)
JOIN_SECONDS = 300
# A group whose process group does not come together has no update yet, by which it could be told.
SILENT_SECONDS = 120
GRACE_SECONDS = 5.0
# What the supervisor says nothing about for so long has ended without a word of it.
LOST_SECONDS = 60.0
STOPPED = "the hang was examined"


@dataclass(kw_only=True)
class Yard:
    """Hold a mesh that stands for a certification, and train on groups of its nodes.

    Attributes:
        device: `cpu` or `cuda`.
        updates: of each training.
        own: the caller's own variables, which go before those of hosts.yml.
        offer: what the hosts offer between their GPUs.
        hang_seconds: how long a group may be silent beyond some of its own updates.
        lost: why nodes are gone, by name.
    """

    hosts: Reached
    mesh: Standing
    talk: Talk
    device: str
    updates: int
    lease: float
    hang_seconds: float
    taken: frozenset[int] = frozenset()
    own: Mapping[str, str] = field(default_factory=dict)
    offer: Offer = field(default_factory=Offer)
    lost: dict[str, str] = field(default_factory=dict)
    _named: dict[str, set[str]] = field(default_factory=dict)
    _started: int = 0

    @property
    def plan(self) -> StandingPlan:
        """Return the plan of the mesh."""
        return self.mesh.plan

    @property
    def slots(self) -> dict[str, tuple[int, ...]]:
        """Return the numbers of each host's GPUs that may take part, or of its CPU rank."""
        return {node.host: node.gpus or (0,) for node in self.plan.nodes}

    def prepare(self) -> None:
        """Give every node the program, and the user's variables of its host.

        Raises:
            EngineError: a node did not take them.
        """
        by_host = {host.name: host.env for host in self.hosts.fleet.hosts}
        named = {node.name: by_host.get(node.host, {}) for node in self.plan.nodes}
        own = settings.by_node(self._job(), named)
        self._named = {node: set(variables) for node, variables in own.items()}
        files = {PROGRAM: (ROOT / SOURCE).read_bytes()}
        texts = {node: {SETTINGS: file_text(one).encode()} for node, one in own.items()}
        runs.deliver(self.hosts, self.mesh, files, self.plan.names, texts)

    def _job(self) -> Job:
        """Return what the user's variables are merged with."""
        return Job(
            name="certify", stack=self.plan.stack, base=self.plan.base, image=self.plan.image,
            nodes=1, per_node=1, device=self.device, program=(PROGRAM,),
            env={"PYTHONPATH": settings.python_path()}, settings=self.own,
        )  # fmt: skip

    def train(self, groups: Sequence[Members]) -> list[GroupRun]:
        """Train on disjoint groups at the same time; return the results in order.

        A group that ended since a node of another group was lost is trained once more.

        Raises:
            MeshError: the supervisor does not answer any more.
        """
        found = self._train(groups)
        again = [n for n, run in enumerate(found) if self._disturbed(run)]
        for number, run in zip(again, self._train([groups[n] for n in again]), strict=True):
            found[number] = run
        return found

    def _disturbed(self, run: GroupRun) -> bool:
        own = [node for node in self.lost if f"node {node} is gone" in run.reason]
        return bool(own) and not set(own) & set(run.names)

    def _train(self, groups: Sequence[Members]) -> list[GroupRun]:
        waiting: dict[str, _Waiting] = {}
        found: dict[int, GroupRun] = {}
        # Nobody reads events between two rounds: a node may be gone since the last one.
        while (event := self.talk.next(0.0)) is not None:
            self._note_lost(event)
        for number, group in enumerate(groups):
            if self._gone(group):
                found[number] = self._untrained(group)
                continue
            name = f"certify-{self._started}"
            waiting[name] = _Waiting(number=number, group=group, since=time.monotonic())
            self.talk.send("start", **self._request(name, group))
            self._started += 1
        for name, one in self._ends(waiting):
            found[waiting[name].number] = one
        for name, trained in waiting.items():
            if trained.began and self._speaks(trained.group):
                run = found[trained.number]
                log = runs.nccl_log(self.hosts, self.mesh, run.names, name)
                found[trained.number] = replace(run, nccl=log)
        return [found[number] for number in range(len(groups))]

    def _note_lost(self, event: Event) -> None:
        if event["event"] == "lost":
            self.lost[str(event["node"])] = str(event["why"])

    def _gone(self, group: Members) -> str:
        """Return which nodes of a group are gone, and why; empty if none is known to be."""
        lost = [name for name in group.gpus if name in self.lost]
        return "; ".join(f"node {name} is gone: {self.lost[name]}" for name in lost)

    def _untrained(self, group: Members) -> GroupRun:
        return GroupRun(places=group.places, ranks={}, code=None, reason=self._gone(group))

    def _speaks(self, group: Members) -> bool:
        """Return whether the ranks of a group talk to each other by NCCL."""
        return self.device == "cuda" and not group.alone and len(group.places) > 1

    def _ends(self, waiting: Mapping[str, _Waiting]) -> Iterator[tuple[str, GroupRun]]:
        """Yield each job's name and result as they end.

        Raises:
            Refused: the supervisor refused a group that has lost no node.
            MeshError: the supervisor fell silent.
        """
        open_ = set(waiting)
        while open_:
            event = self.talk.next(0.2)
            if event is None:
                if self.talk.over or time.monotonic() - self.talk.heard > LOST_SECONDS:
                    raise MeshError("the first node does not answer any more", why=self.talk.lost)
                continue
            self._note_lost(event)
            if event["event"] == "refused":
                # It names no job. A node of this one was lost before its start was read.
                name = next((n for n, one in waiting.items() if n in open_ and not one.began
                             and self._gone(one.group)), "")  # fmt: skip
                if not name:
                    raise Refused(str(event["why"]))
                open_.discard(name)
                yield name, self._untrained(waiting[name].group)
                continue
            name = _job_of(event)
            if name not in open_:
                continue
            one = waiting[name]
            if event["event"] == "started":
                one.began = True
                # Not before: of a job that was refused, this would be refused, too.
                self.talk.send("follow", job=name)
            elif event["event"] == "log":
                one.entries += event["lines"]
            elif event["event"] == "hang":
                one.late = tuple(one.group.places[rank] for rank in event["late"])
                self.talk.send("stop", job=name, reason=STOPPED)
            elif event["event"] == "ended":
                open_.discard(name)
                yield name, one.result(event["job"])

    def _request(self, name: str, group: Members) -> dict[str, object]:
        """Return the supervisor's request for one group."""
        places = group.places
        hosts = tuple(dict.fromkeys(place.host for place in places))
        env = {**rank_environment(name), **self._job().env, "STACKYARD_DEVICE": self.device}
        if self.device == "cuda":
            env["CUDA_VISIBLE_DEVICES"] = self._visible(hosts, places)
        named = set().union(*(self._named.get(host, set()) for host in hosts))
        if self._speaks(group):
            # Where the user asks NCCL to speak, its lines stay among what ranks print.
            quiet = not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & named
            env |= nccl_environment(self.plan.run, name, logs=quiet)
        words = ("--alone",) if group.alone else ()
        launch = launched(
            "plain",
            LaunchRequest(
                nodes=hosts,
                per_node=len(places) // len(hosts),
                port=self._port(),
                program=(PROGRAM, *words, "--updates", str(self.updates)),
                env={n: value for n, value in env.items() if n not in named},
                folder=FOLDER,
                scratch=f"{SCRATCH}/{name}",
                ssh_port=0,
                device=self.device,
                settings=SETTINGS,
                away=True,
            ),
        )
        return {
            "name": name,
            "beside": True,
            "steps": [{"what": "train", "argv": list(launch.argv), "env": dict(launch.env)}],
            "env": rank_environment(name),
            "folder": "/",
            "nodes": list(hosts),
            "placed": [place.host for place in places],
            "lease": self.lease,
            "join_seconds": JOIN_SECONDS,
            "silent_seconds": SILENT_SECONDS,
            "hang_seconds": self.hang_seconds,
            "grace_seconds": GRACE_SECONDS,
        }

    def _visible(self, hosts: Sequence[str], places: Sequence[Place]) -> str:
        """Return the GPUs that each node's ranks use, as its container numbers them.

        Groups of several hosts use the first GPUs of each, one of a single host any of its own.
        """
        node = self.plan.node(hosts[0])
        numbers = dict(zip(node.gpus, visible(self.plan, node), strict=True))
        return ",".join(str(numbers[p.index]) for p in places if p.host == hosts[0])

    def _port(self) -> int:
        """Return the next port that no host had in use when it was surveyed."""
        free = [port for port in PORTS if port not in self.taken]
        return free[self._started % len(free)]


@dataclass(kw_only=True)
class _Waiting:
    """Hold a group that trains."""

    number: int
    group: Members
    since: float
    began: bool = False
    entries: list[Mapping[str, Any]] = field(default_factory=list)
    late: tuple[Place, ...] = ()

    def result(self, job: Event) -> GroupRun:
        """Return the group's result, out of its job's record."""
        lines = [str(entry["text"]) for entry in self.entries if "text" in entry]
        hang = str(job.get("hang") or "")
        reason = str(job["reason"] or "")
        return GroupRun(
            places=self.group.places,
            ranks=read_records(entry for entry in self.entries if "record" in entry),
            code=job["code"],
            reason="" if reason == STOPPED else reason,
            hang=hang,
            late=self.late,
            tail=last_lines("\n".join(lines), 20),
            seconds=round(time.monotonic() - self.since, 2),
        )


def _job_of(event: Event) -> str:
    found = event.get("job")
    return str(found.get("name")) if isinstance(found, dict) else str(found)
