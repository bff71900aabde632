"""Hold the lines between the nodes of a mesh: log in, pass whole lines, notice that an end is gone.

Owns when the other end of a line counts as gone, and how a node ends itself. It must not know what
the lines say: `supervisor.py` and `agent.py` do.

    line.py login NODE COMMAND     becomes `ssh NODE COMMAND` once NODE's sshd listens
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import strays  # type: ignore[import-not-found]  # it lies beside this file

BEAT_SECONDS = 0.5
JOIN_SECONDS = 30.0
PORT = Path("/run/stackyard/mesh/port")
PORTS = PORT.with_name("ports")
# Bytes that may wait for the other end to read them; then nothing new is read for it.
FULL_BYTES = 256 * 1024


def end_node() -> None:
    """End the node: kill its trainings and stop its own program, and with it the container."""
    strays.kill()
    try:
        os.kill(int(strays.PID_FILE.read_text()), signal.SIGTERM)
    except (OSError, ValueError):
        os.kill(1, signal.SIGTERM)


class Line:
    """Hold one end of a two-way line: whole lines in and out, and when it was last heard.

    Writing never blocks: a process that is stopped at the other end must not stop this one.
    """

    def __init__(self, name: str, source: int, target: int, owner: object = None) -> None:
        self.name, self.source, self._target = name, source, target
        self._owner = owner  # keeps the descriptors open
        self.said = ""
        self.heard = time.monotonic()
        self.closed = False
        self._in, self._out = b"", b""
        os.set_blocking(target, False)

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
        *lines, self._in = (self._in + data).split(b"\n")
        return [line.decode("utf-8", errors="replace") for line in lines]

    def write(self, text: str) -> None:
        """Send one line, now or as soon as the other end takes it."""
        self._out += text.encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what waits; mark the line closed when nobody reads it any more."""
        while self._out and not self.closed:
            try:
                self._out = self._out[os.write(self._target, self._out) :]
            except BlockingIOError:
                return
            except OSError:
                self.closed = True

    @property
    def full(self) -> bool:
        """Return whether more waits for the other end than it should be sent."""
        return len(self._out) > FULL_BYTES

    def lost(self, seconds: float) -> str:
        """Return why the other end counts as gone; empty while it does not."""
        if self.closed:
            return self.said or "its end of the line was closed"
        if time.monotonic() - self.heard > seconds:
            return f"nothing was heard for {seconds:g} s"
        return ""


def connect(node: str, seconds: float, program: str) -> Line:
    """Start a login to a node, which waits until its sshd listens, and its agent there."""
    remote = f"exec env STACKYARD_CONTROL=1 python3 {program} keep {seconds:g}"
    child = subprocess.Popen(
        [sys.executable, __file__, "login", node, remote],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
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
    if sys.argv[1:2] == ["login"] and len(sys.argv) == 4:
        wait_listening(sys.argv[2])
        os.execvp("ssh", ["ssh", *sys.argv[2:]])
    else:
        raise SystemExit(__doc__)
