"""Pretrain GPT-2 or an mT5 through accelerate: DeepSpeed's ZeRO, or data parallel.

accelerate's configuration (hosts, ranks, ZeRO stage, launcher) is made for the run; DeepSpeed's
JSON lies beside this program. GPT-2 continues each token, mT5 fills spans that are hidden
(`spans`). Resumes from the newest checkpoint in --save, if there is one. After SIGTERM it saves and
ends. At the end the whole model is in --save/model.

Over 300 lines: users copy this file and change it, so all that they may change is in it.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import models
import numpy as np
import spans
import torch
from accelerate import Accelerator
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
    InitProcessGroupKwargs,
)
from stackyard_record import Recorder, events_folder
from stackyard_stop import StopSignal
from torch.utils.data import DataLoader, Dataset

SEED = 1234


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, or these words."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=("gpt2", "mt5"), required=True)
    parser.add_argument("--corpus", type=Path, required=True, help="train.npy, or its folder")
    parser.add_argument("--from", dest="start", metavar="FOLDER", default="",
                        help="begin with this model of transformers: its sizes, its weights")  # fmt: skip
    parser.add_argument("--save", type=Path, required=True, help="folder of checkpoints")
    parser.add_argument("--record", required=True, help="folder of this launch's records")
    parser.add_argument("--tensorboard", default="", help="folder of event files; empty: none")
    parser.add_argument("--zero-stage", type=int, choices=(0, 1, 2, 3), default=0)
    parser.add_argument("--ds-config", type=Path, help="DeepSpeed's JSON: what you add to ZeRO")
    for name in ("vocabulary", "layers", "hidden", "heads", "sequence", "updates", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--inner", type=int, default=0, help="of the feed-forward; 0: 4 x hidden")
    parser.add_argument("--head-size", type=int, default=64, help="of mT5's attention")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1.5e-4)
    parser.add_argument("--warmup", type=float, default=0.01, help="part of the updates")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--precision", choices=("no", "bf16", "fp16"), default="bf16")
    parser.add_argument("--save-every", type=int, default=1000, help="and at the end; 0: never")
    parser.add_argument("--eval-every", type=int, default=0, help="updates; 0: never")
    parser.add_argument("--eval-iters", type=int, default=10, help="batches of a validation")
    return parser.parse_args(words)


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Read token numbers as samples of one length, from a file that is memory-mapped.

    Args:
        vocabulary: rows of the model's embedding; each number is below it.
        least: least number of samples in an epoch; where there are fewer, some come twice.
        marks: sentinels of an mT5; None for a model that continues its input.
    """

    def __init__(
        self, path: Path, sequence: int, vocabulary: int, least: int, marks: spans.Marks | None
    ) -> None:
        if not path.is_file():
            raise SystemExit(f"there is no {path}: --set corpus=PATH of token numbers (train.npy)")
        self.lengths = spans.fit(sequence) if marks else None
        size = self.lengths.tokens if self.lengths else sequence
        tokens = np.load(path, mmap_mode="r").reshape(-1)
        self.path, self.vocabulary, self.marks = path, vocabulary, marks
        self.blocks = tokens[: len(tokens) // size * size].reshape(-1, size)
        if not len(self.blocks):
            raise SystemExit(f"{path} holds {len(tokens)} tokens, fewer than a piece of {size}")
        self.length = max(len(self.blocks), least)
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        block = torch.from_numpy(self.blocks[index % len(self.blocks)].astype(np.int64))
        top = int(block.max())
        if top >= self.vocabulary:
            raise SystemExit(f"{self.path} holds token {top}: --set vocabulary={top + 1}")
        if self.marks is None or self.lengths is None:
            return {"input_ids": block, "labels": block}
        # The same sample hides other spans in each epoch, and the same ones after a resume.
        chosen = spans.choose(self.lengths, f"{SEED} {self.epoch} {index}")
        inputs, targets = spans.corrupt(block.tolist(), chosen, self.marks)
        return {"input_ids": torch.tensor(inputs), "labels": torch.tensor(targets)}


def find_marks(options: argparse.Namespace, folder: Path, vocabulary: int) -> spans.Marks | None:
    """Return the sentinels of the corpus' tokenizer, for a model that needs some.

    Raises:
        SystemExit: it has none, too few, or numbers that the model lacks.
    """
    if options.model != "mt5":
        return None
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise SystemExit(f"there is no {path}, which says the sentinels: invoke data accelerate")
    from tokenizers import Tokenizer

    marks = spans.find_marks(Tokenizer.from_file(str(path)).token_to_id, str(path))
    needed = spans.fit(options.sequence).spans
    if needed > marks.count:
        raise SystemExit(f"--sequence={options.sequence} hides {needed} spans, but {path} has"
                         f" {marks.count} sentinels")  # fmt: skip
    if marks.first >= vocabulary:
        raise SystemExit(
            f"{path} has sentinel {marks.first}: --set vocabulary={marks.first + 1} or more"
        )
    return marks


def build_samples(
    options: argparse.Namespace, vocabulary: int, processes: int
) -> tuple[Samples, Samples | None]:
    """Build what is trained on, and what is validated on if there is a valid.npy beside it."""
    corpus: Path = options.corpus
    folder = corpus if corpus.is_dir() else corpus.parent
    file = folder / "train.npy" if corpus.is_dir() else corpus
    marks = find_marks(options, folder, vocabulary)
    least = options.batch * processes  # a batch for every rank
    train = Samples(file, options.sequence, vocabulary, least, marks)
    if not options.eval_every or not (folder / "valid.npy").is_file():
        return train, None
    return train, Samples(folder / "valid.npy", options.sequence, vocabulary, least, marks)


def build_accelerator(options: argparse.Namespace) -> Accelerator:
    """Build the accelerator: the process group and, for ZeRO, DeepSpeed.

    Without GPUs accelerate sees no distributed run at all in a DeepSpeed launch unless the backend
    is named.

    Raises:
        SystemExit: it would train with something else than was asked for.
    """
    handlers: list[Any] = [DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    if options.zero_stage and not torch.cuda.is_available():
        handlers.append(InitProcessGroupKwargs(backend="gloo"))
    events = events_folder(options.tensorboard, int(os.environ.get("RANK", "0")))
    accelerator = Accelerator(
        mixed_precision=options.precision,
        gradient_accumulation_steps=options.accumulate,
        # An epoch's order follows from its number, so a resumed training continues in the same
        # order.
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        kwargs_handlers=handlers,
        log_with="tensorboard" if events else None,
        project_dir=events or None,
    )
    accelerator.init_trackers("")  # no folder of its own below the one that was named
    if not options.zero_stage:
        return accelerator
    if accelerator.distributed_type != DistributedType.DEEPSPEED:
        raise SystemExit(f"ZeRO-{options.zero_stage} asked for, got {accelerator.distributed_type}")
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    zero = config["zero_optimization"]
    if zero["stage"] != options.zero_stage:
        raise SystemExit(f"ZeRO-{options.zero_stage} asked for, launched with {zero['stage']}")
    # Without it ZeRO-3 cannot save a whole model.
    zero["stage3_gather_16bit_weights_on_model_save"] = options.zero_stage == 3
    more = json.loads(options.ds_config.read_text()) if options.ds_config else {}
    zero.update(more.pop("zero_optimization", {}))
    config.update(more)
    return accelerator


def build_optimizer(options: argparse.Namespace, model: Any) -> torch.optim.AdamW:
    """Build torch's AdamW: on GPUs one kernel for all parameters."""
    return torch.optim.AdamW(
        model.parameters(), lr=options.lr, weight_decay=options.weight_decay,
        fused=torch.cuda.is_available(),
    )  # fmt: skip


def build_scheduler(options: argparse.Namespace, optimizer: Any) -> Any:
    """Build a linear warm-up and then a cosine decay to zero."""
    warm = max(1, int(options.warmup * options.updates))

    def factor(done: int) -> float:
        if done < warm:
            return (done + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (done - warm) / max(1, options.updates - warm)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


@torch.no_grad()
def validate(accelerator: Accelerator, model: Any, options: argparse.Namespace,
             valid: Samples) -> float:  # fmt: skip
    """Return the mean loss of the first --eval-iters batches of each rank, the same every time.

    Where there are fewer samples, all ranks take fewer batches; the last may begin anew.
    """
    world, rank = accelerator.num_processes, accelerator.process_index
    batches = min(options.eval_iters, math.ceil(len(valid.blocks) / (options.batch * world)))
    total = torch.zeros((), device=accelerator.device)
    model.eval()
    for number in range(batches):
        first = (number * world + rank) * options.batch
        some = [valid[(first + one) % len(valid)] for one in range(options.batch)]
        batch = {name: torch.stack([one[name] for one in some]) for name in some[0]}
        moved = {name: part.to(accelerator.device) for name, part in batch.items()}
        total += model(**moved).loss.float()
    model.train()
    mean: float = accelerator.reduce(total / batches, reduction="mean").item()
    return mean


class Progress:
    """Count the updates done; the checkpoint keeps the count beside weights and optimizer state."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def save_state(accelerator: Accelerator, save: Path, step: int) -> None:
    """Write a checkpoint, which gets its final name only when it is complete.

    Every node keeps its own part.
    """
    partial, final = save / f"update-{step}.partial", save / f"update-{step}"
    if accelerator.is_local_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_local_main_process:
        # In a shared folder the local main process of another node may have done it.
        with contextlib.suppress(FileNotFoundError):
            partial.rename(final)
    accelerator.wait_for_everyone()


def save_model(accelerator: Accelerator, model: Any, folder: Path) -> None:
    """Save the whole model in transformers' format from the first rank; all ranks must call it."""
    state = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        whole = accelerator.unwrap_model(model)
        whole.save_pretrained(str(folder), state_dict=state, is_main_process=True)


def newest(save: Path) -> Path | None:
    """Return the newest complete checkpoint; every rank must call it.

    Raises:
        SystemExit: not all ranks see the same whole checkpoint: DeepSpeed and accelerate write much
            of it on the first node only.
    """
    paths = [path for path in save.glob("update-*") if path.name[7:].isdecimal()]
    found = max(paths, key=lambda path: int(path.name[7:]), default=None)
    whole = found is not None and (found / "custom_checkpoint_0.pkl").is_file()
    if torch.distributed.is_initialized():
        seen: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(seen, (found and found.name, whole))
        if len(set(seen)) > 1:
            raise SystemExit(
                f"the nodes do not see the same checkpoint in {save}: --save a folder that they share"
            )
    return found


def train(
    options: argparse.Namespace,
    accelerator: Accelerator,
    recorder: Recorder,
    progress: Progress,
    stop: StopSignal,
) -> Any:
    """Make the updates that are left, counted by `progress`; return the prepared model."""
    model: Any = models.build_model(options, SEED)
    optimizer: Any = build_optimizer(options, model)
    # accelerate steps a prepared scheduler once a process: this one counts updates.
    scheduler = build_scheduler(options, optimizer)
    processes, vocabulary = accelerator.num_processes, model.config.vocab_size
    samples, valid = build_samples(options, vocabulary, processes)
    if options.eval_every and not valid:
        accelerator.print(f"no valid.npy beside {samples.path}: nothing is validated", flush=True)
    # Full batches only: ranks with unequal numbers of batches would wait for each other for ever.
    loader: Any = DataLoader(samples, batch_size=options.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(progress, scheduler)
    checkpoint = newest(options.save)
    if checkpoint:
        accelerator.load_state(str(checkpoint))
        recorder.loaded(progress.step)
    model.train()
    made, total = 0, 0.0
    epoch, skip = divmod(progress.step * options.accumulate, len(loader))
    while progress.step < options.updates:
        loader.set_epoch(epoch)
        samples.epoch = epoch
        for batch in accelerator.skip_first_batches(loader, skip) if skip else loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), options.clip)
                optimizer.step()
                optimizer.zero_grad()
            total += accelerator.reduce(loss.detach().float(), reduction="mean").item()
            made += 1
            if made % options.accumulate:
                continue
            scheduler.step()
            progress.step += 1
            recorder.step(progress.step, total / options.accumulate)
            rate = scheduler.get_last_lr()[0]
            accelerator.log({"loss": total / options.accumulate, "lr": rate}, progress.step)
            total = 0.0
            if valid and progress.step % options.eval_every == 0:
                recorder.valid(progress.step, validate(accelerator, model, options, valid))
            last = stop.agreed(accelerator.device) or progress.step == options.updates
            if options.save_every and (last or progress.step % options.save_every == 0):
                save_state(accelerator, options.save, progress.step)
                recorder.saved(progress.step)
            if last:
                return model
        epoch, skip = epoch + 1, 0
    return model


def main() -> None:
    """Run one rank, from joining the process group to leaving it."""
    # DeepSpeed and accelerate collect garbage themselves, through all imported objects.
    gc.freeze()
    options, stop = parse_options(), StopSignal()
    accelerator = build_accelerator(options)
    recorder = Recorder(
        options.record,
        accelerator.process_index,
        accelerator.num_processes,
        backend=accelerator.state.backend or "none",
        device=str(accelerator.device),
    )
    progress = Progress()
    model = train(options, accelerator, recorder, progress, stop)
    if progress.step < options.updates:
        accelerator.print(f"stopped by SIGTERM after update {progress.step}")
    else:
        save_model(accelerator, model, options.save / "model")
        recorder.end(progress.step)
    del model
    # The engine holds process groups and is part of reference cycles: free them first. gloo's
    # threads can outlive their groups; left to the interpreter's own end, they sometimes abort it.
    accelerator.free_memory()
    accelerator.end_training()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
