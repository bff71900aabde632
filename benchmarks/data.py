"""Time the conversion of text to Megatron's files: `invoke data` against a pool that reads lines.

Both run in the same container of megatron's image, with one worker a core, on the same text and
vocabulary, and must write the same bytes, else there is no result. The program of `invoke data` is
timed from its start to its end, the pool without its imports (which take seconds and would only
favour `invoke data` on small files). The text is the images' own, Chinese split into characters as
its users do, its lines drawn repeatedly in an order that a fixed seed gives.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Measured, Panel, Verdict
from stackyard.build.builder import Builder
from stackyard.cli.console import Terminal
from stackyard.data import dataset
from stackyard.definitions.project import ROOT, load_project
from stackyard.system import cleanup
from stackyard.system.engine import OWNER_LABEL, RUN_LABEL, ContainerSpec, Engine
from stackyard.system.errors import StackyardError

OURS, LINES = "stackyard", "a line at a time"
SIZES = (16, 48, 144)
"""Megabytes (10^6 bytes) of text."""
ROUNDS = 2
GOAL = 1 / 3
LINEAR = 1.2
TEXT = "/usr/local/share/stackyard/text"


def spell(line: str, language: str) -> str:
    """Return a line as words separated by blanks."""
    return " ".join("".join(line.split())) if language == "zh" else " ".join(line.split())


def make_text(lines: list[str], size: int, path: Path) -> None:
    """Write lines drawn in a fixed order until the file has `size` bytes, or up to a line more."""
    rng, written = random.Random(1), 0
    with path.open("wb") as file:
        while written < size:
            written += file.write(rng.choice(lines).encode() + b"\n")


def make_vocabulary(lines: list[str], path: Path) -> int:
    """Write every second word of the text by order of code points, so that some are unknown."""
    words = sorted({word for line in lines for word in line.split()})[::2]
    table = {word: n for n, word in enumerate(["<unk>", "<|endoftext|>", *words])}
    path.write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
    return len(table)


def ratio(runs: list[dict[str, Any]], size: int) -> float:
    """Return the median seconds of `invoke data` over those of the pool, at one size."""
    by = [
        [r["seconds"] for r in runs if r["side"] == side and r["megabytes"] == size]
        for side in (OURS, LINES)
    ]
    return common.median_ratio(*by)


def growth(runs: list[dict[str, Any]], small: int, large: int) -> float:
    """Return seconds a megabyte of `invoke data` at a large size over those at a smaller one."""
    each = [
        common.middle([r["seconds"] for r in runs if r["side"] == OURS and r["megabytes"] == size])
        for size in (small, large)
    ]
    return (each[1] / large) / (each[0] / small)


class Box:
    """Run both programs in one megatron container, with a folder of the benchmark's own."""

    def __init__(self, engine: Engine, stack: contextlib.ExitStack, folder: Path) -> None:
        built = Builder(load_project(), engine, lambda name, text: None).build("megatron", "cpu")
        run = f"benchmark-{secrets.token_hex(4)}"
        stack.enter_context(cleanup.undoing(cleanup.RUN, run))
        stack.callback(engine.remove_run, f"{RUN_LABEL}={run}")
        binds = {
            dataset.PROGRAMS: str(ROOT / "images" / "data"),
            "/srv/by_hand": str(ROOT / "benchmarks" / "by_hand"),
        }
        spec = ContainerSpec(
            name=f"stackyard-{run}", image=built.info.id, hostname="data", network="none", env={},
            labels={RUN_LABEL: run, OWNER_LABEL: cleanup.owner()}, volumes={},
            capabilities=("DAC_OVERRIDE",), shm_bytes=64 << 20,
            tmpfs={"/tmp": "rw,mode=1777"}, command=("sleep", "86400"), binds=binds,
            mounts={"/bench": str(folder)},
        )  # fmt: skip
        self._engine, self._container = engine, engine.start(spec)

    def run(self, *argv: str, stdin: bytes | None = None) -> str:
        """Run a command there; return its output."""
        done = self._engine.exec(self._container, argv, seconds=3600, stdin=stdin)
        if done.code:
            raise StackyardError(f"{argv[1]} failed", why=done.output[-2000:])
        return done.output


