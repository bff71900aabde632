"""One node's part of a run over several hosts: its lease, and the words of its ranks.

Owns what a node does for the supervisor on node 1, over one line: it tells of its processes and
ends them when told, passes on what ranks wrote, and ends the node when it hears nothing for the
lease's time. Everything of a lease is `lease`'s; this adds the words.

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

# What one beat may carry: a rank that writes faster is read later, its file is the buffer.
CHUNK_BYTES = 32 * 1024
# What of that is still told of each rank when all is over; the whole of it stays in its file.
LAST_BYTES = 256 * 1024
LINE_BYTES = 4000
BAR_SECONDS = 0.4
JOINED = Path("/run/stackyard/joined")  # `node.py` looks for it
_BREAK = re.compile(rb"\r\n|[\r\n]")
Said = dict[str, object]


class Words:
    """What one rank has written since it was last looked at.

    A line that ends in a carriage return is a progress bar's: the next one takes its place, so of
    those only the latest is told.
    """

    def __init__(self, path: Path) -> None:
        self.rank = int(path.stem[4:])
        self._path, self._offset, self._rest = path, 0, b""
        self._bar, self._barred = b"", 0.0

    def read(self, limit: int) -> list[Said]:
        """What is new, up to `limit` bytes of it."""
        return [*self._lines(self._take(limit)), *self._latest()]

    def finish(self) -> list[Said]:
        """The last that was written, whether a line break is at its end or not."""
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
                break  # perhaps half of a line break
            text, self._rest = self._rest[: match.start()], self._rest[match.end() :]
            if match[0] == b"\r":
                self._bar = text or self._bar
            else:
                # A bar's last state ends with a plain line break: it stays.
                self._bar = b""
                found += [self._said(piece) for piece in _pieces(text)]
        *whole, self._rest = _pieces(self._rest)
        found += [self._said(piece) for piece in whole]
        return [entry for entry in found if entry["text"]]

    def _latest(self) -> list[Said]:
        # tqdm writes the return first and no break after: what stands in the rest is the bar.
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
    """A long text in pieces as long as a line may be; no character is cut in two."""
    found = []
    while len(text) > LINE_BYTES:
        end = LINE_BYTES
        while text[end] & 0xC0 == 0x80 and end > LINE_BYTES - 4:
            end -= 1
        found.append(text[:end])
        text = text[end:]
    return [*found, text]


class Agent:
    """This node: a keeper of its lease that reads its ranks' words."""

    def __init__(self, seconds: float) -> None:
        self._line = lease.Line("node1", 0, 1)
        self._keeper, self._seconds = lease.Keeper(), seconds
        self._folder: Path | None = None
        self._words: dict[Path, Words] = {}
        self._ranks: dict[int, Said] = {}
        self._gone: set[int] = set()
        self._fused: dict[int, str] = {}

    def keep(self) -> None:
        """Go on until nothing is heard for the lease's time, or the line closes."""
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
        # Whether a rank is gone is known by its own word of who it is: one that fails at once may
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
        """Who the ranks of this node are."""
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
        """Tell what became of a rank's fused parts, where that is not what was told before."""
        assert self._folder is not None
        with contextlib.suppress(OSError, ValueError):
            text = (self._folder / f"rank{rank}.fused").read_text()
            if text != self._fused.get(rank):
                parts = json.loads(text)
                self._fused[rank] = text
                self._line.write(json.dumps({"event": "fused", "rank": rank, "parts": parts}))

    def _ended(self) -> list[Said]:
        """Ranks of this node that have ended since the last look, and how."""
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
