"""Plan the smoke or bench of one image as a job of Slurm, whose steps train one after another.

Owns the steps of that job, and the files of its folder. `schedulers.slurm_steps` renders them, and
`validate.slurm_follower` follows the job. It must not submit anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stackyard.definitions.project import INSIDE
from stackyard.definitions.spec import Smoke
from stackyard.launch.job import Job
from stackyard.mesh.nodes import SMOKE_FOLDER
from stackyard.schedulers import slurm_steps
from stackyard.schedulers.slurm_site import SlurmSite
from stackyard.schedulers.slurm_steps import JobStep
from stackyard.validate.launches import launches, prepare_words, program_words
from stackyard.validate.smoke import NO_GPUS
from stackyard.validate.training_log import TrainingPlan

DIGEST = "image_digest.py"
# The steps before the trainings.
IMAGE, DATA = "image", "data"


@dataclass(frozen=True, kw_only=True)
class SlurmTraining:
    """Describe one training of a run on Slurm.

    Attributes:
        smoke: what it trains, with its own environment.
        plan: where; its nodes are only counted before Slurm has given them.
        kin: trainings with the same word are left out once one of them has failed, and the others
            go on; without a word, a failure ends the job.
    """

    smoke: Smoke
    plan: TrainingPlan
    kin: str = ""


@dataclass(frozen=True, kw_only=True)
class SlurmRun:
    """Hold everything about a smoke or bench on Slurm that is decided before it is submitted.

    Attributes:
        run: its name; the job's, too.
        image: reference of the image; `image_id` is its id on this machine.
        digest: of the image, as `inside/image_digest.py` prints it.
        smoke: what prepares the data, and the device of all trainings.
        folder: of the job; all nodes see it.
        files: the training's own, by relative path.
        binds: folders of the nodes by their place in the image.
    """

    run: str
    stack: str
    base: str
    image: str
    image_id: str
    digest: str
    smoke: Smoke
    trainings: tuple[SlurmTraining, ...]
    site: SlurmSite
    nodes: int
    per_node: int
    folder: Path
    files: Mapping[str, bytes]
    binds: Mapping[str, str]

    @property
    def work(self) -> str:
        """Return the folder of the training's own files."""
        return f"{self.folder}/work"

    def env(self, smoke: Smoke) -> dict[str, str]:
        """Return the variables of every rank of a training, beyond the image's own."""
        quiet = NO_GPUS if smoke.device == "cpu" else {}
        return {**quiet, "PYTHONPATH": self.work, **smoke.env}

    def named(self, names: Sequence[str] = ()) -> tuple[SlurmTraining, ...]:
        """Return the trainings in order, on nodes of these names."""
        records = f"{self.folder}/{slurm_steps.RECORDS}"

        def one(plan: TrainingPlan) -> TrainingPlan:
            used = tuple(names[: len(plan.nodes)]) or plan.nodes
            return replace(plan, nodes=used, record=f"{records}/{plan.label}")

        return tuple(replace(training, plan=one(training.plan)) for training in self.trainings)

    def here(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return a training's command with its files where this job has them."""
        return tuple(word.replace(SMOKE_FOLDER, self.work) for word in words)


def of_smoke(smoke: Smoke, nodes: int, folder: Path) -> tuple[SlurmTraining, ...]:
    """Return the trainings of a smoke, in their order."""
    plans = launches(smoke, ["?"] * nodes, str(folder))
    return tuple(SlurmTraining(smoke=smoke, plan=plan) for plan in plans)


def whole(asked: SlurmRun) -> Job:
    """Return the job that the allocation is asked for; it runs nothing itself."""
    own = {str(asked.folder): str(asked.folder)}
    return Job(
        name=asked.run, stack=asked.stack, base=asked.base, image=asked.image, nodes=asked.nodes,
        per_node=asked.per_node, device=asked.smoke.device, program=("true",), launcher="each",
        env=asked.env(asked.smoke), folder=asked.work, binds={**asked.binds, **own},
    )  # fmt: skip


def steps(asked: SlurmRun) -> tuple[JobStep, ...]:
    """Return the steps: which image it is, the data, the trainings."""
    all_nodes, folder = whole(asked), str(asked.folder)
    look = (f"{asked.work}/{DIGEST}", f"{folder}/{slurm_steps.IMAGES}", asked.digest)
    one = replace(all_nodes, nodes=1, per_node=1, launcher="alone")
    data = replace(one, program=asked.here(prepare_words(asked.smoke, folder)))
    return (
        JobStep(label=IMAGE, job=replace(all_nodes, program=look), all_end=True),
        JobStep(label=DATA, job=data),
        *(JobStep(label=one.plan.label, job=training_job(asked, one), trains=True, kin=one.kin)
          for one in asked.named()),
    )  # fmt: skip


def training_job(asked: SlurmRun, training: SlurmTraining) -> Job:
    """Return one training as a job."""
    plan = training.plan
    return replace(
        whole(asked),
        nodes=len(plan.nodes),
        per_node=plan.per_node,
        program=asked.here(program_words(training.smoke, plan)),
        prepare=(("mkdir", "-p", plan.save),),
        env={**asked.env(training.smoke), slurm_steps.MARK: f"{asked.run}.{plan.label}"},
        launcher=plan.layout.launcher,
        options=plan.layout.options,
    )


def contents(asked: SlurmRun) -> dict[str, bytes]:
    """Return the files of the job's folder, by relative path.

    Raises:
        UsageError: the run does not fit this site; names every reason.
    """
    script = slurm_steps.render(whole(asked), steps(asked), asked.site, str(asked.folder))
    beside = {name: (INSIDE / name).read_bytes() for name in ("stackyard_record.py", DIGEST)}
    return {
        **{name: text.encode() for name, text in script.items()},
        **{f"work/{path}": data for path, data in {**asked.files, **beside}.items()},
    }
