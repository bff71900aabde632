"""Node 1 of a run over several hosts: it starts trainings, follows them, and ends them everywhere.

Owns the rule that ends a training without anybody outside: its lease runs out (nobody who attached
to it is heard), a node or a rank is lost, a rank loses its launcher, or somebody says stop. It
outlives whoever started it; controllers come and go through a socket. Every node, this one
included, has an agent (`agent.py`) at the end of a line; when this process goes, their lines
close, and each ends its node. It must not know what a training is: it is given commands.

    supervisor.py hold SECONDS NODE...   supervise; NODE... in order, this one first
    supervisor.py talk                   lines between standard input and output and the supervisor

Requests and answers are JSON lines. `start {job}`, `stop`, `follow {from}`, `beat`, `own {lease}`,
`state`, `port`, `list`, `down`; each answer is an `event`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import lease  # type: ignore[import-not-found]  # it lies beside this file

HERE = Path(__file__).resolve().parent
SOCKET = Path("/run/stackyard/supervisor.sock")
JOBS = Path("/var/lib/stackyard/jobs")
BEAT_SECONDS = lease.BEAT_SECONDS
# A rank that is gone without a word ends the training after this; launchers mostly notice before.
DEATH_SECONDS = 10.0
# What a launcher leaves behind may take this long to end by itself.
GRACE_SECONDS = 5.0
KILL_SECONDS = 15.0
CLOSE_SECONDS = 3.0
CHUNK_BYTES = 256 * 1024
Value = dict[str, object]


class Job:
    """One training, from its start to its end.

    Attributes:
        lease: seconds that it goes on without being heard of by who attached; 0: for ever.
        heard: when somebody attached was last heard.
        state: `running`, `ending` (its processes), `closing` (its words) or `ended`.
        ranks: by number: node, PID, and how it ended (None while it has not).
    """

    def __init__(self, value: Value) -> None:
        self.name = str(value["name"])
        self.steps: list[Value] = list(value["steps"])  # type: ignore[call-overload]
        self.env: dict[str, str] = dict(value["env"])  # type: ignore[call-overload]
        self.folder = str(value["folder"])
        self.shown: Value = dict(value.get("shown") or {})  # type: ignore[call-overload]
        self.lease = float(str(value.get("lease") or 0))
        self.started = time.time()
        self.heard = time.monotonic()
        self.ended = 0.0
        self.state, self.step, self.reason = "running", "", ""
        self.code: int | None = None
        self.ranks: dict[int, Value] = {}
        self.dead: dict[int, float] = {}
        self.left: dict[str, list[object]] = {}
        self.changed = time.monotonic()
        self.killed = False
        self.lines = 0
        self.path = JOBS / self.name
        self.log = self.path / "log.jsonl"

    def value(self) -> Value:
        """What is told of it."""
        return {
            "name": self.name, "state": self.state, "step": self.step, "code": self.code,
            "reason": self.reason, "started": self.started, "ended": self.ended,
            "lease": self.lease, "ranks": self.ranks, "left": self.left, "shown": self.shown,
        }  # fmt: skip


class Client:
    """A controller at the other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.closed = False
        self.attached = False
        self.following: tuple[Job, int] | None = None
        self._in, self._out = b"", b""

    def read(self) -> list[Value]:
        """Whole requests that have come."""
        try:
            data = self.connection.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return []
        *lines, self._in = (self._in + data).split(b"\n")
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found

    def say(self, **event: object) -> None:
        """Send an event, now or when the other end takes it."""
        self._out += json.dumps(event, ensure_ascii=False).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what is waiting, as far as it goes."""
        while self._out:
            try:
                sent = self.connection.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            self._out = self._out[sent:]

    @property
    def full(self) -> bool:
        """Whether the other end is behind."""
        return len(self._out) > CHUNK_BYTES


class Supervisor:
    """The life of a mesh and of the trainings in it, one after another."""

    def __init__(self, seconds: float, nodes: list[str]) -> None:
        self._seconds, self._nodes = seconds, nodes
        self._me = nodes[0]
        self._selector = selectors.DefaultSelector()
        self._lines: dict[str, lease.Line] = {}
        self._joined: set[str] = set()
        self._lost: dict[str, str] = {}
        self._clients: list[Client] = []
        self._jobs: list[Job] = []
        self._launcher: subprocess.Popen[bytes] | None = None
        self._words = b""
        self._number = 0
        self._wanted: dict[str, dict[str, list[object]]] = {}
        self._askers: dict[str, Client] = {}
        self._check = ""
        self._owner_lease, self._owner_heard = 0.0, time.monotonic()
        self._server = self._listen()
        self._closing: set[str] = set()
        self._over = False

    @property
    def _job(self) -> Job | None:
        return self._jobs[-1] if self._jobs else None

    def _listen(self) -> socket.socket:
        with contextlib.suppress(FileNotFoundError):
            SOCKET.unlink()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o177)
        server.bind(str(SOCKET))
        os.umask(previous)
        server.listen(64)
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, self._accept)
        return server

    def supervise(self) -> None:
        """Until the mesh is given up or its owner is not heard any more."""
        lease.wait_listening(self._me)
        self._line(self._me, _local(self._seconds))
        for node in self._nodes[1:]:
            self._line(node, lease.connect(node, self._seconds, str(HERE / "agent.py")))
        due = 0.0
        while not self._over:
            for key, _ in self._selector.select(max(0.0, due - time.monotonic())):
                key.data()
            if time.monotonic() >= due:
                due = time.monotonic() + BEAT_SECONDS
                self._tick()
        # The other nodes see their lines close, and end too; their engines then remove them.
        lease.end_node()

    # Nodes

    def _line(self, node: str, line: lease.Line) -> None:
        self._lines[node] = line
        self._selector.register(line.source, selectors.EVENT_READ, lambda: self._hear(node))

    def _hear(self, node: str) -> None:
        line = self._lines[node]
        for text in line.read():
            if text == "beat":
                self._joined.add(node)
                continue
            try:
                value = json.loads(text)
            except ValueError:
                line.said = text.strip()[:200]  # what ssh says when it fails
                continue
            self._from_node(node, value)
        if line.closed:
            self._selector.unregister(line.source)
            self._see(node)

    def _from_node(self, node: str, value: Value) -> None:
        job = self._job
        if "answer" in value:
            self._answered(str(value["answer"]), node, list(value["found"]))  # type: ignore[call-overload]
        elif "finished" in value:
            self._closing.discard(node)
        elif job is None:
            return
        elif "said" in value:
            for entry in list(value["said"]):  # type: ignore[call-overload]
                self._note(job, node, entry)
        elif value.get("event") == "rank":
            rank = int(str(value["rank"]))
            job.ranks[rank] = {"node": node, "pid": value["pid"], "end": None}
            job.dead.pop(rank, None)  # its launcher has started it again
        elif value.get("event") == "gone":
            self._gone(job, value)
        elif value.get("event") == "orphan":
            command = str(value.get("command", ""))[:100]
            self._stop(job, f"on {node} the launcher of a rank is gone: {command}")

    def _gone(self, job: Job, value: Value) -> None:
        if "rank" not in value:
            return
        rank, end = int(str(value["rank"])), str(value["end"])
        job.ranks.setdefault(rank, {})["end"] = end or "killed"
        if end != "ok":
            job.dead[rank] = time.monotonic()

    def _see(self, node: str) -> None:
        """Notice a node that is gone: its training is over."""
        if node in self._lost or self._over:
            return
        line = self._lines[node]
        why = line.lost(self._seconds if node in self._joined else lease.JOIN_SECONDS)
        if not why:
            return
        self._lost[node] = why
        self._closing.discard(node)
        self._tell(event="lost", node=node, why=why)
        for number in list(self._wanted):
            self._complete(number)
        if self._job is not None and self._job.state != "ended":
            self._stop(self._job, f"node {node} is gone: {why}")

    def _ask(self, command: str, number: str) -> None:
        self._wanted[number] = {}
        for node, line in self._lines.items():
            if node not in self._lost:
                line.write(f"{command} {number}")

    def _answered(self, number: str, node: str, found: list[object]) -> None:
        if number in self._wanted:
            self._wanted[number][node] = found
            self._complete(number)

    def _complete(self, number: str) -> None:
        answers = self._wanted[number]
        if set(answers) >= set(self._lines) - set(self._lost):
            del self._wanted[number]
            asker = self._askers.pop(number, None)
            if asker is not None:
                asker.say(event="processes", nodes=answers)
            if number == self._check:
                self._checked(answers)

    # Trainings

    def _start(self, client: Client, value: Value) -> None:
        job = self._job
        if job is not None and job.state != "ended":
            client.say(event="refused", why=f"job {job.name} is running here")
            return
        gone = [f"{node}: {why}" for node, why in self._lost.items()]
        wanted = set(value.get("nodes") or self._nodes)  # type: ignore[call-overload]
        if wanted & set(self._lost):
            client.say(event="refused", why="; ".join(gone))
            return
        job = Job(value)
        job.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        job.log.write_text("")
        self._jobs.append(job)
        self._check = ""
        for line in self._lines.values():
            line.write(f"watch {job.path}/ranks")
        client.attached = job.lease > 0
        client.say(event="started", job=job.value())
        self._next_step(job)

    def _next_step(self, job: Job) -> None:
        step = job.steps.pop(0)
        job.step = str(step["what"])
        for name, text in dict(step.get("files") or {}).items():  # type: ignore[call-overload]
            path = Path(name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(target, "w", encoding="utf-8") as file:
                file.write(text)
        own = {k: v for k, v in os.environ.items() if k != "STACKYARD_CONTROL"}
        env = {**own, **job.env, **dict(step.get("env") or {})}  # type: ignore[call-overload]
        words = list(step["argv"])  # type: ignore[call-overload]
        self._tell(event="step", job=job.name, what=job.step, argv=words)
        try:
            self._launcher = subprocess.Popen(
                words, cwd=job.folder, env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            job.reason = f"{words[0]} cannot be started: {error.strerror}"
            self._finish(job, 127)
            return
        assert self._launcher.stdout is not None
        os.set_blocking(self._launcher.stdout.fileno(), False)
        self._selector.register(
            self._launcher.stdout, selectors.EVENT_READ, lambda: self._launcher_says(job)
        )

    def _launcher_says(self, job: Job) -> None:
        assert self._launcher is not None and self._launcher.stdout is not None
        try:
            data = os.read(self._launcher.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        *lines, self._words = (self._words + data).replace(b"\r", b"\n").split(b"\n")
        for raw in lines:
            self._launcher_line(job, raw.decode("utf-8", errors="replace").rstrip())
        if not data:
            self._launcher_silent(job)

    def _launcher_silent(self, job: Job) -> None:
        """Nothing more is read of the launcher, though what it started may still hold its output."""
        last, self._words = self._words, b""
        self._launcher_line(job, last.decode("utf-8", errors="replace").rstrip())
        if self._launcher is not None and self._launcher.stdout is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._launcher.stdout)
            self._launcher.stdout.close()

    def _launcher_line(self, job: Job, text: str) -> None:
        # pdsh says first which node a line is from.
        label, colon, rest = text.partition(": ")
        node = label if colon and label in self._lines else ""
        shown = rest if node else text
        if shown.strip():
            self._note(job, node or self._me, {"rank": None, "text": shown[:4000]})

    def _note(self, job: Job, node: str, entry: Value) -> None:
        """Keep a line, or pass a bar's state on to who is there to see it."""
        whole = {"t": round(time.time(), 2), "node": node, **entry}
        if entry.get("bar"):
            for client in self._clients:
                if client.following and client.following[0] is job and not client.full:
                    client.say(event="bar", **whole)
            return
        with job.log.open("ab") as file:
            file.write(json.dumps(whole, ensure_ascii=False).encode() + b"\n")

    def _stop(self, job: Job, reason: str) -> None:
        """End a training now, everywhere."""
        if job.state == "ended" or job.killed:
            return
        job.reason = job.reason or reason
        job.killed = True
        self._ending(job)
        if self._launcher is not None and self._launcher.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._launcher.pid, signal.SIGKILL)

    def _ending(self, job: Job) -> None:
        job.state, job.changed = "ending", time.monotonic()
        self._next_check("kill" if job.killed else "list")

    def _next_check(self, command: str) -> None:
        self._number += 1
        self._check = f"job{self._number}"
        self._ask(command, self._check)

    def _checked(self, answers: dict[str, list[object]]) -> None:
        """Every node has said which processes are there."""
        job = self._job
        if job is None or job.state != "ending":
            return
        left = {node: found for node, found in answers.items() if found}
        waited = time.monotonic() - job.changed
        if not left or waited > KILL_SECONDS:
            self._finish(job, job.code)
        elif job.killed or waited > GRACE_SECONDS:
            if not job.killed:
                job.left, job.killed = left, True
            self._next_check("kill")
        else:
            self._check = ""  # asked again at the next beat

    def _finish(self, job: Job, code: int | None) -> None:
        """Nothing of it runs any more; what its ranks said last is still on its way."""
        job.code, job.state, job.changed = code, "closing", time.monotonic()
        self._closing = set(self._lines) - set(self._lost)
        for node in self._closing:
            self._lines[node].write(f"finish {job.name}")
        if not job.reason and job.dead and code:
            first = min(job.dead, key=lambda rank: job.dead[rank])
            job.reason = self._death(job, first)
        if self._launcher is not None:
            self._launcher_silent(job)
            self._launcher.wait()
        self._launcher = None

    @staticmethod
    def _death(job: Job, rank: int) -> str:
        found = job.ranks.get(rank, {})
        return f"rank {rank} ({found.get('node', '?')}) ended: {found.get('end') or 'killed'}"

    # The clock

    def _tick(self) -> None:
        now = time.monotonic()
        for node, line in self._lines.items():
            if node not in self._lost:
                line.write("beat")
                self._see(node)
        if self._owner_lease and now - self._owner_heard > self._owner_lease:
            self._over = True
            return
        job = self._job
        if job is not None and job.state == "running":
            self._look_after(job, now)
        elif job is not None and job.state == "ending" and not self._check:
            self._next_check("list")
        elif job is not None and job.state == "closing":
            self._close(job, now - job.changed > CLOSE_SECONDS)
        for client in list(self._clients):
            self._serve(client)

    def _close(self, job: Job, late: bool) -> None:
        if late or not self._closing:
            job.ended, job.state = time.time(), "ended"

    def _look_after(self, job: Job, now: float) -> None:
        if job.lease and now - job.heard > job.lease:
            self._stop(job, f"nobody attached was heard for {job.lease:g} s")
            return
        code = self._launcher.poll() if self._launcher is not None else None
        if code is not None:
            self._step_over(job, code)
            return
        gone = [rank for rank, when in job.dead.items() if now - when > DEATH_SECONDS]
        if gone:
            first = min(gone, key=lambda rank: job.dead[rank])
            self._stop(job, self._death(job, first))

    def _step_over(self, job: Job, code: int) -> None:
        self._launcher_silent(job)
        if code == 0 and job.steps:
            self._next_step(job)
            return
        job.code = code if code >= 0 else 128 - code
        job.killed = job.code != 0
        if code and job.steps:
            job.reason = job.reason or f"{job.step} failed with exit code {job.code}"
        self._ending(job)

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
        if client.closed:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.connection)
            client.connection.close()

    def _serve(self, client: Client) -> None:
        """Send a follower what has been written meanwhile, and the end when it has all."""
        client.flush()
        while client.following and not client.full and not client.closed:
            job, at = client.following
            entries, at_end = _entries(job.log, at)
            if entries:
                client.following = (job, at_end)
                client.say(event="log", job=job.name, lines=entries, next=at_end)
            elif job.state == "ended":
                client.following = None
                client.say(event="ended", job=job.value())
            else:
                break
        if client.closed:
            self._drop(client)

    def _tell(self, **event: object) -> None:
        for client in list(self._clients):
            client.say(**event)

    def _state(self, client: Client, value: Value) -> None:
        client.say(
            event="state", nodes=self._nodes, joined=sorted(self._joined), lost=self._lost,
            jobs=[job.value() for job in self._jobs],
        )  # fmt: skip

    def _beat(self, client: Client, value: Value) -> None:
        self._owner_heard = time.monotonic()
        if client.attached and self._job is not None:
            self._job.heard = time.monotonic()
        client.say(event="beat")

    def _attach(self, client: Client, value: Value) -> None:
        client.attached = True
        self._beat(client, value)

    def _own(self, client: Client, value: Value) -> None:
        self._owner_lease, self._owner_heard = float(str(value["lease"])), time.monotonic()

    def _follow(self, client: Client, value: Value) -> None:
        name = str(value.get("job") or "")
        found = [job for job in self._jobs if not name or job.name == name]
        if not found:
            client.say(event="refused", why=f"there is no job {name}" if name else "no job yet")
            return
        client.following = (found[-1], int(str(value.get("from") or 0)))
        client.say(event="following", job=found[-1].name, size=found[-1].log.stat().st_size)
        self._serve(client)

    def _stop_asked(self, client: Client, value: Value) -> None:
        if self._job is not None:
            self._stop(self._job, str(value.get("reason") or "it was stopped"))

    def _port(self, client: Client, value: Value) -> None:
        with socket.socket() as probe:
            probe.bind((str(value.get("address") or ""), 0))
            client.say(event="port", port=probe.getsockname()[1])

    def _list(self, client: Client, value: Value) -> None:
        self._number += 1
        self._askers[f"list{self._number}"] = client
        self._ask("list", f"list{self._number}")

    def _down(self, client: Client, value: Value) -> None:
        client.say(event="down")
        self._over = True

    _verbs: ClassVar[dict[str, Callable[[Supervisor, Client, Value], None]]] = {
        "state": _state, "start": _start, "beat": _beat, "attach": _attach, "own": _own,
        "follow": _follow, "stop": _stop_asked, "port": _port, "list": _list, "down": _down,
    }  # fmt: skip


