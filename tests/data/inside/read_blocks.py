"""accelerate's blocks against the tokenizer itself: `read_blocks.py OUT TOKENIZER TEXT`."""

import itertools
import pathlib
import sys

import numpy as np
from tokenizers import Tokenizer

out, tokenizer, text = sys.argv[1:]
blocks = np.load(f"{out}/train.npy", mmap_mode="r")
found = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
with pathlib.Path(text).open(encoding="utf-8") as file:
    lines = [line.rstrip("\n") for line in file if line.strip()]
ids = [[*found.encode(line).ids, found.token_to_id("<|endoftext|>")] for line in lines]
flat = list(itertools.chain.from_iterable(ids))
assert blocks.shape == (len(flat) // 32, 32), blocks.shape
assert blocks.dtype == np.uint16, blocks.dtype
assert blocks.reshape(-1).tolist() == flat[: blocks.size]
