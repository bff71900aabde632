"""Follow a run of trainings on Slurm by the files that its nodes write into the job's folder.

Owns what is seen of the nodes and of each training. Slurm starts and ends the ranks. It must not
submit or cancel the job, and it must not judge.
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
from stackyard.validate.gpu_hosts import used_bytes
from stackyard.validate.judge_gpu import GpuObservation
from stackyard.validate.record import Training
from stackyard.validate.slurm_launch import Launch
from stackyard.validate.slurm_nodes import Placed, place
from stackyard.validate.slurm_plan import DATA, IMAGE, SlurmRun, SlurmTraining, training_job
from stackyard.validate.training import TAIL_LINES
from stackyard.validate.training_log import OnLoss, TrainingLog

POLL_SECONDS = 0.2
# Slurm is asked for the job's state this often; files say the rest.
STATUS_SECONDS = 2.0
# A shared folder may show only later what nodes wrote before the job ended.
LATE_SECONDS = 5.0
# A job whose last step is over ends by itself; one that does not is cancelled.
END_SECONDS = 30.0
_LABEL = re.compile(r"\s*\d+: ?")


class Follower:
    """Follow one job by its folder, and ask Slurm whether it still runs.

    Attributes:
        asked: what the job runs; `job` is its number.
        nodes: those that Slurm gave; None until they came up.
        lost: why the job ended before its last step; empty while it did not.
    """

    def __init__(self, asked: SlurmRun, job: str) -> None:
        self.asked, self.job, self.lost = asked, job, ""
        self.nodes: Placed | None = None
        self._status: JobStatus | None = None
        self._when = 0.0

    def _now(self) -> JobStatus:
        if self._status is None or time.monotonic() - self._when > STATUS_SECONDS:
            self._status = slurm_client.status(self.job, slurm_client.PATIENCE_SECONDS)
            self._when = time.monotonic()
        return self._status

    def until_started(self, phase: Callable[[str], None]) -> None:
        """Wait until Slurm has given the job its nodes; `phase` gets why it waits."""
        said = ""
        while (now := self._now()).state == WAITING:
            if now.reason != said:
                said = now.reason
                phase(f"job {self.job} waits ({said or now.slurm})")
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
                what=f"its image is another one than {self.asked.image} here: its packages are"
                f" {one['digest'][:12]}, not {self.asked.digest[:12]}",
                hint="bring this image to all nodes (docs/howto/slurm.md), or name the one that"
                " they have: --image",
            )
            for one in told
            if one["digest"] != self.asked.digest
        ]
        if problems:
            raise NotReady(problems)
        if over.code != 0 or len(told) != self.asked.nodes:
            raise self._failed(IMAGE, f"ended with exit code {over.code}")
        facts = self._facts(slurm_steps.FACTS)
        if unknown := [one["host"] for one in told if one["host"] not in facts]:
            raise MeshError(f"{', '.join(unknown)}: not the name of a node outside its image")
        found = place(self.asked, told, facts)
        self.nodes = found
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

    def train(self, training: SlurmTraining, on_loss: OnLoss | None = None) -> Training:
        """Follow one training to its end; kill it at its update, or where it is silent."""
        plan = training.plan
        log = TrainingLog(training.smoke, plan, on_loss)
        one = Launch(self.asked, self.job, training, log)
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
        job = training_job(self.asked, training)
        names = self.nodes.plan.names if self.nodes else ()
        return Training(
            layout=plan.layout.name,
            ranks=log.ranks,
            wanted=plan.layout.ranks,
            nodes=one.placed(),
            code=None if killed else over.code,
            stopped=stopped,
            killed=killed,
            strays={node: _processes(text) for node, text in left.items()},
            unseen=tuple(node for node in names if node not in left),
            tail=last_lines("\n".join(lines), TAIL_LINES),
            seconds=over.ended - over.began,
            command=(*slurm.launcher_words(job), *job.program),
            nccl=_nccl(lines) if job.device == "cuda" else None,
            began=over.began,
        )

    def freed(self, gpus: GpuObservation | None) -> GpuObservation | None:
        """Wait a while until the job is over; add what its GPUs hold then, if it has any."""
        end = time.monotonic() + END_SECONDS
        while not self._now().ended and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        if gpus is None:
            return None
        after = used_bytes(gpus.placement, self._facts(slurm_steps.FACTS_AFTER))
        return replace(gpus, used_after=after)

    def _until_over(self, label: str, look: Callable[[], None] = lambda: None) -> _Over:
        """Wait until a step is over; `look` is called meanwhile.

        Raises:
            MeshError: the job ended before.
        """
        path = self.asked.folder / slurm_steps.ENDED / label
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
                self.lost = f"job {self.job} is {now.slurm}{why}"
                raise self._failed(label, f"did not end: {self.lost}")
            time.sleep(POLL_SECONDS)

    def _failed(self, label: str, how: str) -> MeshError:
        said = self._lines(label) or self._log()
        return MeshError(f"{label} {how}", why=last_lines("\n".join(said)))

    def _log(self) -> list[str]:
        path = self.asked.folder / slurm.log_name(self.asked.run, self.job)
        return path.read_text(errors="replace").splitlines() if path.is_file() else []

    def _lines(self, label: str) -> list[str]:
        path = self.asked.folder / slurm_steps.LOGS / label
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return [_LABEL.sub("", line, count=1) for line in text.splitlines()]

    def _texts(self, folder: str) -> dict[str, str]:
        """Return the texts that nodes wrote into a part of the folder, by node."""
        found = sorted((self.asked.folder / folder).glob("[!.]*"))
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
