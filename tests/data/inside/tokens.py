"""Tokens of real text for a model, given as `FILE,DTYPE,ROWS,LENGTH`: their first numbers."""

import numpy as np
import torch


def read(given):
    """A batch of tokens, [ROWS, LENGTH]."""
    path, dtype, rows, length = given.split(",")
    found = np.load(path).reshape(-1) if path.endswith(".npy") else np.fromfile(path, dtype)
    shape = int(rows), int(length)
    return torch.from_numpy(found[: shape[0] * shape[1]].astype(np.int64).reshape(shape))