def _local(seconds: float) -> lease.Line:
    child = subprocess.Popen(
        [sys.executable, str(HERE / "agent.py"), "keep", f"{seconds:g}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    os.set_blocking(child.stdin.fileno(), False)
    return lease.Line("node1", child.stdout.fileno(), child.stdin.fileno(), owner=child)


def _entries(path: Path, start: int) -> tuple[list[object], int]:
    """Whole lines of a log from `start` on, at most a chunk of them; where the next ones begin."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(CHUNK_BYTES // 4)
    whole = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], start + len(whole)


def _copied(source: int, targets: dict[int, int]) -> Iterator[bool]:
    while True:
        data = os.read(source, 65536)
        if not data:
            return
        view = memoryview(data)
        while view:
            view = view[os.write(targets[source], view) :]
        yield True


def talk() -> None:
    """Pass lines between our input and output and the supervisor's socket, until one ends."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end = time.monotonic() + 30
    while True:
        try:
            connection.connect(str(SOCKET))
            break
        except OSError as error:
            if time.monotonic() > end:
                raise SystemExit(f"no supervisor answers in this node: {error}") from error
            time.sleep(0.05)
    targets = {0: connection.fileno(), connection.fileno(): 1}
    copies = {source: _copied(source, targets) for source in targets}
    with selectors.DefaultSelector() as selector:
        for source in targets:
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                try:
                    next(copies[key.fd])
                except (StopIteration, OSError):
                    return


if __name__ == "__main__":
    verb, *rest = sys.argv[1:] or [""]
    if verb == "hold" and len(rest) > 1:
        Supervisor(float(rest[0]), rest[1:]).supervise()
    elif verb == "talk":
        talk()
    else:
        raise SystemExit(__doc__)
