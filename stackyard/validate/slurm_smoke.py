"""Follow the smoke of one image on Slurm by the files that its nodes write into the job's folder.

Owns the moment to kill a training, and what is seen of the nodes. Slurm starts and ends the ranks;
`validate.judge` owns the verdict, as it does for every smoke. It must not submit or cancel the job.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stackyard.gpu import nccl
from stackyard.gpu.infiniband import Fabric
from stackyard.gpu.nccl import NcclLog
from stackyard.mesh import survey
from stackyard.mesh.node_plan import HostProblem, NodePlan, StandingPlan, fabric_of
from stackyard.mesh.preflight import NotReady
from stackyard.mesh.survey import HostFacts
from stackyard.schedulers import slurm, slurm_client, slurm_steps
from stackyard.schedulers.slurm_client import Reader
from stackyard.schedulers.slurm_state import WAITING, JobStatus
from stackyard.system.errors import MeshError
from stackyard.system.process import last_lines
from stackyard.validate import judge
from stackyard.validate import smoke as smoking
from stackyard.validate.gpu_hosts import placement_of, used_bytes
from stackyard.validate.judge_gpu import GpuObservation
from stackyard.validate.outcome import Observation, Outcome
from stackyard.validate.record import Training
from stackyard.validate.slurm_plan import DATA, IMAGE, SlurmSmoke, training_job
from stackyard.validate.smoke import Progress, SmokeWatcher
from stackyard.validate.training import TAIL_LINES
from stackyard.validate.training_log import TrainingLog, TrainingPlan

NAME = "slurm"
NO_LOGINS = "Slurm starts the ranks of a job, its nodes are no mesh of ssh: no login was tried"
NO_BARE = "the GPUs are on nodes of Slurm"
POLL_SECONDS = 0.2
# Slurm is asked for the job's state this often; files say the rest.
STATUS_SECONDS = 2.0
# A shared folder may show only later what nodes wrote before the job ended.
LATE_SECONDS = 5.0
# A job whose last step is over ends by itself; one that does not is cancelled.
END_SECONDS = 30.0
_LABEL = re.compile(r"\s*\d+: ?")


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Hold the nodes that Slurm gave, as a run over hosts has its hosts.

    Attributes:
        machine: what a report says of the machine, of the first node.
    """

    plan: StandingPlan
    facts: Mapping[str, HostFacts]
    machine: Mapping[str, str]

    @property
    def fabric(self) -> Fabric:
        """Return the InfiniBand or RoCE ports between the nodes."""
        return fabric_of(self.plan, self.facts)

    @property
    def gpus(self) -> GpuObservation:
        """Return what is known of the GPUs before the trainings."""
        placed = placement_of(self.plan, self.facts, self.fabric.why)
        drivers = {one.driver.version for one in self.facts.values() if one.driver}
        return GpuObservation(
            placement=replace(placed, name=NAME),
            driver=", ".join(sorted(drivers)),
            no_bare=NO_BARE,
            used_before=used_bytes(placed, self.facts),
        )


def run(
    asked: SlurmSmoke, job: str, seen: Observation, watcher: SmokeWatcher
) -> tuple[Outcome, Placed | None]:
    """Follow a submitted smoke to its verdict; return it with the nodes, if these came up.

    Raises:
        NotReady: a node has another image; nothing was trained.
        StackyardError: Slurm does not answer.
    """
    progress, follower, placed = Progress(watcher=watcher), Follower(asked, job, watcher), None
    seen = replace(seen, no_logins=NO_LOGINS)
    try:
        with progress.phase("wait for nodes"):
            follower.until_started()
        with progress.phase("look at nodes"):
            placed = follower.placed()
        on_gpus = asked.smoke.device == "cuda"
        names = placed.plan.names
        seen = replace(seen, nodes=names, gpu=placed.gpus if on_gpus else None)
        with progress.phase("prepare data"):
            follower.prepared()
        plans = asked.plans(names)
        seen = smoking.train_in_turn(asked.smoke, plans, seen, progress, follower.train)
        with progress.phase("end the job"):
            seen = follower.freed(seen)
    except MeshError as error:
        seen = replace(seen, trainings=progress.trainings, broken=str(error))
    checks = judge.judge(asked.smoke, seen)
    phases = tuple(progress.phases.found)
    return Outcome(run=asked.run, checks=checks, phases=phases, observation=seen), placed


