"""Watch one launch of a training: silent ranks, dead ranks, and the moment to kill it.

Owns the time limits on ranks and launchers. It must not stop anything: `validate.training` does,
for the reasons returned here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stackyard.definitions.spec import Layout, Smoke
from stackyard.mesh.nodes import SHARED
from stackyard.validate.record import RankRecord, take_line

# A launcher may take this long to notice that its ranks have ended (torchrun's exit barrier).
LAUNCHER_SECONDS = 25.0
# This long after a rank's death its last lines, and its launcher's reason, have arrived.
DEATH_SECONDS = 2.5
OnLoss = Callable[[str, int, float], None]


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Describe one launch of a layout.

    Attributes:
        nodes: the nodes that take part, in rank order.
        per_node: ranks on each of them.
        gpus: indexes of the GPUs that each node's ranks take; empty on CPU ranks.
        label: name of this launch, unique in its run; its records go to a folder of that name.
        save: folder of checkpoints; a resumed run shares it with the killed one.
        kill_after: SIGKILL everything once every rank has made this update and saved; until
            then the training runs as if it would go on.
    """

    layout: Layout
    label: str
    save: str
    nodes: tuple[str, ...]
    per_node: int = 1
    gpus: tuple[tuple[int, ...], ...] = ()
    kill_after: int | None = None

    @property
    def folder(self) -> str:
        """Return the folder of this launch's records."""
        return f"{SHARED}/runs/{self.label}"


class Watch:
    """Take lines as they come; notice silence, dead ranks and the moment to kill."""

    def __init__(self, smoke: Smoke, plan: TrainingPlan, on_loss: OnLoss | None) -> None:
        self.ranks: dict[int, RankRecord] = {}
        self.said: list[str] = []
        self._smoke, self._plan, self._on_loss = smoke, plan, on_loss
        self._started = self._heard = time.monotonic()

    def all_ended(self) -> bool:
        """Return whether every rank has recorded its end."""
        ended = [rank for rank in self.ranks.values() if rank.ended is not None]
        return len(ended) >= self._plan.layout.ranks

    def died(self, gone: Mapping[tuple[str, int], float]) -> str:
        """Name the first rank that died without recording its end; empty if none did.

        Launchers notice, too, but some are slow. Their messages and the rank's last lines have
        `DEATH_SECONDS` to arrive.
        """
        silent = [
            (gone[rank.host, rank.pid], rank)
            for rank in list(self.ranks.values())
            if rank.ended is None and (rank.host, rank.pid) in gone
        ]
        if not silent:
            return ""
        when, first = min(silent, key=lambda entry: entry[0])
        if time.monotonic() - when < DEATH_SECONDS:
            return ""
        return f"rank {first.rank} ({first.host}) died after update {first.last}"

    def take(self, kind: str, line: str) -> None:
        """Take one line of the launcher's output or of a record."""
        if kind == "said":
            self.said.append(line)
        elif kind == "record":
            self._heard = time.monotonic()
            taken = take_line(self.ranks, line)
            if taken and taken[1] in ("step", "window") and self._on_loss:
                record = taken[0]
                step = max(record.losses)
                if record.rank == min(self.ranks) and step <= self._smoke.updates:
                    self._on_loss(self._plan.label, step, record.losses[step])

    def due(self) -> str:
        """Return `kill` once every rank has made update `kill_after` and saved; empty before."""
        at = self._plan.kill_after
        if at is None or len(self.ranks) < self._plan.layout.ranks:
            return ""
        there = all(
            rank.last >= at and self._smoke.save_at in rank.saved for rank in self.ranks.values()
        )
        return "kill" if there else ""

    def silence(self) -> str:
        """Name the ranks or the launcher that are silent for too long; empty if none is."""
        now, smoke = time.monotonic(), self._smoke
        missing = [n for n in range(self._plan.layout.ranks) if n not in self.ranks]
        if missing and now - self._started > smoke.start_seconds:
            plan = self._plan
            names = ", ".join(f"rank {n} ({plan.nodes[n // plan.per_node]})" for n in missing)
            return f"{names} did not join within {smoke.start_seconds} s"
        if self.all_ended():
            if now - self._heard <= LAUNCHER_SECONDS:
                return ""
            return f"every rank ended, but the launcher did not within {LAUNCHER_SECONDS:.0f} s"
        if not missing and now - self._heard > smoke.stall_seconds:
            behind = sorted(self.ranks.values(), key=lambda rank: rank.last)
            where = ", ".join(f"rank {r.rank} ({r.host}) at update {r.last}" for r in behind)
            return f"no rank said anything for {smoke.stall_seconds} s: {where}"
        return ""
