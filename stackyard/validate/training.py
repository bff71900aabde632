"""Run trainings in a mesh through its supervisor, and read what their ranks record.

Owns the request for a launch of a smoke or bench, and the moment to kill it. The supervisor ends
those that hang or fail. It must not judge: it returns a `Training` with the observations of each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from stackyard.build import host
from stackyard.definitions.spec import Smoke
from stackyard.gpu import nccl
from stackyard.launch import LAUNCHERS, Launch, LaunchRequest
from stackyard.mesh.node import GRACE_SECONDS, SCRATCH, nccl_environment, rank_environment
from stackyard.mesh.nodes import SMOKE_FOLDER, Mesh
from stackyard.mesh.supervisor import Event, Refused
from stackyard.system.errors import EngineError
from stackyard.system.process import last_lines
from stackyard.validate.launches import prepare_words, program_words
from stackyard.validate.record import Training
from stackyard.validate.training_log import OnLoss, TrainingLog, TrainingPlan

# A launcher's own traceback fills 40 lines; the reason for a rank's death stands before it.
TAIL_LINES = 200
NCCL_LINES = 60
# A launch beside one that failed has this long to fail for the same reason.
BESIDE_SECONDS = 3.0
# The supervisor's reason for a launch that was stopped on purpose.
KILL = "kill"


@dataclass(frozen=True, kw_only=True)
class Start:
    """Describe one of several launches at the same time.

    Attributes:
        port: the port at which its ranks, and no others, meet.
    """

    smoke: Smoke
    plan: TrainingPlan
    port: int


def materialize(smoke: Smoke, plan: TrainingPlan, ssh_port: int, port: int) -> Launch:
    """Return the exact command for node 1, by the layout's launcher."""
    request = LaunchRequest(
        nodes=plan.nodes,
        per_node=plan.per_node,
        gpus=plan.gpus,
        device=smoke.device,
        port=port,
        program=program_words(smoke, plan),
        env=launch_env(smoke, plan),
        folder=SMOKE_FOLDER,
        scratch=f"{SCRATCH}/{plan.label}",
        ssh_port=ssh_port,
        options=plan.layout.options,
    )
    return LAUNCHERS[plan.layout.launcher](request)


def launch_env(smoke: Smoke, plan: TrainingPlan) -> dict[str, str]:
    """Return the environment of a launch: the smoke's own, and the folders of ranks and logs."""
    own = {**rank_environment(plan.label), **smoke.env}
    if smoke.device == "cpu":
        return own
    return {**nccl_environment(plan.run, plan.label), **own}


def nccl_lines(mesh: Mesh, plan: TrainingPlan) -> list[str]:
    """Return the lines of NCCL's logs on all nodes of a launch."""
    words = ["sh", "-c", 'cat "$1"/nccl.* 2> /dev/null | tail -c 2000000', "nccl", plan.folder]
    found: list[str] = []
    for node in plan.nodes:
        found += mesh.exec(node, words, seconds=20).output.splitlines()
    return found


