"""Read text files as chunks of whole lines, and chunks as documents.

Owns where a file is cut (at the first line border after every multiple of a size, so that the cuts
depend on nothing but the file), how bytes become text, and what happens to lines that cannot be
decoded. It knows nothing of tokens or workers.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

PIECE = 1 << 20
"""Bytes that are encoded at once: few enough to stay in the processor's caches."""

LONGEST = 1 << 28
"""Most bytes of a line: a worker holds a whole one in memory, several times."""


def _open_zst(raw: BinaryIO) -> Any:
    import zst  # the C library is loaded for such files alone

    return zst.open_text(raw)


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _open_zst,
}
_BOM = b"\xef\xbb\xbf"


class Refused(Exception):
    """Report a problem of the input that the user has to solve: what, why, what to type."""

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.hint = what, why, hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_refused, (self.what, self.why, self.hint))


def _refused(what: str, why: str, hint: str) -> Refused:
    return Refused(what, why=why, hint=hint)


@dataclass(frozen=True)
class Input:
    """Hold one input file: its path here, and the name its owner calls it by."""

    path: str
    name: str

    @property
    def compressed(self) -> bool:
        """Return whether the file is compressed, and so must be read from its beginning."""
        return Path(self.name).suffix in _OPENERS


@dataclass(frozen=True)
class Chunk:
    """Hold a part of one input: bytes from `start` up to `end`, or `text` where it was compressed.

    Attributes:
        read: position in the file on the disk, for the progress.
    """

    input: Input
    start: int
    end: int
    read: int
    text: bytes | None = None

    def data(self) -> bytes:
        """Return the whole lines that begin in this chunk, the last one ended."""
        data = self.text if self.text is not None else self._from_file()
        if self.start == 0:
            data = data.removeprefix(_BOM)
        return data if not data or data.endswith(b"\n") else data + b"\n"

    def _from_file(self) -> bytes:
        with open(self.input.path, "rb", buffering=0) as file:
            begin = _border(file, self.start, self.input.name)
            length = _border(file, self.end, self.input.name) - begin
            file.seek(begin)
            found = bytearray()
            while len(found) < length:
                part = file.read(length - len(found))
                if not part:
                    raise Refused(f"{self.input.name} became shorter while it was read")
                found += part
            return bytes(found)

    @property
    def begin(self) -> int:
        """Return the position of its first line in the (uncompressed) text."""
        if self.text is not None:
            return self.start
        with open(self.input.path, "rb", buffering=0) as file:
            return _border(file, self.start, self.input.name)


def _border(file: BinaryIO, position: int, name: str) -> int:
    """Return the beginning of the first line at or after a position.

    Raises:
        Refused: the line before it is too long.
    """
    if position == 0:
        return 0
    place = position - 1
    file.seek(place)
    while part := file.read(1 << 16):
        found = part.find(b"\n")
        if found >= 0:
            return place + found + 1
        place += len(part)
        if place - position > LONGEST:
            raise _too_long(name, position)
    return place


def _too_long(name: str, position: int) -> Refused:
    return Refused(
        f"{name} has no line end in the {LONGEST:,} bytes after byte {position:,}",
        why="a line is a document, and a worker holds all of it in memory",
        hint="put a document on each line; one JSON array becomes lines with: jq -c '.[]' FILE",
    )


def chunks(found: Input, most: int) -> Iterator[Chunk]:
    """Yield the chunks of a file, in order.

    Args:
        most: approximate bytes of text in a chunk, which one worker takes at a time.

    Raises:
        Refused: a compressed file is damaged.
    """
    size = Path(found.path).stat().st_size
    if not found.compressed:
        for start in range(0, size, most):
            end = min(start + most, size)
            yield Chunk(found, start, end, end)
        return
    opener = _OPENERS[Path(found.name).suffix]
    with open(found.path, "rb") as raw:
        position = 0
        try:
            with opener(raw) as file:
                while data := file.read(most):
                    if not data.endswith(b"\n"):
                        data += file.readline(LONGEST)
                    if len(data) - most >= LONGEST:
                        raise _too_long(found.name, position + most)
                    yield Chunk(found, position, position + len(data), raw.tell(), data)
                    position += len(data)
        except (EOFError, OSError, lzma.LZMAError) as error:
            raise Refused(
                f"{found.name} cannot be decompressed after {position:,} bytes of text",
                why=str(error),
                hint="fetch or copy the file again; it is cut off, or not what its name says",
            ) from error


