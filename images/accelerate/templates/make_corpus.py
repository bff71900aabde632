"""Make a small corpus of token numbers, OUT/train.npy, from the text of the image.

Uses byte-level BPE as GPT-2 does; `tokenizer.json` lies beside the numbers. It must not import
torch: every node runs it before a launch.

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
from tokenizers.trainers import BpeTrainer

END = "<eos>"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="folder of zh.txt and en.txt")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--vocabulary", type=int, default=2048, help="at most")
    parser.add_argument("--lines", type=int, default=0, help="of each language; 0: all")
    options = parser.parse_args()
    both = ((options.text / name).read_text(encoding="utf-8") for name in ("zh.txt", "en.txt"))
    found = [[line for line in text.splitlines() if line] for text in both]
    pairs = zip(*(lines[: options.lines or None] for lines in found), strict=False)
    lines = [line for pair in pairs for line in pair]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=options.vocabulary, special_tokens=["<pad>", END],
                         initial_alphabet=ByteLevel.alphabet(), show_progress=False)  # fmt: skip
    tokenizer.train_from_iterator(lines, trainer)
    end = tokenizer.token_to_id(END)
    numbers = [n for line in tokenizer.encode_batch(lines) for n in (*line.ids, end)]
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out / "tokenizer.json"))
    np.save(options.out / "train.npy", np.array(numbers, dtype=np.int32))
    print(f"{len(lines)} lines, {len(numbers)} tokens of {tokenizer.get_vocab_size()}")


if __name__ == "__main__":
    main()
