"""List or kill the processes that a training left on a node.

Owns the rule, which goes by descent and not by name: the node's own processes are PID 1, the sshd
that listens, this process with its ancestors, and those with STACKYARD_CONTROL in their environment
(set by the controller). All others belong to a training.

    strays.py              print them as JSON
    strays.py --kill       SIGKILL them until none is left (for at most 5 s), print what was there
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

_PROC = Path("/proc")
PID_FILE = Path("/run/stackyard/sshd.pid")


def _own(listener: str) -> set[int]:
    own = {1}
    if listener:
        own.add(int(listener))
    pid = os.getpid()
    while pid > 0 and pid not in own:
        own.add(pid)
        pid = parent(pid)
    return own


def parent(pid: int) -> int:
    """Return the parent of a process; 0 when the process has ended."""
    try:
        # The command, in parentheses, may hold blanks: fields are counted after it.
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _state(pid: int) -> str:
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


def running(pid: int) -> bool:
    """Return whether a process exists and has not ended (a zombie has)."""
    try:
        return _state(pid) not in "ZX"
    except (OSError, IndexError):
        return False


def strays() -> list[dict[str, object]]:
    """Return PID and command line of every process that is not the node's own."""
    own = _own(PID_FILE.read_text() if PID_FILE.exists() else "")
    found: list[dict[str, object]] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            if _state(int(entry.name)) in "ZX":
                continue
            if b"STACKYARD_CONTROL=1" in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, IndexError):
            continue  # gone meanwhile
        found.append({"pid": int(entry.name), "command": command.strip()[:160]})
    return sorted(found, key=lambda process: str(process["pid"]))


def kill(seconds: float = 5.0) -> list[dict[str, object]]:
    """Kill every stray (SIGKILL) until no new ones appear; return those of the first look.

    Raises:
        SystemExit: this is no node of a mesh, so every process would count as a stray.
    """
    if not PID_FILE.exists():
        raise SystemExit("this is no node of a mesh: nothing is killed here")
    first = found = strays()
    end = time.monotonic() + seconds
    while found and time.monotonic() < end:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(str(process["pid"])), signal.SIGKILL)
        time.sleep(0.02)
        found = strays()
    return first


if __name__ == "__main__":
    print(json.dumps(kill() if sys.argv[1:] == ["--kill"] else strays()))
