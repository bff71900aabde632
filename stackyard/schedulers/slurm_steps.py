"""Render several jobs that run one after another in one allocation of Slurm, as one batch script.

Owns the names in the folder by which the script is followed. `slurm` owns how one job is started.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stackyard.launch.job import Job
from stackyard.mesh.node import GRACE_SECONDS
from stackyard.mesh.survey import SCRIPT as SURVEY
from stackyard.schedulers import slurm
from stackyard.schedulers.slurm_site import SlurmSite, check
from stackyard.system import template

# Parts of the folder: a file for each step, or for each node.
LOGS, ENDED, KILLED, LEFT = "logs", "ended", "killed", "left"
FACTS, FACTS_AFTER, IMAGES, RECORDS = "facts", "facts-after", "images", "records"
# Processes of a training carry this variable.
MARK = "STACKYARD_JOB"


@dataclass(frozen=True, kw_only=True)
class JobStep:
    """Hold a job that runs in its place among others.

    Attributes:
        label: letters, digits and `-`; unique. It names the step in Slurm and the step's files.
        trains: processes that it left are looked for; `MARK` is in its environment.
        all_end: a node that fails ends no other.
        kin: letters, digits and `-`. A failure leaves out the later steps with the same word, and
            the others go on; without a word, a failure ends the job.
    """

    label: str
    job: Job
    trains: bool = False
    all_end: bool = False
    kin: str = ""


def render(whole: Job, steps: Sequence[JobStep], site: SlurmSite, folder: str) -> dict[str, str]:
    """Render the batch script of an allocation; the files of an export, by name.

    Args:
        whole: the job that the allocation is asked for.
        folder: the job's, by which it is followed; all nodes see it.

    Raises:
        UsageError: a job does not fit; names every reason.
    """
    for job in (whole, *(step.job for step in steps)):
        check(job, site)
    values: dict[str, object] = {
        **slurm.head_values(whole, site),
        "folder": folder,
        "survey": SURVEY.rstrip("\n"),
        "left": template.render("clusters/slurm-left.sh.j2", {}).rstrip("\n"),
        "grace_seconds": int(GRACE_SECONDS),
        "outside": _outside(whole, site),
        "kin": any(step.kin for step in steps),
        "steps": [
            {
                "label": step.label,
                "srun": _srun(step, site),
                "node": slurm.node_script(step.job, site).rstrip("\n"),
                "trains": step.trains,
                "mark": step.job.env.get(MARK, ""),
                "kin": step.kin,
            }
            for step in steps
        ],
    }
    text = template.render("clusters/slurm-steps.sh.j2", values)
    marks = dict.fromkeys((*slurm.MARKS, "STACKYARD_SURVEY", "STACKYARD_LEFT"), 1)
    files = sum(bool(step.job.files) for step in steps)
    slurm.require_marks(
        whole.name, text, {**marks, "STACKYARD_NODE": len(steps), "STACKYARD_FILES": files}
    )
    return {slurm.SCRIPT: text}


def _srun(step: JobStep, site: SlurmSite) -> list[str]:
    words = [*slurm.srun_options(step.job, site), f"--job-name={step.label}"]
    ends = {"--kill-on-bad-exit=1": "--kill-on-bad-exit=0", "--wait=60": "--wait=0"}
    return [ends.get(word, word) for word in words] if step.all_end else words


def _outside(whole: Job, site: SlurmSite) -> list[str]:
    """Return srun's options for one task on each node that enters no image."""
    inside = ("--label", "--container", "--no-container")
    return [w for w in slurm.srun_options(whole, site) if not w.startswith(inside)]
