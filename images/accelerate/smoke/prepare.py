"""Train a tokenizer on the smoke text and store the text as token blocks.

Owns the training program's input: `<data>/tokenizer.json` and `<data>/blocks.npy`, int64 of shape
(BLOCKS, BLOCK_TOKENS): a sample of both languages, already in training order. The order comes from
a fixed seed and is stored, so every layout and every resumed run sees the same batches. It must not
import torch: this runs before the launch and should cost next to nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

VOCABULARY = 512
BLOCK_TOKENS = 32
BLOCKS = 40
SEED = 1234


def train_tokenizer(lines: list[str]) -> Tokenizer:
    """Train byte-level BPE, which can spell every character of both languages."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def blocks_of(tokenizer: Tokenizer, lines: list[str]) -> np.ndarray:
    """Draw BLOCKS blocks from all lines, each ended by <eos>."""
    eos = tokenizer.token_to_id("<eos>")
    flat = np.array(
        [token for line in tokenizer.encode_batch(lines) for token in (*line.ids, eos)],
        dtype=np.int64,
    )
    blocks = flat[: len(flat) // BLOCK_TOKENS * BLOCK_TOKENS].reshape(-1, BLOCK_TOKENS)
    order = np.random.default_rng(SEED).permutation(len(blocks))
    return blocks[order[:BLOCKS]]


def main() -> None:
    """Write the data folder from the text folder (zh.txt, en.txt)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()

    lines = [
        line
        for language in ("zh", "en")
        for line in (options.text / f"{language}.txt").read_text(encoding="utf-8").splitlines()
        if line
    ]
    tokenizer = train_tokenizer(lines)
    sample = lines[0] + lines[-1]
    if tokenizer.decode(tokenizer.encode(sample).ids) != sample:
        raise SystemExit(f"the tokenizer does not restore the text: {sample!r}")
    blocks = blocks_of(tokenizer, lines)

    options.data.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.data / "tokenizer.json"))
    np.save(options.data / "blocks.npy", blocks)
    print(f"{len(lines)} lines, {tokenizer.get_vocab_size()} tokens, {len(blocks)} blocks")


if __name__ == "__main__":
    main()
