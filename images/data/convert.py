"""Bring a checkpoint to a folder that transformers loads; settings come as JSON on standard input.

Owns that folder: `config.json`, `model.safetensors` in fp32, and the tokenizer of the data that the
model was trained on. `convert_<stack>` reads the checkpoint. The answer is JSON lines as those of
`prepare.py`: `error` or `done`. Needs neither transformers nor safetensors: not all images have them.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import encode
import torch
from source import Refused

_OWN = 4
"""Words that fairseq numbers before those of its dict.txt."""
_FAIRSEQ_END = 2


@dataclass
class Model:
    """Hold a model as transformers knows it.

    Attributes:
        config: what config.json holds.
        weights: tensors by transformers' names.
        words: names of the tensors with a row for each token.
    """

    config: dict[str, Any]
    weights: dict[str, torch.Tensor]
    words: tuple[str, ...]


class Reader(Protocol):
    """Describe the interface of a stack's module."""

    def read(self, checkpoint: Path, name: str, settings: Mapping[str, Any]) -> Model:
        """Read a checkpoint."""


def write_weights(weights: Mapping[str, torch.Tensor], path: Path) -> int:
    """Write a safetensors file in fp32, one tensor at a time; return the number of its values."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, tensor in weights.items():
        end = place + 4 * tensor.numel()
        shape = list(tensor.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in weights.values():
            values = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()
            file.write(memoryview(values.numpy()).cast("B") if values.numel() else b"")
        file.flush()
        os.fsync(file.fileno())
    return place // 4


def add_tokenizer(model: Model, stack: str, data: Path, name: str, out: Path) -> None:
    """Write the tokenizer of a folder of `invoke data`; number fairseq's tokens as it does.

    Raises:
        Refused: the folder holds no tokenizer or vocabulary, or one of another model.
    """
    here = {path.name for path in data.iterdir()}
    kinds = ({"tokenizer.json"}, {"vocab.json", "merges.txt"}, {"spiece.model"})
    more = ({"sentencepiece.bpe.model"}, {"tokenizer.model"})
    if any(kind <= here for kind in (*kinds, *more)):
        tokens = encode.tokens(data, name)
        tokenizer = tokens.tokenizer
        end = next((token for token in tokens.ends if tokens.number(token) is not None), "")
        if stack == "fairseq":
            end = _own_numbers(model, tokens, end)
    else:
        tokenizer, end = _words(data, name, stack)
    rows = model.weights[model.words[0]].shape[0]
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if largest >= rows:
        raise Refused(
            f"{name} has token {largest:,}, the model {rows:,} tokens",
            hint="--data names the folder that the model was trained on",
        )
    seq2seq = bool(model.config.get("is_encoder_decoder"))
    _ending(tokenizer, "</s>" if seq2seq else "").save(str(out / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if seq2seq:  # T5's, whose configuration numbers them already
        own = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
        about |= {k: token for k, token in own.items() if tokenizer.token_to_id(token) is not None}
    elif end:
        about["eos_token"] = end
        number = tokenizer.token_to_id(end)
        model.config |= {"bos_token_id": number, "eos_token_id": number}
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def _ending(tokenizer: Any, end: str) -> Any:
    """Return the tokenizer with a post-processor that ends texts by this token, or adds nothing.

    The data's own tokenizer may do either, whatever the model: numbers in data are without it. A
    GPT-2 would go on behind the end of its prompt, and T5 has always seen an end.
    """
    from tokenizers import Tokenizer

    about, number = json.loads(tokenizer.to_str()), tokenizer.token_to_id(end) if end else None
    about["post_processor"] = None
    if number is not None:
        last = {"SpecialToken": {"id": end, "type_id": 0}}
        first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        about["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [first, last],
            "pair": [first, last, second, last],
            "special_tokens": {end: {"id": end, "ids": [number], "tokens": [end]}},
        }
    return Tokenizer.from_str(json.dumps(about))


def _own_numbers(model: Model, tokens: encode.Tokens, end: str) -> str:
    """Order the rows of a model of fairseq by the tokenizer's numbers; return the token of the end.

    fairseq's number of a token is 4 more. Its `</s>`, which ends documents, becomes the tokenizer's
    own end, or a token more.
    """
    rows = [number + _OWN for number in range(tokens.size)]
    have = model.weights[model.words[0]].shape[0]
    if rows[-1] >= have:
        raise Refused(
            f"the tokenizer has {tokens.size:,} tokens, the model {have - _OWN:,}",
            hint="--data names the folder that the model was trained on",
        )
    number = tokens.number(end) if end else None
    if number is None:
        end, number = "</s>", tokens.size
        tokens.tokenizer.add_special_tokens([end])
        rows.append(_FAIRSEQ_END)
    else:
        rows[number] = _FAIRSEQ_END
    order = torch.tensor(rows)
    for name in model.words:
        model.weights[name] = model.weights[name][order]
    model.config |= {"vocab_size": len(rows), "pad_token_id": None}
    return end


def _words(data: Path, name: str, stack: str) -> tuple[Any, str]:
    """Build the tokenizer of a vocabulary of words, and name its end."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    dictionary = data / "dict.txt"
    if not dictionary.is_file():
        dictionary = data / "shard0" / "dict.txt"
    if stack == "fairseq" and dictionary.is_file():
        lines = dictionary.read_text(encoding="utf-8").splitlines()
        own = ["<s>", "<pad>", "</s>", "<unk>"]
        words = own + [line.rstrip().rpartition(" ")[0] for line in lines]
        table = {word: number for number, word in enumerate(words)}
        unknown, end = "<unk>", "</s>"
    elif stack != "fairseq" and (data / "vocab.json").is_file():
        table = encode.load_vocabulary(data / "vocab.json", name)
        unknown = "<unk>"
        try:
            end = json.loads((data / "data.json").read_text(encoding="utf-8"))["end"]["token"]
        except (OSError, ValueError, KeyError):
            end = ""
    else:
        raise Refused(
            f"{name} holds no tokenizer and no vocabulary",
            hint="--data names a folder that `invoke data` made, or leave it out",
        )
    found = Tokenizer(models.WordLevel(table, unk_token=unknown))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return found, end if end in table else ""


def convert(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the checkpoint; return what is said of it."""
    stack, out = settings["stack"], Path(settings["work"]) / "ready"
    out.mkdir()
    reader: Reader = importlib.import_module(f"convert_{stack}")
    checkpoint = settings["checkpoint"]
    model = reader.read(Path(checkpoint["path"]), checkpoint["name"], settings)
    if settings["data"]:
        add_tokenizer(model, stack, Path(settings["data"]), settings["data_name"], out)
    # fp16 and bf16 become fp32 without loss, and scaled embeddings need its digits.
    config = {**model.config, "dtype": "float32"}
    config.pop("torch_dtype", None)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    values = write_weights(model.weights, out / "model.safetensors")
    return {
        "stack": stack,
        "class": config["architectures"][0],
        "parameters": values,
        "vocabulary": config["vocab_size"],
        "tokenizer": bool(settings["data"]),
    }


def main() -> int:
    """Read the settings, convert, report the end."""
    settings = json.loads(sys.stdin.readline())
    try:
        said: dict[str, Any] = {"event": "done", "about": convert(settings)}
        code = 0
    except Refused as error:
        said = {"event": "error", "what": error.what, "why": error.why, "hint": error.hint}
        code = 2
    except OSError as error:
        said = {"event": "error", "what": f"cannot go on: {error}", "why": "", "hint": ""}
        code = 4
    print(json.dumps(said), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
