"""Keep one node's lease in a run over several hosts, and pass on the output of its ranks.

Owns what a node does for the supervisor on node 1, over one line. It reports its processes and
kills them on request, passes on what ranks wrote, and ends the node when it hears nothing for the
lease's time. `lease` owns the lease itself; this module adds the output.

    agent.py keep SECONDS     lines on standard input and output

Besides a lease's commands: `watch FOLDER` passes on what ranks write below it from now on.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from pathlib import Path

import lease  # type: ignore[import-not-found]  # these lie beside this file
import strays  # type: ignore[import-not-found]

# Limit of one beat. A rank that writes faster is read later; its file is the buffer.
CHUNK_BYTES = 32 * 1024
# Limit of the unread output that is passed on when a job is over; the file keeps all of it.
LAST_BYTES = 256 * 1024
LINE_BYTES = 4000
BAR_SECONDS = 0.4
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


class Agent:
    """Keep this node's lease and read its ranks' output."""

    def __init__(self, seconds: float) -> None:
        self._line = lease.Line("node1", 0, 1)
        self._keeper, self._seconds = lease.Keeper(), seconds
        self._folder: Path | None = None
        self._words: dict[Path, Words] = {}
        self._ranks: dict[int, Said] = {}
        self._gone: set[int] = set()
        self._fused: dict[int, str] = {}

    def keep(self) -> None:
        """Keep the lease until it ends, then end the node."""
        JOINED.touch()
        lease.run([self._line], self._tick, self._take)
        lease.end_node()

    def _take(self, _: lease.Line, text: str) -> None:
        command, _, rest = text.partition(" ")
        if command == "watch":
            self._folder, self._words, self._ranks, self._gone = Path(rest), {}, {}, set()
            self._fused = {}
        elif command == "finish":
            self._pass_on(last=True)
            for event in self._ended():
                self._line.write(json.dumps(event))
            self._line.write(json.dumps({"finished": rest}))
        else:
            found = self._keeper.answer(text)
            if found is not None:
                self._line.write(json.dumps({"answer": rest, "found": found}))

    def _tick(self) -> bool:
        self._line.write("beat")
        self._pass_on()
        # Ends of ranks are taken from the files that ranks write: a rank that fails at once may
        # never have been seen among the processes.
        for event in [*self._ended(), *self._keeper.look()]:
            if event["event"] != "gone" or "rank" in event:
                self._line.write(json.dumps(event))
        return not self._line.lost(self._seconds)

    def _pass_on(self, *, last: bool = False) -> None:
        if self._folder is None:
            return
        paths = [p for p in sorted(self._folder.glob("rank*.log")) if p.stem[4:].isdigit()]
        for path in paths:
            words = self._words.setdefault(path, Words(path))
            said = words.finish() if last else words.read(CHUNK_BYTES // len(paths))
            if said:
                self._line.write(json.dumps({"said": said}))
        self._learn()

    def _learn(self) -> None:
        """Report ranks of this node that have started, and their fused parts."""
        assert self._folder is not None
        for path in sorted(self._folder.glob("rank*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found = json.loads(path.read_text())
                pid, rank = int(found["pid"]), int(found["rank"])
                if pid not in self._ranks:
                    self._ranks[pid] = {"pid": pid, "rank": rank}
                    self._fused.pop(rank, None)
                    self._line.write(json.dumps({"event": "rank", "pid": pid, "rank": rank}))
        for known in self._ranks.values():
            self._learn_fused(int(str(known["rank"])))

    def _learn_fused(self, rank: int) -> None:
        """Report the state of a rank's fused parts where it has changed."""
        assert self._folder is not None
        with contextlib.suppress(OSError, ValueError):
            text = (self._folder / f"rank{rank}.fused").read_text()
            if text != self._fused.get(rank):
                parts = json.loads(text)
                self._fused[rank] = text
                self._line.write(json.dumps({"event": "fused", "rank": rank, "parts": parts}))

    def _ended(self) -> list[Said]:
        """Return the ranks of this node that have ended since the last look, each with its end."""
        found: list[Said] = []
        for pid, known in self._ranks.items():
            if pid in self._gone or strays.running(pid):
                continue
            assert self._folder is not None
            self._gone.add(pid)
            try:
                end = (self._folder / f"rank{known['rank']}.end").read_text()
            except OSError:
                end = ""
            found.append({"event": "gone", "pid": pid, "rank": known["rank"], "end": end})
        return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["keep"] and len(sys.argv) == 3:
        Agent(float(sys.argv[2])).keep()
    else:
        raise SystemExit(__doc__)
