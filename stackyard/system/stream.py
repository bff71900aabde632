"""The stream between a command in a container and us: bytes in, lines out.

Owns docker's stream format. It knows sockets, not the docker SDK: `system.engine` opens them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Conversation:
    """A command that runs beside everything else: lines in, lines out."""

    def __init__(self, wrapped: Any, on_line: Callable[[str], None]) -> None:
        self._wrapped, self._raw = wrapped, getattr(wrapped, "_sock", wrapped)
        self._raw.settimeout(None)
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, args=(on_line,), daemon=True)
        self.over = threading.Event()
        self._reader.start()

    def _read(self, on_line: Callable[[str], None]) -> None:
        with contextlib.suppress(OSError, ValueError):
            _gather(_frames(self._raw), on_line)
        self.over.set()

    def send(self, line: str) -> bool:
        """Send one line; False when nobody is there to read it."""
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
    # The SDK ties the connection to its response: closed first, or it is never given back.
    for part in (getattr(wrapped, "_response", raw), wrapped, raw):
        with contextlib.suppress(OSError, ValueError):
            part.close()


def _gather(chunks: Iterator[bytes], on_line: Callable[[str], None] | None) -> str:
    whole: list[str] = []
    rest = b""
    for chunk in chunks:
        rest += chunk
        *lines, rest = rest.split(b"\n")
        for raw in lines:
            line = raw.decode("utf-8", errors="replace").rstrip("\r")
            whole.append(line)
            if on_line:
                on_line(line)
    if rest:
        whole.append(rest.decode("utf-8", errors="replace"))
        if on_line:
            on_line(whole[-1])
    return "\n".join(whole)


def talk(wrapped: Any, data: bytes | None, on_line: Callable[[str], None] | None) -> str:
    """Send `data` to an exec's input and close it; read the multiplexed output to its end."""
    raw = getattr(wrapped, "_sock", wrapped)
    try:
        if data is not None:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
        # The request's own time limit is not the command's: that one is kept inside.
        raw.settimeout(None)
        return _gather(_frames(raw), on_line)
    finally:
        _close(wrapped, raw)


def _frames(raw: Any) -> Iterator[bytes]:
    """The payloads of docker's stream format: an 8-byte header (kind, length), then the bytes."""
    buffer = b""
    while True:
        while len(buffer) >= 8:
            length = int.from_bytes(buffer[4:8], "big")
            if len(buffer) < 8 + length:
                break
            yield buffer[8 : 8 + length]
            buffer = buffer[8 + length :]
        chunk = raw.recv(65536)
        if not chunk:
            return
        buffer += chunk
