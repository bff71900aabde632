"""Keep the record and the log of one training in a mesh, from its start to its end.

Owns the record and the log's form: one JSON line for each line that a rank or a launcher wrote. It
starts and ends nothing (`supervisor.py` does).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

JOBS = Path("/var/lib/stackyard/jobs")
CHUNK_BYTES = 64 * 1024
KILLED = "killed"
TOGETHER_SECONDS = 2.0
# Messages that ranks log after another rank is gone.
_PEER = re.compile(
    r"by peer|broken pipe|connection (was )?(closed|reset|refused)|remote process|socket|timed? ?out"
    r"|NCCL|DistNetworkError",
    re.IGNORECASE,
)
Value = dict[str, object]


class Job:
    """Hold the state of one training.

    Attributes:
        lease: seconds that it goes on while no attached controller is heard; 0: without limit.
        heard: when an attached controller was last heard.
        state: `running`, `ending` (its processes), `closing` (its output) or `ended`.
        ranks: by number: node, PID, and how the rank ended (None while it runs).
        dead: when each rank that failed was seen to have ended.
        swept: node and PID of each process that was killed because the job was over.
        left: processes that the launcher left behind, by node.
        changed: when the state last changed.

    Raises:
        KeyError, TypeError, ValueError: the request is incomplete or malformed.
    """

    def __init__(self, value: Value) -> None:
        self.name = str(value["name"])
        self.steps: list[Value] = list(value["steps"])  # type: ignore[call-overload]
        self.env: dict[str, str] = dict(value["env"])  # type: ignore[call-overload]
        self.folder = str(value["folder"])
        self.shown: Value = dict(value.get("shown") or {})  # type: ignore[call-overload]
        self.lease = float(str(value.get("lease") or 0))
        if not self.steps or not all({"what", "argv"} <= set(step) for step in self.steps):
            raise ValueError("a job has steps, each with `what` and `argv`")
        self.started = time.time()
        self.heard = self.changed = time.monotonic()
        self.ended = 0.0
        self.state, self.step, self.reason = "running", "", ""
        self.code: int | None = None
        self.ranks: dict[int, Value] = {}
        self.dead: dict[int, float] = {}
        self.swept: set[tuple[str, object]] = set()
        self.left: dict[str, list[object]] = {}
        self.killed = False
        self.path = JOBS / self.name
        self.log = self.path / "log.jsonl"

    def open(self) -> None:
        """Create the job's folder and an empty log."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log.write_text("")

    def turn(self, state: str) -> None:
        """Change the job's state."""
        self.state, self.changed = state, time.monotonic()

    def note(self, entry: Value) -> None:
        """Append a line to the log."""
        with self.log.open("ab") as file:
            file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")

    def value(self) -> Value:
        """Return the job's record as JSON values."""
        return {
            "name": self.name, "state": self.state, "step": self.step, "code": self.code,
            "reason": self.reason, "started": self.started, "ended": self.ended,
            "lease": self.lease, "ranks": self.ranks, "left": self.left, "shown": self.shown,
        }  # fmt: skip

    def gone(self, rank: int, node: str, pid: object, end: str) -> None:
        """Record that a rank ended: by `ok`, by an exception, or (empty) by a signal."""
        found = self.ranks.get(rank)
        if found is None or found["pid"] != pid:
            return  # its launcher has already restarted it
        found["end"] = end or KILLED
        if end != "ok" and (end or (node, pid) not in self.swept):
            self.dead[rank] = time.monotonic()

    def death(self, ranks: Iterable[int]) -> str:
        """Describe how the first of these ranks to die ended.

        Ranks that die at nearly the same time are seen in any order. A rank's own exception
        therefore comes before a signal (which a launcher sends to the others), and the loss of a
        peer comes last.
        """
        first = min(self.dead[rank] for rank in ranks)
        together = [rank for rank in ranks if self.dead[rank] - first <= TOGETHER_SECONDS]

        def order(rank: int) -> tuple[int, float]:
            end = str(self.ranks[rank]["end"])
            return (2 if _PEER.search(end) else 1 if end == KILLED else 0), self.dead[rank]

        rank = min(together, key=order)
        return f"rank {rank} ({self.ranks[rank]['node']}) ended: {self.ranks[rank]['end']}"


def entries(path: Path, start: int) -> tuple[list[object], int]:
    """Return whole lines of a log from `start` on, at most a chunk, and where the next ones begin.

    A `start` in the middle of a line skips the rest of that line.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, start))
            data = file.read(CHUNK_BYTES)
    except OSError:
        return [], start
    whole = data[: data.rfind(b"\n") + 1]
    found = []
    for line in whole.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found, max(0, start) + len(whole)


def write_files(files: Mapping[str, str]) -> None:
    """Write files that a launcher reads, readable by their owner only."""
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(target, "w", encoding="utf-8") as file:
            file.write(text)
