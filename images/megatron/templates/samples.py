"""Build the samples of a Megatron corpus, in order, and give each rank its own.

As a program it makes the sample index on this machine before any training: nodes need no shared
folder.

    python3 samples.py --corpus PREFIX --cache FOLDER --sequence 1024 --vocabulary N --updates N
        --batch N --replicas N
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset

SEED = 1234
# Of a larger corpus at most so many bytes are looked at before a training, in pieces of so many
# numbers from all parts of it.
LOOKED_AT, PIECE = 2 << 30, 1 << 20
Sample = tuple[torch.Tensor, torch.Tensor]


class Numbers:
    """Stand in for a tokenizer: Megatron's datasets need one, the corpus holds numbers."""

    def __init__(self, vocabulary: int, eod: int = 0) -> None:
        self.vocab_size, self.eod, self.pad = vocabulary, eod, -1
        self.unique_identifiers = {"class": type(self).__name__, "size": str(vocabulary)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide the samples: the same for the program here and the training."""
    parser.add_argument(
        "--corpus",
        required=True,
        help="PREFIX of PREFIX.bin and PREFIX.idx; or a folder of train.bin, train.idx",
    )
    parser.add_argument("--cache", required=True, help="folder of the sample index")
    parser.add_argument("--split", default="900,50,50", help="parts for training, valid and test")
    parser.add_argument("--sequence", type=int, required=True)
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="samples of a rank at a time")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a rank in an update")
    parser.add_argument("--replicas", type=int, required=True, help="data-parallel size")
    parser.add_argument("--eval-every", type=int, default=1000, help="0: never")
    parser.add_argument("--eval-iters", type=int, default=10)


def global_batch(options: argparse.Namespace) -> int:
    """Return the number of samples in an update."""
    return int(options.batch * options.accumulate * options.replicas)


def parts(corpus: str) -> tuple[str, str | None, str | None]:
    """Return the prefixes of a corpus for training, validation and test; None for a missing one.

    Raises:
        SystemExit: there is nothing to train on.
    """
    prefix = str(Path(corpus) / "train") if Path(corpus).is_dir() else corpus
    for end in (".bin", ".idx"):
        if not Path(prefix + end).is_file():
            raise SystemExit(f"there is no {prefix}{end}: --set corpus=PREFIX of both, or a folder")
    valid, test = (str(Path(corpus) / name) for name in ("valid", "test"))
    return (
        prefix,
        valid if Path(f"{valid}.idx").is_file() else None,
        test if Path(f"{test}.idx").is_file() else None,
    )


def build(options: argparse.Namespace) -> tuple[GPTDataset, GPTDataset | None]:
    """Build training and validation samples, shuffled the same way wherever it is called.

    Raises:
        SystemExit: the corpus is not there, or too small for its split.
    """
    prefix, *apart = parts(options.corpus)
    rounds = options.updates // options.eval_every if options.eval_every else 0
    batch = global_batch(options)
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=options.sequence,
        # A folder with valid.bin is divided already; anything else is by --split.
        blend=None if apart[0] else ([prefix], None),
        blend_per_split=(
            [([name], None) if name else None for name in (prefix, *apart)] if apart[0] else None
        ),
        split=None if apart[0] else options.split,
        path_to_cache=options.cache,
        tokenizer=Numbers(options.vocabulary),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    if not apart[0]:
        require_documents(options, len(IndexedDataset(prefix).sequence_lengths), config)
    sizes = [options.updates * batch, rounds * options.eval_iters * batch, 0]
    train, valid, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    if not isinstance(train, GPTDataset):
        raise SystemExit(f"{options.corpus} is too small for --split {options.split}")
    return train, valid if rounds and isinstance(valid, GPTDataset) else None


def require_documents(
    options: argparse.Namespace, documents: int, config: GPTDatasetConfig
) -> None:
    """Check that every part of the split has a document.

    Megatron would search an empty part for ever.

    Raises:
        SystemExit: a part has none.
    """
    for part, bounds in zip(("train", "valid", "test"), config.split_matrix, strict=True):
        first, end = (round(bound * documents) for bound in bounds or (0, 1))
        if first >= end:
            raise SystemExit(
                f"{options.corpus} holds {documents} documents: --split {options.split} leaves none"
                f" for {part}; invoke data megatron --split makes a folder that is divided already"
            )


def require_vocabulary(prefix: str, vocabulary: int) -> None:
    """Check that the numbers of a corpus are below the vocabulary's size, before anything trains.

    Of what is not looked at, `take` finds a larger one when it comes.

    Raises:
        SystemExit: one is not.
    """
    if Path(f"{prefix}.bin").stat().st_size == 0:
        return
    numbers = np.memmap(f"{prefix}.bin", dtype=IndexedDataset(prefix).index.dtype, mode="r")
    step = PIECE * -(-numbers.nbytes // LOOKED_AT)
    pieces = (numbers[low : low + PIECE] for low in range(0, len(numbers), step))
    top = max(int(piece.max()) for piece in pieces)
    if top >= vocabulary:
        raise SystemExit(f"{prefix} holds token {top}: --set vocabulary={top + 1}")


def batches(
    dataset: GPTDataset, options: argparse.Namespace, *, first: int, replica: int
) -> Iterator[Sample]:
    """Yield (tokens, labels) of one replica, from sample `first` on.

    Update k holds samples k * global batch onwards in every layout: the position in the data
    follows from the number of updates done, and a checkpoint needs no more than that.
    """
    share = options.batch * options.accumulate
    start = first + replica * share
    while True:
        for low in range(start, start + share, options.batch):
            yield take(dataset, options, low, low + options.batch)
        start += global_batch(options)


def take(dataset: GPTDataset, options: argparse.Namespace, low: int, high: int) -> Sample:
    """Return (tokens, labels) of samples `low` to `high`.

    Raises:
        SystemExit: a number is not in the vocabulary.
    """
    chosen = [dataset[index % len(dataset)] for index in range(low, high)]
    tokens, labels = (_stacked(chosen, name) for name in ("tokens", "labels"))
    top = int(max(tokens.max(), labels.max()))
    if top >= options.vocabulary:
        raise SystemExit(f"{options.corpus} holds token {top}: --set vocabulary={top + 1}")
    return tokens, labels


def _stacked(samples: list[dict[str, Any]], name: str) -> torch.Tensor:
    return torch.stack([sample[name] for sample in samples])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    options = parser.parse_args()
    # Here, once on every node: the ranks, which build the samples too, need not read all again.
    for prefix in filter(None, parts(options.corpus)):
        require_vocabulary(prefix, options.vocabulary)
    train, valid = build(options)
    print(f"{len(train)} samples to train on, {len(valid) if valid else 0} to validate with")


if __name__ == "__main__":
    main()
