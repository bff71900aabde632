"""Convert text to the data that a stack trains on; settings come as JSON on standard input.

Owns the order: the settings are checked, every chunk becomes a shard (several workers), the shards
are moved into the finished files in order. Progress is JSON lines on standard output: `training`,
`progress`, `error`, `done`.
Everything is written below `work`; the caller takes the finished folder from there. The result
depends on text and settings alone, never on the workers.

Over 300 lines: all steps from the settings to the finished files stand here in their order.
"""

from __future__ import annotations

import concurrent.futures
import errno
import functools
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shards
import source
import stacks
import vocabulary
from source import Refused

ROLES = ("train", "valid", "test")
PATIENCE = 0.25
"""Seconds between two lines of progress."""

_FORM: stacks.Form | None = None


def say(event: str, **values: Any) -> None:
    """Print one event for the caller."""
    print(json.dumps({"event": event, **values}), flush=True)


def _work(
    folder: str, number: int, chunk: source.Chunk, reading: Mapping[str, Any]
) -> dict[str, Any]:
    assert _FORM is not None
    return shards.make(Path(folder), number, chunk, reading, _FORM)


@dataclass
class Seen:
    """Hold the shards of one role."""

    numbers: list[int] = field(default_factory=list)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)

    def total(self, what: str) -> int:
        return sum(record[what] for record in self.records.values())

    def in_order(self) -> list[dict[str, Any]]:
        return [self.records[number] for number in self.numbers]


