"""Watch one training of a run on Slurm by its ranks' records, and have Slurm kill it.

Owns the limits on its silence, and the mark by which the batch script goes on after a kill.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from stackyard.schedulers import slurm_client, slurm_steps
from stackyard.schedulers.slurm_client import Reader
from stackyard.validate.slurm_plan import SlurmRun, SlurmTraining
from stackyard.validate.training_log import TrainingLog

# A kill that Slurm did not carry out is asked for again after this time.
KILL_SECONDS = 2.0


class Launch:
    """Watch one training by its ranks' records, and have Slurm kill it.

    Attributes:
        killed: it was killed on purpose, once every rank had got there.
        stopped: why it was killed otherwise; empty if it was not.
    """

    def __init__(
        self, asked: SlurmRun, job: str, training: SlurmTraining, log: TrainingLog
    ) -> None:
        self._asked, self._job, self._log = asked, job, log
        self._smoke, self._plan = training.smoke, training.plan
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
        if (self.killed or self.stopped) and time.monotonic() - self._killing > KILL_SECONDS:
            self._killing = time.monotonic()
            slurm_client.kill_step(self._job, self._plan.label)

    def _take(self, rank: int, line: str) -> None:
        self._heard = time.monotonic()
        self._log.take({"rank": rank, "record": line})

    def _silent(self) -> str:
        smoke, now = self._smoke, time.monotonic()
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
