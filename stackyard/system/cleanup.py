"""What must be undone if this process dies without a word, told to a warden that outlives it.

Owns the telling: `undoing` around everything that would be left behind (a run's containers, a
temporary folder, a process group). The warden is started with the first of them; it learns of our
death by the end of its pipe, however that came, SIGKILL included. It must not do the undoing
itself: in the ordinary case that is done by whoever made the thing, else by `system.warden`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

RUN, PATH, GROUP = "run", "path", "group"


class Pipe(Protocol):
    """The way to a warden."""

    def send(self, line: bytes) -> None:
        """Send one line."""

    def finish(self) -> None:
        """Close the way and wait for the warden to end."""


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
            # Without its warden a process still undoes what it made, unless it is killed.
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
    """Guard what is made inside; `start` starts a warden, once the first thing is made."""
    _GUARD.start = start
    try:
        yield
    finally:
        _GUARD.finish()


def promise(kind: str, value: str) -> None:
    """Say that `value` is to be undone, before it is made."""
    _GUARD.tell("+", kind, value)


def kept(kind: str, value: str) -> None:
    """Say that `value` has been undone."""
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
    """A temporary folder of this process's own, removed at the end, however that comes."""
    import tempfile  # only commands that do something pay for it

    with (
        tempfile.TemporaryDirectory(prefix=f"stackyard-{purpose}-") as name,
        undoing(PATH, name),
    ):
        yield Path(name)


def started_at(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is none.

    Together with its number this names a process for good: numbers are used again.
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
    """This process, named so that a later one can tell whether it still lives."""
    return f"{_place()} {os.getpid()} {started_at(os.getpid())}"


def owner_is_gone(text: str) -> bool:
    """Whether the process that `owner` named has ended; False for one of another machine."""
    place, _, process = text.partition(" ")
    pid, _, started = process.partition(" ")
    if not place or place != _place() or not pid.isdecimal():
        return False
    return started_at(int(pid)) != started