def with_nccl(said: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return what ranks said, with NCCL's log: only that may explain a hang.

    Its warnings are the last word. Without any, what the ranks said last is.
    """
    warned = [line for line in lines if " NCCL WARN " in line]
    if warned:
        return [*said, *warned[-NCCL_LINES:]]
    return [*lines[-NCCL_LINES:], *said]


def prepare(mesh: Mesh, smoke: Smoke, seconds: float = 180) -> None:
    """Make the data on node 1, with the stack's own tools.

    Raises:
        EngineError: it failed; carries its last lines.
    """
    argv = prepare_words(smoke, mesh.shared)
    done = mesh.exec(mesh.head, argv, seconds=seconds, folder=SMOKE_FOLDER, env=dict(smoke.env))
    if done.code != 0:
        raise EngineError(
            f"preparing the data failed with exit code {done.code}: {' '.join(argv)[:200]}",
            why=last_lines(done.output),
        )


class _Running:
    """Hold the state of one launch, from its request to the supervisor to its end.

    Attributes:
        ended: the supervisor's last word on it; None while it runs.
        when: time of its end, whatever the reason; 0 while it runs.
    """

    def __init__(self, mesh: Mesh, start: Start, on_loss: OnLoss | None) -> None:
        self.smoke, self.plan = start.smoke, start.plan
        self.launch = materialize(start.smoke, start.plan, _ssh_port(mesh), start.port)
        self.log = TrainingLog(start.smoke, start.plan, on_loss)
        self.ended: Event | None = None
        self.when = 0.0
        self._mesh, self._asked = mesh, False
        join = round(start.smoke.start_seconds * host.patience())
        self._seconds = join + start.smoke.stall_seconds * 10
        self._limit = time.monotonic() + self._seconds
        if self.launch.everywhere:
            files = {path: text.encode() for path, text in self.launch.files.items()}
            for node in start.plan.nodes:
                mesh.put(node, files)
        request = _request(start.smoke, start.plan, self.launch, mesh.lease, join)
        mesh.talk.send("start", **request)
        mesh.talk.send("follow", job=self.plan.label)

    def take(self, event: Event) -> None:
        """Take one event of this launch."""
        if event["event"] == "log":
            for entry in event["lines"]:
                self.log.take(entry)
        elif event["event"] == "ended":
            self.ended, self.when = event["job"], time.monotonic()

    def look(self) -> None:
        """Stop the launch where its update has come, or its time has passed."""
        if self.log.due():
            self.stop(KILL)
        elif time.monotonic() > self._limit:
            self.stop(f"it did not end within {self._seconds} s")

    def stop(self, why: str) -> None:
        """Have the supervisor stop the launch, unless it is over."""
        if self.ended is None and not self._asked:
            self._asked = True
            self._mesh.talk.send("stop", job=self.plan.label, reason=why)

    def lose(self, why: str) -> None:
        """End the launch here, as nobody can report on it any more."""
        if self.ended is None:
            self.ended, self.when = {"code": None, "reason": why, "left": {}}, time.monotonic()

    @property
    def killed(self) -> bool:
        """Return whether the launch was stopped on purpose."""
        return self.ended is not None and self.ended["reason"] == KILL

    @property
    def failed(self) -> bool:
        """Return whether the launch is over after being stopped or with an error."""
        return self.ended is not None and self.ended["code"] != 0

    def result(self, started: float) -> Training:
        """Return the observations of the launch."""
        assert self.ended is not None
        said, log, mesh = self.log.said, None, self._mesh
        if self.smoke.device != "cpu" and not mesh.lost:
            lines = nccl_lines(mesh, self.plan)
            log = nccl.read_log(lines)
            if self.failed and not self.killed:
                said = with_nccl(said, lines)
        # A launcher that ended by itself has a code; the supervisor's reason only explains it.
        code = self.ended["code"]
        return Training(
            layout=self.plan.layout.name,
            ranks=self.log.ranks,
            wanted=self.plan.layout.ranks,
            nodes=self.plan.nodes,
            code=None if self.killed else code,
            stopped="" if self.killed or code is not None else self.ended["reason"],
            killed=self.killed,
            strays={node: self.ended["left"].get(node, []) for node in mesh.plan.nodes},
            tail=last_lines("\n".join(said), TAIL_LINES),
            seconds=self.when - started,
            command=self.launch.argv,
            nccl=log,
            began=time.time() - (time.monotonic() - started),
        )


def _ssh_port(mesh: Mesh) -> int:
    """Return the port of every node's sshd; 0 where they differ, as the ssh configuration says."""
    ports = {mesh.plan.port_of(node) for node in mesh.plan.nodes}
    return ports.pop() if len(ports) == 1 else 0


def _request(
    smoke: Smoke, plan: TrainingPlan, launch: Launch, lease: float, join: int
) -> dict[str, object]:
    """Return the supervisor's request for a launch."""
    words = ["sh", "-euc", 'mkdir -p "$1"; shift; exec "$@"', "launch", plan.save, *launch.argv]
    return {
        "name": plan.label,
        "beside": True,
        "steps": [launch.step("train", words)],
        "env": rank_environment(plan.label),
        "folder": SMOKE_FOLDER,
        "nodes": list(plan.nodes),
        "placed": [plan.nodes[rank // plan.per_node] for rank in range(plan.layout.ranks)],
        "lease": lease,
        "join_seconds": join,
        "silent_seconds": smoke.stall_seconds,
        "grace_seconds": GRACE_SECONDS,
    }


def train(
    mesh: Mesh, smoke: Smoke, plan: TrainingPlan, *, port: int, on_loss: OnLoss | None = None
) -> Training:
    """Run one launch to its end, with a limit on every kind of silence.

    Raises:
        EngineError: the engine refused (a rank's own failure is not an error but a result).
        MeshError: the supervisor refused.
    """
    (found,) = train_all(mesh, [Start(smoke=smoke, plan=plan, port=port)], on_loss=on_loss)
    return found


def train_all(
    mesh: Mesh, starts: Sequence[Start], *, on_loss: OnLoss | None = None
) -> tuple[Training, ...]:
    """Run launches at the same time, with the limits of `train`; return the results in order.

    When one fails, the others are stopped: they no longer run under the load that was asked for.

    Raises:
        EngineError: the engine refused (a rank's own failure is not an error but a result).
        MeshError: the supervisor refused.
    """
    started = time.monotonic()
    group = {start.plan.label: _Running(mesh, start, on_loss) for start in starts}
    while any(one.ended is None for one in group.values()):
        event = mesh.talk.next(0.1)
        if event is not None and event["event"] == "refused":
            raise Refused(str(event["why"]))
        if event is not None and str(event.get("job")) in group:
            group[str(event["job"])].take(event)
        elif event is not None and event["event"] == "ended":
            group[str(event["job"]["name"])].take(event)
        if mesh.lost:
            for one in group.values():
                one.lose(mesh.lost)
        _look_at(list(group.values()))
    return tuple(one.result(started) for one in group.values())


def _look_at(group: Sequence[_Running]) -> None:
    """Stop those that have a reason, and the others some time after one has failed.

    In that time (`BESIDE_SECONDS`) they may fail for the same reason.
    """
    for one in group:
        one.look()
    first = min((one for one in group if one.failed), key=lambda one: one.when, default=None)
    if first and time.monotonic() - first.when > BESIDE_SECONDS:
        for one in group:
            one.stop(f"stopped, as {first.plan.label} beside it failed")
