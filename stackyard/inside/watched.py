"""Read what the ranks of one job on this node write, record and become.

Owns the files of ranks (`rankN.log`, `.jsonl`, `.json`, `.fused`, `.end`) as their readers see them;
the node's agent (`agent.py`) passes on what is read. It must not end a node or a job: SIGTERM goes
only to ranks that catch it, and only when it is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

import strays  # type: ignore[import-not-found]  # lies beside this file

# Limit of one beat. A rank that writes faster is read later; its file is the buffer.
CHUNK_BYTES = 32 * 1024
# Limit of the unread output that is passed on when a job is over; the file keeps all of it.
LAST_BYTES = 256 * 1024
LINE_BYTES = 4000
BAR_SECONDS = 0.4
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
