"""Export, submit, follow, query and cancel a job on Slurm or Kubernetes.

Owns the order of these steps, and the states that both share. It must not print, nor call a
cluster's commands: `schedulers.slurm_client` and `schedulers.kubernetes_client` do.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stackyard.launch.job import Job
from stackyard.schedulers import kubernetes, kubernetes_client, slurm, slurm_client
from stackyard.schedulers.kubernetes_site import KubernetesSite
from stackyard.schedulers.kubernetes_state import RunState
from stackyard.schedulers.slurm_site import SlurmSite
from stackyard.schedulers.slurm_state import JobStatus
from stackyard.system import files
from stackyard.system.errors import CommandError, UsageError

POLL_SECONDS = 2.0
ENDED = ("done", "failed", "cancelled", "gone")
_KUBERNETES = {"queued": "waiting", "starting": "waiting", "succeeded": "done"}
_LABELLED = re.compile(r"(\s*\d+): ?(.*)")
# Called with a node (its index or name; empty if unknown) and a line of its output.
Line = Callable[[str, str], None]
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class State:
    """Hold the state of a job.

    Attributes:
        job: its number in Slurm, its name in Kubernetes.
        state: `waiting`, `running`, `ending`, or one of `ENDED`.
        why: the reason, in the scheduler's own words.
        code: exit code, where the scheduler reports it.
        parts: one line for Slurm's list of nodes, or a line for each pod.
        started: number of pods that have started; always 0 for Slurm, which starts all nodes at
            once.
        log: path of the file with its output; empty where there is none.
    """

    job: str
    state: str
    why: str = ""
    code: int | None = None
    parts: tuple[str, ...] = ()
    started: int = 0
    log: str = ""

    @property
    def ended(self) -> bool:
        """Say if the job is over."""
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """Describe a job that the scheduler has accepted.

    Attributes:
        folder: the folder made for it; None where there is none.
        note: a message for its user; may be empty.
    """

    job: str
    folder: Path | None = None
    note: str = ""


class Cluster(Protocol):
    """Run jobs on a scheduler. Every method raises StackyardError when the scheduler fails."""

    def export(self, job: Job, folder: Path) -> tuple[str, ...]:
        """Write a job's files into a new folder; return the commands to type there."""

    def submit(self, job: Job, folder: str) -> Submitted:
        """Submit a job; leave nothing behind if that fails."""

    def follow(self, job: str, nodes: int, line: Line, say: Say) -> State:
        """Pass on a job's output until it has ended; return its final state."""

    def state(self, job: str) -> State:
        """Return a job's current state."""

    def logs(self, job: str, line: Line, *, follow: bool) -> State:
        """Pass on a job's output so far, or with `follow` until it has ended."""

    def cancel(self, job: str) -> State:
        """Cancel a job and wait until nothing of it runs."""


def cluster_of(site: SlurmSite | KubernetesSite) -> Cluster:
    """Return the scheduler that a site's settings are for."""
    return SlurmCluster(site) if isinstance(site, SlurmSite) else KubernetesCluster(site)


