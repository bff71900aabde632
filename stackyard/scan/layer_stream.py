"""Read a layer's tar without seeking: each member with its content, then what follows.

Owns reading a tar as a stream, in the same way on every supported Python. It must not know what a
member means, and holds at most one block in memory.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, TypeVar, cast

from stackyard.system.chunks import CHUNK, Readable

_H = TypeVar("_H", bound="_Header")


class _Header(tarfile.TarInfo):
    """Refuse a damaged or missing header, which tarfile would take for the archive's end."""

    @classmethod
    def frombuf(cls: type[_H], buf: bytes | bytearray, encoding: str, errors: str) -> _H:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # a block of zeros marks the end
            short = "it ends before the mark of an archive's end"
            raise tarfile.ReadError(
                short if len(buf) < tarfile.BLOCKSIZE else str(error)
            ) from error


class _Archive(tarfile.TarFile):
    members: list[tarfile.TarInfo]  # cleared after each member, to save memory


class _Forward:
    """Let `tarfile` seek forwards in a stream.

    tarfile's own stream mode copies its whole buffer at every read; this class does not.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._held, self._start, self._at = b"", 0, 0

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._at

    def seek(self, offset: int) -> int:
        """Skip to a later position. Raises tarfile.StreamError if it was read already."""
        if offset < self._at:
            raise tarfile.StreamError("a header leads back to what was read before")
        self._at = offset
        return offset

    def read(self, size: int) -> bytes:
        """Read as many bytes as asked for, fewer at the end only."""
        parts: list[bytes] = []
        while size > 0 and self._fill():
            begin = self._at - self._start
            part = self._held[begin : begin + size]
            parts.append(part)
            self._at += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fill(self) -> bool:
        """Hold the next byte. Return False at the stream's end."""
        while self._at >= self._start + len(self._held):
            self._start += len(self._held)
            self._held = self._stream.read(CHUNK)
            if not self._held:
                return False
        return True


def members(stream: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo | None, Readable]]:
    """Read each member of a layer, with its content; at last None, with what follows the archive.

    Raises:
        tarfile.TarError: the stream is not a whole archive. Reading content may raise it, too.
    """
    forward = _Forward(stream)
    try:
        with _Archive.open(
            fileobj=cast(IO[bytes], forward), mode="r:", tarinfo=_Header,
            encoding="utf-8", errors="surrogateescape",
        ) as archive:  # fmt: skip
            # Not `next`: at the end of an archive without members, older Pythons read on.
            for member in archive:
                archive.members.clear()
                member.mtime = int(member.mtime)
                if member.size < 0:
                    raise tarfile.ReadError(f"{member.name!r} has a negative size")
                content = archive.extractfile(member) if member.issparse() else None
                yield member, content or forward
            yield None, forward
    except (ValueError, OverflowError) as error:  # a header's number field that is not a number
        raise tarfile.ReadError(str(error)) from error