class Follower:
    """Follow one job by its folder, and ask Slurm whether it still runs."""

    def __init__(self, asked: SlurmSmoke, job: str, watcher: SmokeWatcher) -> None:
        self._asked, self._job, self._watcher = asked, job, watcher
        self._status: JobStatus | None = None
        self._when = 0.0

    def _now(self) -> JobStatus:
        if self._status is None or time.monotonic() - self._when > STATUS_SECONDS:
            self._status, self._when = slurm_client.status(self._job), time.monotonic()
        return self._status

    def until_started(self) -> None:
        """Wait until Slurm has given the job its nodes."""
        said = ""
        while (now := self._now()).state == WAITING:
            if now.reason != said:
                said = now.reason
                self._watcher.phase(f"job {self._job} waits ({said or now.slurm})")
            time.sleep(POLL_SECONDS)

    def placed(self) -> Placed:
        """Return the nodes, which all have the one image.

        Raises:
            NotReady: a node has another image.
            MeshError: the nodes did not come up.
        """
        over = self._until_over(IMAGE)
        told = [json.loads(text) for text in self._texts(slurm_steps.IMAGES).values()]
        problems = [
            HostProblem(
                host=one["host"],
                what=f"its image is another one than {self._asked.image} here: its packages are"
                f" {one['digest'][:12]}, not {self._asked.digest[:12]}",
                hint="bring this image to all nodes (docs/howto/slurm.md), or smoke the one that"
                " they have: --image",
            )
            for one in told
            if one["digest"] != self._asked.digest
        ]
        if problems:
            raise NotReady(problems)
        if over.code != 0 or len(told) != self._asked.nodes:
            raise self._failed(IMAGE, f"ended with exit code {over.code}")
        facts = self._facts(slurm_steps.FACTS)
        plan = StandingPlan(
            run=self._asked.run, stack=self._asked.stack, base=self._asked.base,
            image=self._asked.image_id, nodes=tuple(_node(one, facts) for one in told),
            why="the interface of each node that leads to the first one",
        )  # fmt: skip
        return Placed(plan=plan, facts=facts, machine=_machine(told[0], facts))

    def _facts(self, folder: str) -> dict[str, HostFacts]:
        found = {}
        for name, text in self._texts(folder).items():
            facts = survey.parse(text, 0.0, 0.0)
            if facts is None:
                raise MeshError(f"{name} does not tell what it is", why=last_lines(text))
            found[name] = facts
        return found

    def prepared(self) -> None:
        """Wait until the data is there.

        Raises:
            MeshError: it could not be made; carries its last lines.
        """
        over = self._until_over(DATA)
        if over.code != 0:
            raise self._failed(DATA, f"ended with exit code {over.code}")

    def train(self, plan: TrainingPlan) -> Training:
        """Follow one launch to its end; kill it at its update, or where it is silent."""
        log = TrainingLog(self._asked.smoke, plan, self._watcher.loss)
        one = _Launch(self._asked, self._job, plan, log)
        try:
            over = self._until_over(plan.label, one.look)
        except MeshError as error:
            over = _Over(code=None, began=0.0, ended=0.0)
            one.stopped = one.stopped or str(error)
        one.look()
        lines = self._lines(plan.label)
        left = self._texts(f"{slurm_steps.LEFT}/{plan.label}")
        killed = one.killed and over.code not in (0, None)
        # Slurm's own words explain no training that ended by itself.
        stopped = "" if killed or over.code == 0 else one.stopped
        job = training_job(self._asked, plan)
        return Training(
            layout=plan.layout.name,
            ranks=log.ranks,
            wanted=plan.layout.ranks,
            nodes=one.placed(),
            code=None if killed else over.code,
            stopped=stopped,
            killed=killed,
            strays={node: _processes(text) for node, text in left.items()},
            unseen=tuple(node for node in plan.nodes if node not in left),
            tail=last_lines("\n".join(lines), TAIL_LINES),
            seconds=over.ended - over.began,
            command=(*slurm.launcher_words(job), *job.program),
            nccl=_nccl(lines) if job.device == "cuda" else None,
            began=over.began,
        )

    def freed(self, seen: Observation) -> Observation:
        """Wait a while until the job is over, and add what its GPUs hold then."""
        end = time.monotonic() + END_SECONDS
        while not self._now().ended and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        if seen.gpu is None:
            return seen
        after = used_bytes(seen.gpu.placement, self._facts(slurm_steps.FACTS_AFTER))
        return replace(seen, gpu=replace(seen.gpu, used_after=after))

    def _until_over(self, label: str, look: Callable[[], None] = lambda: None) -> _Over:
        """Wait until a step is over; `look` is called meanwhile.

        Raises:
            MeshError: the job ended before.
        """
        path = self._asked.folder / slurm_steps.ENDED / label
        gone = 0.0
        while True:
            look()
            if path.is_file():
                return _Over(**json.loads(path.read_text(encoding="utf-8")))
            now = self._now()
            if now.ended and not gone:
                gone = time.monotonic()
            if gone and time.monotonic() - gone > LATE_SECONDS:
                why = f" ({now.reason})" if now.reason else ""
                raise self._failed(label, f"did not end: job {self._job} is {now.slurm}{why}")
            time.sleep(POLL_SECONDS)

    def _failed(self, label: str, how: str) -> MeshError:
        said = self._lines(label) or self._log()
        return MeshError(f"{label} {how}", why=last_lines("\n".join(said)))

    def _log(self) -> list[str]:
        path = self._asked.folder / slurm.log_name(self._asked.run, self._job)
        return path.read_text(errors="replace").splitlines() if path.is_file() else []

    def _lines(self, label: str) -> list[str]:
        path = self._asked.folder / slurm_steps.LOGS / label
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return [_LABEL.sub("", line, count=1) for line in text.splitlines()]

    def _texts(self, folder: str) -> dict[str, str]:
        """Return the texts that nodes wrote into a part of the folder, by node."""
        found = sorted((self._asked.folder / folder).glob("[!.]*"))
        return {
            path.name.removesuffix(".json"): path.read_text(encoding="utf-8", errors="replace")
            for path in found
        }


