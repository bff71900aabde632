"""Save and end fairseq's training after SIGTERM, and record its losses: a plugin (`--user-dir`).

Ranks are signalled at different moments and must save after the same update. fairseq adds up the
training time of all ranks in every update, for --stop-time-hours: a signalled rank adds a time that
no training takes, and every rank sees it in the same sum. Nothing else is computed. Where Stackyard
reads records (STACKYARD_LOGS), every rank records what fairseq logs: the same loss, in base 2, that
of validations, too, and which updates have a checkpoint.
"""

import functools
import logging
import os
import signal
from typing import Any

import fairseq_cli.train
import torch
import torch.distributed as dist
from fairseq import checkpoint_utils
from fairseq.logging import metrics, progress_bar
from fairseq.trainer import Trainer
from stackyard_record import Recorder, events_folder

logger = logging.getLogger("fairseq_cli.train")
# Seconds that a signalled rank adds: 30,000 years, of which a mean over 1000 ranks leaves 30.
ASKED_SECONDS = 1e12
LEAST_SECONDS = 1e9
# Reading the sum waits for the GPU: only every so many updates. It stays once it is there.
GPU_UPDATES = 10


class _Signal:
    """Catch SIGTERM from now on."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, frame: object) -> None:
        self.asked = True


_signal = _Signal()
_begun = False
_own_time = Trainer._local_cumulative_training_time
_validate_and_save = fairseq_cli.train.validate_and_save
_own_values = metrics.get_smoothed_values
_own_bar = progress_bar.progress_bar


def _local_time(self: Trainer) -> float:
    return float(_own_time(self)) + _signal.asked * ASKED_SECONDS


def _asked(trainer: Trainer) -> bool:
    """Return whether any rank was signalled; all ranks see it after the same update."""
    seconds = trainer.cumulative_training_time()
    if torch.is_tensor(seconds) and seconds.is_cuda and trainer.get_num_updates() % GPU_UPDATES:
        return False
    return bool(seconds >= LEAST_SECONDS)


def _save_or_go_on(
    cfg: Any, trainer: Trainer, task: Any, epoch_itr: Any, subsets: list[str], end_of_epoch: bool
) -> tuple[list[float | None], bool]:
    """Save and end where any rank was signalled; else do what fairseq does after an update."""
    _record_start(trainer.get_num_updates())
    if not _asked(trainer):
        return _recorded(cfg, trainer, task, epoch_itr, subsets, end_of_epoch)
    # The checkpoint holds the training time: without what was added.
    _signal.asked, trainer._cumulative_training_time = False, None
    updates, last = trainer.get_num_updates(), cfg.optimization.max_update
    if last and updates >= last:
        return _recorded(cfg, trainer, task, epoch_itr, subsets, end_of_epoch)
    logger.info(f"stopped by SIGTERM after update {updates}: saving without a validation")
    checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
    return [None], True


def _recorded(
    cfg: Any, trainer: Trainer, task: Any, epoch_itr: Any, subsets: list[str], end_of_epoch: bool
) -> tuple[list[float | None], bool]:
    """Do what fairseq does after an update; record its validation, its checkpoint and the end."""
    found: tuple[list[float | None], bool] = _validate_and_save(
        cfg, trainer, task, epoch_itr, subsets, end_of_epoch
    )
    if "STACKYARD_LOGS" in os.environ:
        updates, rules = trainer.get_num_updates(), cfg.checkpoint
        if found[0] and found[0][0] is not None:
            _recorder().valid(updates, float(found[0][0]))
        epochs = end_of_epoch and epoch_itr.epoch % rules.save_interval == 0
        every = rules.save_interval_updates
        if (epochs or (every and updates % every == 0)) and not rules.no_save:
            _recorder().saved(updates)
        if updates == cfg.optimization.max_update:
            _recorder().end(updates)
    return found


def _record_start(updates: int) -> None:
    """Record the checkpoint that a training goes on from, once, after its first update."""
    global _begun
    if not _begun and updates > 1 and "STACKYARD_LOGS" in os.environ:
        _recorder().loaded(updates - 1)
    _begun = True


@functools.cache
def _recorder() -> Recorder:
    """Return this rank's recorder, which is first asked for after the process group is there."""
    ready = dist.is_initialized()
    return Recorder(
        os.environ["STACKYARD_LOGS"],
        dist.get_rank() if ready else 0,
        dist.get_world_size() if ready else 1,
        backend=dist.get_backend() if ready else "none",
        device=f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu",
        says=False,
    )


def _recorded_values(name: str) -> Any:
    """Return what fairseq is about to log, and record the loss of its updates."""
    found: Any = _own_values(name)
    if name == "train_inner" and "STACKYARD_LOGS" in os.environ:
        _recorder().step(int(found["num_updates"]), float(found["loss"]))
    return found


@functools.cache
def _events(folder: str) -> str:
    """Return the folder for event files, which fairseq names on the first rank only."""
    return events_folder(folder, 0)


def _bar(*words: Any, **named: Any) -> Any:
    """Make fairseq's progress bar, which would miss tensorboard aloud in every epoch."""
    named["tensorboard_logdir"] = _events(named.get("tensorboard_logdir") or "") or None
    return _own_bar(*words, **named)


progress_bar.progress_bar = _bar
metrics.get_smoothed_values = _recorded_values
Trainer._local_cumulative_training_time = _local_time
fairseq_cli.train.validate_and_save = _save_or_go_on
