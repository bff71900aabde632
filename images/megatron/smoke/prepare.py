"""Turn the sample text into what Megatron trains on: vocab.json, text.bin, text.idx, index cache.

Runs once, as a single process, before any rank starts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from corpus import CharacterTokenizer, build_dataset, write_indexed_dataset


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="folder of zh.txt and en.txt")
    parser.add_argument("--data", type=Path, required=True, help="folder to write; made if missing")
    parser.add_argument("--updates", type=int, required=True, help="global batches to index")
    options = parser.parse_args()

    lines = [
        line
        for name in ("zh.txt", "en.txt")
        for line in (options.text / name).read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    options.data.mkdir(parents=True, exist_ok=True)
    tokenizer = CharacterTokenizer.from_lines(lines)
    tokenizer.save(options.data)
    write_indexed_dataset(lines, tokenizer, options.data)
    # Built here so that ranks of later launches, on whatever node, only ever read the cache.
    dataset = build_dataset(tokenizer, options.data, options.updates)
    print(f"{len(lines)} documents, {tokenizer.vocab_size} tokens, {len(dataset)} samples")


if __name__ == "__main__":
    main()
