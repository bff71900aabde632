"""Train a fixed model whose losses and gradients are the same bits on every GPU of one model.

Runs in the nodes of `invoke certify`, one process a GPU (or CPU rank). It needs nothing but torch.
It must not judge: it records what it computed and how fast, one JSON object a line, in
`$STACKYARD_LOGS/rank<N>.jsonl`.

    fingerprint.py [--alone] [--updates N]

Every rank trains on the same batches. Gradients are added up over ranks as whole numbers (fixed
point), whose sum does not depend on an order: so parameters are the same bits for any number of
ranks and any algorithm of the all-reduce, and each group of hosts is compared with one fingerprint.
With --alone each rank trains by itself. Together, ranks also exchange data in pairs: local ranks
within a host, the first ranks between hosts.

A record's events: `start`, `met` (the process group is there), `step`, `link`, `allreduce`, `end`.
`local` is a digest of a rank's own gradients and loss, `shared` one of the parameters after the
update, `seconds` the time to compute an update (of the processor, on CPU ranks), `wait` the time in
the all-reduce.

Over 300 lines: a node gets one file, and its arithmetic is compared bit by bit as a whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# cuBLAS is deterministic only with a workspace of a fixed size, which is read when it starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

MIB = 2**20
# Fixed point: gradients below 100 of up to 4096 ranks add up to less than 2^63.
SCALE = 2.0**32
# A digest weights elements by their place, so that two that change places are seen.
PLACES = 65521
SEED = 20261123
EXCHANGES = 8


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Hold the size of the model and of what is measured beside it.

    Attributes:
        link_bytes: sent in each direction between two ranks.
        allreduce_bytes: of each all-reduce that is measured, with its repeats.
    """

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int
    batch: int
    link_bytes: int
    allreduce_bytes: tuple[tuple[int, int], ...]


# GPT-2 small; on CPU ranks a model whose update takes tens of milliseconds.
CUDA = Shape(
    vocabulary=50304, context=1024, width=768, layers=12, heads=12, batch=8,
    link_bytes=256 * MIB,
    allreduce_bytes=((MIB, 200), (64 * MIB, 50), (1024 * MIB, 10)),
)  # fmt: skip
CPU = Shape(
    vocabulary=512, context=64, width=64, layers=2, heads=4, batch=8,
    link_bytes=2 * MIB, allreduce_bytes=((MIB, 1),),
)  # fmt: skip


class Block(nn.Module):
    """Hold one transformer block; its attention is written out, as fused ones differ by version."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, unseen: torch.Tensor) -> torch.Tensor:
        """Apply the block to [batch, context, width]; return the same shape."""
        batch, length, width = x.shape
        places = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(places).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
        seen = seen.masked_fill(unseen, float("-inf")).softmax(-1).to(v.dtype) @ v
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Hold the model."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting the next of [batch, context] tokens."""
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        ones = torch.ones(length, length, dtype=torch.bool, device=tokens.device)
        unseen = ones.triu(1)
        for block in self.blocks:
            x = block(x, unseen)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(),
                                        tokens[:, 1:].flatten())  # fmt: skip


