"""Exchange bytes and lines with a command in a container.

Owns docker's stream format, and the mark of lines that other programs print. It uses sockets that
`system.engine` opened, not the docker SDK.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any


class ToolLine(str):
    """Mark text as a line of another program: people see it with --verbose, or on failure."""

    __slots__ = ()


class Note(str):
    """Mark text as a remark about a stack, which is no state of it: it stays on a terminal."""

    __slots__ = ()

    def __new__(cls, text: str) -> Note:
        """Begin the text with `note: `."""
        return super().__new__(cls, f"note: {text}")


class Conversation:
    """Exchange lines with a command that runs in the background."""

    def __init__(self, wrapped: Any, on_line: Callable[[str], None]) -> None:
        self._wrapped, self._raw = wrapped, getattr(wrapped, "_sock", wrapped)
        self._raw.settimeout(None)
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, args=(on_line,), daemon=True)
        self.over = threading.Event()
        self._reader.start()

    def _read(self, on_line: Callable[[str], None]) -> None:
        with contextlib.suppress(OSError, ValueError):
            # A conversation may last for weeks: nothing of it is kept.
            for line in _lines(_frames(_reader(self._wrapped))):
                on_line(line)
        self.over.set()

    def send(self, line: str) -> bool:
        """Send one line; return False when the connection has ended."""
        try:
            with self._sending:
                self._raw.sendall(line.encode() + b"\n")
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the connection; the command sees the end of its input."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        self._reader.join(timeout=5)
        _close(self._wrapped, self._raw)


def _close(wrapped: Any, raw: Any) -> None:
    # The response is closed first: it holds the connection, which else never returns to its pool.
    for part in (getattr(wrapped, "_response", raw), wrapped, raw):
        with contextlib.suppress(OSError, ValueError):
            part.close()


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        rest += chunk
        *lines, rest = rest.split(b"\n")
        for raw in lines:
            yield raw.decode("utf-8", errors="replace").rstrip("\r")
    if rest:
        yield rest.decode("utf-8", errors="replace")


def _gather(chunks: Iterator[bytes], on_line: Callable[[str], None] | None) -> str:
    whole: list[str] = []
    for line in _lines(chunks):
        whole.append(line)
        if on_line:
            on_line(line)
    return "\n".join(whole)


def talk(wrapped: Any, data: bytes | None, on_line: Callable[[str], None] | None) -> str:
    """Send `data` to an exec's input and close it; read the multiplexed output to its end."""
    raw = getattr(wrapped, "_sock", wrapped)
    try:
        if data is not None:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
        # The request's time limit is not the command's, which is enforced in the container.
        raw.settimeout(None)
        return _gather(_frames(_reader(wrapped)), on_line)
    finally:
        _close(wrapped, raw)


def _reader(wrapped: Any) -> Callable[[int], bytes]:
    """Return what reads the bytes of a connection.

    The SDK hands out the socket below the response's own buffer. That buffer may hold output:
    what came together with the headers. Reading from the socket would lose it.
    """
    response = getattr(wrapped, "_response", None)
    read: Callable[[int], bytes] = wrapped.recv if response is None else response.raw._fp.fp.read1
    return read


def _frames(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the payloads of docker's stream, each of which follows 8 bytes (kind, length)."""
    buffer = b""
    while True:
        while len(buffer) >= 8:
            length = int.from_bytes(buffer[4:8], "big")
            if len(buffer) < 8 + length:
                break
            yield buffer[8 : 8 + length]
            buffer = buffer[8 + length :]
        chunk = read(65536)
        if not chunk:
            return
        buffer += chunk
