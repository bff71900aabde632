"""Train a tiny Llama through accelerate's public API and record what each rank sees.

One program serves every layout: a single process, data parallel, DeepSpeed ZeRO-2 and ZeRO-3.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from engine import CLIP, assert_zero, build_accelerator, leave, save, whole_parameters
from stackyard_record import Recorder
from torch.utils.data import DataLoader
from workload import GLOBAL_BATCH, Blocks, build_model, build_optimizer, build_scheduler


class Progress:
    """Count the updates done; the checkpoint keeps the count beside weights and optimizer state."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--record", required=True)
    parser.add_argument("--tensorboard", default="", help="folder of event files")
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--save-at", type=int, required=True)
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--zero-stage", type=int, choices=(0, 2, 3), default=0)
    return parser.parse_args()


def losses(
    accelerator: Accelerator, model: Any, optimizer: Any, scheduler: Any, loader: Any
) -> Iterator[float]:
    """Make one update for each batch; yield its mean loss over the global batch."""
    for batch in loader:
        # Every block has the same number of tokens: the mean of the ranks is the global mean.
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield accelerator.reduce(loss.detach(), reduction="mean").item()


def train(
    options: argparse.Namespace, accelerator: Accelerator, recorder: Recorder, progress: Progress
) -> None:
    """Make the updates that are left, counted by `progress`."""
    model: Any = build_model()
    optimizer: Any = build_optimizer(model)
    # accelerate steps a prepared scheduler once a process: this one is the same in every layout.
    scheduler = build_scheduler(optimizer)
    blocks = Blocks(options.data / "blocks.npy", options.updates * GLOBAL_BATCH)
    loader: Any = DataLoader(blocks, batch_size=GLOBAL_BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    accelerator.register_for_checkpointing(progress, scheduler)
    checkpoint = options.save / f"update-{options.save_at}"
    if checkpoint.is_dir():
        accelerator.load_state(str(checkpoint))
        recorder.loaded(progress.step)
        loader = accelerator.skip_first_batches(loader, progress.step)

    first = progress.step + 1
    for loss in losses(accelerator, model, optimizer, scheduler, loader):
        progress.step += 1
        if options.zero_stage and progress.step == first:
            assert_zero(model, options.zero_stage)
        recorder.step(progress.step, loss)
        if progress.step % 10 == 0 or progress.step == options.updates:
            with whole_parameters(model, options.zero_stage):
                named = accelerator.unwrap_model(model).named_parameters()
                recorder.params(progress.step, named, "all")
        if progress.step == options.save_at:
            save(accelerator, checkpoint)
            recorder.saved(progress.step)


def main() -> None:
    """Train for `--updates` updates, from the checkpoint in `--save` if there is one."""
    # DeepSpeed and accelerate collect garbage themselves, through all imported objects.
    gc.freeze()
    options = parse_options()
    accelerator = build_accelerator(options.zero_stage, options.precision)
    recorder = Recorder(
        options.record,
        accelerator.process_index,
        accelerator.num_processes,
        backend=accelerator.state.backend or "none",
        device=str(accelerator.device),
        tensorboard=options.tensorboard,
    )
    progress = Progress()
    train(options, accelerator, recorder, progress)
    # The engine holds process groups and is part of reference cycles.
    accelerator.free_memory()
    accelerator.end_training()
    recorder.end(progress.step)
    leave()


if __name__ == "__main__":
    main()
