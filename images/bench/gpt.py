"""Define GPT-2 in plain PyTorch, its initial values, its batches and its optimizer.

Owns what all sides of a bench share, except fairseq's: the same shapes, the same initial values (so
that losses can be compared), the same batches in the same order, the same optimizer and schedule.
Dropout is off.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

STANDARD_DEVIATION = 0.02
CLIP = 1.0


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every side has."""
    found = argparse.ArgumentParser(description=description.splitlines()[0])
    found.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    found.add_argument("--record", required=True, help="record folder of this launch")
    for name in ("updates", "layers", "width", "heads", "inner", "vocabulary", "context", "batch"):
        found.add_argument(f"--{name}", type=int, required=True)
    found.add_argument("--lr", type=float, default=3e-4)
    found.add_argument("--warm", type=int, required=True, help="updates of linear warm-up")
    return found


class Block(nn.Module):
    """Hold one transformer block."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block to [batch, context, width]; return the same shape."""
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Hold GPT-2: learned positions, output projection tied to the embedding."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.width
        self.tokens = nn.Embedding(options.vocabulary, width)
        self.places = nn.Embedding(options.context, width)
        blocks = (Block(width, options.heads, options.inner) for _ in range(options.layers))
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of the token after each of [batch, context]."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)


@torch.no_grad()
def initialise(parameters: Iterable[nn.Parameter], *, rows_out: bool) -> None:
    """Give parameters, in the order of `Gpt`, the same values on every rank and in every program.

    Args:
        rows_out: matrices are [out, in], as in nn.Linear; Hugging Face's GPT-2 has [in, out].
    """
    for number, parameter in enumerate(parameters):
        if parameter.dim() < 2:
            continue  # norms start at one, biases at zero, set by `neutral`
        shape = tuple(parameter.shape)
        turned = rows_out and number > 1  # the first two are the embeddings
        generator = torch.Generator(device=parameter.device).manual_seed(1000 + number)
        drawn = torch.randn(
            shape[::-1] if turned else shape, device=parameter.device, generator=generator
        )
        parameter.copy_((drawn.t() if turned else drawn) * STANDARD_DEVIATION)


@torch.no_grad()
def neutral(model: nn.Module) -> None:
    """Set biases of all parts to zero, weights of norms to one."""
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def set_options(config: dict[str, Any], settings: Iterable[str]) -> None:
    """Put settings like `zero_optimization.overlap_comm=false` into a DeepSpeed configuration."""
    for setting in settings:
        path, _, value = setting.partition("=")
        *sections, key = path.split(".")
        found = config
        for section in sections:
            found = found.setdefault(section, {})
        found[key] = json.loads(value)


def build(options: argparse.Namespace, device: torch.device) -> Gpt:
    """Build the model with its initial values."""
    model = Gpt(options).to(device)
    neutral(model)
    initialise(model.parameters(), rows_out=True)
    return model


def build_optimizer(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Build torch's AdamW, fused into one kernel on GPUs."""
    fused = torch.cuda.is_available()
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)


def build_scheduler(optimizer: torch.optim.Optimizer, warm: int) -> Any:
    """Build a linear warm-up and then inverse square root decay."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / warm, (warm / (done + 1)) ** 0.5)
    )


def batches(
    options: argparse.Namespace, rank: int, world: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield tokens and their labels, [batch, context] each, of every update, on the device."""
    rows = torch.from_numpy(np.load(options.data / "tokens.npy")).to(device)
    for update in range(options.updates):
        first = (update * world + rank) * options.batch
        chosen = torch.arange(first, first + options.batch, device=device) % len(rows)
        found = rows[chosen].long()
        yield found[:, :-1], found[:, 1:]


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of one rank's batch, in single precision like autocast."""
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
