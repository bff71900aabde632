"""Keep one node's lease in a run over several hosts, and pass on the output of its ranks.

Owns what a node does for the supervisor on node 1, over one line: it lists and kills processes, passes on what ranks write and record, and ends the
node when it hears nothing for the lease's time. Nothing is ever killed by name.

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
import os
import re
import selectors
import signal
import sys
import threading
import time
from pathlib import Path

import line  # type: ignore[import-not-found]  # these lie beside this file
import stacks  # type: ignore[import-not-found]
import strays  # type: ignore[import-not-found]

# Limit of one beat. A rank that writes faster is read later; its file is the buffer.
CHUNK_BYTES = 32 * 1024
# Limit of the unread output that is passed on when a job is over; the file keeps all of it.
LAST_BYTES = 256 * 1024
LINE_BYTES = 4000
BAR_SECONDS = 0.4
# Pause between two looks at the files of ranks.
READ_SECONDS = 0.2
JOINED = Path("/run/stackyard/joined")  # `node.py` looks for it
_BREAK = re.compile(rb"\r\n|[\r\n]")
Said = dict[str, object]


class Words:
    """Read what one rank has written since the last read.

    A line that ends in a carriage return is a progress bar's, and the next one replaces it: only
    the latest of them is passed on.
    """

    def __init__(self, path: Path) -> None:
        self.rank = int(path.stem[4:])
        self._path, self._offset, self._rest = path, 0, b""
        self._bar, self._barred = b"", 0.0

    def read(self, limit: int) -> list[Said]:
        """Return the new lines, from at most `limit` bytes."""
        return [*self._lines(self._take(limit)), *self._latest()]

    def finish(self) -> list[Said]:
        """Return the last lines, whether or not a line break ends them."""
        found = []
        with contextlib.suppress(OSError):
            more = self._path.stat().st_size - self._offset - LAST_BYTES
            if more > 0:
                found.append(self._said(f"[{more} bytes are only in {self._path}]".encode()))
                self._offset, self._rest = self._offset + more, b""
        while data := self._take(CHUNK_BYTES):
            found += self._lines(data)
        text, self._rest = self._rest.strip(b"\r"), b""
        return [*found, *(self._said(piece) for piece in _pieces(text) if piece.strip())]

    def _take(self, limit: int) -> bytes:
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(limit)
            self._offset += len(data)
            return data
        return b""

    def _lines(self, data: bytes) -> list[Said]:
        found, self._rest = [], self._rest + data
        while match := _BREAK.search(self._rest):
            if match[0] == b"\r" and match.end() == len(self._rest):
                break  # may be the first half of a CRLF
            text, self._rest = self._rest[: match.start()], self._rest[match.end() :]
            if match[0] == b"\r":
                self._bar = text or self._bar
            else:
                # A bar's last state ends with a plain line break and is kept as a line.
                self._bar = b""
                found += [self._said(piece) for piece in _pieces(text)]
        *whole, self._rest = _pieces(self._rest)
        found += [self._said(piece) for piece in whole]
        return [entry for entry in found if entry["text"]]

    def _latest(self) -> list[Said]:
        # tqdm writes the carriage return first and no break after it: the rest holds the bar.
        text = self._rest.rstrip(b"\r")
        if text and (self._bar or text != self._rest):
            self._bar = text
        if not self._bar.strip() or time.monotonic() - self._barred < BAR_SECONDS:
            return []
        text, self._bar, self._barred = self._bar, b"", time.monotonic()
        return [self._said(text) | {"bar": True}]

    def _said(self, text: bytes) -> Said:
        shown = text[:LINE_BYTES].decode("utf-8", errors="replace").rstrip()
        return {"rank": self.rank, "text": shown}


def _pieces(text: bytes) -> list[bytes]:
    """Split a long text into pieces of at most LINE_BYTES, never inside a UTF-8 character."""
    found = []
    while len(text) > LINE_BYTES:
        end = LINE_BYTES
        while text[end] & 0xC0 == 0x80 and end > LINE_BYTES - 4:
            end -= 1
        found.append(text[:end])
        text = text[end:]
    return [*found, text]


class Records:
    """Read the whole lines that one rank has added to its record since the last read."""

    def __init__(self, path: Path) -> None:
        self.rank = int(path.stem[4:])
        self._path, self._offset = path, 0

    def read(self) -> list[Said]:
        """Return the new lines, each as text."""
        found: list[Said] = []
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                text = line.decode("utf-8", errors="replace").rstrip("\n")
                found.append({"rank": self.rank, "record": text})
        return found


class Watched:
    """Follow the ranks of one job on this node by the files that they write.

    Args:
        folder: holds the files of ranks (`rankN.*`); the folder above has the job's name.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.parent.name
        self.folder = folder
        self._words: dict[Path, Words] = {}
        self._records: dict[Path, Records] = {}
        self.ranks: dict[int, int] = {}
        self._gone: set[int] = set()
        self._fused: dict[int, str] = {}
        self._there: dict[str, list[Path]] = {}

    def said(self, *, last: bool = False) -> list[Said]:
        """Return what ranks wrote and recorded since the last call."""
        found: list[Said] = []
        self._look()
        paths = self._files(".log")
        for path in paths:
            words = self._words.setdefault(path, Words(path))
            found += words.finish() if last else words.read(CHUNK_BYTES // len(paths))
        for path in self._files(".jsonl"):
            found += self._records.setdefault(path, Records(path)).read()
        return found

    def _look(self) -> None:
        """List the folder once for all kinds of files."""
        self._there = {}
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self.folder)):
                stem, dot, ending = name.partition(".")
                if stem.startswith("rank") and stem[4:].isdigit():
                    self._there.setdefault(dot + ending, []).append(self.folder / name)

    def _files(self, ending: str) -> list[Path]:
        return self._there.get(ending, [])

    def news(self) -> list[Said]:
        """Return the ranks that have started, their fused parts, and the ranks that have ended.

        Ends of ranks are taken from the files that ranks write: a rank that fails at once may never
        have been seen among the processes.
        """
        self._look()
        return [*self._started(), *self._fused_now(), *self._ended()]

    def ask_to_end(self) -> list[Said]:
        """Send SIGTERM to the ranks that catch it; return these.

        It would only kill the others, without a word of why.
        """
        found: list[Said] = []
        for pid, rank in self.ranks.items():
            if pid not in self._gone and strays.catches(pid, signal.SIGTERM):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                    found.append({"pid": pid, "rank": rank})
        return found

    def _started(self) -> list[Said]:
        found: list[Said] = []
        for path in self._files(".json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                read = json.loads(path.read_text())
                pid, rank = int(read["pid"]), int(read["rank"])
                if pid not in self.ranks:
                    self.ranks[pid] = rank
                    self._fused.pop(rank, None)
                    found.append({"event": "rank", "pid": pid, "rank": rank})
        return found

    def _fused_now(self) -> list[Said]:
        found: list[Said] = []
        for rank in self.ranks.values():
            with contextlib.suppress(OSError, ValueError):
                text = (self.folder / f"rank{rank}.fused").read_text()
                if text != self._fused.get(rank):
                    parts = json.loads(text)
                    self._fused[rank] = text
                    found.append({"event": "fused", "rank": rank, "parts": parts})
        return found

    def _ended(self) -> list[Said]:
        found: list[Said] = []
        for pid, rank in self.ranks.items():
            if pid in self._gone or strays.running(pid):
                continue
            self._gone.add(pid)
            try:
                end = (self.folder / f"rank{rank}.end").read_text()
            except OSError:
                end = ""
            found.append({"event": "gone", "pid": pid, "rank": rank, "end": end})
        return found


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
            # Whoever kills for as long as its lease would count as lost.
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
