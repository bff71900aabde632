"""Translate Slurm's output: the state of a job, and the runtime of a site.

Owns the one table of Slurm's job states. It must not run anything: `slurm_client` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stackyard.system.errors import StackyardError, shown

WAITING, RUNNING, ENDING, DONE, FAILED, CANCELLED = (
    "waiting", "running", "ending", "done", "failed", "cancelled",
)  # fmt: skip
STATES: Mapping[str, str] = {
    "PENDING": WAITING, "CONFIGURING": WAITING, "REQUEUED": WAITING, "REQUEUE_HOLD": WAITING,
    "REQUEUE_FED": WAITING, "SPECIAL_EXIT": WAITING, "RESV_DEL_HOLD": WAITING,
    "RUNNING": RUNNING, "SUSPENDED": RUNNING, "STOPPED": RUNNING, "RESIZING": RUNNING,
    "SIGNALING": RUNNING,
    "COMPLETING": ENDING, "STAGE_OUT": ENDING,
    "COMPLETED": DONE,
    "FAILED": FAILED, "TIMEOUT": FAILED, "NODE_FAIL": FAILED, "BOOT_FAIL": FAILED,
    "OUT_OF_MEMORY": FAILED, "DEADLINE": FAILED, "LAUNCH_FAILED": FAILED,
    "RECONFIG_FAIL": FAILED, "PREEMPTED": CANCELLED, "CANCELLED": CANCELLED, "REVOKED": CANCELLED,
}  # fmt: skip
ENDED = (DONE, FAILED, CANCELLED)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """Hold the state of a job.

    Attributes:
        state: one of the values of `STATES`.
        slurm: Slurm's own state, which is more precise (TIMEOUT, NODE_FAIL).
        code: exit code of the script, once it has ended.
        reason: why it waits or why it ended, in Slurm's words.
        nodes: Slurm's list of its nodes (`node[1-2]`).
        log: path of its output; empty when Slurm has forgotten it.
    """

    job_id: str
    state: str
    slurm: str
    code: int | None
    reason: str
    nodes: str
    log: str

    @property
    def ended(self) -> bool:
        """Say if the job is over."""
        return self.state in ENDED


def parse_job(text: str) -> JobStatus:
    """Parse the output of `scontrol show job --oneliner`.

    Raises:
        StackyardError: the text is not a job.
    """
    fields = dict(re.findall(r"(?:^|\s)([A-Z]\w*)=(.*?)(?=\s+[A-Z]\S*=|\s*$)", text))
    if "JobId" not in fields or "JobState" not in fields:
        raise StackyardError("Slurm's answer is not a job", why=shown(text))
    return _status(
        fields["JobId"],
        fields["JobState"],
        fields.get("ExitCode", ""),
        reason=fields.get("Reason", ""),
        nodes=fields.get("NodeList", ""),
        log=fields.get("StdOut", ""),
    )


def parse_accounted(text: str) -> JobStatus | None:
    """Parse the output of `sacct -nPX -o JobID,State,ExitCode,NodeList`; None without a job."""
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 4 and parts[0].isdigit():
            return _status(parts[0], parts[1], parts[2], reason="", nodes=parts[3], log="")
    return None


def _status(job_id: str, slurm: str, code: str, *, reason: str, nodes: str, log: str) -> JobStatus:
    slurm = slurm.split()[0]  # "CANCELLED by 1000"
    if slurm not in STATES:
        raise StackyardError(f"Slurm reports an unknown state of job {job_id}: {shown(slurm)}")
    state = STATES[slurm]
    number, _, signal = code.partition(":")
    exit_code = int(number or 0) or (128 + int(signal) if signal not in ("", "0") else 0)
    none = ("None", "(null)")
    return JobStatus(
        job_id=job_id,
        state=state,
        slurm=slurm,
        code=exit_code if state in ENDED else None,
        reason="" if reason in none else reason,
        nodes="" if nodes in (*none, "None assigned") else nodes,
        log="" if log in none else log,
    )


@dataclass(frozen=True, kw_only=True)
class SiteFacts:
    """Hold the facts about the machine that jobs are submitted from.

    Attributes:
        srun_help: the output of `srun --help`, to which plugins add their options.
        oci_conf: true if Slurm's configuration folder has an oci.conf.
        programs: which of `apptainer`, `enroot` and `squashfuse` are on PATH.
        namespaces: true if an ordinary user may create user namespaces.
    """

    srun_help: str
    oci_conf: bool
    programs: frozenset[str]
    namespaces: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Hold a runtime for a site, with the reason for it."""

    runtime: str
    why: str


def choose(facts: SiteFacts) -> Choice:
    """Choose the runtime with the least set-up; assumes login and worker nodes are alike."""
    if "--container-image" in facts.srun_help:
        return Choice(
            runtime="pyxis",
            why="srun has --container-image (pyxis): it takes an image's reference as it is",
        )
    without = "srun has no --container-image (pyxis)"
    if "apptainer" in facts.programs:
        return Choice(
            runtime="apptainer",
            why=f"{without}, but apptainer is there: it takes a .sif file that all nodes see",
        )
    without += ", apptainer is not on PATH"
    if facts.oci_conf and re.search(r"--container\b(?!-)", facts.srun_help):
        return Choice(
            runtime="oci",
            why=f"{without}; Slurm has an oci.conf, so its own --container works: it takes the"
            " unpacked image in a folder that all nodes see",
        )
    without += ", Slurm has no oci.conf"
    if facts.namespaces:
        return Choice(
            runtime="filesystem",
            why=f"{without}; users may make namespaces, so an unpacked image in a folder that all"
            " nodes see can be entered; without one, the nodes' own file system is used",
        )
    return Choice(
        runtime="filesystem",
        why=f"{without}, and users may make no namespaces: what the job needs must be installed on"
        " the nodes themselves",
    )


def choose_for_file(facts: SiteFacts) -> Choice:
    """Choose the runtime that starts a squashfs file; login and worker nodes must be alike."""
    if "--container-image" in facts.srun_help:
        return Choice(runtime="pyxis", why="srun has --container-image (pyxis): it takes the file")
    without = "srun has no --container-image (pyxis)"
    if facts.namespaces:
        how = "squashfuse mounts the file"
        if "squashfuse" not in facts.programs:
            how = "without squashfuse, nodes unpack the file into their memory"
        return Choice(
            runtime="squashfs", why=f"{without}, but users may make namespaces; {how}"
        )  # fmt: skip
    without += ", and users may make no namespaces"
    for name in ("enroot", "apptainer"):
        if name in facts.programs:
            return Choice(runtime=name, why=f"{without}, but {name} is there: it takes the file")
    return Choice(
        runtime="squashfs",
        why=f"{without} on this machine, and neither enroot nor apptainer is on PATH: the nodes"
        " must allow what this machine does not",
    )
