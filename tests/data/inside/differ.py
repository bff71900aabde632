"""Print how far logits differ: `differ.py ONE.pt PART.pt...`; parts are of the vocabulary."""

import sys

import torch

one = torch.load(sys.argv[1])
other = torch.cat([torch.load(path) for path in sys.argv[2:]], dim=-1)
assert one.shape == other.shape, (one.shape, other.shape)
# Logits of an untrained model are all alike.
assert one.std() > 0.3, one.std()
print("differ by", (one - other).abs().max().item())
