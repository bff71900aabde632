"""A small character model, trained with DistributedDataParallel on real text."""

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from einops import rearrange
from stackyard_record import Recorder
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

BATCH, LENGTH, WIDTH = 16, 32, 64


def main() -> None:
    """Train for `--updates` updates, going on from a checkpoint where there is one."""
    parser = argparse.ArgumentParser()
    for name in ("text", "save", "record"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--save-at", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    record = Recorder(args.record, rank, world, backend=backend, device=str(device))

    text = "".join((Path(args.text) / f"{name}.txt").read_text()[:3000] for name in ("zh", "en"))
    vocabulary = sorted(set(text))
    tokens = torch.tensor([vocabulary.index(character) for character in text])

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Embedding(len(vocabulary), WIDTH), nn.Linear(WIDTH, len(vocabulary)))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    checkpoint, done = Path(args.save) / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
        record.loaded(done)
    parallel = DistributedDataParallel(model)

    for step in range(done + 1, args.updates + 1):
        # The same global batch in every layout: each rank takes its share of it.
        starts = torch.randint(
            len(tokens) - LENGTH - 1, (BATCH,), generator=torch.Generator().manual_seed(step)
        )
        windows = torch.stack([tokens[start : start + LENGTH + 1] for start in starts[rank::world]])
        windows = windows.to(device)
        scores = rearrange(parallel(windows[:, :-1]), "b t v -> (b t) v")
        loss = cross_entropy(scores, rearrange(windows[:, 1:], "b t -> (b t)"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        record.step(step, mean.item() / world)
        if step % 10 == 0:
            record.params(step, model.named_parameters())
        if step == args.save_at:
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step}, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)
            dist.barrier()
            record.saved(step)
    record.end(args.updates)
    # The model holds the process group and gloo's threads: left to the interpreter's own end,
    # they abort it in one run of seven.
    del parallel, loss, mean, scores
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
