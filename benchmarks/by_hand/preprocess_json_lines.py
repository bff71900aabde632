"""Convert compressed JSON lines to Megatron's files the usual way: a pool, a line at a time.

This is what Megatron's own tools/preprocess_data.py does with a file: it streams, and one tensor is
made of each line. Words of a vocab.json, `<unk>` for others, `<|endoftext|>` after every document.

    python3 preprocess_json_lines.py FILE.jsonl.gz VOCAB PREFIX WORKERS
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import sys
from pathlib import Path

import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

_TABLE: dict[str, int] = {}


def encode(line: str) -> list[int]:
    """Return the numbers of one line's text."""
    unknown = _TABLE["<unk>"]
    numbers = [_TABLE.get(word, unknown) for word in json.loads(line)["text"].split()]
    numbers.append(_TABLE["<|endoftext|>"])
    return numbers


def main() -> None:
    """Run the command line."""
    file, vocabulary, prefix, workers = sys.argv[1:]
    _TABLE.update(json.loads(Path(vocabulary).read_text(encoding="utf-8")))
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(len(_TABLE)))
    with (
        gzip.open(file, "rt", encoding="utf-8") as lines,
        multiprocessing.get_context("fork").Pool(int(workers)) as pool,
    ):
        for numbers in pool.imap(encode, lines, 32):
            builder.add_document(torch.IntTensor(numbers), [len(numbers)])
    builder.finalize(f"{prefix}.idx")


if __name__ == "__main__":
    main()
