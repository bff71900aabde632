"""Measure the GPUs of a placement: all-reduce bandwidth and the speed of a plain training.

The same file runs in a node's containers and, for comparison, on the bare host, one process a GPU
under torchrun. It needs nothing but torch. It must not judge: it writes what it measured.

    torchrun --nproc-per-node=N gpu_measure.py --out FILE

Bandwidth is NCCL's bus bandwidth: bytes / seconds x 2 (n - 1) / n, which is comparable over any
number of ranks (nccl-tests, doc/PERFORMANCE.md). The training is GPT-2 small (124 million
parameters, context 1024) on random tokens: bf16 autocast, torch's SDPA, fused AdamW, DDP.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

MIB = 2**20
SIZES = {1 * MIB: 200, 64 * MIB: 50, 1024 * MIB: 10}
WINDOWS = 5
VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS = 50304, 1024, 768, 12, 12
BATCH, STEPS, WARM_STEPS = 16, 10, 10


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Return median seconds of a call, over windows of `repeats` calls, by the GPU's own clock."""
    found = []
    for _ in range(WINDOWS):
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1000 / repeats)
    return statistics.median(found)


def bandwidth(world: int) -> dict[str, dict[str, float]]:
    """Measure the bus bandwidth of all-reduce in GB/s, by message size in bytes."""
    found = {}
    for size, repeats in SIZES.items():
        buffer = torch.randn(size // 4, device="cuda")
        for _ in range(5):
            dist.all_reduce(buffer)
            buffer.mul_(0.5)
        seconds = timed(lambda data=buffer: dist.all_reduce(data), repeats)
        found[str(size)] = {
            "busbw_gb_s": round(size / seconds * 2 * (world - 1) / world / 1e9, 2),
            "microseconds": round(seconds * 1e6, 1),
        }
        del buffer
    return found


class Block(nn.Module):
    """Hold one transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block to [batch, context, width]; return the same shape."""
        batch, length, _ = x.shape
        shape = (batch, length, HEADS, WIDTH // HEADS)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Hold GPT-2 small."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm = (
            nn.Sequential(*(Block() for _ in range(LAYERS))),
            nn.LayerNorm(WIDTH),
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting the next of [batch, context] tokens."""
        x = self.tokens(tokens) + self.places(torch.arange(CONTEXT, device=tokens.device))
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def training(rank: int, world: int, device: torch.device) -> dict[str, float]:
    """Measure tokens a second of all ranks together, and the spread of the windows."""
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Gpt().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator(device=device).manual_seed(rank)
    batches = [
        torch.randint(VOCABULARY, (BATCH, CONTEXT), device=device, generator=generator)
        for _ in range(4)
    ]

    def step(number: int) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss: torch.Tensor = model(batches[number % len(batches)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for number in range(WARM_STEPS):
        step(number)
    rates = []
    for _ in range(WINDOWS):
        dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for number in range(STEPS):
            loss = step(number)
        torch.cuda.synchronize()
        rates.append(world * BATCH * CONTEXT * STEPS / (time.perf_counter() - started))
    return {
        "tokens_s": round(statistics.median(rates), 1),
        "slowest": round(min(rates), 1),
        "fastest": round(max(rates), 1),
        "last_loss": round(loss.item(), 4),
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def copy_bandwidth(local: int) -> float | None:
    """Measure a copy from this rank's GPU to another in GB/s; None without peer access."""
    others = [n for n in range(torch.cuda.device_count()) if n != local]
    if not others or not torch.cuda.can_device_access_peer(local, others[0]):
        return None
    source = torch.empty(512 * MIB, dtype=torch.uint8, device=f"cuda:{local}").random_()
    target = torch.empty_like(source, device=f"cuda:{others[0]}")
    found = []
    for _ in range(WINDOWS + 1):
        torch.cuda.synchronize(local)
        started = time.perf_counter()
        for _ in range(5):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(local)
        torch.cuda.synchronize(others[0])
        found.append(5 * source.numel() / (time.perf_counter() - started) / 1e9)
    return round(statistics.median(found[1:]), 2)


def only_copy() -> None:
    """Measure a copy between the first two visible GPUs, in one process."""
    print(json.dumps({"copy_gb_s": copy_bandwidth(0)}), flush=True)


def main() -> None:
    """Measure, and write the whole result from rank 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", default="", help="JSON file to write")
    parser.add_argument("--only-copy", action="store_true", help="by one process, no NCCL")
    parser.add_argument("--without-training", action="store_true", help="bandwidth only")
    options = parser.parse_args()
    if options.only_copy:
        return only_copy()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    dist.init_process_group("nccl", device_id=device)
    rank, world = dist.get_rank(), dist.get_world_size()
    properties = torch.cuda.get_device_properties(device)
    found: dict[str, Any] = {
        "gpu": properties.name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "ranks": world,
        "allreduce": bandwidth(world),
    }
    print(json.dumps(found["allreduce"]), flush=True) if rank == 0 else None
    if not options.without_training:
        found["training"] = training(rank, world, device)
    dist.barrier()
    found["copy_gb_s"] = copy_bandwidth(local) if rank == 0 else None
    dist.barrier()
    if rank == 0:
        with open(f"{options.out}.partial", "w", encoding="utf-8") as file:
            json.dump(found, file)
        os.replace(f"{options.out}.partial", options.out)
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
