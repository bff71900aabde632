"""Write tokens of real text for a model: `tokens.py DATA.bin DTYPE ROWS LENGTH OUT.pt`."""

import sys

import numpy as np
import torch

path, dtype, rows, length, out = sys.argv[1:]
found = np.fromfile(path, dtype=dtype, count=int(rows) * int(length)).astype(np.int64)
torch.save(torch.from_numpy(found.reshape(int(rows), int(length))), out)
