"""Write one encoded chunk as a shard, and reuse a killed run's shard after checking it.

Owns a shard's three files: tokens, lengths of documents, and a record that is written last. A shard
is kept when its chunk has the recorded text and its files have the recorded digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import source
from encode import END
from stacks import Form

_COUNTED = ("documents", "tokens", "unknown")


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _path(folder: Path, number: int, kind: str) -> Path:
    return folder / f"{number:08d}.{kind}"


def tokens_file(folder: Path, number: int) -> Path:
    """Return the path of a shard's tokens."""
    return _path(folder, number, "tokens")


def read_lengths(folder: Path, number: int) -> np.ndarray:
    """Read the number of tokens of each document of a shard."""
    return np.fromfile(_path(folder, number, "lengths"), dtype="<i4")


def make(
    folder: Path, number: int, chunk: source.Chunk, reading: Mapping[str, Any], form: Form
) -> dict[str, Any]:
    """Make one shard, unless it exists; return its record.

    Raises:
        Refused: a line cannot be read.
        OSError: a file cannot be written.
    """
    data = chunk.data()
    text_digest = _digest(data)
    kept = _kept(folder, number, text_digest)
    if kept is not None:
        return {**kept, "kept": True, "read": chunk.read}
    reader = source.Reader(**reading)
    tokens, lengths = _encoded(reader, chunk, data, form)
    written = {"tokens": tokens.tobytes(), "lengths": lengths.tobytes()}
    record = {
        "text": text_digest,
        "documents": len(lengths),
        "tokens": len(tokens),
        "unknown": 0 if form.unknown is None else int(np.count_nonzero(tokens == form.unknown)),
        "bytes": len(data),
        "counts": dict(reader.counts),
        "digests": {kind: _digest(found) for kind, found in written.items()},
    }
    for kind, found in written.items():
        _path(folder, number, kind).write_bytes(found)
    beside = _path(folder, number, "new")
    beside.write_text(json.dumps(record), encoding="utf-8")
    beside.rename(_path(folder, number, "json"))
    return {**record, "kept": False, "read": chunk.read}


def _encoded(
    reader: source.Reader, chunk: source.Chunk, data: bytes, form: Form
) -> tuple[np.ndarray, np.ndarray]:
    tokens = [np.empty(0, dtype=form.dtype)]
    lengths = [np.empty(0, dtype="<i4")]
    for documents in reader.documents(chunk, data):
        if not documents:
            continue
        numbers = form.encoder.encode(documents)
        ends = np.flatnonzero(numbers == END)
        numbers += form.shift
        each = np.diff(ends, prepend=-1)
        if form.end is None:
            numbers, each = np.delete(numbers, ends), each - 1
        else:
            numbers[ends] = form.end
        tokens.append(numbers.astype(form.dtype))
        lengths.append(each.astype("<i4"))
    return np.concatenate(tokens), np.concatenate(lengths)


def _kept(folder: Path, number: int, text_digest: str) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(_path(folder, number, "json").read_text())
        if record["text"] != text_digest:
            return None
        for kind, digest in record["digests"].items():
            if _digest(_path(folder, number, kind).read_bytes()) != digest:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record
