"""Train a SentencePiece vocabulary on the text that it then encodes, as mT5's was made.

Owns mT5's settings: a unigram model with byte fallback, `<pad>`, `</s>` and `<unk>` first. T5's
tokenizer, as which it is loaded, adds 100 sentinels behind it. The same text gives the same bytes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import source
from source import Refused

SAMPLE = 256 << 20
"""At most about so many bytes of text are read; of more, every second, third, ... document."""
SENTINELS = 100
_PIECE = 1000
"""Characters of a line of the sample: SentencePiece leaves longer lines than 4192 bytes out."""
_PACKED = 4
"""Text is taken for so many times as large as its compressed file."""
_CONFIG = {
    "tokenizer_class": "T5Tokenizer", "extra_ids": SENTINELS, "eos_token": "</s>",
    "unk_token": "<unk>", "pad_token": "<pad>",
}  # fmt: skip


def train(settings: Mapping[str, Any], work: Path) -> None:
    """Train the vocabulary, unless an earlier run made it of the same files.

    Raises:
        Refused: the image has no SentencePiece, or the text does not give so many tokens.
    """
    folder, record = Path(settings["tokens"]["path"]), work / "vocabulary.json"
    inputs = [source.Input(one["path"], one["name"]) for one in settings["inputs"]["train"]]
    stats = [os.stat(one.path) for one in inputs]
    made_of = json.dumps([[stat.st_size, stat.st_mtime_ns] for stat in stats])
    if record.is_file() and record.read_text(encoding="utf-8") == made_of:
        return
    shutil.rmtree(work / "shards", ignore_errors=True)  # of another vocabulary
    folder.mkdir(exist_ok=True)
    text = work / "sample.txt"
    sizes = (stat.st_size * (_PACKED if one.compressed else 1)
             for one, stat in zip(inputs, stats, strict=True))  # fmt: skip
    try:
        _write_sample(text, inputs, settings, 1 + sum(sizes) // SAMPLE)
        _train(text, folder / "spiece", settings["tokens"]["size"])
    finally:
        text.unlink(missing_ok=True)
    (folder / "spiece.vocab").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(_CONFIG, indent=1), encoding="utf-8")
    record.write_text(made_of, encoding="utf-8")


def _write_sample(
    path: Path, inputs: Sequence[source.Input], settings: Mapping[str, Any], every: int
) -> None:
    """Write every so many documents, a document a line, long ones in pieces."""
    reader, number = source.Reader(**settings["reading"]), 0
    with path.open("w", encoding="utf-8") as file:
        for chunk in (chunk for one in inputs for chunk in source.chunks(one, settings["chunk"])):
            for text in (text for some in reader.documents(chunk, chunk.data()) for text in some):
                if number % every == 0:
                    line = " ".join(text.splitlines())
                    pieces = (line[at : at + _PIECE] for at in range(0, len(line), _PIECE))
                    file.writelines(f"{piece}\n" for piece in pieces)
                number += 1


def _train(text: Path, prefix: Path, size: int) -> None:
    try:
        import sentencepiece
    except ImportError as error:
        raise Refused(
            "this image has no SentencePiece",
            why="fairseq's and accelerate's have it",
            hint="make the vocabulary with invoke data accelerate, then --tokenizer of its folder",
        ) from error
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(prefix), vocab_size=size, model_type="unigram",
            pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.99999, byte_fallback=True,
            minloglevel=1,
        )  # fmt: skip
    except RuntimeError as error:
        most = re.search(r"set it to a value <= (\d+)", str(error))
        least = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
        hint = f"--train-tokenizer {most[1]} or fewer" if most else ""
        hint = f"--train-tokenizer {least[1]} or more" if least else hint
        raise Refused(
            f"no vocabulary of {size:,} tokens can be made of this text", why=str(error), hint=hint
        ) from error
