"""The training text in Megatron's own formats: vocabulary, .bin/.idx, sample index.

Owns every file below the data folder and the order in which samples reach the model. It knows
nothing of ranks beyond which slice of a global batch a data-parallel rank reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import (
    DType,
    IndexedDatasetBuilder,
    get_bin_path,
    get_idx_path,
)

SEQUENCE_LENGTH = 32
GLOBAL_BATCH = 32
MICRO_BATCH = 8

_SPECIAL = ("<eod>", "<pad>")
_SEED = 1234

Batch = tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]


class CharacterTokenizer:
    """One token a character; what Megatron's datasets ask of a tokenizer and nothing more."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self._vocabulary = vocabulary
        self.vocab_size = len(vocabulary)
        self.eod, self.pad = (vocabulary[token] for token in _SPECIAL)
        # Part of the name under which Megatron caches its sample index.
        self.unique_identifiers = {"class": type(self).__name__, "size": str(self.vocab_size)}

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> CharacterTokenizer:
        """The vocabulary of `lines`, in code point order after the special tokens."""
        characters = sorted(set().union(*lines))
        return cls({token: index for index, token in enumerate((*_SPECIAL, *characters))})

    @classmethod
    def load(cls, data: Path) -> CharacterTokenizer:
        """Read the vocabulary that `save` wrote."""
        return cls(json.loads((data / "vocab.json").read_text(encoding="utf-8")))

    def save(self, data: Path) -> None:
        """Write the vocabulary as JSON (token to id)."""
        text = json.dumps(self._vocabulary, ensure_ascii=False)
        (data / "vocab.json").write_text(text, encoding="utf-8")

    def document(self, line: str) -> list[int]:
        """The ids of one line, closed with the end-of-document token."""
        return [*(self._vocabulary[character] for character in line), self.eod]


def write_indexed_dataset(lines: Iterable[str], tokenizer: CharacterTokenizer, data: Path) -> None:
    """Write every line as one document of `data`/text.bin and text.idx."""
    prefix = str(data / "text")
    builder = IndexedDatasetBuilder(
        get_bin_path(prefix), dtype=DType.optimal_dtype(tokenizer.vocab_size)
    )
    for line in lines:
        ids = tokenizer.document(line)
        builder.add_document(torch.tensor(ids), [len(ids)])
    builder.finalize(get_idx_path(prefix))


def build_dataset(tokenizer: CharacterTokenizer, data: Path, updates: int) -> GPTDataset:
    """The samples of `updates` global batches, shuffled the same way wherever it is called.

    The sample index is cached below `data`: the first caller builds it, the others read it.
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
    sizes = [updates * GLOBAL_BATCH, 0, 0]
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
    share = GLOBAL_BATCH // dp_size
    for update in range(first_update, updates):
        start = update * GLOBAL_BATCH + dp_rank * share
        for low in range(start, start + share, MICRO_BATCH):
            samples = [dataset[index] for index in range(low, low + MICRO_BATCH)]
            tokens, positions, labels = (
                _stacked(samples, field) for field in ("tokens", "position_ids", "labels")
            )
            yield (tokens, positions), labels


def _stacked(samples: list[dict[str, Any]], field: str) -> torch.Tensor:
    return torch.stack([sample[field] for sample in samples])
