"""Outlive a command, and undo what the command could not undo itself.

Owns only that: it reads from its standard input what must be undone, and when the input ends with
something left on the list, it kills the process groups and removes runs, images and paths. It must
not decide anything: a command that ends in order has emptied the list before.

    python -m stackyard.system.warden
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from stackyard.system import cleanup

SECONDS = 60.0


def read(lines: Iterable[bytes]) -> list[tuple[str, str]]:
    """Return what is left on the list at the end of the input: (kind, value), oldest first."""
    left: dict[tuple[str, str], None] = {}
    for line in lines:
        try:
            sign, kind, value = json.loads(line)
        except ValueError:
            continue  # the command died while it wrote this line
        if sign == "+":
            left[kind, value] = None
        else:
            left.pop((kind, value), None)
    return list(left)


def end_group(value: str) -> None:
    """Send SIGKILL to a process group, unless its PID belongs to another process by now."""
    pid, _, started = value.partition(" ")
    if cleanup.started_at(int(pid)) == started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(pid), signal.SIGKILL)


def remove_run(run: str) -> None:
    """Remove a run; repeat it, as requests from before the death may still create parts."""
    from stackyard.system.engine import RUN_LABEL, Engine
    from stackyard.system.errors import EngineError

    label, clean, end = f"{RUN_LABEL}={run}", 0, time.monotonic() + SECONDS
    with Engine() as engine:
        while clean < 3 and time.monotonic() < end:
            with contextlib.suppress(EngineError):
                clean = 0 if engine.remove_run(label) else clean + 1
            time.sleep(0.2)


def remove_image(name: str) -> None:
    """Remove an image's name, which its build may have given it a moment ago."""
    from stackyard.system.engine import Engine

    with Engine() as engine:
        engine.remove_image(name)


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with everything in it that is on its own file system."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    device = path.stat().st_dev
    for entry in path.iterdir():
        with contextlib.suppress(OSError):
            if entry.is_symlink() or entry.lstat().st_dev == device:
                remove_path(entry)
    path.rmdir()


def undo(left: Iterable[tuple[str, str]]) -> None:
    """Undo everything; processes first, as they may still add to the rest."""
    order = (cleanup.GROUP, cleanup.RUN, cleanup.IMAGE, cleanup.PATH)
    todo = sorted(left, key=lambda entry: order.index(entry[0]))
    for kind, value in todo:
        # One failure must not prevent the others.
        with contextlib.suppress(Exception):
            if kind == cleanup.GROUP:
                end_group(value)
            elif kind == cleanup.RUN:
                remove_run(value)
            elif kind == cleanup.IMAGE:
                remove_image(value)
            else:
                remove_path(Path(value))


def main() -> None:
    """Wait for the end of the input, and ignore signals, which are meant for the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    undo(read(sys.stdin.buffer))


if __name__ == "__main__":
    main()
