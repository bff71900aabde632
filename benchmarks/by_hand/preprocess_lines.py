"""Convert text to Megatron's files the usual way: a pool, a line at a time, one tensor a line.

This is the program that people write after Megatron's own tools/preprocess_data.py: words of a
vocab.json, `<unk>` for others, `<|endoftext|>` after every line. It prints the seconds of the work
itself, without those of its imports.

    python3 preprocess_lines.py TEXT VOCAB PREFIX WORKERS
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path

import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

_TABLE: dict[str, int] = {}


def encode(line: str) -> list[int]:
    """Return the numbers of one line."""
    numbers = []
    for word in line.strip().split():
        numbers.append(_TABLE[word] if word in _TABLE else _TABLE["<unk>"])
    numbers.append(_TABLE["<|endoftext|>"])
    return numbers


def main() -> None:
    """Run the command line."""
    text, vocabulary, prefix, workers = sys.argv[1:]
    started = time.monotonic()
    _TABLE.update(json.loads(Path(vocabulary).read_text(encoding="utf-8")))
    with Path(text).open(encoding="utf-8") as file:
        lines = file.readlines()
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(len(_TABLE)))
    with multiprocessing.get_context("fork").Pool(int(workers)) as pool:
        for numbers in pool.imap(encode, lines, 25):
            builder.add_document(torch.IntTensor(numbers), [len(numbers)])
    builder.finalize(f"{prefix}.idx")
    print(json.dumps({"seconds": time.monotonic() - started}))


if __name__ == "__main__":
    main()