class Progress:
    """Report bytes done of all bytes, at most every PATIENCE seconds."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._kept, self._tokens, self._said = total, 0, 0, 0, 0.0

    def add(self, count: int, record: Mapping[str, Any]) -> None:
        self._done += count
        self._kept += count if record["kept"] else 0
        self._tokens += record["tokens"]
        if time.monotonic() - self._said > PATIENCE or self._done == self._total:
            self._said = time.monotonic()
            say(
                "progress", done=self._done, total=self._total, kept=self._kept, tokens=self._tokens
            )


def encode_all(settings: Mapping[str, Any], work: Path) -> dict[str, Seen]:
    """Make the shards of all inputs; check and keep those that an earlier run finished."""
    inputs = {
        role: [source.Input(one["path"], one["name"]) for one in settings["inputs"].get(role, ())]
        for role in ROLES
    }
    sizes = {one.path: _identity(one) for found in inputs.values() for one in found}
    progress = Progress(sum(sizes[one.path][0] for found in inputs.values() for one in found))
    seen = {role: Seen() for role in ROLES}
    folder = work / "shards"
    folder.mkdir(exist_ok=True)
    todo = _numbered(inputs, seen, settings["chunk"])
    if settings["workers"] == 1:
        for role, number, step, chunk in todo:
            record = _work(str(folder), number, chunk, settings["reading"])
            seen[role].records[number] = record
            progress.add(step, record)
    else:
        _encode_beside(settings, str(folder), todo, seen, progress)
    for found in inputs.values():
        for one in found:
            if _identity(one) != sizes[one.path]:
                raise Refused(f"{one.name} was changed while it was read", hint="run it again")
    return seen


def _identity(one: source.Input) -> tuple[int, int]:
    found = os.stat(one.path)
    return found.st_size, found.st_mtime_ns


def _numbered(
    inputs: Mapping[str, Sequence[source.Input]], seen: Mapping[str, Seen], most: int
) -> Iterator[tuple[str, int, int, source.Chunk]]:
    number = 0
    for role, found in inputs.items():
        for one in found:
            before = 0
            for chunk in source.chunks(one, most):
                seen[role].numbers.append(number)
                yield role, number, chunk.read - before, chunk
                before = chunk.read
                number += 1


def _encode_beside(
    settings: Mapping[str, Any],
    folder: str,
    todo: Iterator[tuple[str, int, int, source.Chunk]],
    seen: Mapping[str, Seen],
    progress: Progress,
) -> None:
    """Encode with several workers, which have the vocabulary from the fork.

    Compressed text comes from this process: it is a chunk ahead of every worker, and no more.
    """
    workers = settings["workers"]
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("fork"), initializer=_worker
    )
    open_: dict[concurrent.futures.Future[dict[str, Any]], tuple[str, int, int]] = {}
    try:
        for more in _ended(todo):
            if more is not None:
                role, number, step, chunk = more
                made = pool.submit(_work, folder, number, chunk, settings["reading"])
                open_[made] = (role, number, step)
            while open_ and (more is None or len(open_) > workers + 2):
                ready, _ = concurrent.futures.wait(
                    open_, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for one in ready:
                    role, number, step = open_.pop(one)
                    seen[role].records[number] = one.result()
                    progress.add(step, seen[role].records[number])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _ended(todo: Iterator[Any]) -> Iterator[Any]:
    yield from todo
    yield None


def _worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def bounds(weights: Sequence[float], count: int) -> list[int]:
    """Return the borders of contiguous splits of `count` documents, rounded as Megatron does."""
    total, done, found = sum(weights), 0.0, [0]
    for weight in weights:
        done += weight / total
        found.append(round(done * float(count)))
    found[-1] = count
    return found


def split_parts(
    folder: Path, seen: Seen, form: stacks.Form, first: int, last: int
) -> list[stacks.Part]:
    """Return the parts of shards that hold documents `first` up to `last`."""
    found, before = [], 0
    for number, record in zip(seen.numbers, seen.in_order(), strict=True):
        count = record["documents"]
        low, high = max(first - before, 0), min(last - before, count)
        before += count
        if low >= high:
            continue
        read = functools.partial(_some_lengths, folder, number, low, high)
        start, tokens = 0, record["tokens"]
        if (low, high) != (0, count):
            lengths = shards.read_lengths(folder, number).astype("int64")
            start, tokens = int(lengths[:low].sum()), int(lengths[low:high].sum())
        found.append(stacks.Part(number, start, tokens, read))
    return found


def _some_lengths(folder: Path, number: int, low: int, high: int) -> Any:
    return shards.read_lengths(folder, number)[low:high]


def divide(settings: Mapping[str, Any], seen: Mapping[str, Seen], form: stacks.Form,
           folder: Path) -> dict[str, list[stacks.Part]]:  # fmt: skip
    """Return the parts of every split that is asked for, by its name in the finished folder."""
    asked: list[tuple[str, str, int, int]] = []  # name, role of the shards, documents from and to
    if settings["split"]:
        edges = bounds(settings["split"], seen["train"].total("documents"))
        for role, weight, low, high in zip(
            ROLES, settings["split"], edges, edges[1:], strict=False
        ):
            if weight:
                asked.append((role, "train", low, high))
    else:
        for role in ROLES:
            if settings["inputs"].get(role):
                asked.append((role, role, 0, seen[role].total("documents")))
    return {
        name: split_parts(folder, seen[role], form, low, high)
        for name, role, low, high in in_folders(asked, settings["folders"])
    }


def in_folders(
    asked: Sequence[tuple[str, str, int, int]], folders: int
) -> Iterator[tuple[str, str, int, int]]:
    """Spread train over fairseq's folders shard0, shard1, ...; it reads the others in the first."""
    for name, role, low, high in asked:
        if not folders:
            yield name, role, low, high
        elif name != "train":
            yield f"shard0/{name}", role, low, high
        else:
            edges = [low + edge for edge in bounds([1] * folders, high - low)]
            for number, (first, last) in enumerate(itertools.pairwise(edges)):
                yield f"shard{number}/train", role, first, last


def require_enough(
    settings: Mapping[str, Any],
    found: Mapping[str, Sequence[stacks.Part]],
    documents: Mapping[str, int],
) -> None:
    """Check that every split holds something to train or validate on.

    Raises:
        Refused: a split does not; the error has each split's number of documents.
    """
    length = settings["seq_length"]
    # A model sees a token and predicts the next: one sample is one token longer.
    needed = length + (settings["stack"] == "megatron") if length else 1
    tokens = {role: sum(part.count for part in parts) for role, parts in found.items()}
    short = [role for role in found if tokens[role] < needed]
    if not short:
        return
    each = ", ".join(f"{r} {documents[r]:,} documents, {tokens[r]:,} tokens" for r in found)
    sample = f"fewer than one sample of {needed:,} tokens" if length else "no documents"
    raise Refused(
        f"{short[0]} has {sample}",
        why=each,
        hint="give more text, another --split, or a shorter --seq-length"
        if settings["split"] or length
        else "check that the input holds text"
        + (", for as many documents as --shards" if settings["folders"] else ""),
    )


