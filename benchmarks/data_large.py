"""Measure `invoke data` on one compressed file of up to 5 GB of text: time, memory and disk.

Each size is one `.jsonl.gz`, which holds so many bytes of JSON lines, and is converted to
Megatron's files in megatron's image, with one worker a core. The usual program (a pool, a line at a
time, streaming) converts the smallest; both must write the same bytes, else there is no result. A
watcher in the same container reads memory and disk ten times a second.

    benchmarks/run data_large [MEGABYTES...]
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Measured, Panel, Verdict
from benchmarks.data import TEXT, Box, digest_of, make_vocabulary, spell
from stackyard.cli.console import Terminal
from stackyard.data import dataset
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError

OURS, LINES = "stackyard", "a line at a time"
SIZES = (500, 1500, 5000)
"""Megabytes (10^6 bytes) of JSON lines, before they are compressed."""
FASTER, LINEAR, ONCE = 1 / 2, 1.2, 1.1
MEMORY = 200
"""Megabytes (10^6 bytes) that each worker may take, and the process that decompresses."""


def make_file(lines: Sequence[str], size: int, path: Path) -> None:
    """Write JSON lines drawn in a fixed order; the plain text is never on the disk."""
    rng, written = random.Random(1), 0
    texts = [json.dumps({"text": line}, ensure_ascii=False).encode() + b"\n" for line in lines]
    with gzip.open(path, "wb", compresslevel=1) as file:
        while written < size:
            written += file.write(b"".join(rng.choices(texts, k=1000)))


def settings(folder: str, workers: int, size: int) -> dict[str, Any]:
    """Return the settings of the program for the file in a folder."""
    return {
        "stack": "megatron",
        "inputs": {"train": [{"path": f"{folder}/text.jsonl.gz", "name": "text.jsonl.gz"}]},
        "split": [],
        "tokens": {"kind": "words", "path": f"{folder}/vocab.json", "name": "vocab.json"},
        "reading": {"encoding": "utf-8", "bad": "fail", "key": "text", "keep_blank": True},
        "append_eod": True, "eod": "", "unk": "<unk>", "seq_length": 0, "folders": 0, "told": {},
        "work": f"{folder}/ours", "workers": workers, "chunk": dataset.chunk_size(size),
    }  # fmt: skip


def verdicts(runs: Sequence[dict[str, Any]], sizes: Sequence[int]) -> list[Verdict]:
    """Judge the runs: time, memory and disk of the largest size."""
    small, large = sizes[0], sizes[-1]
    by = {(run["side"], run["megabytes"]): run for run in runs}
    ours, first = by[OURS, large], by[OURS, small]
    each = [run["seconds"] / run["megabytes"] for run in (first, ours)]
    return [
        Verdict(what=f"time of {small} MB, of a line at a time's", goal=FASTER,
                value=first["seconds"] / by[LINES, small]["seconds"]),
        Verdict(what=f"time a MB at {large} MB, of that at {small} MB", goal=LINEAR,
                value=each[1] / each[0]),
        Verdict(what=f"memory at {large} MB, in MB", goal=MEMORY * (ours["workers"] + 1),
                value=ours["memory"] / 10**6),
        Verdict(what=f"disk at {large} MB, of what is written in the end", goal=ONCE,
                value=ours["disk"] / ours["written"]),
    ]  # fmt: skip


def _watched(box: Box, folder: str, *words: str, stdin: bytes | None = None) -> dict[str, Any]:
    said = box.run("python3", "/srv/by_hand/watched.py", folder, *words, stdin=stdin)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def _once(box: Box, folder: Path, side: str, workers: int) -> dict[str, Any]:
    """Convert the file once."""
    out = folder / ("ours" if side == OURS else "theirs")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    if side == LINES:
        words = ["/bench/text.jsonl.gz", "/bench/vocab.json", "/bench/theirs/train", str(workers)]
        program = "/srv/by_hand/preprocess_json_lines.py"
        found = _watched(box, "/bench/theirs", "python3", program, *words)
        return found | {"written": sum(path.stat().st_size for path in out.iterdir())}
    given = settings("/bench", workers, (folder / "text.jsonl.gz").stat().st_size)
    program = f"{dataset.PROGRAMS}/prepare.py"
    text = json.dumps(given).encode() + b"\n"
    found = _watched(box, "/bench/ours", "python3", program, stdin=text)
    return found | {"written": sum(path.stat().st_size for path in (out / "ready").iterdir())}


def measure(sizes: Sequence[int], terminal: Terminal, engine: Engine) -> Measured:
    """Measure every size; the usual program at the smallest only, of which it takes an hour."""
    workers = len(os.sched_getaffinity(0))
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stackyard-data-")))
        box = Box(engine, stack, folder)
        lines = [
            spell(line, language)
            for language in ("zh", "en")
            for line in box.run("cat", f"{TEXT}/{language}.txt").splitlines()
            if line.strip()
        ]
        make_vocabulary(lines, folder / "vocab.json")
        for size in sizes:
            make_file(lines, size * 10**6, folder / "text.jsonl.gz")
            for side in (OURS, LINES) if size == sizes[0] else (OURS,):
                found = _once(box, folder, side, workers)
                runs.append({"side": side, "megabytes": size, "workers": workers, **found})
                memory = found["memory"] / 10**6
                terminal.done(side, f"{size} MB in {found['seconds']:.1f} s, {memory:.0f} MB")
            if size == sizes[0] and digest_of(folder / "ours" / "ready") != digest_of(
                folder / "theirs"
            ):
                raise StackyardError("both sides did not write the same bytes")
    by = {(run["side"], run["megabytes"]): run for run in runs}

    def series(what: str, scale: float) -> dict[str, list[list[float]]]:
        return {
            side: [[by[side, size][what] / scale] if (side, size) in by else [] for size in sizes]
            for side in (OURS, LINES)
        }

    return Measured(
        title=f"One .jsonl.gz to Megatron's .bin and .idx, {workers} workers",
        runs=runs,
        panels=[
            Panel(title="time by size", unit="s", x=list(sizes), series=series("seconds", 1)),
            Panel(title="memory by size", unit="MB", x=list(sizes), series=series("memory", 10**6)),
        ],
        verdicts=verdicts(runs, sizes),
    )


if __name__ == "__main__":
    asked = tuple(int(word) for word in sys.argv[1:]) or SIZES
    sys.exit(common.main("data_large", functools.partial(measure, asked)))
