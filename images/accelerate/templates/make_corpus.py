"""Make a small corpus of token numbers, OUT/train.npy and valid.npy, from the text of the image.

Uses byte-level BPE as GPT-2 does, for mT5 with its sentinels on top; `tokenizer.json` lies beside
the numbers. It must not import torch: every node runs it before a launch.

    python3 make_corpus.py --text FOLDER --out FOLDER --vocabulary 2048
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

END = "</s>"
VALID = 20  # every 20th line is validated on


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="folder of zh.txt and en.txt")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--vocabulary", type=int, default=2048, help="at most")
    parser.add_argument("--sentinels", type=int, default=0, help="of the vocabulary, for mT5")
    parser.add_argument("--lines", type=int, default=0, help="of each language; 0: all")
    options = parser.parse_args()
    both = ((options.text / name).read_text(encoding="utf-8") for name in ("zh.txt", "en.txt"))
    found = [[line for line in text.splitlines() if line] for text in both]
    pairs = zip(*(lines[: options.lines or None] for lines in found), strict=False)
    lines = [line for pair in pairs for line in pair]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=options.vocabulary - options.sentinels,
                         special_tokens=["<pad>", END], initial_alphabet=ByteLevel.alphabet(),
                         show_progress=False)  # fmt: skip
    tokenizer.train_from_iterator(lines, trainer)
    if options.sentinels:  # the first has the largest number, as in T5's tokenizers
        tokenizer.add_special_tokens(
            [f"<extra_id_{n}>" for n in reversed(range(options.sentinels))]
        )
    end = tokenizer.token_to_id(END)
    tokenizer.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=[(END, end)])
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out / "tokenizer.json"))
    for name, some in (("valid", lines[::VALID]), ("train", without(lines, VALID))):
        numbers = [n for line in tokenizer.encode_batch(some) for n in line.ids]
        np.save(options.out / f"{name}.npy", np.array(numbers, dtype=np.int32))
        print(f"{name}: {len(some)} lines, {len(numbers)} tokens of {tokenizer.get_vocab_size()}")


def without(lines: list[str], every: int) -> list[str]:
    """Return all lines but every so many, from the first on."""
    return [line for number, line in enumerate(lines) if number % every]


if __name__ == "__main__":
    main()
