"""Make the training text's binary form and sample index on this machine, before any training.

For nodes without a shared folder: in a training rank 0 makes them, and the others read them.

    python3 index.py --data FOLDER --horizon UPDATES
"""

from __future__ import annotations

import argparse
from pathlib import Path

import corpus
from vocabulary import CharacterTokenizer


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--horizon", type=int, required=True, help="updates to index samples for")
    options = parser.parse_args()
    tokenizer = CharacterTokenizer.load(options.data)
    corpus.write_indexed_dataset(tokenizer, options.data)
    dataset = corpus.build_dataset(tokenizer, options.data, options.horizon)
    print(f"{len(dataset)} samples")


if __name__ == "__main__":
    main()
