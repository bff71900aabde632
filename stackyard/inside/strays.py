"""List or kill the processes that trainings left on a node.

Owns two rules, which go by descent and not by name. The node's own processes are PID 1, the sshd
that listens, this process with its ancestors, and those with STACKYARD_CONTROL in their environment
(set by the controller). All others belong to a training: to the one that STACKYARD_JOB in their
environment names, or else to that of the nearest process above or below them (the shells of a login
below which ranks run, helpers that a rank starts with an environment of their own). Processes of
another user hide their environment: their job is known by descent alone. Those that sshd runs as
another user until a login is complete are left to it.

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
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")
PID_FILE = Path("/run/stackyard/sshd.pid")
JOB = b"STACKYARD_JOB="


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


def strays(job: str = "") -> list[dict[str, object]]:
    """Return PID, command line and job of every process that is not the node's own.

    Args:
        job: only the processes of this job; empty: all, also those of no job.
    """
    listener = PID_FILE.read_text().strip() if PID_FILE.exists() else ""
    own = _own(listener)
    found: dict[int, dict[str, object]] = {}
    hidden: set[int] = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            if _state(int(entry.name)) in "ZX":
                continue
            try:
                environment = _environment(entry)
            except PermissionError:
                environment = []
                hidden.add(int(entry.name))
            if b"STACKYARD_CONTROL=1" in environment:
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, IndexError):
            continue  # gone meanwhile
        pid = int(entry.name)
        found[pid] = {"pid": pid, "command": command.strip()[:160], "job": _named(environment)}
    for pid, name in _jobs(found).items():
        found[pid]["job"] = name
    for pid in hidden & set(found):
        if not found[pid]["job"] and str(parent(parent(pid))) == listener:
            del found[pid]  # below a connection that sshd took, in no job: it serves a login
    wanted = [process for process in found.values() if not job or process["job"] == job]
    return sorted(wanted, key=lambda process: str(process["pid"]))


def _environment(entry: Path) -> list[bytes]:
    """Return a process's environment; a program just being executed gets 20 ms to have one."""
    held = (entry / "environ").read_bytes()
    if not held:
        time.sleep(0.02)
        held = (entry / "environ").read_bytes()
    return held.split(b"\0")


def _named(environment: list[bytes]) -> str:
    """Return the job that an environment names; empty if it names none."""
    named = [entry[len(JOB) :] for entry in environment if entry.startswith(JOB)]
    return named[0].decode(errors="replace") if named else ""


def _jobs(found: Mapping[int, Mapping[str, object]]) -> dict[int, str]:
    """Return the job of each process; empty for those of no job."""
    parents = {pid: parent(pid) for pid in found}
    jobs = {pid: str(process["job"]) for pid, process in found.items()}
    for pid in [pid for pid, job in jobs.items() if job]:
        above = parents[pid]
        while above in jobs and not jobs[above]:
            jobs[above] = jobs[pid]
            above = parents[above]
    for pid in [pid for pid, job in jobs.items() if not job]:
        above = parents[pid]
        while above in jobs and not jobs[above]:
            above = parents[above]
        jobs[pid] = jobs.get(above, "")
    return jobs


def stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP) or held by a debugger."""
    try:
        return _state(pid) in "Tt"
    except (OSError, IndexError):
        return False


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler of its own for a signal."""
    try:
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass  # it has ended
    return False


def kill(seconds: float = 5.0, job: str = "") -> list[dict[str, object]]:
    """Kill every stray of a job (SIGKILL) until no new ones appear; return the first look's.

    Raises:
        SystemExit: this is no node of a mesh, so every process would count as a stray.
    """
    if not PID_FILE.exists():
        raise SystemExit("this is no node of a mesh: nothing is killed here")
    first = found = strays(job)
    end = time.monotonic() + seconds
    while found and time.monotonic() < end:
        for process in found:
            # Without the capability to kill those of other users, the answer names them as left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(str(process["pid"])), signal.SIGKILL)
        time.sleep(0.02)
        found = strays(job)
    return first


if __name__ == "__main__":
    print(json.dumps(kill() if sys.argv[1:] == ["--kill"] else strays()))
