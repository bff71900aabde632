"""Print how far a converted model's logits are from those that are given.

differ.py MODEL TOKENS PART.pt...      (parts are of the vocabulary)
differ.py MODEL TOKENS FOLDER          (another model of transformers)
"""

import pathlib
import sys

import torch
from logits import by_transformers
from tokens import read

model, given, *parts = sys.argv[1:]
tokens = read(given)
with torch.no_grad():
    one = by_transformers(model)(tokens).float()
    if pathlib.Path(parts[0]).is_dir():
        other = by_transformers(parts[0])(tokens).float()
    else:
        other = torch.cat([torch.load(path) for path in parts], dim=-1)
assert one.shape == other.shape, (one.shape, other.shape)
# Logits of an untrained model are all alike.
assert one.std() > 0.3, one.std()
print("differ by", (one - other).abs().max().item())
