"""Slurm and Kubernetes behind one face: a job written, submitted, followed, looked at, ended.

Owns the order of these steps, and the one table of how a job stands in both. What is said to the
engines is `clusters.slurm_client`'s and `clusters.kubernetes_client`'s; it must not print.
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
# Called with a node (its place or name; empty for none) and a line of its output.
Line = Callable[[str, str], None]
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class State:
    """How a job stands.

    Attributes:
        job: its number in Slurm, its name in Kubernetes.
        state: `waiting`, `running`, `ending`, or one of `ENDED`.
        why: what the engine says of it, in its own words.
        code: exit code, where the engine tells it.
        parts: a line for each node or pod that there is something to say of.
        started: how many of its pods have; Slurm starts all nodes or none, and counts none.
        log: a file with all that it said; empty where there is none.
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
        """Whether nothing more comes."""
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job that the engine has taken.

    Attributes:
        folder: made for it; None where there is none.
        note: what its user should know; may be empty.
    """

    job: str
    folder: Path | None = None
    note: str = ""


class Cluster(Protocol):
    """An engine that runs jobs. Every method raises StackyardError where the engine fails."""

    def export(self, job: Job, folder: Path) -> tuple[str, ...]:
        """Write a job's files into a new folder; what to type there, a line each."""

    def submit(self, job: Job, folder: str) -> Submitted:
        """Have a job run; nothing of it is left where that fails."""

    def follow(self, job: str, nodes: int, line: Line, say: Say) -> State:
        """Give what a job says until it has ended; how it did."""

    def state(self, job: str) -> State:
        """How a job stands now."""

    def logs(self, job: str, line: Line, *, follow: bool) -> State:
        """Give what a job has said so far, or with `follow` until it has ended."""

    def cancel(self, job: str) -> State:
        """End a job and wait until nothing of it runs."""


def cluster_of(site: SlurmSite | KubernetesSite) -> Cluster:
    """The engine that a site's settings are for."""
    return SlurmCluster(site) if isinstance(site, SlurmSite) else KubernetesCluster(site)


class SlurmCluster:
    """Slurm by its own commands."""

    def __init__(self, site: SlurmSite) -> None:
        self._site = site

    def export(self, job: Job, folder: Path) -> tuple[str, ...]:
        """One script."""
        texts = slurm.render(job, self._site)
        new_folder(folder, lambda part: _write(part, texts))
        return (
            f"in {folder}: sbatch {slurm.SCRIPT}",
            f"the log goes there, to {slurm.log_name(job.name, 'JOBID')}: it must be a folder that"
            " the first node sees",
        )

    def submit(self, job: Job, folder: str) -> Submitted:
        """From a folder that is new, and stays: its log goes there."""
        path = Path(folder or job.name).resolve()
        texts = slurm.render(job, self._site)
        new_folder(path, lambda part: _write(part, texts))
        try:
            return Submitted(job=slurm_client.submit(path), folder=path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def follow(self, job: str, nodes: int, line: Line, say: Say) -> State:
        """Its log, once it has one."""
        _watch(lambda: self.state(job), lambda now: now.state != "waiting", say)
        return self.logs(job, line, follow=True)

    def state(self, job: str) -> State:
        """As slurmctld or the accounting says."""
        return _slurm_state(slurm_client.status(job))

    def logs(self, job: str, line: Line, *, follow: bool) -> State:
        """What srun labels by a node's place is given so."""

        def take(text: str) -> None:
            found = _LABELLED.fullmatch(text)
            line(*((found[1].strip(), found[2]) if found else ("", text)))

        return _slurm_state(slurm_client.logs(job, follow, take))

    def cancel(self, job: str) -> State:
        """On all nodes."""
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
    """Kubernetes by kubectl."""

    def __init__(self, site: KubernetesSite) -> None:
        self._site = site

    def _files(self, job: Job) -> Mapping[str, str]:
        keys = kubernetes.make_keys(job, self._site, now=int(time.time()))
        return kubernetes.render(job, self._site, keys=keys)

    def export(self, job: Job, folder: Path) -> tuple[str, ...]:
        """A file for each object; one with keys is its owner's alone."""
        texts = self._files(job)
        told: list[str] = []

        def write(part: Path) -> None:
            said = kubernetes_client.export(texts, part)
            told.extend(line.replace(str(part), str(folder)) for line in said)

        new_folder(folder, write)
        return tuple(told)

    def submit(self, job: Job, folder: str) -> Submitted:
        """Without a file: keys go through kubectl's standard input."""
        if folder:
            raise UsageError(
                "--out: a run on Kubernetes leaves no files here",
                hint="invoke export kubernetes writes them",
            )
        return Submitted(job=job.name, note=kubernetes_client.submit(self._site, self._files(job)))

    def follow(self, job: str, nodes: int, line: Line, say: Say) -> State:
        """Its pods' words, once all have started: before that kubectl would give none's."""
        now = _watch(
            lambda: self.state(job), lambda now: now.ended or now.started >= nodes, say
        )  # fmt: skip
        if now.state == "gone":
            return now
        try:
            kubernetes_client.logs(self._site, job, line, pods=nodes, follow=not now.ended)
        except CommandError as error:
            say(f"what it says cannot be shown (any more): {error.why or error.what}")
        return _watch(lambda: self.state(job), lambda now: now.ended, say)

    def state(self, job: str) -> State:
        """As the cluster's objects say."""
        return _kubernetes_state(kubernetes_client.status(self._site, job))

    def logs(self, job: str, line: Line, *, follow: bool) -> State:
        """Of all pods that there are."""
        found = kubernetes_client.status(self._site, job)
        if found.state == "gone":
            raise UsageError(f"there is no run {job} in namespace {self._site.namespace}")
        pods = max(len(found.pods), 1)
        kubernetes_client.logs(self._site, job, line, pods=pods, follow=follow)
        return self.state(job)

    def cancel(self, job: str) -> State:
        """With all that belongs to it."""
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
    """Ask until it is enough; every change is said."""
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
    """Make a folder with all that `write` puts into it, or none.

    Raises:
        UsageError: there is something already, or nothing can be made there.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.new_folder(folder) as part:
            write(part)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made: {error.strerror}",
            why="nothing that is there already is written over",
            hint="name a folder that is not there yet: --out FOLDER",
        ) from error
