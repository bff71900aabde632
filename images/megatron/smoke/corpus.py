"""Write and read the training text in Megatron's own formats: .bin/.idx, sample index.

Owns those files, which the first launch makes, and the order in which samples reach the model. It
knows nothing of ranks beyond the slice of a global batch that a data-parallel rank reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import (
    DType,
    IndexedDatasetBuilder,
    get_bin_path,
    get_idx_path,
)
from vocabulary import CharacterTokenizer

SEQUENCE_LENGTH = 32
GLOBAL_BATCH = 16
MICRO_BATCH = 8

_SEED = 1234

Batch = tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]


def micro_batch(dp_size: int) -> int:
    """Return the samples of a micro-batch: a replica's whole share where that is less."""
    return min(MICRO_BATCH, GLOBAL_BATCH // dp_size)


def write_indexed_dataset(tokenizer: CharacterTokenizer, data: Path) -> None:
    """Write every line of `data`/text.txt as one document of text.bin and text.idx, if missing.

    One rank writes them, or a process of its own before the training; the other ranks wait.
    """
    prefix = str(data / "text")
    index = Path(get_idx_path(prefix))
    alone = not dist.is_initialized()
    if (alone or dist.get_rank() == 0) and not index.exists():
        builder = IndexedDatasetBuilder(
            get_bin_path(prefix), dtype=DType.optimal_dtype(tokenizer.vocab_size)
        )
        for line in (data / "text.txt").read_text(encoding="utf-8").splitlines():
            ids = tokenizer.document(line)
            builder.add_document(torch.tensor(ids), [len(ids)])
        builder.finalize(str(index))
    if not alone:
        dist.barrier()


def build_dataset(tokenizer: CharacterTokenizer, data: Path, horizon: int) -> GPTDataset:
    """Build the samples of `horizon` global batches, shuffled the same way wherever it is called.

    Their order depends on their number: `horizon` must be the same in launches that are compared.

    The sample index is cached below `data`: the first launch builds it, the others read it.
    """
    config = GPTDatasetConfig(
        random_seed=_SEED,
        sequence_length=SEQUENCE_LENGTH,
        blend=([str(data / "text")], None),
        split="1,0,0",
        path_to_cache=str(data / "cache"),
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [horizon * GLOBAL_BATCH, 0, 0]
    train, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    assert isinstance(train, GPTDataset)
    return train


def micro_batches(
    dataset: GPTDataset, *, first_update: int, updates: int, dp_rank: int, dp_size: int
) -> Iterator[Batch]:
    """Yield ((tokens, positions), labels) of updates `first_update`.. (from 0) for one replica.

    Update k holds samples k * GLOBAL_BATCH onwards in every layout, so the position in the data
    follows from the number of updates done and a checkpoint needs no more than that.
    """
    share, micro = GLOBAL_BATCH // dp_size, micro_batch(dp_size)
    for update in range(first_update, updates):
        start = update * GLOBAL_BATCH + dp_rank * share
        for low in range(start, start + share, micro):
            samples = [dataset[index] for index in range(low, low + micro)]
            tokens, positions, labels = (
                _stacked(samples, field) for field in ("tokens", "position_ids", "labels")
            )
            yield (tokens, positions), labels


def _stacked(samples: list[dict[str, Any]], field: str) -> torch.Tensor:
    return torch.stack([sample[field] for sample in samples])
