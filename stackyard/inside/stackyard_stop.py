"""Notice SIGTERM in a rank, so that its training can save and end.

Owns the signal and the agreement of the ranks: each is signalled at a moment of its own, and all of
them must save after the same update. Runs inside containers beside the training, so it imports
nothing but the standard library. It must not save: the training does.
"""

from __future__ import annotations

import signal
import sys


class StopSignal:
    """Catch SIGTERM from now on.

    Attributes:
        asked: this rank was signalled, or has agreed with one that was.
    """

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, frame: object) -> None:
        self.asked = True

    def agreed(self, device: object = "cpu") -> bool:
        """Return whether any rank was signalled; all ranks call it after the same update.

        Args:
            device: where the process group's backend takes tensors.
        """
        torch = sys.modules.get("torch")
        if torch is not None and torch.distributed.is_initialized():
            flag = torch.tensor([float(self.asked)], device=device)
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
            self.asked = bool(flag.item())
        return self.asked
