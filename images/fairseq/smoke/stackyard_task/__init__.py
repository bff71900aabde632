"""Train fairseq's language models and record every rank: a plugin (`--user-dir`).

Owns the task `recorded_language_modeling`: fairseq's own task with a record of the exact loss of
every update, of the parameters, and of the checkpoint. Model, criterion, optimizer, data and the
training loop are fairseq's. It must not change what is computed.
"""

import atexit
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
import torch.distributed as dist
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II
from stackyard_record import Recorder

HASH_EVERY = 5
"""Updates between two hashes of the parameters."""


# fairseq's parser needs types, not strings: no `from __future__ import annotations` here.
@dataclass
class RecordedLanguageModelingConfig(LanguageModelingConfig):  # type: ignore[misc]
    """Hold the options of language modeling, and the folder of the record."""

    record: Optional[str] = field(  # noqa: UP045
        default=None, metadata={"help": "folder of the record files of this launch"}
    )
    save_dir: str = II("checkpoint.save_dir")
    save_interval_updates: int = II("checkpoint.save_interval_updates")
    max_update: int = II("optimization.max_update")


@register_task("recorded_language_modeling", dataclass=RecordedLanguageModelingConfig)
class RecordedLanguageModelingTask(LanguageModelingTask):  # type: ignore[misc]
    """Run language modeling with a record; fairseq creates it after the process group."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ready = dist.is_initialized()
        self._rank: int = dist.get_rank() if ready else 0
        self._update: int | None = None
        self._model: torch.nn.Module | None = None
        self._recorder = Recorder(
            self.args.record,
            self._rank,
            dist.get_world_size() if ready else 1,
            backend=dist.get_backend() if ready else "none",
            device=f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu",
        )
        atexit.register(self._finish)

    def begin_epoch(self, epoch: int, model: torch.nn.Module) -> None:
        """Keep the model (without its data-parallel wrapper) for the hashes."""
        super().begin_epoch(epoch, model)
        self._model = model

    def train_step(self, *args: Any, update_num: int, **kwargs: Any) -> Any:
        """Run forward and backward of one batch; `update_num` updates were done before it."""
        if self._update is None and update_num > 0:
            self._recorder.loaded(update_num)
        elif self._update != update_num:
            self._note_checkpoint(update_num)
        self._update = update_num
        return super().train_step(*args, update_num=update_num, **kwargs)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Record an update from the sums over all ranks and batches, after the optimizer."""
        super().reduce_metrics(logging_outputs, criterion)
        assert self._update is not None, "reduced without a training step: validation is off"
        done = self._update + 1
        loss = sum(float(log["loss"]) for log in logging_outputs)
        size = sum(float(log["sample_size"]) for log in logging_outputs)
        self._recorder.step(done, loss / size)
        if done % HASH_EVERY == 0 or done == self.args.max_update:
            # Fully sharded ranks hold different shards: each is a group of its own.
            named = list(self._named_parameters())
            sharded = any(getattr(tensor, "_is_sharded", False) for _, tensor in named)
            self._recorder.params(done, named, f"shard{self._rank}" if sharded else "all")

    def _named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        assert self._model is not None, "no epoch has begun"
        return self._model.named_parameters()

    def _note_checkpoint(self, update: int) -> None:
        """Record `saved` when the checkpoint of `update` is on disk for all ranks."""
        interval: int = self.args.save_interval_updates
        if update == 0 or update % interval:
            return
        if dist.is_initialized():
            dist.barrier()
        if not list(Path(self.args.save_dir).glob(f"checkpoint_*_{update}*.pt")):
            raise FileNotFoundError(f"no checkpoint of update {update} in {self.args.save_dir}")
        self._recorder.saved(update)

    def _finish(self) -> None:
        """Record `end` when the interpreter exits after the last update without an exception."""
        complete = self._update is not None and self._update + 1 == self.args.max_update
        if complete and not hasattr(sys, "last_value"):
            self._recorder.end(self.args.max_update)
