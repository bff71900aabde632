"""Reading layers as streams, and looking into compressed files, one level deep.

Owns the bounds of memory and time: nothing is written to disk, a compressed file is unpacked to
at most `LIMIT` bytes. It must not know any rule.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, cast

from stackyard.errors import EngineError

BLOCK = 2**20
LIMIT = 64 * 2**20
# As many as fit in memory with all that zipfile keeps of each.
ZIP_MEMBERS = 50_000

_OPENERS: dict[bytes, Callable[[IO[bytes]], io.BufferedIOBase]] = {
    b"\x1f\x8b\x08": lambda packed: gzip.GzipFile(fileobj=packed),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_ZIP = b"PK\x03\x04"
PACKED = (*_OPENERS, _ZIP)
_BROKEN = (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error,
           lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)  # fmt: skip


class Forward(io.RawIOBase):
    """A stream that `tarfile` may seek in: forward only, or back within what is at hand.

    Its mode for streams copies what it holds for every header that it reads; this does not.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._held, self._start, self._at = b"", 0, 0

    def tell(self) -> int:
        """Where the next byte comes from."""
        return self._at

    def seekable(self) -> bool:
        """Yes, within the limits of `seek`."""
        return True

    def readable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place that was not left behind.

        Raises:
            OSError: it was.
        """
        if whence or offset < self._start:
            raise OSError("a stream goes forward only")
        self._at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """As many bytes as asked for, fewer at the end only."""
        parts, wanted = [], size if size >= 0 else LIMIT
        while wanted and self._fill():
            begin = self._at - self._start
            part = self._held[begin : begin + wanted]
            parts.append(part)
            self._at += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fill(self) -> bool:
        """Hold the byte that comes next; False at the end."""
        while self._at >= self._start + len(self._held):
            following = self._stream.read(BLOCK)
            if not following:
                return False
            # The last bytes stay: tarfile looks at the one before each header.
            kept = self._held[-tarfile.BLOCKSIZE :]
            self._start += len(self._held) - len(kept)
            self._held = kept + following
        return True


class Section:
    """The next `size` bytes of a stream, beginning with those that were read already."""

    def __init__(self, head: bytes, rest: IO[bytes] | Forward, size: int) -> None:
        self._head, self._rest, self._left = io.BytesIO(head), rest, size - len(head)

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes."""
        found = self._head.read(size)
        if len(found) < size and self._left > 0:
            more = self._rest.read(min(size - len(found), self._left))
            self._left = self._left - len(more) if more else 0
            found += more
        return found


class _Archive(tarfile.TarFile):
    members: list[tarfile.TarInfo]  # all that were read, which nobody needs here


def members(stream: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo | None, IO[bytes] | Forward]]:
    """Each member of a layer with a reader that stands at its content; None: behind the last.

    Raises:
        EngineError: the stream is not a whole archive.
    """
    forward = Forward(stream)
    try:
        with _Archive.open(fileobj=forward, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()
                content = archive.extractfile(member) if member.issparse() else None
                if content is None and member.isfile():
                    forward.seek(member.offset_data)
                yield member, content or forward
            forward.seek(archive.offset)
            yield None, forward
    except tarfile.TarError as error:
        hint = "save the image again"
        raise EngineError("a layer is not a whole archive", why=str(error), hint=hint) from error


class Unreadable(Exception):
    """Compressed content that is broken, encrypted, or too large to look into."""


def unpack(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The files in a compressed one, by name (none: ""), at most `LIMIT` bytes of them together.

    Raises:
        Unreadable: at the end, when not all of them could be looked into.
    """
    try:
        if data.startswith(_ZIP):
            yield from _unzip(data)
            return
        opener = next(opener for start, opener in _OPENERS.items() if data.startswith(start))
        with opener(io.BytesIO(data)) as packed:
            plain, trouble = _bounded(packed, LIMIT)
        yield from _files(plain)
    except _BROKEN as error:
        raise Unreadable(str(error)) from error
    if trouble:
        raise Unreadable(trouble)


def _bounded(packed: io.BufferedIOBase, limit: int) -> tuple[bytes, str]:
    """What can be read, and why that is not all."""
    parts: list[bytes] = []
    left = limit
    try:
        # Not `read`, which gives nothing of what stands before something broken.
        while left and (part := packed.read1(min(BLOCK, left))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts), "" if left else f"more than {LIMIT >> 20} MiB unpacked"
    except _BROKEN as error:
        return b"".join(parts), str(error) or type(error).__name__


def _files(plain: bytes) -> Iterator[tuple[str, bytes]]:
    """What was one compressed stream: the members of an archive, or one file."""
    if plain[257:262] != b"ustar":
        yield "", plain
        return
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name.removeprefix("./"), content.read()


def _unzip(data: bytes) -> Iterator[tuple[str, bytes]]:
    if data.count(b"PK\x01\x02") > ZIP_MEMBERS:
        raise Unreadable(f"more than {ZIP_MEMBERS} files")
    left, troubles = LIMIT, []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            try:
                with archive.open(info) as packed:
                    plain, trouble = _bounded(cast(zipfile.ZipExtFile, packed), left)
            except _BROKEN as error:  # encrypted, for one
                plain, trouble = b"", str(error)
            yield info.filename, plain
            left -= len(plain)
            troubles += [trouble] if trouble else []
    if troubles:
        raise Unreadable(troubles[0])
