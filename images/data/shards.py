"""Write one encoded chunk as a shard, move it to its final place, and reuse a killed run's shards.

Owns a shard's three files: tokens, lengths of documents, and a record that is written last. A shard
is kept when its chunk has the recorded text and its files have the recorded digests. Tokens that
were moved into the finished files are gone from the shard, so the disk holds them once; the record
names their places there.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import source
from encode import END
from stacks import Form

READY = "ready"
"""The folder of the finished files, beside that of the shards."""
_COUNTED = ("documents", "tokens", "unknown")


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _path(folder: Path, number: int, kind: str) -> Path:
    return folder / f"{number:08d}.{kind}"


@dataclass(frozen=True)
class Place:
    """Hold the place of some of a shard's tokens in a finished file.

    Attributes:
        first: the first byte in the shard, of `count` bytes.
        file: the finished file, below READY; the bytes come to `start` in it.
    """

    number: int
    first: int
    count: int
    file: str
    start: int


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
    _write_record(folder, number, record)
    return {**record, "kept": False, "read": chunk.read}


def _write_record(folder: Path, number: int, record: Mapping[str, Any]) -> None:
    beside = _path(folder, number, "new")
    beside.write_text(json.dumps(record), encoding="utf-8")
    beside.rename(_path(folder, number, "json"))


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
            moved = record.get("moved") if kind == "tokens" else None
            found = _digest(_path(folder, number, kind).read_bytes()) if moved is None else ""
            if moved is not None:
                found = _digest(b"".join(_there(folder, *place) for place in moved))
            if found != digest:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record


def _there(folder: Path, file: str, start: int, count: int) -> bytes:
    with (folder.parent / READY / file).open("rb") as found:
        found.seek(start)
        return found.read(count)


def move(folder: Path, places: Sequence[Place]) -> None:
    """Move the tokens of shards to their places, one shard after the other.

    Killed at any moment, it leaves every shard whole in one place or the other. A shard of which
    some tokens have no place stays.

    Args:
        places: all places, those of one shard next to each other.

    Raises:
        Refused: a shard was moved to other places before; its text changed unnoticed.
    """
    for number, group in itertools.groupby(places, key=lambda place: place.number):
        wanted, shard = list(group), _path(folder, number, "tokens")
        record = json.loads(_path(folder, number, "json").read_text())
        there = [[place.file, place.start, place.count] for place in wanted]
        if "moved" in record:
            if record["moved"] != there:
                raise source.Refused(
                    "the text was changed since the unfinished work was begun",
                    hint="remove the hidden folder beside --out, and run the command again",
                )
            shard.unlink(missing_ok=True)
            continue
        for place in wanted:
            _copy(shard, place, folder.parent / READY / place.file)
        if sum(place.count for place in wanted) == shard.stat().st_size:
            _write_record(folder, number, {**record, "moved": there})
            shard.unlink()


def _copy(shard: Path, place: Place, target: Path) -> None:
    """Copy bytes in the kernel, and wait for the disk; some file systems share the blocks."""
    first, start, count = place.first, place.start, place.count
    with shard.open("rb") as file, target.open("r+b") as out:
        while count > 0:
            try:
                done = os.copy_file_range(file.fileno(), out.fileno(), count, first, start)
            except OSError:
                done = os.pwrite(
                    out.fileno(), os.pread(file.fileno(), min(count, 1 << 24), first), start
                )
            if not done:
                raise OSError(f"{shard.name} is shorter than it was")
            first, start, count = first + done, start + done, count - done
        os.fdatasync(out.fileno())
