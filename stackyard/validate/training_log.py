"""Follow one launch of a training by its log: its ranks' records, and the moment to kill it.

It must not stop anything: `validate.training` does, and the supervisor for silence and death.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stackyard.definitions.spec import Layout, Smoke
from stackyard.mesh.node import rank_folder
from stackyard.mesh.nodes import SHARED
from stackyard.validate.record import RankRecord, take_line

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
        run: the run's name.
        shared: the folder that the nodes of the run share.
        kill_after: SIGKILL everything once every rank has made this update and saved; until
            then the training runs as if it would go on.
        record: folder of the ranks' records, where it is not the folder of the ranks.
    """

    layout: Layout
    label: str
    save: str
    nodes: tuple[str, ...]
    run: str = ""
    per_node: int = 1
    gpus: tuple[tuple[int, ...], ...] = ()
    kill_after: int | None = None
    shared: str = SHARED
    record: str = ""

    @property
    def folder(self) -> str:
        """Return the folder of this launch's ranks, on every node."""
        return rank_folder(self.label)


class TrainingLog:
    """Take the entries of a launch's log as they come; notice the moment to kill it.

    Attributes:
        ranks: what each rank recorded.
        said: lines that the launcher and its ranks wrote.
    """

    def __init__(self, smoke: Smoke, plan: TrainingPlan, on_loss: OnLoss | None) -> None:
        self.ranks: dict[int, RankRecord] = {}
        self.said: list[str] = []
        self._smoke, self._plan, self._on_loss = smoke, plan, on_loss

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take one entry: a line that was written, or one of a rank's record."""
        if "record" not in entry:
            self.said.append(str(entry["text"]))
            return
        taken = take_line(self.ranks, int(entry["rank"]), str(entry["record"]))
        if taken and taken[1] in ("step", "window") and self._on_loss:
            record = taken[0]
            step = max(record.losses)
            if record.rank == min(self.ranks) and step <= self._smoke.updates:
                self._on_loss(self._plan.label, step, record.losses[step])

    def due(self) -> bool:
        """Return whether every rank has made update `kill_after`, and saved where it is to."""
        at, save_at = self._plan.kill_after, self._smoke.save_at
        if at is None or len(self.ranks) < self._plan.layout.ranks:
            return False
        return all(
            rank.last >= at and (not save_at or save_at in rank.saved)
            for rank in self.ranks.values()
        )
