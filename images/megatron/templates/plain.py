"""Train what `pretrain.py` trains in a plain PyTorch loop, to see what Megatron and DeepSpeed cost.

The first weights, samples, their order, schedule, dropout, recomputed layers and clipping are the
template's. The loop is torch's own: DDP over all ranks, autocast over weights in fp32, AdamW in one
kernel on GPUs. Ranks share the samples of an update; they need not be equally many. It saves,
validates and resumes nothing. Started once a rank by torchrun, with the arguments of `pretrain.py`
and `--only N`, the updates to make. `invoke bench megatron --example NAME` runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import Any

import gpt2
import pretrain
import samples
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from stackyard_record import Recorder
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Hold one transformer block; queries, keys and values lie in one tensor, head by head."""

    def __init__(self, shape: gpt2.Shape) -> None:
        super().__init__()
        width = shape.hidden
        self.heads, self.dropout = shape.heads, shape.dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to [batch, sequence, width]."""
        batch, length, width = x.shape
        mixed = self.qkv(self.norm1(x)).view(batch, length, self.heads, 3, -1).transpose(1, 2)
        drop = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(
            *mixed.unbind(3), dropout_p=drop, is_causal=True
        )
        out = self.out(seen.transpose(1, 2).reshape(batch, length, width))
        x = x + functional.dropout(out, drop)
        return x + functional.dropout(self.down(gpt2.gelu(self.up(self.norm2(x)))), drop)


class Gpt(nn.Module):
    """Hold GPT-2: learned positions, the output tied to the embedding."""

    def __init__(self, shape: gpt2.Shape) -> None:
        super().__init__()
        self.recompute = shape.recompute
        self.words = nn.Embedding(shape.padded, shape.hidden)
        self.places = nn.Embedding(shape.sequence, shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = functional.linear(self.norm(x), self.words.weight).float()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


# Megatron's names by those of `Block`.
NAMES = {
    "norm1": "input_layernorm", "qkv": "self_attention.linear_qkv",
    "out": "self_attention.linear_proj", "norm2": "pre_mlp_layernorm",
    "up": "mlp.linear_fc1", "down": "mlp.linear_fc2",
}  # fmt: skip


def build_model(shape: gpt2.Shape) -> Gpt:
    """Build the model with the first weights of the template's."""
    model, other = Gpt(shape), dict(gpt2.Whole(shape, torch.float32).named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(other.pop(theirs(name)))
    if other:
        raise SystemExit(f"the template's model has more: {', '.join(sorted(other))}")
    return model


def theirs(name: str) -> str:
    """Return the name of a parameter in `gpt2.Whole`."""
    first, _, rest = name.partition(".")
    if first != "blocks":
        return {"places.weight": "places.table.weight"}.get(name, name)
    number, part, kind = rest.split(".")
    return f"layers.{number}.layer.{NAMES[part]}.{kind}"


def parse_options() -> argparse.Namespace:
    """Read the command line; what is about layouts and checkpoints is passed over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, required=True, help="updates to make, of --updates")
    own, words = parser.parse_known_args()
    options = pretrain.parse_arguments(words)
    options.only = own.only
    return options


def train(options: argparse.Namespace, device: torch.device, recorder: Recorder) -> None:
    """Make the updates; each is recorded, as the template does it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = build_model(pretrain.shape_of(options)).to(device)
    optimizer = torch.optim.AdamW(
        gpt2.groups_of(whole, options.weight_decay), lr=options.lr, betas=(0.9, 0.999),
        fused=device.type == "cuda",
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, pretrain.rate(options))
    dataset, _ = samples.build(options)
    torch.manual_seed(gpt2.SEED + 10000 * rank)  # dropout differs between ranks
    model: Any = nn.parallel.DistributedDataParallel(
        whole, device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )  # fmt: skip
    model.train()
    dtype, size = pretrain.DTYPES[options.precision], samples.global_batch(options)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    for step in range(1, options.only + 1):
        start, end = ((step - 1) * size + size * part // world for part in (rank, rank + 1))
        total = torch.zeros((), device=device)
        for low in range(start, end, options.batch):
            high = min(low + options.batch, end)
            tokens, labels = (part.to(device) for part in samples.take(dataset, options, low, high))
            with contextlib.nullcontext() if high == end else model.no_sync():
                with torch.autocast(device.type, dtype=dtype, enabled=dtype is not torch.float32):
                    loss = model(tokens, labels) * ((high - low) / size)
                scaler.scale(loss * world).backward()  # DDP takes the mean of the ranks
            total += loss.detach().float()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        recorder.step(step, total.item())
    recorder.end(options.only)


def main() -> None:
    """Run one rank, from joining the process group to leaving it."""
    options = parse_options()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    if samples.global_batch(options) < dist.get_world_size():
        raise SystemExit("an update has fewer samples than there are ranks: --set batch=N")
    recorder = Recorder(
        options.record, dist.get_rank(), dist.get_world_size(), backend=dist.get_backend(),
        device=str(device),
    )  # fmt: skip
    # Only for the template's model, whose first weights are taken.
    parallel_state.initialize_model_parallel(1, 1, create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(gpt2.SEED, inference_rng_tracker=not cuda)
    train(options, device, recorder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
