"""Report to a warden process what must be undone if this process dies.

Owns the reports: `undoing` around everything that would be left behind (a run's containers, a
temporary folder, a process group, an image). The first of them starts the warden, which sees this
process end by the end of its pipe, also after SIGKILL. It must not undo anything itself: the code
that made a thing does, else `system.warden`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

RUN, PATH, GROUP, IMAGE = "run", "path", "group", "image"


class Pipe(Protocol):
    """Send lines to a warden."""

    def send(self, line: bytes) -> None:
        """Send one line."""

    def finish(self) -> None:
        """Close the pipe and wait for the warden to end."""


class _Guard:
    def __init__(self) -> None:
        self.start: Callable[[], Pipe] | None = None
        self._pipe: Pipe | None = None
        self._lock = threading.Lock()

    def tell(self, sign: str, kind: str, value: str) -> None:
        with self._lock:
            if self.start is None:
                return
            if self._pipe is None:
                self._pipe = self.start()
            # Without a warden this process still undoes what it made, unless it is killed.
            with contextlib.suppress(OSError):
                self._pipe.send(json.dumps([sign, kind, value]).encode() + b"\n")

    def finish(self) -> None:
        with self._lock:
            pipe, self._pipe, self.start = self._pipe, None, None
            if pipe is not None:
                pipe.finish()


_GUARD = _Guard()


@contextlib.contextmanager
def guarded(start: Callable[[], Pipe]) -> Iterator[None]:
    """Guard what the block makes; `start` starts a warden before the first thing is made."""
    _GUARD.start = start
    try:
        yield
    finally:
        _GUARD.finish()


def promise(kind: str, value: str) -> None:
    """Report, before `value` is made, that the warden must undo it."""
    _GUARD.tell("+", kind, value)


def kept(kind: str, value: str) -> None:
    """Report that `value` has been undone."""
    _GUARD.tell("-", kind, value)


@contextlib.contextmanager
def undoing(kind: str, value: str) -> Iterator[None]:
    """Have `value` undone if this process dies inside the block."""
    promise(kind, value)
    try:
        yield
    finally:
        kept(kind, value)


@contextlib.contextmanager
def folder(purpose: str) -> Iterator[Path]:
    """Make a temporary folder, and remove it at the end, even if this process is killed."""
    import tempfile  # here, so that other commands start faster

    with (
        tempfile.TemporaryDirectory(prefix=f"stackyard-{purpose}-") as name,
        undoing(PATH, name),
    ):
        yield Path(name)


def started_at(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty if there is no such process.

    With the PID this identifies a process, as PIDs are used again.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def owner() -> str:
    """Return an identifier of this process for `owner_is_gone`: boot, PID namespace, PID, start."""
    return f"{_place()} {os.getpid()} {started_at(os.getpid())}"


def owner_is_gone(text: str) -> bool:
    """Return whether the process that `owner` named has ended; False for another machine's."""
    place, _, process = text.partition(" ")
    pid, _, started = process.partition(" ")
    if not place or place != _place() or not pid.isdecimal():
        return False
    return started_at(int(pid)) != started
