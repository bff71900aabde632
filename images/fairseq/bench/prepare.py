"""Write the bench's text as a binarized fairseq corpus: dict.txt, train, valid.

python3 prepare.py --data FOLDER --vocabulary N --documents N --length N
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import synthetic
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

SPECIAL = 4
"""Numbers below are fairseq's own: beginning, padding, end, unknown."""
END = 2
HELD_OUT = 50
"""fairseq-train opens a validation set even when it skips it."""


def write(rows: np.ndarray, prefix: Path) -> None:
    """Write documents as `<prefix>.bin` and `.idx`, each closed with fairseq's end."""
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for row in rows:
        builder.add_item(torch.from_numpy(np.append(row, END).astype(np.int32)))
    builder.finalize(f"{prefix}.idx")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder to write")
    parser.add_argument("--vocabulary", type=int, required=True, help="fairseq's own included")
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--length", type=int, default=1000)
    options = parser.parse_args()
    words = options.vocabulary - SPECIAL
    options.data.mkdir(parents=True, exist_ok=True)
    lines = (f"w{number} {options.vocabulary - number}\n" for number in range(words))
    (options.data / "dict.txt").write_text("".join(lines), encoding="utf-8")
    rows = synthetic.documents(words, options.documents, options.length) + SPECIAL
    write(rows[:-HELD_OUT], options.data / "train")
    write(rows[-HELD_OUT:], options.data / "valid")
    print(f"{rows.size} tokens, {options.vocabulary} words")


if __name__ == "__main__":
    main()
