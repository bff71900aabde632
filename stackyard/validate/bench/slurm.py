"""Run a bench on Slurm: its turns as trainings of one job, followed to their end.

Owns the order of phases there, and which trainings a failure leaves out. It must not submit or
cancel the job, and it must not judge: `validate.bench.judge` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stackyard.system.errors import MeshError
from stackyard.validate.bench.plan import BenchPlan, Turn, as_smoke
from stackyard.validate.bench.play import BenchWatcher, Phases, in_turn, launch
from stackyard.validate.bench.result import Played, Seen
from stackyard.validate.slurm_follower import Follower
from stackyard.validate.slurm_plan import SlurmTraining


def trainings(plan: BenchPlan, folder: Path) -> tuple[SlurmTraining, ...]:
    """Return the trainings of a bench, in their order.

    The job leaves out a side on as many ranks as it has failed on, as `play.in_turn` does.
    """
    sides = {side.name: side for side in plan.sides}
    found = []
    for turn in plan.turns():
        one = as_smoke(plan, sides[turn.side], turn.ranks)
        launched = launch(plan, one, turn, ["?"] * plan.nodes, str(folder))
        kin = f"{turn.side}-{turn.ranks}"
        found.append(SlurmTraining(smoke=one, plan=launched, kin=kin))
    return tuple(found)


def run(follower: Follower, plan: BenchPlan, watcher: BenchWatcher) -> Seen:
    """Follow a submitted bench to its end.

    Raises:
        NotReady: a node has another image; nothing was trained.
        StackyardError: Slurm does not answer.
    """
    phases, seen = Phases(watcher), Seen(run=follower.asked.run)
    try:
        with phases.one("wait for nodes"):
            follower.until_started(watcher.phase)
        with phases.one("look at nodes"):
            placed = follower.placed()
        if plan.size.device == "cuda":
            names = tuple(gpu.name for gpu in placed.gpus.placement.gpus)
            seen = replace(seen, gpu=placed.gpus, devices=names)
        with phases.one("prepare data"):
            follower.prepared()
        by_label = {one.plan.label: one for one in follower.asked.named(placed.plan.names)}

        def train(group: Sequence[Turn]) -> tuple[Played, ...]:
            (turn,) = group  # over several nodes one training runs at a time
            found = follower.train(
                by_label[turn.label], lambda _, step, loss: watcher.loss(turn, step, loss)
            )
            return (Played(turn=turn, training=found),)

        for more in in_turn(plan, seen, phases, train, lambda: follower.lost):
            seen = more
        with phases.one("end the job"):
            seen = replace(seen, gpu=follower.freed(seen.gpu))
    except MeshError as error:
        seen = replace(seen, broken=str(error))
    return replace(seen, phases=tuple(phases.kept.found))