def _ours(box: Box, workers: int, size: int) -> float:
    settings = {
        "stack": "megatron", "inputs": {"train": [{"path": "/bench/text", "name": "text"}]},
        "split": [], "tokens": {"kind": "words", "path": "/bench/vocab.json", "name": "vocab.json"},
        "reading": {"encoding": "utf-8", "bad": "fail", "key": "", "keep_blank": True},
        "append_eod": True, "eod": "", "unk": "<unk>", "seq_length": 0, "folders": 0, "told": {},
        "work": "/bench/ours", "workers": workers, "chunk": dataset.chunk_size(size),
    }  # fmt: skip
    text = json.dumps(settings).encode() + b"\n"
    started = time.monotonic()
    box.run("python3", f"{dataset.PROGRAMS}/prepare.py", stdin=text)
    return time.monotonic() - started


def _theirs(box: Box, workers: int) -> float:
    words = ["/bench/text", "/bench/vocab.json", "/bench/theirs/train", str(workers)]
    said = box.run("python3", "/srv/by_hand/preprocess_lines.py", *words)
    return float(json.loads(said.splitlines()[-1])["seconds"])


def digest_of(folder: Path) -> dict[str, str]:
    """Return the digests of Megatron's two files."""
    found = {}
    for name in ("train.bin", "train.idx"):
        digest = hashlib.blake2b()
        with (folder / name).open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        found[name] = digest.hexdigest()
    return found


def _round(box: Box, folder: Path, workers: int) -> dict[str, float]:
    for name in ("ours", "theirs"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    seconds = {
        OURS: _ours(box, workers, (folder / "text").stat().st_size),
        LINES: _theirs(box, workers),
    }
    if digest_of(folder / "ours" / "ready") != digest_of(folder / "theirs"):
        raise StackyardError("both sides did not write the same bytes")
    return seconds


def measure(terminal: Terminal, engine: Engine) -> Measured:
    """Measure every size, both sides in turn."""
    workers = len(os.sched_getaffinity(0))
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="stackyard-data-"))
        folder = Path(name)
        box = Box(engine, stack, folder)
        lines = [
            spell(line, language)
            for language in ("zh", "en")
            for line in box.run("cat", f"{TEXT}/{language}.txt").splitlines()
            if line.strip()
        ]
        words = make_vocabulary(lines, folder / "vocab.json")
        for size in SIZES:
            make_text(lines, size * 10**6, folder / "text")
            for _ in range(ROUNDS):
                for side, seconds in _round(box, folder, workers).items():
                    runs.append({
                        "side": side, "megabytes": size, "seconds": round(seconds, 3),
                        "workers": workers, "vocabulary": words,
                    })  # fmt: skip
                    rate = size / seconds
                    terminal.done(side, f"{size} MB in {seconds:.2f} s, {rate:.1f} MB/s")
    series = {
        side: [
            [r["seconds"] for r in runs if r["side"] == side and r["megabytes"] == size]
            for size in SIZES
        ]
        for side in (OURS, LINES)
    }
    return Measured(
        title=f"Text to Megatron's .bin and .idx, {workers} workers",
        runs=runs,
        panels=[Panel(title="time by size", unit="s", x=list(SIZES), series=series)],
        verdicts=[
            Verdict(
                what=f"time of {SIZES[-1]} MB, of a line at a time's",
                value=ratio(runs, SIZES[-1]),
                goal=GOAL,
            ),
            Verdict(
                what=f"time a MB at {SIZES[-1]} MB, of that at {SIZES[1]} MB",
                value=growth(runs, SIZES[1], SIZES[-1]),
                goal=LINEAR,
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(common.main("data", measure))
