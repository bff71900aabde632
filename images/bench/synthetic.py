"""Make synthetic text for benches: the same tokens every time, with something to learn in them.

Owns the rule: a word is either the one that always follows the word before (6 times of 10), or
drawn by Zipf's law. A language model learns the frequencies first and then the followers, so its
loss falls for long.
"""

from __future__ import annotations

import numpy as np

FOLLOWS = 0.6


def documents(vocabulary: int, count: int, length: int, seed: int = 1) -> np.ndarray:
    """Return `count` documents of `length` tokens each, numbers below `vocabulary`."""
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocabulary + 1)
    limits = np.cumsum(weights / weights.sum())
    follower = generator.permutation(vocabulary)

    def draw() -> np.ndarray:
        return np.minimum(np.searchsorted(limits, generator.random(count)), vocabulary - 1)

    found = np.empty((count, length), dtype=np.int32)
    found[:, 0] = draw()
    for place in range(1, length):
        drawn, follows = draw(), generator.random(count) < FOLLOWS
        found[:, place] = np.where(follows, follower[found[:, place - 1]], drawn)
    return found
