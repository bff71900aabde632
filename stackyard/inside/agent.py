"""Keep one node's lease in a run over several hosts, and pass on the output of its ranks.

Owns what a node does for the supervisor on node 1, over one line: it lists and kills processes,
passes on what ranks write and record (`watched.py` reads it), and ends the node when it hears
nothing for the lease's time. Nothing is ever killed by name.

    agent.py keep SECONDS     lines on standard input and output

Commands: `beat` renews the lease. `list N [JOB]` and `kill N [JOB]` are answered with the processes
found, of a job or of all. `term N JOB` sends SIGTERM to the job's ranks that catch it, and is
answered with these. `watch FOLDER` passes on what ranks of a job write there, until `finish
JOB`. `stacks N JOB` is answered with where its ranks are. `rest` gives up the lease without ending
the node, because it is about to be removed.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import sys
import threading
import time
from pathlib import Path

import line  # type: ignore[import-not-found]  # these lie beside this file
import stacks  # type: ignore[import-not-found]
import strays  # type: ignore[import-not-found]
from watched import Said, Watched  # type: ignore[import-not-found]

# Pause between two looks at the files of ranks.
READ_SECONDS = 0.2
JOINED = Path("/run/stackyard/joined")  # `node.py` looks for it


def launched(pid: int, parent: int) -> bool:
    """Return whether a live launcher holds this process as a rank.

    Processes that a rank starts inherit its environment. A rank that is ending has an empty one,
    and must not be taken for a launcher.
    """
    holder = _environment(parent) if parent > 1 else []
    return bool(holder) and not _ranked(holder) and _ranked(_environment(pid))


def _environment(pid: int) -> list[bytes]:
    """Return a process's environment; empty for a process that has ended or is a zombie."""
    try:
        return [entry for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if entry]
    except OSError:
        return []


def _ranked(environment: list[bytes]) -> bool:
    return any(entry.startswith(b"RANK=") for entry in environment)


class Keeper:
    """Notice ranks without a launcher, and processes that are stopped.

    Args:
        seconds: a process that is stopped (SIGSTOP) for longer counts as lost.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ranks: set[int] = set()
        self._suspects: set[int] = set()
        self._stopped: dict[int, float] = {}

    def look(self) -> list[Said]:
        """Return what has happened to the processes of trainings since the last look.

        `orphan`: PID 1 has inherited a rank, seen twice in a row (a rank that is just ending is no
        orphan). A rank is a process that a launcher was seen to hold, not a process that a rank
        started, though that inherits the rank's environment. `stopped`: a process does not run.
        """
        found = {int(str(process["pid"])): process for process in strays.strays()}
        parents = {pid: strays.parent(pid) for pid in found}
        self._ranks &= set(found)
        self._ranks |= {
            pid for pid, parent in parents.items()
            if pid not in self._ranks and launched(pid, parent)
        }  # fmt: skip
        orphans = {pid for pid in self._ranks if parents[pid] == 1}
        sure, self._suspects = orphans & self._suspects, orphans
        now = time.monotonic()
        self._stopped = {p: self._stopped.get(p, now) for p in found if strays.stopped(p)}
        late = [pid for pid, since in self._stopped.items() if now - since > self._seconds]
        return [
            *({"event": "orphan", **found[pid]} for pid in sorted(sure)),
            *({"event": "stopped", **found[pid]} for pid in late),
        ]


class Agent:
    """Keep this node's lease, and pass on what its ranks write and what becomes of them."""

    def __init__(self, seconds: float) -> None:
        self._line = line.Line("node1", 0, 1)
        self._keeper, self._seconds = Keeper(seconds), seconds
        self._jobs: dict[str, Watched] = {}
        self._examined: list[Said] = []
        self._resting = False

    def keep(self) -> None:
        """Keep the lease until it ends, then end the node, unless it is about to be removed."""
        JOINED.touch()
        due = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._line.source, selectors.EVENT_READ)
            while not self._resting:
                pause = READ_SECONDS if self._jobs else line.BEAT_SECONDS
                if selector.select(max(0.0, min(pause, due - time.monotonic()))):
                    for text in self._line.read():
                        self._take(text)
                self._line.flush()
                for job in self._jobs.values():
                    self._pass_on(job)
                while self._examined:
                    self._say(self._examined.pop(0))
                if time.monotonic() >= due or self._line.closed:
                    due = time.monotonic() + line.BEAT_SECONDS
                    if not self._tick():
                        break
        if not self._resting:
            line.end_node()

    def _take(self, text: str) -> None:
        command, _, rest = text.partition(" ")
        number, _, job = rest.partition(" ")
        if command == "watch":
            watched = Watched(Path(rest))
            self._jobs[watched.name] = watched
        elif command == "finish":
            if rest in self._jobs:
                self._pass_on(self._jobs.pop(rest), last=True)
            self._say({"finished": rest})
        elif command == "stacks":
            # Ranks take a moment to answer, in which this node must still be heard.
            threading.Thread(target=self._examine, args=(number, job), daemon=True).start()
        elif command == "rest":
            self._resting = True
        elif command in ("list", "kill"):
            # A node that kills for as long as its lease would count as lost.
            seconds = min(5.0, self._seconds / 2)
            found = strays.kill(seconds, job) if command == "kill" else strays.strays(job)
            self._say({"answer": number, "found": found})
        elif command == "term":
            there = self._jobs.get(job)
            self._say({"answer": number, "found": there.ask_to_end() if there else []})

    def _examine(self, number: str, job: str) -> None:
        """Collect where the ranks of a job are; the loop then says it."""
        found: list[Said] = []
        with contextlib.suppress(OSError, ValueError):
            if watched := self._jobs.get(job):
                found = stacks.collect(dict(watched.ranks), watched.folder)
        self._examined.append({"answer": number, "found": found})

    def _tick(self) -> bool:
        self._line.write("beat")
        for event in self._keeper.look():
            self._say(event)
        return not self._line.lost(self._seconds)

    def _pass_on(self, job: Watched, *, last: bool = False) -> None:
        if self._line.full and not last:
            return
        said = job.said(last=last)
        if said:
            self._say({"job": job.name, "said": said})
        for event in job.news():
            self._say({"job": job.name, **event})

    def _say(self, value: Said) -> None:
        self._line.write(json.dumps(value))


if __name__ == "__main__":
    if sys.argv[1:2] == ["keep"] and len(sys.argv) == 3:
        Agent(float(sys.argv[2])).keep()
    else:
        raise SystemExit(__doc__)
