"""Read streams of bytes in chunks, hash and count them, and pass one to several readers.

Owns no file and no connection: callers hand over what is read.
"""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol, cast

CHUNK = 2**20


class Readable(Protocol):
    """Read content once, forwards."""

    def read(self, size: int, /) -> bytes:
        """Read as many bytes as asked for, fewer at the end only."""


Reader = Callable[[IO[bytes]], Any]


def chunks(source: Readable, size: int = CHUNK) -> Iterator[bytes]:
    """Read to the end, a chunk at a time."""
    while chunk := source.read(size):
        yield chunk


class Digest:
    """Compute the SHA-256 and size of the bytes that pass."""

    def __init__(self) -> None:
        self._found, self.size = hashlib.sha256(), 0

    def add(self, chunk: bytes) -> None:
        """Add some bytes to the digest."""
        self._found.update(chunk)
        self.size += len(chunk)

    def of(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Pass bytes on, and add them to the digest."""
        for piece in pieces:
            self.add(piece)
            yield piece

    @property
    def sha256(self) -> str:
        """Return the digest of all bytes so far, `sha256:...`."""
        return f"sha256:{self._found.hexdigest()}"


def digest_of_stream(source: Readable) -> str:
    """Read to the end, and return the digest."""
    found = Digest()
    for chunk in chunks(source):
        found.add(chunk)
    return found.sha256


def digest_of_file(path: Path) -> str:
    """Return the digest of a file's content."""
    with path.open("rb") as file:
        return digest_of_stream(file)


class Pieces:
    """Read pieces of bytes as one file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read(self, size: int = -1) -> bytes:
        """Read as many bytes as asked for, fewer at the end only."""
        parts, have = [self._rest], len(self._rest)
        while size < 0 or have < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            parts.append(piece)
            have += len(piece)
        data = b"".join(parts)
        cut = len(data) if size < 0 else size
        self._rest = data[cut:]
        return data[:cut]


def fan_out(source: Readable, readers: Sequence[Reader]) -> list[Any]:
    """Pass one stream to several readers at the same time; return their answers.

    A reader that fails or stops early does not delay the others; the first failure is raised at
    the end.
    """
    queues: list[queue.Queue[bytes]] = [queue.Queue(maxsize=8) for _ in readers]

    def one(reader: Reader, own: queue.Queue[bytes]) -> Any:
        pieces = iter(own.get, b"")  # an empty piece marks the end
        try:
            return reader(cast(IO[bytes], Pieces(pieces)))
        finally:
            for _ in pieces:
                pass

    with ThreadPoolExecutor(len(readers)) as pool:
        work = [pool.submit(one, r, q) for r, q in zip(readers, queues, strict=True)]
        try:
            for chunk in chunks(source):
                for own in queues:
                    own.put(chunk)
        finally:
            for own in queues:
                own.put(b"")
        return [future.result() for future in work]


class Counted:
    """Read a file as a request's body of a known length, and report its progress."""

    def __init__(self, file: IO[bytes], size: int, sent: Callable[[int], None]) -> None:
        self._file, self._size, self._sent = file, size, sent
        self.told = 0

    def __len__(self) -> int:
        return self._size

    def read(self, size: int = CHUNK) -> bytes:
        """Read the next bytes."""
        data = self._file.read(max(size, CHUNK) if size > 0 else -1)
        self.told += len(data)
        self._sent(len(data))
        return data

    def restart(self) -> None:
        """Begin again at the start."""
        self._file.seek(0)
        self._sent(-self.told)
        self.told = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()