class Record:
    """Write the record of one rank."""

    def __init__(self, folder: str, rank: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self._path = os.path.join(folder, f"rank{rank}.jsonl")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event, by one write: a reader never sees half a line of a live rank."""
        line = json.dumps({"event": event, **fields, "time": round(time.time(), 3)}) + "\n"
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(line)


class Digest:
    """Compute digests of tensors on their device: sums of their bits, which no order changes."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._weights = torch.arange(count, device=device).remainder_(PLACES).add_(1)

    def of(self, values: torch.Tensor, *more: float) -> str:
        """Return a digest of fp32 values, and of further numbers."""
        bits = values.view(torch.int32)
        plain = int(bits.sum(dtype=torch.int64).item())
        weighted = int((bits * self._weights[: bits.numel()]).sum().item())
        text = ",".join([str(plain), str(weighted), *(float(one).hex() for one in more)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Training:
    """Train the fixed model, one update at a time.

    Args:
        world: ranks whose gradients are added up; 1: this rank alone.
    """

    def __init__(self, shape: Shape, device: torch.device, world: int) -> None:
        torch.manual_seed(SEED)
        self._model = Gpt(shape).to(device)
        self._parameters = list(self._model.parameters())
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-3)
        generator = torch.Generator().manual_seed(SEED)
        size = (4, shape.batch, shape.context)
        self._batches = torch.randint(shape.vocabulary, size, generator=generator).to(device)
        count = sum(p.numel() for p in self._parameters)
        self._digest = Digest(count, device)
        self._device, self._world, self._number = device, world, 0

    def update(self) -> dict[str, Any]:
        """Train one update; return what is recorded of it."""
        started = self._spent()
        kind = self._device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            loss = self._model(self._batches[self._number % len(self._batches)])
        loss.backward()
        flat = torch.cat([_grad(p).flatten() for p in self._parameters])
        computed = self._spent()
        own = self._digest.of(flat, loss.item())
        wait = self._share(flat)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._number += 1
        values = torch.cat([p.detach().flatten() for p in self._parameters])
        return {
            "step": self._number, "loss": loss.item(), "local": own,
            "shared": self._digest.of(values),
            "seconds": round(computed - started, 6), "wait": round(wait, 6),
        }  # fmt: skip

    def _share(self, flat: torch.Tensor) -> float:
        """Replace gradients by their mean over ranks, in fixed point; return the seconds spent."""
        whole = (flat.double() * SCALE).round().long()
        started = self._now()
        if self._world > 1:
            dist.all_reduce(whole)
        seconds = self._now() - started
        mean = (whole.div_(self._world, rounding_mode="floor").double() / SCALE).float()
        at = 0
        for parameter in self._parameters:
            grad = _grad(parameter)
            grad.copy_(mean[at : at + grad.numel()].view_as(grad))
            at += grad.numel()
        return seconds

    def _now(self) -> float:
        return now(self._device)

    def _spent(self) -> float:
        """Return the time spent computing: a CPU rank's own, as it shares cores with others."""
        return self._now() if self._device.type == "cuda" else time.process_time()


def _grad(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def now(device: torch.device) -> float:
    """Return the time when the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def partner(turn: int, me: int, count: int) -> int:
    """Return with whom one of `count` exchanges data in a turn; itself where it sits out.

    Each two meet once in `count` turns: partners add up to the turn's number.
    """
    return (turn - me) % count


def exchange(ranks: list[int], rank: int, size: int, device: torch.device) -> dict[int, float]:
    """Exchange data with each of the other ranks in turn; return GB/s in each direction.

    The fastest exchange counts; the first one waits for a late partner.
    """
    found = {}
    mine = torch.zeros(size, dtype=torch.uint8, device=device)
    other = torch.empty_like(mine)
    for turn in range(len(ranks)):
        peer = ranks[partner(turn, ranks.index(rank), len(ranks))]
        if peer == rank:
            continue
        times = []
        for _ in range(1 + EXCHANGES):
            started = now(device)
            wanted = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, other, peer)]
            for work in dist.batch_isend_irecv(wanted if rank < peer else wanted[::-1]):
                work.wait()
            times.append(now(device) - started)
        found[peer] = size / min(times[1:]) / 1e9
    return found


def reduce_speed(size: int, repeats: int, world: int, device: torch.device) -> float:
    """Return the bus bandwidth of an all-reduce in GB/s, the median of five windows."""
    buffer = torch.zeros(size // 4, device=device)
    dist.all_reduce(buffer)
    times = []
    for _ in range(5):
        dist.barrier()
        started = now(device)
        for _ in range(repeats):
            dist.all_reduce(buffer)
        times.append((now(device) - started) / repeats)
    return size / statistics.median(times) * 2 * (world - 1) / world / 1e9


def speeds(device: torch.device) -> dict[str, float]:
    """Measure a GPU alone: matrix product in bf16 and memory; nothing on a CPU rank."""
    if device.type != "cuda":
        return {}
    side = 8192
    a = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    b = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    c = torch.empty_like(a)
    product = _best(lambda: torch.matmul(a, b, out=c), 20, device)
    source = torch.empty(4096 * MIB, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = _best(lambda: target.copy_(source), 10, device)
    return {
        "matmul_bf16_tflop_s": round(2 * side**3 / product / 1e12, 1),
        # A copy reads and writes each byte.
        "memory_gb_s": round(2 * source.numel() / copied / 1e9, 1),
    }


def _best(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the median seconds of a call, over five windows after one that warms up."""
    found = []
    for _ in range(6):
        started = now(device)
        for _ in range(repeats):
            work()
        found.append((now(device) - started) / repeats)
    return statistics.median(found[1:])


def model_of(device: torch.device) -> tuple[str, str]:
    """Return the name of the GPU or processor, and the GPU's UUID."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return properties.name, f"GPU-{properties.uuid}"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return (names or [platform.machine()])[0], ""


def deterministic(device: torch.device) -> None:
    """Have torch compute the same bits in every process."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if device.type == "cpu":
        # Sums over threads depend on their number.
        torch.set_num_threads(1)


def measure_together(record: Record, shape: Shape, device: torch.device) -> None:
    """Measure the links of this rank and all-reduces, and record them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    local, per_node = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    groups = [list(range(rank - local, rank - local + per_node))]
    if local == 0:
        groups.append(list(range(0, world, per_node)))
    for ranks in groups:
        for peer, speed in exchange(ranks, rank, shape.link_bytes, device).items():
            record.write("link", peer=peer, gb_s=round(speed, 4))
    for size, repeats in shape.allreduce_bytes:
        speed = reduce_speed(size, repeats, world, device)
        record.write("allreduce", bytes=size, gb_s=round(speed, 4))


def main() -> None:
    """Train, measure and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--alone", action="store_true", help="each rank by itself")
    parser.add_argument("--updates", type=int, default=10)
    options = parser.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    cuda = os.environ.get("STACKYARD_DEVICE", "cpu") == "cuda"
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    deterministic(device)
    shape = CUDA if cuda else CPU
    record = Record(os.environ["STACKYARD_LOGS"], rank)
    model, uuid = model_of(device)
    record.write("start", rank=rank, local=local, model=model, gpu=uuid, torch=torch.__version__)
    world = 1 if options.alone else int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group(
            "nccl" if cuda else "gloo", init_method=os.environ["STACKYARD_INIT_METHOD"],
            rank=rank, world_size=world, device_id=device if cuda else None,
        )  # fmt: skip
    record.write("met")
    training = Training(shape, device, world)
    for _ in range(options.updates):
        record.write("step", **training.update())
    if world > 1:
        measure_together(record, shape, device)
        dist.barrier()
        dist.destroy_process_group()
    else:
        del training
        record.write("speeds", values=speeds(device))
    record.write("end", step=options.updates)


if __name__ == "__main__":
    main()
