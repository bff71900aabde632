"""Supervise the trainings of a run over several hosts from node 1, and end them on all nodes.

Owns the rule that ends a training without anybody outside: its lease runs out (no attached
controller is heard), a node or a rank is lost, a rank loses its launcher, a process of it is
stopped, its ranks are silent for too long, or a controller stops it. Trainings run beside each
other; each ends by itself. It outlives the command that started it; controllers come and go through
a socket. Every node, this one included, has an agent (`agent.py`) at the end of a line; when this
process ends, the lines close, and each agent ends its node. It must not know what a training is: it
is given commands.

    supervisor.py hold SECONDS OWNER NODE...   supervise; NODE... in order, this one first
    supervisor.py talk           lines between standard input and output and the supervisor

OWNER: seconds after which the mesh ends when no attached controller is heard; 0: no limit. Requests
and answers are JSON lines: `start {job}`, `attach`, `beat`, `follow {from}`, `stop {job}`, `state`,
`port`, `list`, `kill`, `rest`, `down`; each answer is an `event`. `stop` with `seconds` lets ranks
that catch SIGTERM save first.

Over 300 lines: a training is ended by what nodes, clients and the clock report, and each of these
changes the same state.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import hang  # type: ignore[import-not-found]  # these lie beside this file
import line  # type: ignore[import-not-found]
from client import Client, listen, talk  # type: ignore[import-not-found]
from job import Job  # type: ignore[import-not-found]
from members import Members  # type: ignore[import-not-found]
from step import (  # type: ignore[import-not-found]
    StepProcess,
    absent,
    remove_files,
    write_files,
)

HERE = Path(__file__).resolve().parent
# Pause between two looks at the clock.
TICK_SECONDS = 0.1
KILL_SECONDS = 15.0
# Nodes answer where their ranks are within this; a job that is to end does not wait for longer.
EXAMINE_SECONDS = 15.0
Value = dict[str, object]


class Supervisor:
    """Supervise a mesh and the trainings in it."""

    def __init__(self, seconds: float, nodes: list[str], owner: float = 0.0) -> None:
        self._seconds, self._nodes = seconds, nodes
        self._me = nodes[0]
        self._selector = selectors.DefaultSelector()
        self._members = Members(seconds, self._selector, self._from_node, self._gone_node)
        self._clients: list[Client] = []
        self._jobs: list[Job] = []
        self._beat_due = 0.0
        self._owner_lease, self._owner_heard = owner, time.monotonic()
        self._over = self._resting = False
        self._server = listen()
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)

    @property
    def _active(self) -> list[Job]:
        """Return the jobs that have not ended."""
        return [job for job in self._jobs if job.state != "ended"]

    def _named(self, name: object) -> Job | None:
        """Return the active job of a name; None if there is none."""
        return next((job for job in self._active if job.name == name), None)

    def supervise(self) -> None:
        """Serve until the mesh is given up or its owner is not heard any more."""
        line.wait_listening(self._me)
        self._members.add(self._me, _local(self._seconds))
        for node in self._nodes[1:]:
            self._members.add(node, line.connect(node, self._seconds, str(HERE / "agent.py")))
        due = 0.0
        while not self._over:
            for key, _ in self._selector.select(max(0.0, due - time.monotonic())):
                key.data()
            if time.monotonic() >= due:
                due = time.monotonic() + TICK_SECONDS
                self._tick()
            self._serve_all()
        if self._resting:
            # The agents of nodes that are about to be removed need not end them.
            self._members.tell("rest", self._members.living)
            return
        # The other nodes see their lines close and end too; their engines then remove them.
        line.end_node()

    # Nodes

    def _from_node(self, node: str, value: Value) -> None:
        event = value.get("event")
        if event in ("orphan", "stopped"):
            self._process(node, str(event), value)
            return
        if "finished" in value:
            job = self._named(value["finished"])
            if job is not None and job.state == "closing":
                job.closing.discard(node)
                self._close(job)
            return
        job = self._named(value.get("job"))
        if job is None:
            return
        if "said" in value:
            entries = list(value["said"])  # type: ignore[call-overload]
            if any("text" in entry for entry in entries):
                job.worded()
            for entry in entries:
                if "record" in entry:
                    job.recorded(int(str(entry["rank"])), str(entry["record"]))
                # Records of long runs on many ranks would fill the disk of node 1.
                if "record" not in entry or job.placed:
                    self._note(job, node, entry)
            return
        rank = int(str(value["rank"]))
        if event == "rank":
            job.ranks[rank] = {"node": node, "pid": value["pid"], "end": None}
            job.dead.pop(rank, None)  # its launcher has restarted it
            job.move()
        elif event == "fused" and rank in job.ranks:
            job.ranks[rank]["fused"] = value["parts"]
        elif event == "gone":
            job.gone(rank, node, value["pid"], str(value["end"]))

    def _process(self, node: str, event: str, value: Value) -> None:
        """End the job of a process that nothing controls any more."""
        command = str(value.get("command", ""))[:100]
        what = (
            f"on {node} the launcher of a rank is gone: {command}"
            if event == "orphan"
            else f"{self._known(node, value)} is stopped for {self._seconds:g} s: {command}"
        )
        job = self._named(value.get("job"))
        for one in [job] if job is not None else self._active:
            self._stop(one, what)

    def _known(self, node: str, process: Value) -> str:
        """Name a process on a node, by its rank if it is one."""
        for job in self._active:
            for rank, known in job.ranks.items():
                if (known["node"], known["pid"]) == (node, process["pid"]):
                    return f"rank {rank} ({node})"
        return f"process {process['pid']} on {node}"

    def _gone_node(self, node: str, why: str) -> None:
        self._tell(event="lost", node=node, why=why, joined=node in self._members.joined)
        for job in self._active:
            if node in job.closing:
                text = f"node {node} is gone, its last output may be missing: {why}"
                self._note(job, self._me, {"rank": None, "text": text})
            job.closing.discard(node)
            self._stop(job, f"node {node} is gone: {why}")
        if node == self._me:
            self._over = True  # nothing else would end the processes here

    # Trainings

    def _start(self, client: Client, value: Value) -> None:
        job = self._named(value.get("name"))
        others = [] if value.get("beside") else self._active
        if job is not None or others:
            client.say(event="refused", why=f"job {(job or others[0]).name} is running here",
                       hint="invoke stop ends it, and invoke logs --follow shows it")  # fmt: skip
            return
        lost = self._members.lost
        if set(value.get("nodes") or self._nodes) & set(lost):  # type: ignore[call-overload]
            why = "; ".join(f"{node}: {why}" for node, why in lost.items())
            client.say(event="refused", why=why)
            return
        job = Job(value)
        job.open()
        self._jobs = [one for one in self._jobs if one.name != job.name]
        self._jobs.append(job)
        self._members.tell(f"watch {job.path}/ranks", self._members.living)
        client.attached = client.attached or job.lease > 0
        client.say(event="started", job=job.value())
        self._next_step(job)

    def _next_step(self, job: Job) -> None:
        step = job.steps.pop(0)
        job.turn("running")
        words = [str(word) for word in step["argv"]]
        job.step = str(step["what"])
        own = {k: v for k, v in os.environ.items() if k != "STACKYARD_CONTROL"}
        env = {**own, "STACKYARD_JOB": job.name, **job.env, **dict(step.get("env") or {})}
        self._tell(event="step", job=job.name, what=job.step, argv=words)
        try:
            write_files(dict(step.get("files") or {}))
            job.made += absent(step.get("makes") or ())
            job.launcher = StepProcess(
                words, job.folder, env, self._selector,
                lambda text: self._launcher_line(job, text), lambda: self._look_at(job),
            )  # fmt: skip
        except OSError as error:
            job.reason = f"{job.step} cannot be started: {error}"
            self._finish(job, 127)

    def _launcher_line(self, job: Job, text: str) -> None:
        # pdsh begins each line with the name of its node.
        label, _, rest = text.partition(": ")
        node, shown = (label, rest) if label in self._members else (self._me, text)
        if not job.ranks:
            job.commanded()
        if shown.strip():
            self._note(job, node, {"rank": None, "text": shown[:4000]})

    def _note(self, job: Job, node: str, entry: Value) -> None:
        """Append a line to the log, or pass a progress bar's state on to followers."""
        whole = {"t": round(time.time(), 2), "node": node, **entry}
        if entry.get("bar"):
            for client in self._clients:
                if job in client.following and not client.full:
                    client.say(event="bar", job=job.name, **whole)
            return
        try:
            job.note(whole)
        except OSError as error:
            self._stop(job, f"on {self._me} the log of the job cannot be written: {error.strerror}")

    def _stop(self, job: Job, reason: str) -> None:
        """Kill a training on all nodes."""
        if job.state in ("closing", "ended") or job.killed:
            return
        job.reason = job.reason or reason
        job.killed = True
        if job.launcher is not None:
            job.launcher.kill()
        job.turn("ending")
        self._check(job, "kill")

    def _ask_to_end(self, job: Job, reason: str, seconds: float) -> None:
        """Send SIGTERM to the ranks that catch it; kill the job where none does."""
        if job.state != "running" or job.deadline:
            return
        job.ask_to_end(reason, seconds)

        def answered(answers: dict[str, list[Value]]) -> None:
            if job.state == "running" and not any(answers.values()):
                self._stop(job, reason)

        self._members.ask("term", job.name, answered)

    def _check(self, job: Job, command: str) -> None:
        """Ask every node for a job's processes; only the answer to the last question counts.

        Processes of no known job belong to the last job that runs.
        """
        job.checks += 1
        number, job.checking = job.checks, True
        scope = "" if self._active == [job] else job.name

        def answered(answers: dict[str, list[Value]]) -> None:
            if command == "kill":
                job.swept |= {(node, p["pid"]) for node, found in answers.items() for p in found}
            if number == job.checks:
                self._checked(job, command, answers)

        self._members.ask(command, scope, answered)

    def _checked(self, job: Job, command: str, answers: dict[str, list[Value]]) -> None:
        """Go on with a job that ends, when every node has listed its processes.

        The answer to `kill` is what was there before it. A node that is slow, or frozen until it
        is lost, takes no time from killing on the others: each kill is followed by another look.
        """
        job.checking = False
        if job.state != "ending":
            return
        left = {node: found for node, found in answers.items() if found}
        waited = time.monotonic() - job.changed
        if not left:
            self._finish(job, job.code)
        elif not job.killed:
            if waited > job.grace_seconds:
                job.left, job.killed = left, True
                self._check(job, "kill")
            # Otherwise the next tick asks again.
        elif waited <= KILL_SECONDS:
            self._check(job, "kill")
        elif command == "kill":
            self._check(job, "list")
        else:
            job.left = job.left or left
            self._finish(job, job.code)

    def _finish(self, job: Job, code: int | None) -> None:
        """Wait for the last output of ranks, now that nothing of the job runs."""
        job.code = code
        for text in remove_files(job.made):
            self._note(job, self._me, {"rank": None, "text": text})
        job.turn("closing")
        job.closing = self._members.living
        self._members.tell(f"finish {job.name}", job.closing)
        if job.launcher is not None:
            job.launcher.finish()
        job.launcher = None
        self._close(job)

    # The clock

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._beat_due:
            self._beat_due = now + line.BEAT_SECONDS
            self._members.beat()
        if self._owner_lease and now - self._owner_heard > self._owner_lease:
            self._over = True
            return
        for job in self._active:
            if job.state == "running":
                self._look_after(job, now)
            elif job.state == "ending" and not job.checking:
                self._check(job, "list")
            elif job.state == "closing":
                self._close(job)

    def _close(self, job: Job) -> None:
        """End a job once every node has passed on its last output, or is lost."""
        if not job.closing:
            if not job.reason and job.dead and job.code:
                job.reason = job.death(job.dead)
            job.ended = time.time()
            job.turn("ended")

    def _look_after(self, job: Job, now: float) -> None:
        self._look_at(job)
        if job.state != "running":
            return
        if job.lease and now - job.heard > job.lease:
            self._stop(job, f"nobody attached was heard for {job.lease:g} s")
        elif job.deadline and now > job.deadline:
            job.add_reason(f"its ranks did not end within {job.deadline - job.asked:g} s")
            self._stop(job, job.reason)
        elif late := job.late(now):
            job.add_reason(job.death(late))
            self._stop(job, job.reason)
        elif job.ending and now - job.examined > EXAMINE_SECONDS:
            self._stop(job, job.ending)
        elif job.ending:
            return
        elif silent := job.silence(now):
            self._end_silent(job, silent)
        elif job.hangs(now):
            self._examine(job)

    def _end_silent(self, job: Job, why: str) -> None:
        """Stop a silent job, once its live ranks have answered where they are."""
        if job.hang or not job.ranks:
            self._stop(job, "; ".join(part for part in (why, job.hang) if part))
            return
        job.ending = why
        if not job.examined:
            self._examine(job)

    def _examine(self, job: Job) -> None:
        """Ask all ranks of a job where they are, and name who waits and who is missing."""
        job.examined = time.monotonic()

        def answered(answers: dict[str, list[Value]]) -> None:
            if job.state != "running" or not job.examined:
                return  # it has ended, or got on meanwhile
            found = {int(str(one["rank"])): one for several in answers.values() for one in several}
            nodes = {rank: str(known["node"]) for rank, known in job.ranks.items()
                     if known["end"] is None}  # fmt: skip
            if not set(nodes.values()) <= set(answers):
                return  # a node of it is lost, which ends it with that reason
            what, lines, late = hang.explain(found, nodes)
            job.hang = "; ".join(filter(None, [job.unstarted, what]))
            for text in (f"no update for {time.monotonic() - job.moved:.0f} s: {job.hang}", *lines):
                self._note(job, self._me, {"rank": None, "text": f"hang: {text}"})
            self._tell(event="hang", job=job.name, what=job.hang, ranks=lines, late=late)
            if job.ending:
                self._stop(job, f"{job.ending}; {job.hang}")

        self._members.ask("stacks", job.name, answered)

    def _look_at(self, job: Job) -> None:
        """Go on where the command of a step has ended."""
        code = job.launcher.poll() if job.launcher is not None and job.state == "running" else None
        if code is not None:
            self._step_over(job, code)

    def _step_over(self, job: Job, code: int) -> None:
        assert job.launcher is not None
        job.launcher.finish()
        if job.state != "running":
            return  # the last output could not be written to the log
        if code == 0 and job.steps and not job.deadline:
            self._next_step(job)
            return
        if code == 0 and job.deadline:
            seconds = time.monotonic() - job.asked
            job.add_reason(f"its ranks ended by themselves after {seconds:.0f} s")
        job.code = code if code >= 0 else 128 - code
        job.killed = job.code != 0
        if code and job.steps:
            job.reason = job.reason or f"{job.step} failed with exit code {job.code}"
        job.turn("ending")
        self._check(job, "kill" if job.killed else "list")

    # Controllers

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            client = Client(connection)
            self._clients.append(client)
            self._selector.register(
                connection, selectors.EVENT_READ, lambda: self._requests(client)
            )

    def _requests(self, client: Client) -> None:
        for value in client.read():
            answer = self._verbs.get(str(value.get("do")))
            try:
                if answer is None:
                    client.say(event="refused", why=f"unknown request {value.get('do')!r}")
                else:
                    answer(self, client, value)
            except (KeyError, TypeError, ValueError) as error:
                client.say(event="refused", why=f"not understood: {error!r}")
            except OSError as error:
                client.say(event="refused", why=f"{value.get('do')}: {error}")
        if client.closed:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.connection)
            client.connection.close()

    def _serve_all(self) -> None:
        for client in list(self._clients):
            self._serve(client)

    def _serve(self, client: Client) -> None:
        client.serve()
        if client.closed:
            self._drop(client)

    def _tell(self, **event: object) -> None:
        for client in list(self._clients):
            client.say(**event)

    def _state(self, client: Client, value: Value) -> None:
        client.say(
            event="state", nodes=self._nodes, joined=sorted(self._members.joined),
            lost=self._members.lost, jobs=[job.value() for job in self._jobs],
        )  # fmt: skip

    def _beat(self, client: Client, value: Value) -> None:
        if client.attached:
            self._owner_heard = time.monotonic()
            for job in self._active:
                job.heard = time.monotonic()
        client.say(event="beat")

    def _attach(self, client: Client, value: Value) -> None:
        client.attached = True
        self._beat(client, value)

    def _follow(self, client: Client, value: Value) -> None:
        name = str(value.get("job") or "")
        found = [job for job in self._jobs if not name or job.name == name]
        if not found:
            client.say(event="refused", why=f"there is no job {name}" if name else "no job yet")
            return
        client.following[found[-1]] = int(str(value.get("from") or 0))
        client.say(event="following", job=found[-1].name, size=found[-1].log.stat().st_size)
        self._serve(client)

    def _stop_asked(self, client: Client, value: Value) -> None:
        # By name: a controller that was refused because of a job must not end it.
        job = self._named(value.get("job"))
        if job is None:
            return
        reason, seconds = str(value.get("reason") or "it was stopped"), value.get("seconds")
        job.stopped = True
        if seconds:
            self._ask_to_end(job, reason, float(str(seconds)))
        else:
            self._stop(job, reason)

    def _port(self, client: Client, value: Value) -> None:
        with socket.socket() as probe:
            probe.bind((str(value.get("address") or ""), 0))
            client.say(event="port", port=probe.getsockname()[1])

    def _processes(self, client: Client, value: Value) -> None:
        self._members.ask(
            str(value["do"]), "", lambda found: client.say(event="processes", nodes=found)
        )

    def _rest(self, client: Client, value: Value) -> None:
        self._resting = True
        self._down(client, value)

    def _down(self, client: Client, value: Value) -> None:
        client.say(event="down")
        self._over = True

    _verbs: ClassVar[dict[str, Callable[[Supervisor, Client, Value], None]]] = {
        "state": _state, "start": _start, "beat": _beat, "attach": _attach,
        "follow": _follow, "stop": _stop_asked, "port": _port, "list": _processes,
        "kill": _processes, "rest": _rest, "down": _down,
    }  # fmt: skip


def _local(seconds: float) -> line.Line:
    child = subprocess.Popen(
        [sys.executable, str(HERE / "agent.py"), "keep", f"{seconds:g}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    return line.Line("node1", child.stdout.fileno(), child.stdin.fileno(), owner=child)


if __name__ == "__main__":
    verb, *rest = sys.argv[1:] or [""]
    if verb == "hold" and len(rest) > 2:
        Supervisor(float(rest[0]), rest[2:], float(rest[1])).supervise()
    elif verb == "talk":
        talk()
    else:
        raise SystemExit(__doc__)
