"""Define the training: the token blocks, the model, its optimizer and schedule.

The global batch, its order and the initial weights depend on nothing but the data and the seed.
It must not know how many ranks there are.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from torch.utils.data import Dataset
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

GLOBAL_BATCH = 8
LEARNING_RATE = 6e-3
# Adam divides by the root of tiny moments, so rounding differences between layouts can grow:
# a change of 1e-7 in the initial weights moves the loss by 2e-5 with 1e-8, by 1e-6 with 1e-6.
ADAM_EPSILON = 1e-6
WARM_UP = 4
SEED = 1234


class Blocks(Dataset[torch.Tensor]):
    """Repeat the token blocks of `prepare.py`, so few that 40 updates learn them.

    Args:
        path: the stored blocks.
        length: number of blocks in a full run.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.blocks = torch.from_numpy(np.load(path))
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        # Blocks made by `invoke data` are as narrow as their vocabulary allows.
        return self.blocks[index % len(self.blocks)].long()


def build_model() -> LlamaForCausalLM:
    """Build a Llama of 0.13 million parameters, fp32, without dropout, the same on every rank."""
    set_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.06,
            attention_dropout=0.0,
            use_cache=False,
        )
    )


def build_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Build torch's AdamW: DeepSpeed's would be compiled at the first launch."""
    return torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=ADAM_EPSILON
    )


def build_scheduler(optimizer: torch.optim.Optimizer) -> Any:
    """Build a linear warm-up and then inverse square root decay.

    Neither depends on the total number of updates.
    """

    def factor(done: int) -> float:
        return min((done + 1) / WARM_UP, math.sqrt(WARM_UP / (done + 1)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
