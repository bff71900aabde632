"""Make a small corpus in Megatron's format, OUT/train.bin and OUT/train.idx, from the image's text.

Each line is one document and each character one number, listed in `vocab.json` beside it.

    python3 make_corpus.py --text FOLDER --out FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import (
    IndexedDatasetBuilder,
    get_bin_path,
    get_idx_path,
)

END = "<eod>"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="folder of zh.txt and en.txt")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--lines", type=int, default=0, help="of each language; 0: all")
    options = parser.parse_args()
    both = ((options.text / name).read_text(encoding="utf-8") for name in ("zh.txt", "en.txt"))
    found = [[line for line in text.splitlines() if line] for text in both]
    pairs = zip(*(lines[: options.lines or None] for lines in found), strict=False)
    lines = [line for pair in pairs for line in pair]
    numbers = {word: n for n, word in enumerate([END, *sorted(set().union(*lines))])}
    options.out.mkdir(parents=True, exist_ok=True)
    vocabulary = json.dumps(numbers, ensure_ascii=False)
    (options.out / "vocab.json").write_text(vocabulary, encoding="utf-8")
    prefix = str(options.out / "train")
    builder = IndexedDatasetBuilder(get_bin_path(prefix), dtype=np.int32)
    for line in lines:
        builder.add_document(torch.tensor([*(numbers[c] for c in line), 0]), [len(line) + 1])
    builder.finalize(get_idx_path(prefix))
    print(f"{len(lines)} documents, {len(numbers)} different characters")


if __name__ == "__main__":
    main()
