"""Train what `pretrain.py` trains in a plain PyTorch loop, to see what accelerate and ZeRO cost.

The model, its first weights, samples, their order, schedule and clipping are the template's. The
loop is torch's own: DDP, autocast over weights in fp32, AdamW in one kernel on GPUs. It saves,
validates and resumes nothing. Started once a rank by torchrun, with the arguments of `pretrain.py`
and `--only N`, the updates to make. `invoke bench accelerate --example NAME` runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import models
import pretrain
import torch
import torch.distributed as dist
from stackyard_record import Recorder
from torch import nn

DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Batch = dict[str, torch.Tensor]


def parse_options() -> argparse.Namespace:
    """Read the command line; what is about ZeRO and checkpoints is passed over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, required=True, help="updates to make, of --updates")
    own, words = parser.parse_known_args()
    options = pretrain.parse_options(words)
    options.only = own.only
    return options


def batches(samples: pretrain.Samples, size: int, rank: int, world: int) -> Iterator[Batch]:
    """Yield this rank's batches, in the order in which accelerate shuffles them."""
    epoch = 0
    while True:
        samples.epoch = epoch
        chance = torch.Generator().manual_seed(pretrain.SEED + epoch)
        order = torch.randperm(len(samples), generator=chance).tolist()
        for number in range(len(order) // (size * world)):
            first = (number * world + rank) * size
            some = [samples[index] for index in order[first : first + size]]
            yield {name: torch.stack([one[name] for one in some]) for name in some[0]}
        epoch += 1


def train(options: argparse.Namespace, device: torch.device, recorder: Recorder) -> None:
    """Make the updates; each is recorded, as the template does it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model: Any = models.build_model(options, pretrain.SEED).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, weight_decay=options.weight_decay,
        fused=device.type == "cuda",
    )  # fmt: skip
    scheduler = pretrain.build_scheduler(options, optimizer)
    samples, _ = pretrain.build_samples(options, model.config.vocab_size, world)
    model = nn.parallel.DistributedDataParallel(
        model, device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )  # fmt: skip
    model.train()
    dtype = DTYPES[options.precision]
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    data = batches(samples, options.batch, rank, world)
    for step in range(1, options.only + 1):
        total = torch.zeros((), device=device)
        for part in range(options.accumulate):
            batch = {name: one.to(device) for name, one in next(data).items()}
            whole = part + 1 == options.accumulate
            with contextlib.nullcontext() if whole else model.no_sync():
                with torch.autocast(device.type, dtype=dtype, enabled=dtype is not torch.float32):
                    loss = model(**batch).loss / options.accumulate
                scaler.scale(loss).backward()
            total += loss.detach().float()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        recorder.step(step, total.item() / world)
    recorder.end(options.only)


def main() -> None:
    """Run one rank, from joining the process group to leaving it."""
    options = parse_options()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    recorder = Recorder(
        options.record, dist.get_rank(), dist.get_world_size(), backend=dist.get_backend(),
        device=str(device),
    )  # fmt: skip
    train(options, device, recorder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