@dataclass
class Reader:
    """Read text as documents.

    Attributes:
        key: key of the text where every line is a JSON object; empty for plain text.
        bad: action on a line that cannot be read: `fail`, `skip` or `replace`.
    """

    encoding: str
    bad: str
    key: str
    keep_blank: bool
    counts: Counter[str] = field(default_factory=Counter)

    def documents(self, chunk: Chunk, data: bytes) -> Iterator[list[str]]:
        """Yield the documents of a chunk's data, some at a time.

        Raises:
            Refused: a line cannot be read and `bad` is `fail`; the error has file, line and byte.
        """
        start = 0
        while start < len(data):
            end = data.find(b"\n", min(start + PIECE, len(data)) - 1) + 1
            yield self._piece(chunk, start, data[start:end])
            start = end

    def _piece(self, chunk: Chunk, start: int, data: bytes) -> list[str]:
        try:
            if b"\0" in data:
                raise UnicodeDecodeError(self.encoding, b"", 0, 0, "NUL")
            lines = data.decode(self.encoding).split("\n")
            lines.pop()
        except UnicodeDecodeError:
            lines = self._one_by_one(chunk, start, data)
        if self.key:
            lines = self._values(chunk, start, lines)
        elif b"\r" in data:
            lines = [line.removesuffix("\r") for line in lines]
        if self.keep_blank:
            return lines
        found = [line for line in lines if line and not line.isspace()]
        self.counts["blank lines"] += len(lines) - len(found)
        return found

    def _one_by_one(self, chunk: Chunk, start: int, data: bytes) -> list[str]:
        found, place = [], start
        for raw in data.split(b"\n")[:-1]:
            try:
                text = raw.decode(self.encoding)
                if "\0" in text:
                    self._judge(chunk, place, "holds a NUL byte")
                    text = text.replace("\0", "\ufffd") if self.bad == "replace" else None
            except UnicodeDecodeError as error:
                byte = f"byte {raw[error.start]:#04x} at position {error.start} of the line"
                self._judge(chunk, place, f"is not {self.encoding}: {byte}")
                text = None
                if self.bad == "replace":
                    text = raw.decode(self.encoding, errors="replace").replace("\0", "\ufffd")
            if text is not None:
                found.append(text)
            place += len(raw) + 1
        return found

    def _values(self, chunk: Chunk, start: int, lines: list[str]) -> list[str]:
        """Return the texts in lines of JSON.

        A line's position is only right while no line before it was skipped.
        """
        found, place = [], start
        for line in lines:
            here, place = place, place + len(line.encode(self.encoding, errors="replace")) + 1
            if not line.strip():
                found.append("")
                continue
            try:
                value = json.loads(line)
                text = value[self.key]
                if not isinstance(text, str) or "\0" in text:
                    raise TypeError(f"{self.key!r} is no text")
                text.encode()
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                why = f"has no {error}" if isinstance(error, KeyError) else f"({error})"
                self._judge(chunk, here, f"is not JSON with a text under {self.key!r}: {why}")
                continue
            found.append(text)
        return found

    def _judge(self, chunk: Chunk, place: int, what: str) -> None:
        """Count a bad line, or refuse it."""
        self.counts["bad lines"] += 1
        if self.bad != "fail":
            return
        byte = chunk.begin + place
        number = _line_number(chunk, place)
        raise Refused(
            f"{chunk.input.name}, line {number:,} (byte {byte:,}) {what}",
            hint="correct the line, say --encoding if the whole file is in another one, or say what"
            " to do with such lines: --bad-lines skip, or --bad-lines replace (U+FFFD)",
        )


def _line_number(chunk: Chunk, place: int) -> int:
    """Return the number of the line at a place of the chunk; read all text before it."""
    before = 0
    if chunk.text is None:
        left = chunk.begin
        with open(chunk.input.path, "rb") as file:
            while left > 0 and (part := file.read(min(1 << 20, left))):
                before += part.count(b"\n")
                left -= len(part)
    else:
        opener = _OPENERS[Path(chunk.input.name).suffix]
        left = chunk.start
        with open(chunk.input.path, "rb") as raw, opener(raw) as text:
            while left > 0 and (part := text.read(min(1 << 20, left))):
                before += part.count(b"\n")
                left -= len(part)
    return before + chunk.data()[:place].count(b"\n") + 1
