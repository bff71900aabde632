"""Turn the bundled Chinese and English text into a binarized fairseq corpus.

Owns the smoke's corpus: both languages split into characters, their lines taken in turn, binarized
by the real `fairseq-preprocess`. The dictionary keeps only the most frequent characters, so that 40
updates of a tiny model are enough for the loss to fall.

    python3 prepare.py --text FOLDER --data FOLDER [--repeat N]
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

LINES = 500
"""Lines of each language in the training text: more than the updates of one run consume."""
VALID_LINES = 20
"""Lines of each language held out: fairseq-train opens a validation set even when it skips it."""
WORDS = 256
"""Entries of the dictionary, the rest becomes <unk>."""


def spell(line: str) -> str:
    """Return `line` as space-separated characters, with its own blanks made visible."""
    return " ".join("▁".join(line.split()))


def read_lines(path: Path, count: int) -> list[str]:
    """Return the first `count` spelled, non-empty lines of a text file."""
    with path.open(encoding="utf-8") as file:
        spelled = (spell(line) for line in file)
        return [line for line, _ in zip(filter(None, spelled), range(count), strict=False)]


def write_text(pairs: list[tuple[str, str]], path: Path) -> None:
    """Write pairs of a Chinese and an English line, in turn."""
    path.write_text("".join(f"{zh}\n{en}\n" for zh, en in pairs), encoding="utf-8")


def main() -> None:
    """Write `train` and `valid` below the data folder and binarize them there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="folder of zh.txt and en.txt")
    parser.add_argument("--data", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--repeat", type=int, default=1, help="times that the training text is written"
    )
    options = parser.parse_args()
    data: Path = options.data
    data.mkdir(parents=True, exist_ok=True)
    zh, en = (read_lines(options.text / f"{name}.txt", LINES) for name in ("zh", "en"))
    pairs = list(zip(zh, en, strict=False))
    write_text(pairs[:VALID_LINES], data / "valid.txt")
    write_text(pairs[VALID_LINES:] * options.repeat, data / "train.txt")
    command = ["fairseq-preprocess", "--only-source", "--nwordssrc", str(WORDS)]
    command += ["--trainpref", f"{data}/train.txt", "--validpref", f"{data}/valid.txt"]
    command += ["--destdir", f"{data}/bin", "--workers", "1"]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
