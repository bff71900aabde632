"""Pack small tar archives in memory; the same files give the same bytes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def pack(files: Mapping[str, bytes], *, mode: int = 0o644) -> bytes:
    """Return a tar archive of small files; the same files give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(files[name]), mode
            archive.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()
