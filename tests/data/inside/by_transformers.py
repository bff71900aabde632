"""Tokens as transformers makes them of a vocabulary: `by_transformers.py FOLDER TEXT END OUT`.

FOLDER holds GPT-2's vocab.json and merges.txt, or BERT's vocab.txt. OUT gets the numbers of all
lines, each ended by the token END, in 16 bits: Megatron's .bin.
"""

import pathlib
import sys

import numpy as np
from transformers import BertTokenizer, GPT2Tokenizer

folder, text, end, out = sys.argv[1:]
if pathlib.Path(f"{folder}/merges.txt").is_file():
    tokenizer = GPT2Tokenizer(vocab=f"{folder}/vocab.json", merges=f"{folder}/merges.txt")
else:
    tokenizer = BertTokenizer(vocab=f"{folder}/vocab.txt")
last = tokenizer.convert_tokens_to_ids(end)
with pathlib.Path(text).open(encoding="utf-8") as file:
    lines = [line.rstrip("\n") for line in file if line.strip()]
found = [n for line in lines for n in (*tokenizer.encode(line, add_special_tokens=False), last)]
np.array(found, dtype="<u2").tofile(out)
print(len(found), len(set(found)))
