"""Read long files in parts, and unpack compressed ones, one level deep.

Owns the bounds of memory and time: at most `LIMIT` bytes of a compressed file are unpacked, and
none are written to disk. It must not know any rule.
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

from stackyard.scan.layer_stream import members
from stackyard.system.chunks import CHUNK, Readable

LIMIT = 64 * 2**20
# More would need too much memory: zipfile keeps an object for each.
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


class Section:
    """Read the next `size` bytes of a stream, beginning with `head`, which was read already."""

    def __init__(self, head: bytes, rest: Readable, size: int) -> None:
        self._head, self._rest, self._left = io.BytesIO(head), rest, size - len(head)

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes."""
        found = self._head.read(size)
        if len(found) < size and self._left > 0:
            more = self._rest.read(min(size - len(found), self._left))
            self._left = self._left - len(more) if more else 0
            found += more
        return found


class Unreadable(Exception):
    """Report compressed content that is damaged, encrypted, or too large to unpack."""


def unpack(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file in a compressed one, at most `LIMIT` bytes in total.

    The name is empty where there is none (a compressed single file).

    Raises:
        Unreadable: at the end, when not all of them could be unpacked.
    """
    trouble = ""
    try:
        if data.startswith(_ZIP):
            yield from _unzip(data)
            return
        opener = next(opener for start, opener in _OPENERS.items() if data.startswith(start))
        with opener(io.BytesIO(data)) as packed:
            plain, trouble = _bounded(packed, LIMIT)
        yield from _files(plain)
    except _BROKEN as error:
        raise Unreadable(trouble or str(error)) from error
    if trouble:
        raise Unreadable(trouble)


def _bounded(packed: io.BufferedIOBase, limit: int) -> tuple[bytes, str]:
    """Return the bytes that can be read, and the reason why they are not all; empty if they are."""
    parts: list[bytes] = []
    left = limit
    try:
        # Not `read`, which gives nothing of what stands before something broken.
        while left and (part := packed.read1(min(CHUNK, left))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts), "" if left else f"more than {LIMIT >> 20} MiB unpacked"
    except _BROKEN as error:
        return b"".join(parts), str(error) or type(error).__name__


def _files(plain: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the members of an archive, or the one file, of a decompressed stream."""
    if plain[257:262] != b"ustar":
        yield "", plain
        return
    for member, content in members(io.BytesIO(plain)):
        if member is not None and member.isfile():
            if member.size > LIMIT:  # a sparse file, or a false size
                raise Unreadable(f"{member.size} bytes in one file")
            yield member.name.removeprefix("./"), content.read(member.size)


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