class SlurmCluster:
    """Run jobs on Slurm, through its own commands."""

    def __init__(self, site: SlurmSite) -> None:
        self._site = site

    def export(self, job: Job, folder: Path) -> tuple[str, ...]:
        """Write a job's script into a new folder; return the command to type, and where it logs."""
        texts = slurm.render(job, self._site)
        new_folder(folder, lambda part: _write(part, texts))
        return (
            f"in {folder}: sbatch {slurm.SCRIPT}",
            f"the log goes there, to {slurm.log_name(job.name, 'JOBID')}: it must be a folder that"
            " the first node sees",
        )

    def submit(self, job: Job, folder: str) -> Submitted:
        """Submit from a new folder, which stays because the log is written there."""
        path = Path(folder or job.name).resolve()
        texts = slurm.render(job, self._site)
        new_folder(path, lambda part: _write(part, texts))
        try:
            return Submitted(job=slurm_client.submit(path), folder=path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def follow(self, job: str, nodes: int, line: Line, say: Say) -> State:
        """Wait until the job starts, then follow its log."""
        patience = slurm_client.PATIENCE_SECONDS
        _watch(
            lambda: _slurm_state(slurm_client.status(job, patience)),
            lambda now: now.state != "waiting", say,
        )  # fmt: skip
        return self.logs(job, line, follow=True)

    def state(self, job: str) -> State:
        """Return the state that slurmctld or the accounting reports."""
        return _slurm_state(slurm_client.status(job))

    def logs(self, job: str, line: Line, *, follow: bool) -> State:
        """Pass on the log's lines; srun's `--label` names the node of each."""

        def take(text: str) -> None:
            found = _LABELLED.fullmatch(text)
            line(*((found[1].strip(), found[2]) if found else ("", text)))

        return _slurm_state(slurm_client.logs(job, follow, take))

    def cancel(self, job: str) -> State:
        """Cancel the job on all nodes."""
        return _slurm_state(slurm_client.cancel(job))


def _slurm_state(found: JobStatus) -> State:
    why = f"{found.slurm} ({found.reason})" if found.reason else found.slurm
    return State(
        job=found.job_id,
        state=found.state,
        why=why,
        code=found.code,
        parts=(found.nodes,) if found.nodes else (),
        log=found.log,
    )


class KubernetesCluster:
    """Run jobs on Kubernetes, through kubectl."""

    def __init__(self, site: KubernetesSite) -> None:
        self._site = site

    def _files(self, job: Job) -> Mapping[str, str]:
        keys = kubernetes.make_keys(job, self._site, now=int(time.time()))
        return kubernetes.render(job, self._site, keys=keys)

    def export(self, job: Job, folder: Path) -> tuple[str, ...]:
        """Write a file for each object; only its owner may read one that holds keys."""
        texts = self._files(job)
        told: list[str] = []

        def write(part: Path) -> None:
            said = kubernetes_client.export(texts, part)
            told.extend(line.replace(str(part), str(folder)) for line in said)

        new_folder(folder, write)
        return tuple(told)

    def submit(self, job: Job, folder: str) -> Submitted:
        """Submit without files: keys go through kubectl's standard input."""
        if folder:
            raise UsageError(
                "--out: a run on Kubernetes leaves no files here",
                hint="invoke export kubernetes writes them",
            )
        return Submitted(job=job.name, note=kubernetes_client.submit(self._site, self._files(job)))

    def follow(self, job: str, nodes: int, line: Line, say: Say) -> State:
        """Wait until all pods have started, as kubectl gives no logs before; then follow them."""
        now = _watch(
            lambda: self.state(job), lambda now: now.ended or now.started >= nodes, say
        )  # fmt: skip
        if now.state == "gone":
            return now
        try:
            kubernetes_client.logs(self._site, job, line, pods=nodes, follow=not now.ended)
        except CommandError as error:
            say(f"its output cannot be shown: {error.why or error.what}")
        return _watch(lambda: self.state(job), lambda now: now.ended, say)

    def state(self, job: str) -> State:
        """Return the state that the cluster's objects show."""
        return _kubernetes_state(kubernetes_client.status(self._site, job))

    def logs(self, job: str, line: Line, *, follow: bool) -> State:
        """Pass on the logs of all pods."""
        found = kubernetes_client.status(self._site, job)
        if found.state == "gone":
            raise UsageError(f"there is no run {job} in namespace {self._site.namespace}")
        pods = max(len(found.pods), 1)
        kubernetes_client.logs(self._site, job, line, pods=pods, follow=follow)
        return self.state(job)

    def cancel(self, job: str) -> State:
        """Remove the run and all its objects."""
        kubernetes_client.cancel(self._site, job)
        return State(job=job, state="gone")


def _kubernetes_state(found: RunState) -> State:
    return State(
        job=found.run,
        state=_KUBERNETES.get(found.state, found.state),
        why=found.why,
        parts=tuple(
            " ".join(filter(None, [pod.name, pod.machine, pod.state, pod.why]))
            for pod in found.pods
        ),
        started=sum(pod.state not in ("", "Pending") for pod in found.pods),
    )


def _watch(ask: Callable[[], State], enough: Callable[[State], bool], say: Say) -> State:
    """Ask for the state until it is `enough`; report every change."""
    last = ""
    while True:
        now = ask()
        text = "; ".join(filter(None, [f"is {now.state}", now.why, *now.parts]))
        if text != last:
            say(text)
            last = text
        if enough(now):
            return now
        time.sleep(POLL_SECONDS)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def new_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a folder with all files that `write` puts into it; nothing remains on failure.

    Raises:
        UsageError: the path exists already, or the folder cannot be made.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.new_folder(folder) as part:
            write(part)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made: {error.strerror}",
            why="an existing file or folder is never overwritten",
            hint="name a folder that does not exist yet: --out FOLDER",
        ) from error
