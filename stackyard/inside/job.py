"""Keep the record and the log of one training in a mesh, from its start to its end.

Owns the record and the log's form: one JSON line for each line that a rank or a launcher wrote. It
starts and ends nothing (`supervisor.py` does).

Over 300 lines: one class, whose fields are what every rule about a job reads.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from step import StepProcess  # type: ignore[import-not-found]  # it lies beside this file

JOBS = Path("/var/lib/stackyard/jobs")
CHUNK_BYTES = 64 * 1024
KILLED = "killed"
TOGETHER_SECONDS = 2.0
# A rank that is killed ends the training after this, unless its launcher does before.
DEATH_SECONDS = 3.0
# A launcher that may start its ranks again has this long to do so.
RESTART_SECONDS = 30.0
# A launcher may take this long to notice that its ranks have ended (torchrun's exit barrier).
LAUNCHER_SECONDS = 25.0
# A hang is examined after so many times the longest of the last updates, and some seconds more.
HANG_TIMES, HANG_SECONDS = 5.0, 30.0
# Before a training's pace is known, it is examined when no rank was heard for so long.
UNHEARD_SECONDS = 300.0
# Launchers whose processes are no ranks.
RANKLESS = ("alone", "each")
# Of a program that records nothing, lines are its updates: after so many its pace is known.
MARKS = 10
# The rate is that of so many last marks, a second or more apart: records come in bursts.
RATE_MARKS, RATE_SECONDS = 60, 1.0
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
        placed: the node of each rank, by rank number.
        join_seconds: all ranks have recorded their start after this; 0: without limit.
        silent_seconds: some rank records something after this; 0: without limit.
        grace_seconds: processes that its launcher leaves may take this long to end by themselves.
        spoke: when a rank last recorded something.
        spoken: whether any rank wrote a line.
        updates: the last update that each rank recorded.
        loss: that of its last update; None where none is recorded.
        moved: when it last got on: by an update, or by a line where nothing is recorded.
        pace: seconds from one of these to the next, of the last ones.
        hang_seconds: silence beyond its own pace after which its ranks are asked where they are;
            where the pace is not known yet, `UNHEARD_SECONDS` of silence.
        hang: who waits where, since it does not get on; empty while it does.
        examined: when its ranks were asked; 0 while it gets on.
        ending: why it ends when they have answered; empty where it goes on.
        done: ranks that have recorded their end.
        state: `running`, `ending` (its processes), `closing` (its output) or `ended`.
        ranks: by number: node, PID, and how the rank ended (None while it runs).
        dead: when each rank that failed was seen to have ended.
        swept: node and PID of each process that was killed because the job was over.
        left: processes that the launcher left behind, by node.
        made: files that its ranks make and nobody keeps, until they are removed.
        changed: when the state last changed.
        stopped: a controller asked for its end.
        deadline: when ranks that were asked to end are killed; 0: they were not asked.

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
        self.heard = self.changed = self.spoke = time.monotonic()
        self.state, self.step, self.reason = "running", "", ""
        self.code: int | None = None
        self.ranks: dict[int, Value] = {}
        self.dead: dict[int, float] = {}
        self.swept: set[tuple[str, object]] = set()
        self.left: dict[str, list[object]] = {}
        self.made: list[Path] = []
        self.killed = self.stopped = self.spoken = False
        self.ended = self.asked = self.deadline = 0.0
        self.launcher: StepProcess | None = None
        self.checks, self.checking = 0, False
        self.closing: set[str] = set()
        self.placed: list[str] = list(value.get("placed") or ())  # type: ignore[call-overload]
        self.join_seconds = float(str(value.get("join_seconds") or 0))
        self.silent_seconds = float(str(value.get("silent_seconds") or 0))
        self.grace_seconds = float(str(value.get("grace_seconds") or 0))
        self.death_seconds = RESTART_SECONDS if value.get("restarts") else DEATH_SECONDS
        self.updates: dict[int, int] = {}
        self.loss: float | None = None
        self._passed: deque[tuple[float, int]] = deque(maxlen=RATE_MARKS)
        self.moved = self._marked = self.heard
        self.pace: deque[float] = deque(maxlen=20)
        self.hang_seconds = float(str(value.get("hang_seconds") or HANG_SECONDS))
        self.hang, self.ending, self.examined = "", "", 0.0
        self.done: set[int] = set()
        self.path = JOBS / self.name
        self.log = self.path / "log.jsonl"

    def open(self) -> None:
        """Create the job's folder and an empty log."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log.write_text("")

    def turn(self, state: str) -> None:
        """Change the job's state."""
        self.state = state
        self.changed = self.spoke = self.moved = time.monotonic()

    def note(self, entry: Value) -> None:
        """Append a line to the log."""
        with self.log.open("ab") as file:
            file.write(json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n")

    def value(self) -> Value:
        """Return the job's record as JSON values."""
        return {
            "name": self.name, "state": self.state, "step": self.step, "code": self.code,
            "reason": self.reason, "started": self.started, "ended": self.ended,
            "lease": self.lease, "ranks": self.ranks, "left": self.left, "shown": self.shown,
            "stopped": self.stopped, "update": max(self.updates.values(), default=None),
            "hang": self.hang, "loss": _number(self.loss), "updates_per_second": self.rate,
        }  # fmt: skip

    @property
    def unstarted(self) -> str:
        """Say how many ranks have started Python, where some have not; empty where all have."""
        wanted, started = int(str(self.shown.get("ranks") or 0)), len(self.ranks)
        if started >= wanted or self.shown.get("launcher") in RANKLESS:
            return ""
        return f"{started} of {wanted} ranks have started Python"

    @property
    def rate(self) -> float | None:
        """Return the updates a second, of about the last minute; None until it is known."""
        if len(self._passed) < 2:
            return None
        (since, first), (until, last) = self._passed[0], self._passed[-1]
        return (last - first) / (until - since)

    def ask_to_end(self, reason: str, seconds: float) -> None:
        """Note that its ranks were asked to end, and when they are killed."""
        self.reason = self.reason or reason
        self.asked = time.monotonic()
        self.deadline = self.asked + seconds

    def add_reason(self, text: str) -> None:
        """Add to why it ended."""
        self.reason = "; ".join(filter(None, [self.reason, text]))

    def gone(self, rank: int, node: str, pid: object, end: str) -> None:
        """Record that a rank ended: by `ok`, by an exception, or (empty) by a signal."""
        found = self.ranks.get(rank)
        if found is None or found["pid"] != pid:
            return  # its launcher has already restarted it
        found["end"] = end or KILLED
        if end != "ok" and (end or (node, pid) not in self.swept):
            self.dead[rank] = time.monotonic()

    def recorded(self, rank: int, line: str) -> None:
        """Take a line of a rank's record: where the rank is, and that it lives."""
        try:
            event = json.loads(line)
            kind = event["event"]
            if kind in ("step", "window"):
                step, front = int(event["step"]), max(self.updates.values(), default=0)
                self.updates[rank] = step
                if step > front:
                    self._mark(first=not front)
                    self._pass(step, event.get("loss"))
        except (ValueError, KeyError, TypeError):
            return
        self.spoke = time.monotonic()
        self.move()
        self.updates.setdefault(rank, 0)
        if kind == "end":
            self.done.add(rank)

    def worded(self) -> None:
        """Take lines of ranks that came together for an update, where nothing is recorded."""
        self.spoken = True
        if not self.updates:
            self._mark()
            self.move()

    def commanded(self) -> None:
        """Take a line of its command, where no rank has started.

        A command of a plain launch may never start Python. Any other launcher's own words say
        nothing of its ranks.
        """
        self.spoken = self.spoken or self.shown.get("launcher") == "plain"
        self.move()

    def _mark(self, *, first: bool = False) -> None:
        now = time.monotonic()
        if not first:
            self.pace.append(now - self._marked)
        self._marked = now

    def _pass(self, step: int, loss: object) -> None:
        """Note when an update was passed, and its loss."""
        now = time.monotonic()
        if not self._passed or now - self._passed[-1][0] >= RATE_SECONDS:
            self._passed.append((now, step))
        self.loss = None if loss is None else float(str(loss))

    def move(self) -> None:
        """Note that it gets on."""
        self.moved = time.monotonic()
        self.hang, self.examined = "", 0.0

    def hangs(self, now: float) -> bool:
        """Return whether it does not get on for far longer than its own pace, and was not asked."""
        over = self.placed and len(self.done) >= len(self.placed)
        if self.examined or over:
            return False
        if self.ranks and len(self.pace) >= (1 if self.updates else MARKS):
            return now - self.moved > HANG_TIMES * max(self.pace) + self.hang_seconds
        # Steps before the last prepare data, and need not say anything. Nor need a program that
        # records nothing and has said something, where all of its ranks have started, or none
        # (it is not Python's).
        some = bool(self.ranks) and bool(self.unstarted)
        silent = not self.spoken and bool(self.ranks or self.unstarted)
        asked = bool(self.updates) or some or silent
        return not self.steps and asked and now - self.moved > UNHEARD_SECONDS

    def silence(self, now: float) -> str:
        """Name the ranks or the launcher that are silent for too long; empty if none is."""
        missing = [rank for rank in range(len(self.placed)) if rank not in self.updates]
        if missing:
            if not self.join_seconds or now - self.changed <= self.join_seconds:
                return ""
            names = ", ".join(f"rank {rank} ({self.placed[rank]})" for rank in missing)
            return f"{names} did not join within {self.join_seconds:g} s"
        silent = now - self.spoke
        if self.placed and len(self.done) >= len(self.placed):
            if silent <= LAUNCHER_SECONDS:
                return ""
            return f"every rank ended, but the launcher did not within {LAUNCHER_SECONDS:g} s"
        if not self.silent_seconds or silent <= self.silent_seconds:
            return ""
        behind = sorted(self.updates, key=lambda rank: self.updates[rank])
        where = ", ".join(self._where(rank) for rank in behind)
        return f"no rank said anything for {self.silent_seconds:g} s: {where}"

    def _where(self, rank: int) -> str:
        node = self.ranks.get(rank, {}).get("node") or self.placed[rank]
        state = "is gone since" if rank in self.dead else "at"
        return f"rank {rank} ({node}) {state} update {self.updates[rank]}"

    def late(self, now: float) -> list[int]:
        """Return the ranks whose death their launcher should have answered by now."""
        return [rank for rank, when in self.dead.items() if now - when > self.death_seconds]

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
        at = f" after update {self.updates[rank]}" if rank in self.updates else ""
        return f"rank {rank} ({self.ranks[rank]['node']}) ended{at}: {self.ranks[rank]['end']}"


def _number(value: float | None) -> float | str | None:
    """Return a number for JSON, which has no infinity and no NaN: these are text."""
    return value if value is None or math.isfinite(value) else str(value)


def entries(path: Path, start: int) -> tuple[list[object], int]:
    """Return whole lines of a log from `start` on, a chunk or a longer line, and where others begin.

    A `start` in the middle of a line skips the rest of that line.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, start))
            data = file.read(CHUNK_BYTES)
            if b"\n" not in data:
                data += file.readline()  # or a longer line would never be passed on
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