@dataclass(frozen=True, kw_only=True)
class _Over:
    """Hold what the batch script says of a step; the code is None where it says nothing."""

    code: int | None
    began: float
    ended: float


class _Launch:
    """Watch one launch by its ranks' records, and have Slurm kill it.

    Attributes:
        killed: it was killed on purpose, once every rank had got there.
        stopped: why it was killed otherwise; empty if it was not.
    """

    def __init__(self, asked: SlurmSmoke, job: str, plan: TrainingPlan, log: TrainingLog) -> None:
        self._asked, self._job, self._plan, self._log = asked, job, plan, log
        self._readers: dict[Path, Reader] = {}
        self._began = self._heard = time.monotonic()
        self._killing = 0.0
        self.killed, self.stopped = False, ""

    def look(self) -> None:
        """Take new records; kill the launch where its update has come, or where it is silent."""
        for path in sorted(Path(self._plan.record).glob("rank*.jsonl")):
            rank = int(re.sub(r"\D", "", path.name))
            self._readers.setdefault(path, Reader()).read(
                path, lambda line, rank=rank: self._take(rank, line)  # type: ignore[misc]
            )  # fmt: skip
        if not self.killed and not self.stopped and self._log.due():
            self.killed = True
            # Before the kill: the script goes on after a training that was to be killed.
            (self._asked.folder / slurm_steps.KILLED / self._plan.label).touch()
        if not self.killed and not self.stopped:
            self.stopped = self._silent()
        if (self.killed or self.stopped) and time.monotonic() - self._killing > STATUS_SECONDS:
            self._killing = time.monotonic()
            slurm_client.kill_step(self._job, self._plan.label)

    def _take(self, rank: int, line: str) -> None:
        self._heard = time.monotonic()
        self._log.take({"rank": rank, "record": line})

    def _silent(self) -> str:
        smoke, now = self._asked.smoke, time.monotonic()
        start = smoke.start_seconds + self._asked.site.join_seconds
        missing = self._plan.layout.ranks - len(self._log.ranks)
        if missing and now - self._began > start:
            return f"{missing} of {self._plan.layout.ranks} ranks did not start within {start} s"
        if not missing and now - self._heard > smoke.stall_seconds:
            return f"no rank recorded anything for {smoke.stall_seconds} s"
        limit = start + smoke.stall_seconds * 10
        return f"it did not end within {limit} s" if now - self._began > limit else ""

    def placed(self) -> tuple[str, ...]:
        """Return the launch's nodes in rank order: which is first, their rendezvous decided."""
        plan = self._plan
        hosts = [r.host for _, r in sorted(self._log.ranks.items()) if r.host in plan.nodes]
        if plan.layout.ranks != len(plan.nodes):
            return plan.nodes
        free = iter(node for node in plan.nodes if node not in hosts)
        ranks = self._log.ranks
        return tuple(
            ranks[number].host if number in ranks and ranks[number].host in plan.nodes
            else next(free, plan.nodes[number])
            for number in range(plan.layout.ranks)
        )  # fmt: skip


def _node(told: Mapping[str, Any], facts: Mapping[str, HostFacts]) -> NodePlan:
    host, interface = str(told["host"]), str(told["interface"])
    here = facts[host]
    return NodePlan(
        name=host,
        host=host,
        address=next((i.address for i in here.interfaces if i.name == interface), ""),
        interface=interface,
        gpus=tuple(gpu.index for gpu in here.gpus),
    )


def _machine(told: Mapping[str, Any], facts: Mapping[str, HostFacts]) -> dict[str, str]:
    memory = facts[str(told["host"])].memory_bytes / 2**30
    names = ("kernel", "cpus", "architecture")
    return {**{name: str(told[name]) for name in names}, "memory_gib": f"{memory:.1f}"}


def _processes(text: str) -> list[dict[str, Any]]:
    found = [line.split(" ", 1) for line in text.splitlines() if line]
    return [{"pid": int(pid), "command": command} for pid, command in found]


def _nccl(lines: list[str]) -> NcclLog:
    """Read what NCCL used from the lines in which nodes tell it."""
    return nccl.read_log(
        [line.removeprefix(slurm.NCCL) for line in lines if line.startswith(slurm.NCCL)]
    )
