"""Compile functions with a way back, once for batches of all sizes; the fused parts of fairseq share this.

Added by Stackyard. Which parts are on, and what became of them, is `stackyard_fused`'s.
"""

import logging
import time

import torch

logger = logging.getLogger(__name__)
# A call only queues work: one that takes this many seconds has compiled.
LONG = 0.5


def _graphs():
    """Return how many graphs torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


class Compiled:
    """Fuse a function by torch.compile; where that fails, log it once and return None from then on.

    Args:
        part: the fused part that it belongs to.
        varying: what differs between batches, as places of arguments and their dimensions. These sizes are compiled as
            unknown: torch would compile for those of the first batch, and once more (6 s) when another one comes.
            Even so it may compile again for some sizes (8 s on a GPU for the last batch of an epoch), so batches of
            seldom sizes are computed without compiling.
    """

    def __init__(self, part, name, function, varying=()):
        self.part, self.name, self._function, self._varying = part, name, function, varying
        self._fused, self._works, self._usual = None, True, []
        self._calls = self._others = 0

    def __call__(self, *args):
        """Return the function's value, or None: the caller does it the ordinary way."""
        if not self._works:
            return None
        sizes = [args[place].shape[dim] for place, dim in self._varying]
        first = self._fused is None
        if first:
            self._fused, self._usual = torch.compile(self._function, fullgraph=True), sizes
        if self._seldom(sizes):
            return self._function(*args)
        for (place, dim), size in zip(self._varying, sizes):
            if size > 1:
                torch._dynamo.maybe_mark_dynamic(args[place], dim)
        began = time.monotonic()
        try:
            graphs = _graphs() if first else 0
            value = self._fused(*args)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            self._give_up(error)
            return None
        took = time.monotonic() - began
        if first and _graphs() == graphs:
            self._give_up("torch.compile compiled nothing (TORCHDYNAMO_DISABLE switches it off)")
            return value
        self.part.ran()
        if first:
            logger.info("%s: fused in %.1f s", self.name, took)
        elif took > LONG:
            logger.info("%s: fused again in %.1f s, for tensors of another kind", self.name, took)
        return value

    def _seldom(self, sizes):
        """Tell whether most batches have other sizes: such a one is sooner computed than compiled."""
        self._calls += 1
        self._others += sizes != self._usual
        # torch compiles a size of 1 by itself.
        lone = 1 in sizes and 1 not in self._usual
        return lone or (sizes != self._usual and 2 * self._others <= self._calls)

    def _give_up(self, why):
        self._works = False
        self.part.fell_back(why)
        logger.warning("%s is not fused here: %s", self.name, self.part.why)
