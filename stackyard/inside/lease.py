"""Hold the lease of a run: nodes live while it is renewed, and kill every process when it is not.

Owns the rule that ends a run from within, without anybody outside. Node 1 holds the lease for the
controller, and keeps one ssh session to every other node, in which lines go both ways every half
second. A node that hears nothing for the lease's time, or sees the other end close, SIGKILLs every
process that is not the node's own, and ends itself. A rank whose launcher is gone (PID 1 has
inherited it) would never be stopped: that ends the training on all nodes, which live on. Nothing is
ever killed by name.

    lease.py hold SECONDS NODE...   on node 1; commands on standard input, events as JSON lines
    lease.py keep SECONDS           on every other node, started by `hold` over ssh

Commands: `beat` renews; `list N` and `kill N` are answered with the processes found, by node;
`rest` gives up the lease without ending anything, because the nodes are about to be removed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import strays  # type: ignore[import-not-found]  # it lies beside this file in every image

HERE = "/usr/local/lib/stackyard/lease.py"
BEAT_SECONDS = 0.5
JOIN_SECONDS = 30.0
PORT = Path("/run/stackyard/mesh/port")
PORTS = PORT.with_name("ports")
Process = dict[str, object]
Event = dict[str, object]


def _environment(pid: int) -> list[bytes]:
    """Return a process's environment; empty for a process that has ended or is a zombie."""
    try:
        return [entry for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if entry]
    except OSError:
        return []


def _ranked(environment: list[bytes]) -> bool:
    return any(entry.startswith(b"RANK=") for entry in environment)


def launched(pid: int, parent: int) -> bool:
    """Return whether a live launcher holds this process as a rank.

    Processes that a rank starts inherit its environment. A rank that is ending has an empty one,
    and must not be taken for a launcher.
    """
    holder = _environment(parent) if parent > 1 else []
    return bool(holder) and not _ranked(holder) and _ranked(_environment(pid))


def end_node() -> None:
    """End the node: stop its own program, and with it PID 1 and the container."""
    strays.kill()
    try:
        os.kill(int(strays.PID_FILE.read_text()), signal.SIGTERM)
    except (OSError, ValueError):
        os.kill(1, signal.SIGTERM)


class Line:
    """Hold one end of a two-way line: whole lines in and out, and when it was last heard."""

    def __init__(self, name: str, source: int, target: int, owner: object = None) -> None:
        self.name, self.source, self._target = name, source, target
        self._owner = owner  # keeps the descriptors open
        self.said = ""
        self.heard = time.monotonic()
        self.closed = False
        self._rest = b""

    def read(self) -> list[str]:
        """Return the lines that have come; mark the line closed at the end of its input."""
        try:
            data = os.read(self.source, 65536)
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return []
        self.heard = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", errors="replace") for line in lines]

    def write(self, text: str) -> None:
        """Send one line; mark the line closed when nobody reads it any more."""
        try:
            os.write(self._target, text.encode() + b"\n")
        except OSError:
            self.closed = True

    def lost(self, seconds: float) -> str:
        """Return why the other end counts as gone; empty while it does not."""
        if self.closed:
            return self.said or "its end of the line was closed"
        if time.monotonic() - self.heard > seconds:
            return f"nothing was heard for {seconds:g} s"
        return ""


class Keeper:
    """Do this node's part: list processes, kill them, notice ranks without a launcher."""

    def __init__(self) -> None:
        self._ranks: set[int] = set()
        self._suspects: set[int] = set()

    def answer(self, command: str) -> list[Process] | None:
        """Return the processes that `list` or `kill` found; None for other commands."""
        look = {"kill": strays.kill, "list": strays.strays}.get(command.partition(" ")[0])
        found: list[Process] | None = look() if look else None
        return found

    def look(self) -> list[Event]:
        """Return what has happened to the ranks since the last look.

        `orphan`: PID 1 has inherited a rank, seen twice in a row (a rank that is just ending is no
        orphan). `gone`: a rank has ended, well or not. A rank is a process that a launcher was seen
        to hold, not a process that a rank started, though that inherits the rank's environment.
        """
        found = {int(str(process["pid"])): process for process in strays.strays()}
        parents = {pid: strays.parent(pid) for pid in found}
        gone = self._ranks - set(found)
        self._ranks -= gone
        self._ranks |= {
            pid for pid, parent in parents.items()
            if pid not in self._ranks and launched(pid, parent)
        }  # fmt: skip
        orphans = {pid for pid in self._ranks if parents[pid] == 1}
        sure, self._suspects = orphans & self._suspects, orphans
        return [
            *({"event": "orphan", **found[pid]} for pid in sorted(sure)),
            *({"event": "gone", "pid": pid} for pid in sorted(gone)),
        ]


def run(lines: list[Line], tick: Callable[[], bool], take: Callable[[Line, str], None]) -> None:
    """Read lines and call `tick` at every beat and every `rest`, until it returns False."""
    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line.source, selectors.EVENT_READ, line)
        going, due = True, 0.0
        while going:
            for key, _ in selector.select(max(0.0, min(BEAT_SECONDS, due - time.monotonic()))):
                for text in key.data.read():
                    take(key.data, text)
                    due = 0.0 if text == "rest" else due
                if key.data.closed:
                    selector.unregister(key.fileobj)
            if time.monotonic() >= due or any(line.closed for line in lines):
                due = time.monotonic() + BEAT_SECONDS
                going = tick()


