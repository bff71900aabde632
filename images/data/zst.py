"""Decompress zstd files with the C library that every Debian and Ubuntu has (dpkg reads by it).

Owns the calls of libzstd.so.1. Python has a module of its own for zstd only from 3.14 on.
"""

from __future__ import annotations

import ctypes
import functools
import io
from typing import Any, BinaryIO

_INPUT = 1 << 17
"""Bytes that are read at once, as libzstd recommends (ZSTD_DStreamInSize)."""
_WINDOW_LOG_MAX, _WINDOW_LOG = 100, 31
"""libzstd's name of the largest window, and the largest that there is (`zstd --long=31`)."""


class _Buffer(ctypes.Structure):
    """Hold a ZSTD_inBuffer or ZSTD_outBuffer, which have the same fields."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("place", ctypes.c_size_t),
    )


@functools.cache
def _library() -> Any:
    found = ctypes.CDLL("libzstd.so.1")
    found.ZSTD_createDCtx.restype = ctypes.c_void_p
    found.ZSTD_freeDCtx.argtypes = [ctypes.c_void_p]
    found.ZSTD_DCtx_setParameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    buffer = ctypes.POINTER(_Buffer)
    found.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, buffer, buffer]
    found.ZSTD_decompressStream.restype = ctypes.c_size_t
    found.ZSTD_isError.argtypes = [ctypes.c_size_t]
    found.ZSTD_getErrorName.argtypes = [ctypes.c_size_t]
    found.ZSTD_getErrorName.restype = ctypes.c_char_p
    return found


class _Stream(io.RawIOBase):
    """Read the text of all frames of a file, one after another."""

    def __init__(self, raw: BinaryIO) -> None:
        self._zstd = _library()
        self._raw = raw
        self._context: int | None = self._zstd.ZSTD_createDCtx()
        self._zstd.ZSTD_DCtx_setParameter(self._context, _WINDOW_LOG_MAX, _WINDOW_LOG)
        self._held = ctypes.create_string_buffer(_INPUT)
        self._input = _Buffer(ctypes.addressof(self._held), 0, 0)
        self._inside = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill the target as far as one call does.

        Raises:
            OSError: the file is not zstd, or damaged.
            EOFError: the file ends inside a frame.
        """
        into = (ctypes.c_char * len(target)).from_buffer(target)
        output = _Buffer(ctypes.addressof(into), len(target), 0)
        while len(target) and not output.place:
            ended = self._input.place == self._input.size and not self._more()
            if ended and not self._inside:
                break
            # Without more input this gives what the library holds since an output was full.
            self._step(output)
            if ended and self._inside and not output.place:
                raise EOFError("the file ends before its text does")
        return int(output.place)

    def _more(self) -> bool:
        data = self._raw.read(_INPUT)
        ctypes.memmove(self._held, data, len(data))
        self._input.size, self._input.place = len(data), 0
        return bool(data)

    def _step(self, output: _Buffer) -> None:
        left = self._zstd.ZSTD_decompressStream(
            self._context, ctypes.byref(output), ctypes.byref(self._input)
        )
        if self._zstd.ZSTD_isError(left):
            raise OSError(self._zstd.ZSTD_getErrorName(left).decode())
        self._inside = left != 0

    def close(self) -> None:
        context, self._context = self._context, None
        self._zstd.ZSTD_freeDCtx(context)
        super().close()


def open_text(raw: BinaryIO) -> io.BufferedReader:
    """Return a reader of the text of a compressed file."""
    return io.BufferedReader(_Stream(raw), 1 << 20)
