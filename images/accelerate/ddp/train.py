"""Train a small character model with torch's DistributedDataParallel; needs nothing but torch.

The ranks meet at STACKYARD_INIT_METHOD: tcp://HOST:PORT, or file:///PATH in a folder that all
machines share (the file must not exist before).
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from stackyard_record import Recorder
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

BATCH, LENGTH, WIDTH = 16, 32, 64


def batch(tokens: torch.Tensor, step: int, rank: int, world: int) -> torch.Tensor:
    """Return this rank's share of a global batch, which is the same in every layout."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH,), generator=generator)
    return torch.stack([tokens[start : start + LENGTH + 1] for start in starts[rank::world]])


def main() -> None:
    """Train for `--updates` updates and print the loss of the global batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--record", required=True, help="folder of this launch's records")
    parser.add_argument("--tensorboard", default="", help="folder of event files")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    meeting = os.environ["STACKYARD_INIT_METHOD"]
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world)
    recorder = Recorder(options.record, rank, world, backend=backend, device=str(device),
                        tensorboard=options.tensorboard, says=False)  # fmt: skip
    text = "".join((options.text / f"{name}.txt").read_text()[:3000] for name in ("zh", "en"))
    vocabulary = sorted(set(text))
    tokens = torch.tensor([vocabulary.index(character) for character in text])
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(len(vocabulary), WIDTH), nn.Linear(WIDTH, len(vocabulary)))
    parallel = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-2)
    for step in range(1, options.updates + 1):
        windows = batch(tokens, step, rank, world).to(device)
        loss = cross_entropy(parallel(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        recorder.step(step, mean.item() / world)
        if rank == 0 and (step % 10 == 0 or step == 1):
            print(f"update {step}/{options.updates} loss {mean.item() / world:.4f}", flush=True)
    recorder.end(options.updates)
    del parallel, loss, mean
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # With DDP threads of gloo outlive the group (torch 2.13). One that takes the interpreter's lock
    # while the interpreter ends aborts a training that has passed.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
