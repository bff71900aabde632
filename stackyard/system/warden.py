"""The process that outlives a command and undoes what the command could not.

Owns only that: it reads from its standard input what there is to undo, and when the input ends
with something left on the list it kills the process groups, removes the runs and the paths. It
must not decide anything: a command that ends in order has emptied the list before.

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
    """What is left on the list at the end of the input: (kind, value), oldest first."""
    left: dict[tuple[str, str], None] = {}
    for line in lines:
        try:
            sign, kind, value = json.loads(line)
        except ValueError:
            continue  # cut off by the death that ended the input
        if sign == "+":
            left[kind, value] = None
        else:
            left.pop((kind, value), None)
    return list(left)


def end_group(value: str) -> None:
    """SIGKILL a process group, if its leader is still the process that was meant."""
    pid, _, started = value.partition(" ")
    if cleanup.started_at(int(pid)) == started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(pid), signal.SIGKILL)


def remove_run(run: str) -> None:
    """Remove a run, and again what a request under way at the death still makes."""
    from stackyard.system.engine import RUN_LABEL, Engine
    from stackyard.system.errors import EngineError

    label, clean, end = f"{RUN_LABEL}={run}", 0, time.monotonic() + SECONDS
    with Engine() as engine:
        while clean < 3 and time.monotonic() < end:
            with contextlib.suppress(EngineError):
                clean = 0 if engine.remove_run(label) else clean + 1
            time.sleep(0.2)


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
    """Undo everything; processes first, for they may still be making the rest."""
    todo = sorted(
        left, key=lambda entry: (cleanup.GROUP, cleanup.RUN, cleanup.PATH).index(entry[0])
    )
    for kind, value in todo:
        # One that fails must not keep the others from being undone.
        with contextlib.suppress(Exception):
            if kind == cleanup.GROUP:
                end_group(value)
            elif kind == cleanup.RUN:
                remove_run(value)
            else:
                remove_path(Path(value))


def main() -> None:
    """Wait for the end of the input; signals meant for the command are not meant for us."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    undo(read(sys.stdin.buffer))


if __name__ == "__main__":
    main()
