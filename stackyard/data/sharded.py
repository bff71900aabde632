"""Say over how many ranks the newest checkpoint in a folder is cut, by the names of its files.

Owns these names: of fairseq's sharded state and of DeepSpeed's ZeRO, which accelerate uses. Others
(whole files, PyTorch's distributed checkpoints) are read by any number of ranks. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# As deep as these files lie below a folder of checkpoints.
DEPTH = 3
_FAIRSEQ = re.compile(r"checkpoint_last-shard\d+\.pt")
# The folder of one update, and the part of a rank in it. Unfinished folders have other names.
_ZERO = re.compile(
    r"(?:update-|global_step)(\d+)/(?:[^/]+/)*(\w*zero_pp_rank_\d+_mp_rank_\d+)_optim_states\.pt"
)


def ranks_of(paths: Iterable[str]) -> int | None:
    """Return the number of ranks that wrote the newest checkpoint; None if any can read it.

    Args:
        paths: of files, from the folder of checkpoints on.
    """
    fairseq: set[str] = set()
    zero: dict[int, set[str]] = {}
    for path in paths:
        if _FAIRSEQ.fullmatch(path):
            fairseq.add(path)
        elif found := _ZERO.fullmatch(path):
            zero.setdefault(int(found[1]), set()).add(found[2])
    parts = fairseq or (zero[max(zero)] if zero else set())
    return len(parts) or None