def keep(seconds: float) -> None:
    """Run the lease on a node other than node 1."""
    line, keeper = Line("node1", 0, 1), Keeper()
    resting = False

    def take(_: Line, text: str) -> None:
        nonlocal resting
        resting = resting or text == "rest"
        found = keeper.answer(text)
        if found is not None:
            line.write(json.dumps({"answer": text.partition(" ")[2], "found": found}))

    def tick() -> bool:
        line.write("beat")
        for event in keeper.look():
            line.write(json.dumps(event))
        return not resting and not line.lost(seconds)

    run([line], tick, take)
    if not resting:
        end_node()


class Holder:
    """Hold the lease on node 1: hear the controller, and keep a line to every other node."""

    def __init__(self, seconds: float, nodes: list[str]) -> None:
        self._seconds, self._keeper = seconds, Keeper()
        self._me = os.uname().nodename
        self._controller = Line("controller", 0, 1)
        self._nodes = {node: connect(node, seconds) for node in nodes}
        self._joined: set[str] = set()
        self._wanted: dict[str, dict[str, list[Process]]] = {}
        self._broken = self._resting = False

    def hold(self) -> None:
        """Hold the lease until it is not renewed any more; then end this node.

        The other nodes see their line close, and end too.
        """
        wait_listening(self._me)
        if not self._nodes:
            self._say(event="joined", nodes=[])
        run([self._controller, *self._nodes.values()], self._tick, self._take)
        if not self._resting:
            end_node()

    def _say(self, **event: object) -> None:
        self._controller.write(json.dumps(event))

    def _tick(self) -> bool:
        if self._resting:
            return False
        for node, line in self._nodes.items():
            line.write("beat")
            why = line.lost(self._seconds if node in self._joined else JOIN_SECONDS)
            if why and not self._broken:
                self._broken = True
                self._say(event="lost", node=node, why=why, joined=node in self._joined)
                self._break()
        for event in self._keeper.look():
            self._happened(self._me, event)
        self._controller.write("beat")
        return not self._controller.lost(self._seconds)

    def _take(self, line: Line, text: str) -> None:
        if line is self._controller:
            self._command(text)
        elif text == "beat":
            if line.name not in self._joined:
                self._joined.add(line.name)
                if len(self._joined) == len(self._nodes):
                    self._say(event="joined", nodes=sorted(self._joined))
        else:
            self._from_node(line.name, text)

    def _from_node(self, node: str, text: str) -> None:
        try:
            event = json.loads(text)
        except ValueError:
            self._nodes[node].said = text.strip()[:200]  # ssh's message when it fails
            return
        if "answer" in event:
            self._answered(event["answer"], node, event["found"])
        elif "event" in event:
            self._happened(node, event)

    def _command(self, text: str) -> None:
        if text == "rest":
            self._resting = True
            for line in self._nodes.values():
                line.write(text)
            return
        found = self._keeper.answer(text)
        if found is None:
            return
        number = text.partition(" ")[2]
        self._wanted[number] = {}
        for line in self._nodes.values():
            line.write(text)
        self._answered(number, self._me, found)

    def _answered(self, number: str, node: str, found: list[Process]) -> None:
        if number not in self._wanted:
            return
        answers = self._wanted[number]
        answers[node] = found
        alive = {name for name, line in self._nodes.items() if not line.closed}
        if {self._me, *alive} <= set(answers):
            self._say(event="answer", id=number, nodes=self._wanted.pop(number))

    def _happened(self, node: str, event: Event) -> None:
        self._say(**event, node=node)
        if event["event"] == "orphan":
            self._break()

    def _break(self) -> None:
        """Kill the training's processes on all nodes."""
        self._keeper.answer("kill")
        for line in self._nodes.values():
            line.write("kill -")


def connect(node: str, seconds: float, program: str = HERE) -> Line:
    """Log in to a node, once its sshd listens, and start its part of the lease there."""
    wait_listening(node)
    remote = f"exec env STACKYARD_CONTROL=1 python3 {program} keep {seconds:g}"
    child = subprocess.Popen(
        ["ssh", node, remote],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    os.set_blocking(child.stdin.fileno(), False)
    return Line(node, child.stdout.fileno(), child.stdin.fileno(), owner=child)


def _port(node: str) -> int:
    """Return the port of a node's sshd: this node's own port, unless the mesh states another."""
    for line in PORTS.read_text().splitlines() if PORTS.exists() else []:
        name, _, number = line.partition(" ")
        if name == node:
            return int(number)
    return int(PORT.read_text())


def wait_listening(node: str, seconds: float = 15.0) -> None:
    """Wait until a node's sshd answers; on failure the login that follows reports the cause."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with socket.create_connection((node, _port(node)), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        time.sleep(0.02)


if __name__ == "__main__":
    verb, *rest = sys.argv[1:] or [""]
    if verb == "hold" and rest:
        Holder(float(rest[0]), rest[1:]).hold()
    elif verb == "keep" and len(rest) == 1:
        keep(float(rest[0]))
    else:
        raise SystemExit(__doc__)
