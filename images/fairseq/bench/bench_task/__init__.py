"""Train fairseq's language models under the clock of a bench: a plugin (`--user-dir`).

Owns the task `timed_language_modeling`: fairseq's own, which also records seconds, words, loss and
memory of every few updates. Model, criterion, optimizer, data and the training loop are fairseq's.
It must not change what is computed, and the GPU waits only at the end of a window.
"""

import atexit
import math
import sys
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.distributed as dist
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II
from stackyard_record import Recorder
from windows import Windows


# fairseq's parser needs types, not strings: no `from __future__ import annotations` here.
@dataclass
class TimedLanguageModelingConfig(LanguageModelingConfig):  # type: ignore[misc]
    """Hold the options of language modeling, and the folder of the record."""

    record: Optional[str] = field(  # noqa: UP045
        default=None, metadata={"help": "folder of the record files of this launch"}
    )
    max_update: int = II("optimization.max_update")


@register_task("timed_language_modeling", dataclass=TimedLanguageModelingConfig)
class TimedLanguageModelingTask(LanguageModelingTask):  # type: ignore[misc]
    """Run language modeling with a clock; fairseq creates it after the process group."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ready = dist.is_initialized()
        self._world = dist.get_world_size() if ready else 1
        self._update = -1
        self._recorder = Recorder(
            self.args.record,
            dist.get_rank() if ready else 0,
            self._world,
            backend=dist.get_backend() if ready else "none",
            device=f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu",
        )
        self._windows = Windows(self._recorder)
        atexit.register(self._finish)

    def train_step(self, *args: Any, update_num: int, **kwargs: Any) -> Any:
        """Run forward and backward of one batch; `update_num` updates were done before it."""
        if self._update < 0:
            self._windows.start()
        self._update = update_num
        return super().train_step(*args, update_num=update_num, **kwargs)

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Make the optimizer's step, then read the memory's peak before fairseq resets it."""
        try:
            super().optimizer_step(optimizer, model, update_num)
        finally:
            self._windows.look_at_memory()

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Record an update from the sums over all ranks and batches, after the optimizer.

        An update that overflowed in half precision is made again, and comes here once.
        """
        super().reduce_metrics(logging_outputs, criterion)
        loss, size, words = (
            sum(log[name] for log in logging_outputs) for name in ("loss", "sample_size", "ntokens")
        )
        # fairseq logs losses in base 2.
        self._windows.update(self._update + 1, loss, size * math.log(2), words / self._world)

    def _finish(self) -> None:
        """Record `end` when the interpreter exits after the last update without an exception."""
        if self._update + 1 == self.args.max_update and not hasattr(sys, "last_value"):
            self._recorder.end(self.args.max_update)
