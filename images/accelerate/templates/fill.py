"""Fill the blanks of a text, `<extra_id_0>`, `<extra_id_1>`, ..., with a pretrained mT5.

The model is a folder of `invoke convert --data`, or any T5 or mT5 of transformers; a template's
own --save/model has no tokenizer beside it, so --tokenizer names that of the corpus.

    python3 fill.py --model FOLDER 'The <extra_id_0> walks in <extra_id_1> park'
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import spans
import torch

BLANK = re.compile(r"(<extra_id_\d+>)")


def encode(tokenizer: Any, marks: spans.Marks, text: str) -> list[int]:
    """Return the numbers of a text with blanks.

    A part behind a blank is encoded by itself, and SentencePiece then takes it for the begin of a
    word, which the text did not say: Chinese has no such begins inside a sentence.
    """
    found: list[int] = []
    for part in BLANK.split(text):
        if BLANK.fullmatch(part):
            found.append(marks.number(int(part[10:-1])))
            continue
        numbers = tokenizer.encode(part, add_special_tokens=False).ids if part.strip() else []
        word = tokenizer.id_to_token(numbers[0]) if numbers else ""
        if found and word.startswith("▁") and not part[0].isspace():
            inside = tokenizer.token_to_id(word[1:]) if word != "▁" else None
            numbers[:1] = [] if word == "▁" else [numbers[0] if inside is None else inside]
        found += numbers
    return [*found, marks.end]


@torch.no_grad()
def fill(model: Any, tokenizer: Any, text: str, most: int) -> str:
    """Return the text with its blanks filled, by the likeliest token each time."""
    marks = spans.find_marks(tokenizer.token_to_id, "the tokenizer")
    inputs = encode(tokenizer, marks, text)
    made = model.generate(
        torch.tensor([inputs]), max_new_tokens=most, do_sample=False, num_beams=1
    )[0]
    targets = made.tolist()[1:]  # without what the decoder starts with
    if marks.end in targets:
        targets = targets[: targets.index(marks.end)]
    whole: str = tokenizer.decode(spans.restore(inputs, targets, marks), skip_special_tokens=False)
    return whole


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of transformers")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; default: the model's")
    parser.add_argument("--most", type=int, default=64, help="tokens to write, in all blanks")
    parser.add_argument("text", nargs="+", help="with <extra_id_0>, <extra_id_1>, ... in it")
    options = parser.parse_args()
    from tokenizers import Tokenizer
    from transformers import AutoModelForSeq2SeqLM

    path = options.tokenizer or Path(options.model) / "tokenizer.json"
    if not path.is_file():
        raise SystemExit(f"there is no {path}: --tokenizer CORPUS/tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(options.model).eval()
    for text in options.text:
        print(fill(model, tokenizer, text, options.most), flush=True)


if __name__ == "__main__":
    main()
