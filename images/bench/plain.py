"""Train GPT-2 in a plain PyTorch loop: DDP, bf16 autocast, fused AdamW.

The stack's own way of training is compared with it. Started once a rank by torchrun.
"""

from __future__ import annotations

import gc
import os

import gpt
import torch
import torch.distributed as dist
from stackyard_record import Recorder
from torch import nn
from windows import Windows


def main() -> None:
    """Run one rank, from joining the process group to leaving it."""
    options = gpt.parser(__doc__ or "").parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    recorder = Recorder(options.record, rank, world, backend=dist.get_backend(), device=str(device))
    model: nn.Module = gpt.build(options, device)
    optimizer = gpt.build_optimizer(model.parameters(), options.lr)
    scheduler = gpt.build_scheduler(optimizer, options.warm)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(
            model, device_ids=[device.index] if cuda else None, gradient_as_bucket_view=True
        )
    windows = Windows(recorder)
    windows.start()
    for step, (tokens, labels) in enumerate(gpt.batches(options, rank, world, device), start=1):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            loss = gpt.loss_of(model(tokens), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), gpt.CLIP)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        windows.update(step, loss, 1.0, tokens.numel())
    recorder.end(options.updates)
    dist.barrier()
    del model, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
