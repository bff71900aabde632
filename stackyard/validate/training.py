"""Run trainings in a mesh: launch them, follow their ranks, and stop those that hang or fail.

Owns when launches are stopped, for the reasons that `validate.watchdog` gives, and that processes
left behind are looked for only once all launches at the same time are over. It must not judge: it
returns a `Training` with the observations of each.

Over 300 lines: a launch and all that bounds it, which share one queue.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stackyard.definitions.spec import Smoke
from stackyard.gpu import nccl
from stackyard.launch import LAUNCHERS, Launch, LaunchRequest
from stackyard.mesh.follow import Records
from stackyard.mesh.node import SCRATCH
from stackyard.mesh.nodes import PROBE_FOLDER, SHARED, SMOKE_FOLDER, Mesh
from stackyard.system.archive import pack
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError
from stackyard.system.process import last_lines
from stackyard.validate.record import RankRecord, Training
from stackyard.validate.trainings import GRACE_SECONDS
from stackyard.validate.watchdog import DEATH_SECONDS, OnLoss, TrainingPlan, Watch

TEXT = "/usr/local/share/stackyard/text"
DATA = f"{SHARED}/data"
# A launcher's own traceback fills 40 lines; the reason for a rank's death stands before it.
TAIL_LINES = 200
NCCL_LINES = 60
_Found = Mapping[str, Sequence[Mapping[str, object]]]


@dataclass(frozen=True, kw_only=True)
class Start:
    """Describe one of several launches at the same time.

    Attributes:
        port: the port at which its ranks, and no others, meet.
    """

    smoke: Smoke
    plan: TrainingPlan
    port: int


def fill(words: tuple[str, ...], values: Mapping[str, object]) -> tuple[str, ...]:
    """Put values into the placeholders of a command line."""
    return tuple(word.format(**values) for word in words)


def spread(ranks: int, nodes: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the nodes that a layout's ranks are spread over, and the most ranks on each.

    Uses as many nodes as possible; a layout with fewer ranks than nodes leaves the last ones idle.
    """
    used = tuple(nodes[:ranks])
    return used, -(-ranks // len(used))


def placeholders(smoke: Smoke, plan: TrainingPlan) -> dict[str, object]:
    """Return the values of a launch's placeholders."""
    return {
        "text": TEXT,
        "data": DATA,
        "save": plan.save,
        "record": f"{plan.folder}/record",
        "updates": smoke.updates if plan.kill_after is None else smoke.horizon,
        "horizon": smoke.horizon,
        "save_at": smoke.save_at,
        "ranks": plan.layout.ranks,
    }


def materialize(smoke: Smoke, plan: TrainingPlan, ssh_port: int, port: int) -> Launch:
    """Return the exact command for node 1, by the layout's launcher."""
    values = placeholders(smoke, plan)
    request = LaunchRequest(
        nodes=plan.nodes,
        per_node=plan.per_node,
        gpus=plan.gpus,
        device=smoke.device,
        port=port,
        program=fill((*smoke.program, *smoke.args, *plan.layout.args), values),
        env=launch_env(smoke, plan),
        folder=SMOKE_FOLDER,
        scratch=f"{SCRATCH}/{plan.label}",
        ssh_port=ssh_port,
        options=plan.layout.options,
    )
    return LAUNCHERS[plan.layout.launcher](request)


def launch_env(smoke: Smoke, plan: TrainingPlan) -> dict[str, str]:
    """Return the environment of a launch: the smoke's own, and the folder of NCCL's logs."""
    if smoke.device == "cpu":
        return dict(smoke.env)
    return {"NCCL_DEBUG": "INFO", "STACKYARD_NCCL_LOGS": plan.folder, **smoke.env}


def nccl_lines(mesh: Mesh, plan: TrainingPlan) -> list[str]:
    """Return the lines of NCCL's logs on all nodes; the folder is shared."""
    script = 'cat "$1"/nccl.* 2> /dev/null | tail -c 2000000'
    done = mesh.engine.exec(mesh.first, ["sh", "-c", script, "nccl", plan.folder], seconds=20)
    return done.output.splitlines()


def prepare(mesh: Mesh, smoke: Smoke, seconds: float = 180) -> None:
    """Make the data on node 1, with the stack's own tools.

    Raises:
        EngineError: it failed; carries its last lines.
    """
    values = {"text": TEXT, "data": DATA, "updates": smoke.updates, "horizon": smoke.horizon}
    argv = fill(smoke.prepare, {**values, "save": "", "record": "", "save_at": "", "ranks": 2})
    done = mesh.engine.exec(
        mesh.first, argv, seconds=seconds, folder=SMOKE_FOLDER, env=dict(smoke.env)
    )
    if done.code != 0:
        raise EngineError(
            f"preparing the data failed with exit code {done.code}: {' '.join(argv)[:200]}",
            why=last_lines(done.output),
        )


class _Lines(queue.Queue["tuple[_Running, str, str]"]):
    """Queue the output and records of all launches: launch, kind of line, line."""


class _Running:
    """Run one launch in a thread, and hold its state so far.

    Attributes:
        code: the launcher's exit code; None until it has ended.
        stopped: why it must stop (`kill`: on purpose); empty while it need not.
        ended: time of its end, whatever the reason; 0 while it runs.
    """

    def __init__(
        self, mesh: Mesh, start: Start, records: Records, lines: _Lines, on_loss: OnLoss | None
    ) -> None:
        smoke, self.plan = start.smoke, start.plan
        self.smoke = smoke
        self.launch = materialize(smoke, start.plan, mesh.plan.port, start.port)
        self.watch = Watch(smoke, start.plan, on_loss)
        self.code: int | None = None
        self.stopped = ""
        self.ended = 0.0
        self._engine: Engine = mesh.engine
        self._node = mesh.first
        self._limit = float(smoke.start_seconds + smoke.stall_seconds * 10)
        self._lines = lines
        records.take(self.plan.label, lambda line: lines.put((self, "record", line)))
        self._launcher = threading.Thread(target=self._launch, daemon=True)
        self._launcher.start()

    def _launch(self) -> None:
        script, files = _with_files(self.plan, self.launch)
        try:
            done = self._engine.exec(
                self._node,
                ["sh", "-euc", script, "launch", *self.launch.argv],
                seconds=self._limit,
                stdin=files,
                env=self.launch.env,
                folder=SMOKE_FOLDER,
                control=False,
                on_line=lambda line: self._lines.put((self, "said", line)),
            )
            self.code = done.code
        except EngineError as error:
            self.code = 137
            self._lines.put((self, "said", str(error)))
        self._lines.put((self, "over", ""))

    @property
    def killed(self) -> bool:
        """Return whether the launch was stopped on purpose."""
        return self.stopped == "kill"

    @property
    def failed(self) -> bool:
        """Return whether the launch is over after being stopped or with an error."""
        return bool(self.ended) and (bool(self.stopped) or self.code != 0)

    def take(self, kind: str, line: str) -> None:
        """Take one line of the launch, or the end of its launcher."""
        if kind == "over" and not self.ended:
            self.ended = time.monotonic()
        else:
            self.watch.take(kind, line)

    def look(self, mesh: Mesh) -> None:
        """Stop the launch if there is a reason to."""
        if not self.ended:
            self.stop(self.watch.due() or _broken(mesh, self.watch) or self.watch.silence())

    def stop(self, why: str) -> None:
        """Mark the launch as over, if a reason is given."""
        if why and not self.ended:
            self.stopped, self.ended = why, time.monotonic()

    def explain(self, mesh: Mesh, alive: _Found) -> None:
        """Add reasons known only after the stop: a lost node, ranks that are gone."""
        if not self.failed:
            return
        self.stopped = self.stopped or mesh.lease.lost or mesh.lease.orphaned
        if self.stopped and not self.killed and not self.watch.all_ended():
            self.stopped = "; ".join([self.stopped, *_who_is_gone(alive, self.watch.ranks)])

    def result(self, mesh: Mesh, started: float, left: _Found) -> Training:
        """Return the observations of the launch."""
        said, log = self.watch.said, None
        if self.smoke.device != "cpu" and not mesh.lease.lost:
            lines = nccl_lines(mesh, self.plan)
            log = nccl.read_log(lines)
            if self.failed and not self.killed:  # only NCCL may explain a hang
                warned = [line for line in lines if " NCCL WARN " in line]
                said = [*said, *(warned or lines)[-NCCL_LINES:]]
        return Training(
            layout=self.plan.layout.name,
            ranks=self.watch.ranks,
            wanted=self.plan.layout.ranks,
            nodes=self.plan.nodes,
            code=None if self.stopped else self.code,
            stopped="" if self.killed else self.stopped,
            killed=self.killed,
            strays=left,
            tail=last_lines("\n".join(said), TAIL_LINES),
            seconds=self.ended - started,
            command=self.launch.argv,
            nccl=log,
            began=time.time() - (time.monotonic() - started),
        )


def _with_files(plan: TrainingPlan, launch: Launch) -> tuple[str, bytes]:
    """Return a script that unpacks the launch's files and becomes the launcher; and its input."""
    scratch = f"{SCRATCH}/{plan.label}"
    files = {path.removeprefix(f"{scratch}/"): text.encode() for path, text in launch.files.items()}
    folders = f"{scratch} {plan.folder}/record {plan.save}"
    script = f'(umask 077; mkdir -p {folders}; tar -x -C {scratch}); exec "$@" < /dev/null'
    return script, pack(files, mode=0o600)


def _records(mesh: Mesh) -> Records:
    """Return the run's records; follow them from its first training on."""
    if mesh.records is None:
        program = f"{PROBE_FOLDER}/follow.py"
        mesh.records = Records(mesh.engine, mesh.first, program, f"{SHARED}/runs")
    return mesh.records


def train(
    mesh: Mesh, smoke: Smoke, plan: TrainingPlan, *, port: int, on_loss: OnLoss | None = None
) -> Training:
    """Run one launch to its end, with a limit on every kind of silence.

    Raises:
        EngineError: the engine refused (a rank's own failure is not an error but a result).
    """
    (found,) = train_all(mesh, [Start(smoke=smoke, plan=plan, port=port)], on_loss=on_loss)
    return found


def train_all(
    mesh: Mesh, starts: Sequence[Start], *, on_loss: OnLoss | None = None
) -> tuple[Training, ...]:
    """Run launches at the same time, with the limits of `train`; return the results in order.

    When one fails, the others are stopped: they no longer run under the load that was asked for.
    Processes cannot be assigned to launches: those left behind are looked for once all launches
    are over, and are listed with each of them.

    Raises:
        EngineError: the engine refused (a rank's own failure is not an error but a result).
    """
    started = time.monotonic()
    mesh.lease.orphaned = ""
    mesh.lease.gone.clear()
    records, lines = _records(mesh), _Lines()
    group = [_Running(mesh, start, records, lines, on_loss) for start in starts]
    _until_over(mesh, group, lines)
    failed = any(one.failed for one in group)
    left: _Found = {}
    if failed:
        # After a failure, processes left behind only hold resources that others need.
        alive = mesh.strays(kill=True)
        for one in group:
            one.explain(mesh, alive)
        if all(one.watch.all_ended() for one in group):
            left = alive  # all ranks have ended: what still runs was left behind
    left = left or _left_over(mesh, 0.0 if failed else GRACE_SECONDS)
    records.catch_up()  # the ranks' last lines
    while not lines.empty():
        one, kind, line = lines.get()
        one.watch.take(kind, line)
    if any(left.values()):
        mesh.strays(kill=True)
    return tuple(one.result(mesh, started, left) for one in group)


def _until_over(mesh: Mesh, group: Sequence[_Running], lines: _Lines) -> None:
    """Wait until every launch has ended by itself, or has a reason to be stopped.

    A failure stops the others, after `DEATH_SECONDS` in which they may fail for the same reason.
    """
    while any(not one.ended for one in group):
        with contextlib.suppress(queue.Empty):
            one, kind, line = lines.get(timeout=0.25)
            one.take(kind, line)
        for one in group:
            one.look(mesh)
        first = min((one for one in group if one.failed), key=lambda one: one.ended, default=None)
        if first and time.monotonic() - first.ended > DEATH_SECONDS:
            for one in group:
                one.stop(f"stopped, as {first.plan.label} beside it failed")


def _broken(mesh: Mesh, watch: Watch) -> str:
    """Return why waiting for a training is useless; empty while it is not."""
    return mesh.lease.lost or mesh.lease.orphaned or watch.died(mesh.lease.gone)


def _who_is_gone(alive: _Found, ranks: Mapping[int, RankRecord]) -> list[str]:
    """Name the ranks whose process no longer existed when the training was stopped."""
    pids = {(node, process["pid"]) for node, found in alive.items() for process in found}
    return [
        f"rank {r.rank} ({r.host}) is gone since update {r.last}"
        for r in ranks.values()
        if r.ended is None and (r.host, r.pid) not in pids
    ]


def _left_over(mesh: Mesh, grace: float) -> dict[str, list[dict[str, object]]]:
    end = time.monotonic() + grace
    while True:
        found = mesh.strays()
        if not any(found.values()) or time.monotonic() > end:
            return found
        time.sleep(0.1)
