"""What the fused parts of fairseq share: the switch, and compiling with a way back.

Added by Stackyard. STACKYARD_FUSED names the parts that are on (`layer,loss,adam,copies,waits` unless set, or `1`); `0` is none of
them: fairseq's own code then runs, line by line.
"""

import logging
import os
import time

import torch

logger = logging.getLogger(__name__)
# A call only queues work: one that takes this many seconds has compiled.
LONG = 0.5
PARTS = ("layer", "loss", "adam", "copies", "waits")


def wanted(part):
    """Whether a part is on in this process."""
    named = [name.strip() for name in os.environ.get("STACKYARD_FUSED", "1").split(",")]
    return part in named or "1" in named


class Compiled:
    """A function that torch.compile has fused; where it cannot, it says so once and gives None from then on."""

    def __init__(self, name, function):
        self.name, self._function, self._fused, self._works = name, function, None, True

    def __call__(self, *args):
        """The function's value, or None: the caller does it the ordinary way."""
        if not self._works:
            return None
        first = self._fused is None
        if first:
            self._fused = torch.compile(self._function, fullgraph=True)
        began = time.monotonic()
        try:
            value = self._fused(*args)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            self._works = False
            said = str(error).strip().splitlines()
            logger.warning(
                "%s is not fused here: %s: %s",
                self.name,
                type(error).__name__,
                said[0] if said else "",
            )
            return None
        took = time.monotonic() - began
        if first:
            logger.info("%s: fused in %.1f s", self.name, took)
        elif took > LONG:
            logger.info("%s: fused again in %.1f s, for tensors of other sizes", self.name, took)
        return value