def join(settings: Mapping[str, Any], work: Path, seen: Mapping[str, Seen],
         form: stacks.Form) -> dict[str, Any]:  # fmt: skip
    """Write the finished folder; return its description, which is also written beside the data."""
    folder, ready = work / "shards", work / shards.READY
    found = divide(settings, seen, form, folder)
    documents = {name: sum(len(part.lengths()) for part in parts) for name, parts in found.items()}
    require_enough(settings, found, documents)
    stack, length, width = settings["stack"], settings["seq_length"], form.dtype.itemsize
    places: list[shards.Place] = []
    for name, parts in found.items():
        file = stacks.data_file(stack, name)
        (ready / file).parent.mkdir(parents=True, exist_ok=True)
        before, most = stacks.head(stack, form, parts, length)
        _begin(ready / file, before, len(before) + most * width)
        start = len(before)
        for part in parts:
            count = min(part.count, most) * width
            if count:
                places.append(shards.Place(part.number, part.first * width, count, file, start))
            start, most = start + count, most - count // width
    shards.move(folder, places)
    splits: dict[str, dict[str, int]] = {}
    for name, parts in found.items():
        stacks.write_index(stack, ready / f"{name}.idx", form, parts)
        split = splits.setdefault(Path(name).name, {"documents": 0, "tokens": 0})
        split["documents"] += documents[name]
        split["tokens"] += sum(part.count for part in parts)
        split |= stacks.describe(stack, parts, length)
    folders = sorted({str(Path(name).parent) for name in found}, key=lambda n: (len(n), n))
    stacks.write_beside(ready, form, folders)
    counts: Counter[str] = Counter()
    for one in seen.values():
        for record in one.records.values():
            counts.update(record["counts"])
    about = {
        "stack": settings["stack"],
        "splits": splits,
        **({"folders": folders} if settings["folders"] else {}),
        "vocabulary": form.size,
        "dtype": form.dtype.name,
        "end": {"token": form.end_name, "number": form.end},
        "unknown tokens": sum(one.total("unknown") for one in seen.values()),
        **{what: counts[what] for what in ("blank lines", "bad lines")},
        "settings": settings["told"],
    }
    text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    (ready / "data.json").write_text(text, encoding="utf-8")
    return about


def _begin(path: Path, head: bytes, size: int) -> None:
    """Make a file of its final size, whose tokens come later; keep what an earlier run moved."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(head)
        file.truncate(size)


def claim(settings: Mapping[str, Any], work: Path) -> None:
    """Remove finished files of another layout; shards that were moved there are made again."""
    names = sorted({one["path"] for found in settings["inputs"].values() for one in found})
    layout = json.dumps([
        [settings[key] for key in ("split", "seq_length", "folders")],
        [[name, *_identity(source.Input(name, name))] for name in names],
    ])  # fmt: skip
    claimed = work / "layout.json"
    if not claimed.is_file() or claimed.read_text(encoding="utf-8") != layout:
        shutil.rmtree(work / shards.READY, ignore_errors=True)
        claimed.write_text(layout, encoding="utf-8")


def main() -> int:
    """Read the settings, prepare the data, report the end."""
    global _FORM
    # The caller handles Ctrl-C: it removes the container.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    work = Path(settings["work"])
    try:
        if settings["tokens"]["kind"] == "train":
            say("training", tokens=settings["tokens"]["size"])
            vocabulary.train(settings, work)
        _FORM = stacks.form_of(settings)
        claim(settings, work)
        seen = encode_all(settings, work)
        about = join(settings, work, seen, _FORM)
    except Refused as error:
        say("error", what=error.what, why=error.why, hint=error.hint)
        return 2
    except BrokenProcessPool:
        say("error", what="a worker was killed", why="most likely it ran out of memory",
            hint="use fewer workers: --workers N")  # fmt: skip
        return 4
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk of --out is full" if full else f"cannot go on: {error}"
        hint = "free some space and run the command again: finished work is kept" if full else ""
        say("error", what=what, why=str(error) if full else "", hint=hint)
        return 4
    kept = sum(1 for one in seen.values() for r in one.records.values() if r["kept"])
    made = sum(len(one.records) for one in seen.values())
    say("done", about=about, kept=kept, shards=made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
