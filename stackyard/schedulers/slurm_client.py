"""Submit, query, follow and cancel a job through Slurm's own commands.

Owns these command lines, each with a time limit. It must not interpret their output: `slurm_state`
does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stackyard.schedulers.slurm import SCRIPT, log_name
from stackyard.schedulers.slurm_state import (
    Choice,
    JobStatus,
    SiteFacts,
    choose,
    choose_for_file,
    parse_accounted,
    parse_job,
)
from stackyard.system import process
from stackyard.system.errors import CommandError, NothingToRunOn, StackyardError

# slurmctld answers within its MessageTimeout (10 s) or not at all; Slurm's commands try again.
SECONDS = 60.0
# Longer than Slurm's KillWait (30 s), after which it kills the remaining processes.
CANCEL_SECONDS = 90.0
POLL_SECONDS = 0.5
# What follows a job asks again for so long: a controller that is restarted is away for less.
PATIENCE_SECONDS = 120.0
_PROGRAMS = ("apptainer", "enroot", "squashfuse")
_JOB_ID = re.compile(r"[0-9]+")
T = TypeVar("T")


def _slurm(*words: str, cwd: Path | None = None, check: bool = True) -> process.Finished:
    if not shutil.which(words[0]):
        raise NothingToRunOn(
            f"{words[0]} is not on this machine",
            why="jobs are submitted from a machine of the cluster, or one set up to reach it",
            hint="go on where Slurm's commands are; an exported folder can be copied there",
        )
    return process.run(words, cwd=cwd, timeout=SECONDS, check=check)


def _checked(job_id: str) -> str:
    if not _JOB_ID.fullmatch(job_id):
        raise StackyardError(f"{job_id[:40]!r} is not the number of a Slurm job")
    return job_id


def detect(*, file: bool = False) -> Choice:
    """Choose the runtime for this site, with the reason.

    Args:
        file: the image is a squashfs file.

    Raises:
        NothingToRunOn: Slurm's commands are not on this machine.
    """
    config = _slurm("scontrol", "show", "config").output
    found = re.search(r"^SLURM_CONF\s*=\s*(\S+)", config, re.MULTILINE)
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    conf = Path(found.group(1)).parent / "oci.conf" if found else None
    namespaces = False
    if shutil.which("unshare"):
        namespaces = process.run(unshare, timeout=SECONDS, check=False).code == 0
    facts = SiteFacts(
        srun_help=_slurm("srun", "--help").output,
        oci_conf=conf is not None and conf.is_file(),
        programs=frozenset(name for name in _PROGRAMS if shutil.which(name)),
        namespaces=namespaces,
    )
    return choose_for_file(facts) if file else choose(facts)


def submit(folder: Path) -> str:
    """Submit an exported job from its folder, where its log will be; return its number.

    Raises:
        CommandError: Slurm refused; holds its message.
    """
    try:
        said = _slurm("sbatch", "--parsable", SCRIPT, cwd=folder).output
        # Warnings may precede the number; a federation adds `;cluster`.
        numbers = re.findall(r"^([0-9]+)(?:;\S+)?$", said, re.MULTILINE)
        if not numbers:
            raise StackyardError("sbatch named no job", why=process.last_lines(said))
    except CommandError as error:
        unsaid = error.code == 124 or "timed out" in error.why
        if not _withdraw(folder.resolve(), PATIENCE_SECONDS if unsaid else 0.0) and unsaid:
            raise StackyardError(
                "Slurm did not say whether it took the job, and does not answer",
                why=process.last_lines(error.why) or error.what,
                hint=f"squeue --me shows a job of the folder {folder}, if there is one; scancel it",
            ) from error
        raise
    except BaseException:
        _withdraw(folder.resolve(), 0.0)
        raise
    return str(numbers[-1])


def _withdraw(folder: Path, patience: float) -> bool:
    """Cancel the job that Slurm took from a folder although sbatch did not say so.

    Return whether Slurm answered.
    """
    words = ["squeue", "--noheader", "--all", f"--user={os.getuid()}", "--format", "%A %Z"]

    def cancel_it() -> None:
        for line in _slurm(*words).output.splitlines():
            number, _, where = line.strip().partition(" ")
            if where == str(folder):
                _slurm("scancel", number)

    try:
        _patiently(cancel_it, patience)
    except StackyardError:
        return False
    return True


def _patiently(ask: Callable[[], T], patience: float) -> T:
    """Ask again, for so many seconds, where Slurm does not answer."""
    end = time.monotonic() + patience
    while True:
        try:
            return ask()
        except (CommandError, _NoAnswer):
            if time.monotonic() >= end:
                raise
        time.sleep(POLL_SECONDS)


def status(job_id: str, patience: float = 0.0) -> JobStatus:
    """Return the state of a job.

    Args:
        patience: for so many seconds a controller that does not answer is asked again.

    Raises:
        StackyardError: Slurm knows no such job (any more), or does not answer.
    """
    return _patiently(lambda: _status(job_id), patience)


class _NoAnswer(StackyardError):
    """Slurm did not answer; a later question may be answered."""


def _status(job_id: str) -> JobStatus:
    show = _slurm("scontrol", "--oneliner", "show", "job", _checked(job_id), check=False)
    if show.code == 0:
        return parse_job(show.output)
    # slurmctld forgets a job minutes after its end; the accounting, if there is one, does not.
    if "Invalid job id" in show.output and shutil.which("sacct"):
        words = ["sacct", "-nPX", "-j", job_id, "-o", "JobID,State,ExitCode,NodeList"]
        found = parse_accounted(_slurm(*words, check=False).output)
        if found:
            return found
    kind = StackyardError if "Invalid job id" in show.output else _NoAnswer
    raise kind(
        f"Slurm does not answer for job {job_id}",
        why=process.last_lines(show.output, 5),
        hint="a job that ended a while ago is forgotten; its log is in the folder it was"
        f" submitted from: {log_name('NAME', job_id)}",
    )


def logs(job_id: str, follow: bool, on_line: Callable[[str], None]) -> JobStatus:
    """Pass on every line of a job's log; with `follow` until the job has ended.

    Raises:
        StackyardError: there is no such job, or its log is not on this machine.
    """
    reader = Reader()
    while True:
        now = status(job_id, PATIENCE_SECONDS if follow else 0.0)
        path = Path(now.log)
        if now.log and path.is_file():
            reader.read(path, on_line)
        elif now.ended or not follow:
            raise StackyardError(
                f"job {job_id} ({now.slurm}) has no log here",
                why=f"{now.log or 'its path is forgotten'}: on the first of its nodes,"
                f" {now.nodes or '-'}, if the folder is not shared",
                hint="submit from a folder that all machines see",
            )
        if now.ended or not follow:
            reader.finish(on_line)
            return now
        time.sleep(POLL_SECONDS)


class Reader:
    """Read the new lines of a growing file, whole lines only."""

    def __init__(self) -> None:
        self._at, self._rest = 0, b""

    def read(self, path: Path, on_line: Callable[[str], None]) -> None:
        """Pass on the lines that were added since the last call."""
        with path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            on_line(line.decode("utf-8", errors="replace"))

    def finish(self, on_line: Callable[[str], None]) -> None:
        """Pass on what follows the last end of a line."""
        if self._rest:
            on_line(self._rest.decode("utf-8", errors="replace"))


def kill_step(job_id: str, name: str) -> None:
    """Kill all processes of a job's step, by its name, with SIGKILL; the job goes on.

    A controller that does not answer is no error: who kills a step asks again until it is over.
    """
    words = ["squeue", "--noheader", "--steps", "--jobs", _checked(job_id), "--format", "%i %j"]
    with contextlib.suppress(CommandError):
        for line in _slurm(*words).output.splitlines():
            number, _, found = line.strip().partition(" ")
            if found.strip() == name:
                # A step that has just ended is no error.
                _slurm("scancel", "--signal=KILL", number, check=False)


def cancel(job_id: str) -> JobStatus:
    """Cancel a job and wait until nothing of it runs on any node.

    Raises:
        StackyardError: Slurm refused, or its nodes have not reported its end in time.
    """
    before = status(job_id)
    if before.ended:
        return before
    _slurm("scancel", job_id)
    end = time.monotonic() + CANCEL_SECONDS
    while True:
        now = status(job_id, PATIENCE_SECONDS)
        if now.ended:
            return now
        if time.monotonic() > end:
            raise CommandError(
                f"job {job_id} was cancelled, but is {now.slurm} after {CANCEL_SECONDS:.0f} s",
                code=1,
                why=f"a node of {now.nodes} has not told Slurm that all processes are gone",
                hint=f"sinfo -R; scontrol show job {job_id}",
            )
        time.sleep(POLL_SECONDS)
