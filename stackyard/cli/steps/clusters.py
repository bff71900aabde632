"""Run `invoke export`, and `run`, `status`, `logs`, `stop` with `--on` for Slurm and Kubernetes.

Owns the output, the handling of interrupts, and exit codes. `schedulers.request` decides
which job a command means; `schedulers.client` does the rest.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import (
    LEASE,
    ExportRequest,
    LogsRequest,
    RunningRequest,
    RunRequest,
    StatusRequest,
)
from stackyard.cli.steps import diagnose
from stackyard.definitions.project import ROOT, load_project
from stackyard.gpu import nccl, transport
from stackyard.gpu.nccl import NcclLog
from stackyard.launch.job import Job
from stackyard.schedulers import slurm
from stackyard.schedulers.client import Cluster, State, Submitted, cluster_of
from stackyard.schedulers.request import (
    ClusterArguments,
    load_site,
    make_cluster_job,
    require_cluster,
)
from stackyard.system.errors import StackyardError, UsageError

KEPT = 400
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Lines:
    """Show the lines of a job as they come, and keep the last of them."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.kept: deque[dict[str, str]] = deque(maxlen=KEPT)
        self._nccl: list[str] = []

    def __call__(self, node: str, text: str) -> None:
        """Show and keep one line of a node; what NCCL used is kept for the end."""
        if text.startswith(slurm.NCCL):
            self._nccl.append(text.removeprefix(slurm.NCCL))
            return
        self.kept.append({"node": node, "text": text})
        self._terminal.text(f"{node} | {text}" if node else text)

    @property
    def transport(self) -> NcclLog:
        """Return NCCL's log, as nodes told it at their end."""
        return nccl.read_log(self._nccl)

    @property
    def tail(self) -> str:
        """Return the last lines, without the names of nodes."""
        return "\n".join(line["text"] for line in self.kept)


def arguments_of(
    asked: RunRequest | ExportRequest, cluster: str, *, others: Mapping[str, object] | None = None
) -> ClusterArguments:
    """Convert a request to the arguments of a cluster's job."""
    return ClusterArguments(
        cluster=cluster, stack=asked.stack, nodes=asked.nodes or 0, per_node=asked.per_node,
        gpus=asked.gpus, base=asked.base, image=asked.image, site=asked.site, name=asked.name,
        runtime=asked.runtime,
        others=others or {}, example=asked.example, words=asked.words, launcher=asked.launcher,
        settings=asked.set, save=asked.save, folder=asked.folder, env=asked.env,
    )  # fmt: skip


def only_on_hosts(asked: RunRequest) -> dict[str, object]:
    """Return the options that apply to hosts only, by flag; the value is true where given."""
    return {
        "--hosts": asked.hosts,
        "--include": asked.include,
        "--exclude": asked.exclude,
        "--restarts": asked.restarts,
        "--lease": asked.lease != LEASE,
        "--overlay": asked.overlay,
        "--despite": asked.despite,
        "--accelerate-config": asked.accelerate_config,
    }


def export(terminal: Terminal, asked: ExportRequest) -> Answer:
    """Run `invoke export CLUSTER STACK`: write a job's files, and print what to type there."""
    given = arguments_of(asked, asked.cluster)
    made = make_cluster_job(load_project(), given, away=True)
    folder = Path(asked.out or made.job.name).resolve()
    said = cluster_of(made.site).export(made.job, folder)
    for note in made.notes:
        terminal.note(note)
    for line in said:
        terminal.text(line)
    files = sorted(path.name for path in folder.iterdir())
    value = {"folder": str(folder), "files": files, "type": said, "notes": made.notes}
    return {**_job_value(given.cluster, made.job), **value}, 0


def _job_value(cluster: str, job: Job) -> dict[str, Any]:
    names = ("name", "stack", "base", "image", "nodes", "per_node", "device", "launcher")
    return {"on": cluster, **{name: getattr(job, name) for name in names}}


def run(terminal: Terminal, asked: RunRequest) -> Answer:
    """Run `invoke run STACK --on CLUSTER`: submit a job and follow it to its end."""
    given = arguments_of(asked, asked.on, others=only_on_hosts(asked))
    made = make_cluster_job(load_project(), given, away=False)
    for note in made.notes:
        terminal.note(note)
    lines = Lines(terminal)
    ended = _attached(cluster_of(made.site), given, made.job, asked, lines, terminal)
    value = {**_job_value(given.cluster, made.job), **ended}
    if asked.detach:
        return value, 0
    log, offer = lines.transport, transport.Offer()
    value["transport"] = [path.value() for path in transport.paths(log, offer)]
    value["warnings"] = transport.warnings(log, offer)
    for line in [*map(transport.words, value["transport"]), *value["warnings"]]:
        terminal.text(f"{made.job.name}: NCCL: {line}")
    passed = value["state"] == "done"
    if not passed:
        found = diagnose.recognised(ROOT, lines.tail, "run")["diagnoses"]
        diagnose.show(found, terminal.text)
        value["diagnoses"] = found
    return {"outcome": "passed" if passed else "failed", **value}, 0 if passed else 1


