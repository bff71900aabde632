"""Follow the smoke of one image on Slurm by the files that its nodes write into the job's folder.

Owns the moment to kill a training, and what is seen of the nodes. Slurm starts and ends the ranks;
`validate.judge` owns the verdict, as it does for every smoke. It must not submit or cancel the job.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stackyard.gpu import nccl
from stackyard.gpu.nccl import NcclLog
from stackyard.mesh import survey
from stackyard.mesh.node_plan import HostProblem
from stackyard.mesh.preflight import NotReady
from stackyard.mesh.survey import HostFacts
from stackyard.schedulers import slurm, slurm_client, slurm_steps
from stackyard.schedulers.slurm_state import WAITING, JobStatus
from stackyard.system.errors import MeshError
from stackyard.system.process import last_lines
from stackyard.validate import judge
from stackyard.validate import smoke as smoking
from stackyard.validate.gpu_hosts import used_bytes
from stackyard.validate.outcome import Observation, Outcome
from stackyard.validate.record import Training
from stackyard.validate.slurm_launch import Launch
from stackyard.validate.slurm_nodes import Placed, place
from stackyard.validate.slurm_plan import DATA, IMAGE, SlurmSmoke, training_job
from stackyard.validate.smoke import Progress, SmokeWatcher
from stackyard.validate.training import TAIL_LINES
from stackyard.validate.training_log import TrainingLog, TrainingPlan

NO_LOGINS = "Slurm starts the ranks, and its nodes have no ssh among them"
POLL_SECONDS = 0.2
# Slurm is asked for the job's state this often; files say the rest.
STATUS_SECONDS = 2.0
# A shared folder may show only later what nodes wrote before the job ended.
LATE_SECONDS = 5.0
# A job whose last step is over ends by itself; one that does not is cancelled.
END_SECONDS = 30.0
_LABEL = re.compile(r"\s*\d+: ?")


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
        self._names: tuple[str, ...] = ()

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
        if unknown := [one["host"] for one in told if one["host"] not in facts]:
            raise MeshError(f"{', '.join(unknown)}: not the name of a node outside its image")
        found = place(self._asked, told, facts)
        self._names = found.plan.names
        return found

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
        one = Launch(self._asked, self._job, plan, log)
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
            unseen=tuple(node for node in self._names if node not in left),
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


def _processes(text: str) -> list[dict[str, Any]]:
    found = [line.split(" ", 1) for line in text.splitlines() if line]
    return [{"pid": int(pid), "command": command} for pid, command in found]


def _nccl(lines: list[str]) -> NcclLog:
    """Read what NCCL used from the lines in which nodes tell it."""
    return nccl.read_log(
        [line.removeprefix(slurm.NCCL) for line in lines if line.startswith(slurm.NCCL)]
    )
