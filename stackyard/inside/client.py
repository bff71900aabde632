"""Connect a controller and its supervisor by a socket: both ends of it.

Owns the lines on the socket; `supervisor.py` owns what requests mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import job  # type: ignore[import-not-found]  # it lies beside this file

SOCKET = Path("/run/stackyard/supervisor.sock")
CHUNK_BYTES = 256 * 1024
CONNECT_SECONDS = 30.0
Value = dict[str, object]


class Client:
    """Hold the connection of one controller.

    Attributes:
        attached: its beats renew the leases of all jobs, and the owner's lease of the mesh.
        following: the jobs whose logs it receives, each with the position of the next line.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.closed = False
        self.attached = False
        self.following: dict[job.Job, int] = {}
        self._in, self._out = b"", b""

    def read(self) -> list[Value]:
        """Return the complete requests that have arrived."""
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
        """Send an event, now or as soon as the other end takes it."""
        # What programs wrote may hold half a character, which has no bytes.
        self._out += json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what is waiting, as far as the socket takes it."""
        while self._out:
            try:
                sent = self.connection.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            self._out = self._out[sent:]

    def serve(self) -> None:
        """Send a follower the new lines of its logs, and a job's end after the last of them."""
        self.flush()
        for followed in list(self.following):
            while followed in self.following and not self.full and not self.closed:
                at = self.following[followed]
                found, at_end = job.entries(followed.log, at)
                if at_end != at:
                    self.following[followed] = at_end
                    self.say(event="log", job=followed.name, lines=found, next=at_end)
                elif followed.state == "ended":
                    del self.following[followed]
                    self.say(event="ended", job=followed.value())
                else:
                    break

    @property
    def full(self) -> bool:
        """Return whether the other end is behind by more than a chunk."""
        return len(self._out) > CHUNK_BYTES


def listen() -> socket.socket:
    """Open the supervisor's socket, for the node's own user only."""
    with contextlib.suppress(FileNotFoundError):
        SOCKET.unlink()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    server.bind(str(SOCKET))
    os.umask(previous)
    server.listen(64)
    server.setblocking(False)
    return server


def talk() -> None:
    """Copy lines between standard input, output and the supervisor's socket until one ends."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end = time.monotonic() + CONNECT_SECONDS
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


def _copied(source: int, targets: dict[int, int]) -> Iterator[bool]:
    while True:
        data = os.read(source, 65536)
        if not data:
            return
        view = memoryview(data)
        while view:
            view = view[os.write(targets[source], view) :]
        yield True