def _attached(
    cluster: Cluster,
    given: ClusterArguments,
    job: Job,
    asked: RunRequest,
    lines: Lines,
    terminal: Terminal,
) -> dict[str, Any]:
    submitted: Submitted | None = None
    try:
        with uninterrupted():
            submitted = cluster.submit(job, asked.out)
        _announce(given, job, submitted, asked.detach, terminal)
        if asked.detach:
            return {"outcome": "running", "job": submitted.job}
        state = cluster.follow(
            submitted.job, job.nodes, lines, lambda text: terminal.say(job.name, text)
        )
    except KeyboardInterrupt:
        if submitted is not None:
            _remove(cluster, submitted, terminal)
        raise
    except StackyardError:
        if submitted is not None:
            ask, end = (_typed(task, given, submitted.job) for task in ("status", "stop"))
            terminal.note(f"the job is left as it is: {ask} looks at it, {end} ends it")
        raise
    terminal.text(_sentence(state))
    return asdict(state)


def _announce(
    given: ClusterArguments, job: Job, submitted: Submitted, detach: bool, terminal: Terminal
) -> None:
    where = f" from {submitted.folder}" if submitted.folder else ""
    terminal.done(job.name, f"job {submitted.job}: {job.ranks} ranks on {job.nodes} nodes{where}")
    if submitted.note:
        terminal.note(submitted.note)
    if detach:
        follow = _typed("logs", given, submitted.job)
        terminal.text(f"{submitted.job} runs on; {follow} --follow, or status, or stop")


def _remove(cluster: Cluster, submitted: Submitted, terminal: Terminal) -> None:
    terminal.note(f"cancelling {submitted.job}")
    cluster.cancel(submitted.job)
    if submitted.folder is not None:
        shutil.rmtree(submitted.folder, ignore_errors=True)


def _typed(task: str, given: ClusterArguments, job: str) -> str:
    site = f" --site {given.site}" if given.site else ""
    return f"invoke {task} --on {given.cluster} --job {job}{site}"


def _sentence(state: State) -> str:
    code = f", exit code {state.code}" if state.code is not None else ""
    why = f" ({state.why})" if state.why else ""
    log = f"; its log: {state.log}" if state.log and state.ended else ""
    return f"{state.job} is {state.state}{why}{code}{log}"


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals while a job's number is unknown, since it could not be ended yet."""
    came: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, wait) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def status(terminal: Terminal, asked: StatusRequest) -> Answer:
    """Run `invoke status --on CLUSTER --job JOB`.

    Raises:
        UsageError: `--watch`, which needs the hosts' GPUs and the run's supervisor.
    """
    if asked.watch:
        raise UsageError(
            "--watch is for runs on hosts",
            why="a cluster's nodes are not reached by ssh",
            hint=f"invoke logs --on {asked.on or 'slurm'} --job {asked.job or 'JOB'} --follow; or"
            " TensorBoard, which reads the folder tensorboard below --save",
        )
    state = _cluster(asked.on, asked.site, asked.job).state(asked.job)
    terminal.text(_sentence(state))
    for line in state.parts:
        terminal.text(f"  {line}")
    return {"on": asked.on, **asdict(state)}, 0


def logs(terminal: Terminal, asked: LogsRequest) -> Answer:
    """Run `invoke logs --on CLUSTER --job JOB [--follow]`."""
    lines = Lines(terminal)
    terminal.interrupted = "the job goes on"
    state = _cluster(asked.on, asked.site, asked.job).logs(asked.job, lines, follow=asked.follow)
    if asked.follow:
        terminal.text(_sentence(state))
    return {"on": asked.on, **asdict(state), "lines": list(lines.kept)}, 0


def stop(terminal: Terminal, asked: RunningRequest) -> Answer:
    """Run `invoke stop --on CLUSTER --job JOB`."""
    state = _cluster(asked.on, asked.site, asked.job).cancel(asked.job)
    terminal.text(_sentence(state))
    return {"on": asked.on, **asdict(state)}, 0


def _cluster(cluster: str, site: str, job: str) -> Cluster:
    settings, _ = load_site(require_cluster(cluster), site)
    if not job:
        raise UsageError(
            "say which job: --job",
            why="its number on Slurm (squeue --me shows yours), its name on Kubernetes",
        )
    return cluster_of(settings)
