"""A line at a time through Megatron's own builder: `... TEXT VOCAB PREFIX UNK [EOD]`."""

import json
import pathlib
import sys

import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

text, vocabulary, prefix, unknown, *end = sys.argv[1:]
with pathlib.Path(vocabulary).open(encoding="utf-8") as file:
    table = json.load(file)
builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(len(table)))
with pathlib.Path(text).open(encoding="utf-8", newline="\n") as file:
    for line in file:
        ids = [table.get(word, table[unknown]) for word in line.strip().split()]
        ids += [table[word] for word in end]
        builder.add_document(torch.tensor(ids), [len(ids)])
builder.finalize(f"{prefix}.idx")
