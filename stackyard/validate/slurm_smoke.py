"""Run the smoke of one image on Slurm to its verdict, by following its job.

Owns the order of phases. `validate.judge` owns the verdict, as it does for every smoke. It must not
submit or cancel the job.
"""

from __future__ import annotations

from dataclasses import replace

from stackyard.definitions.spec import Smoke
from stackyard.system.errors import MeshError
from stackyard.validate import judge
from stackyard.validate import smoke as smoking
from stackyard.validate.outcome import Observation, Outcome
from stackyard.validate.record import Training
from stackyard.validate.slurm_follower import Follower
from stackyard.validate.smoke import Progress, SmokeWatcher
from stackyard.validate.training_log import TrainingPlan

NO_LOGINS = "Slurm starts the ranks, and its nodes have no ssh among them"


def run(follower: Follower, smoke: Smoke, seen: Observation, watcher: SmokeWatcher) -> Outcome:
    """Follow a submitted smoke to its verdict.

    Raises:
        NotReady: a node has another image; nothing was trained.
        StackyardError: Slurm does not answer.
    """
    progress = Progress(watcher=watcher)
    seen = replace(seen, no_logins=NO_LOGINS)
    try:
        with progress.phase("wait for nodes"):
            follower.until_started(watcher.phase)
        with progress.phase("look at nodes"):
            placed = follower.placed()
        names = placed.plan.names
        seen = replace(seen, nodes=names, gpu=placed.gpus if smoke.device == "cuda" else None)
        with progress.phase("prepare data"):
            follower.prepared()
        trainings = {one.plan.label: one for one in follower.asked.named(names)}

        def one(plan: TrainingPlan) -> Training:
            return follower.train(trainings[plan.label], watcher.loss)

        plans = [training.plan for training in trainings.values()]
        seen = smoking.train_in_turn(smoke, plans, seen, progress, one)
        with progress.phase("end the job"):
            seen = replace(seen, gpu=follower.freed(seen.gpu))
    except MeshError as error:
        seen = replace(seen, trainings=progress.trainings, broken=str(error))
    checks = judge.judge(smoke, seen)
    phases = tuple(progress.phases.found)
    return Outcome(run=follower.asked.run, checks=checks, phases=phases, observation=seen)
