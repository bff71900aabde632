"""Plan the smoke of one image as a job of Slurm, whose steps train the layouts one after another.

Owns the steps of that job, and the files of its folder. `schedulers.slurm_steps` renders them, and
`validate.slurm_smoke` follows the job. It must not submit anything.
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
class SlurmSmoke:
    """Hold everything about a smoke on Slurm that is decided before it is submitted.

    Attributes:
        run: its name; the job's, too.
        image: reference of the image; `image_id` is its id on this machine.
        digest: of the image, as `inside/image_digest.py` prints it.
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

    @property
    def env(self) -> dict[str, str]:
        """Return the variables of every rank, beyond the image's own."""
        quiet = NO_GPUS if self.smoke.device == "cpu" else {}
        return {**quiet, "PYTHONPATH": self.work, **self.smoke.env}

    def plans(self, names: Sequence[str] = ()) -> tuple[TrainingPlan, ...]:
        """Return the launches in order, on nodes of these names."""
        folder = str(self.folder)
        found = launches(self.smoke, names or ["?"] * self.nodes, folder)
        records = f"{folder}/{slurm_steps.RECORDS}"
        return tuple(replace(plan, record=f"{records}/{plan.label}") for plan in found)

    def here(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return a smoke's command with its files where this job has them."""
        return tuple(word.replace(SMOKE_FOLDER, self.work) for word in words)


def whole(asked: SlurmSmoke) -> Job:
    """Return the job that the allocation is asked for; it runs nothing itself."""
    own = {str(asked.folder): str(asked.folder)}
    return Job(
        name=asked.run, stack=asked.stack, base=asked.base, image=asked.image, nodes=asked.nodes,
        per_node=asked.per_node, device=asked.smoke.device, program=("true",), launcher="each",
        env=asked.env, folder=asked.work, binds={**asked.binds, **own},
    )  # fmt: skip


def steps(asked: SlurmSmoke) -> tuple[JobStep, ...]:
    """Return the steps: which image it is, the data, the trainings."""
    all_nodes, folder = whole(asked), str(asked.folder)
    look = (f"{asked.work}/{DIGEST}", f"{folder}/{slurm_steps.IMAGES}", asked.digest)
    one = replace(all_nodes, nodes=1, per_node=1, launcher="alone")
    data = replace(one, program=asked.here(prepare_words(asked.smoke, folder)))
    return (
        JobStep(label=IMAGE, job=replace(all_nodes, program=look), all_end=True),
        JobStep(label=DATA, job=data),
        *(JobStep(label=plan.label, job=training_job(asked, plan), trains=True)
          for plan in asked.plans()),
    )  # fmt: skip


def training_job(asked: SlurmSmoke, plan: TrainingPlan) -> Job:
    """Return one launch as a job."""
    return replace(
        whole(asked),
        nodes=len(plan.nodes),
        per_node=plan.per_node,
        program=asked.here(program_words(asked.smoke, plan)),
        prepare=(("mkdir", "-p", plan.save),),
        env={**asked.env, slurm_steps.MARK: f"{asked.run}.{plan.label}"},
        launcher=plan.layout.launcher,
        options=plan.layout.options,
    )


def contents(asked: SlurmSmoke) -> dict[str, bytes]:
    """Return the files of the job's folder, by relative path.

    Raises:
        UsageError: the smoke does not fit this site; names every reason.
    """
    script = slurm_steps.render(whole(asked), steps(asked), asked.site, str(asked.folder))
    beside = {name: (INSIDE / name).read_bytes() for name in ("stackyard_record.py", DIGEST)}
    return {
        **{name: text.encode() for name, text in script.items()},
        **{f"work/{path}": data for path, data in {**asked.files, **beside}.items()},
    }
