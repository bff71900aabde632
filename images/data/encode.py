"""Encode documents as numbers: words of a vocabulary, or a tokenizer's tokens.

Owns what a vocabulary must have and the speed of encoding. An encoder returns all numbers of all
documents in one array; -1 stands for the end of a document until the stack's own number replaces
it.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from source import Refused

END = -1
_ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>")
"""Names of the token that ends a text, most likely first, for tokenizers that name none."""
_MOST = 2**31 - 1


class Encoder(Protocol):
    """Describe an encoder's interface.

    Attributes:
        size: one more than the largest number.
        unknown: the number that words outside the vocabulary get, None where there is none.
        files: files to keep beside the data, by their names there.
        texts: files that were not there and are written beside the data, by their names.
    """

    size: int
    unknown: int | None
    files: Mapping[str, str]
    texts: Mapping[str, str]

    def number(self, token: str) -> int | None:
        """Return the number of a token."""

    def encode(self, documents: Sequence[str]) -> np.ndarray:
        """Return the numbers of all documents, each document ended by END."""


class Words:
    """Encode words between white space by their numbers in a vocabulary.

    Args:
        table: numbers by word.
        unknown: the number of every other word.
    """

    def __init__(self, table: Mapping[str, int], unknown: int, files: Mapping[str, str]) -> None:
        self._table = {**table, "\0": END}  # in no text: see source.Reader
        self.size = max(max(table.values(), default=0), unknown) + 1
        self._unknown = unknown
        self.unknown: int | None = unknown
        self.files = files
        self.texts: Mapping[str, str] = {}

    def number(self, token: str) -> int | None:
        """Return the number of a word."""
        return self._table.get(token)

    def encode(self, documents: Sequence[str]) -> np.ndarray:
        """Encode all documents at once: one split, one look-up a word, one array."""
        words = (" \0 ".join(documents) + " \0").split()
        # `get` with its default takes half the time of a dict with __missing__.
        numbers = map(self._table.get, words, itertools.repeat(self._unknown))
        return np.fromiter(numbers, dtype=np.int64, count=len(words))


class Tokens:
    """Encode text with a Hugging Face tokenizer, without its special tokens."""

    def __init__(
        self,
        tokenizer: Any,
        files: Mapping[str, str],
        ends: Sequence[str],
        texts: Mapping[str, str],
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        model = json.loads(tokenizer.to_str())["model"]
        token = model.get("unk_token")
        self.unknown: int | None = tokenizer.token_to_id(token) if token else model.get("unk_id")
        self.files = files
        self.texts = texts
        self.ends = tuple(ends)

    def number(self, token: str) -> int | None:
        """Return the number of a token."""
        found: int | None = self.tokenizer.token_to_id(token)
        return found

    def encode(self, documents: Sequence[str]) -> np.ndarray:
        """Encode a batch without offsets or masks, which nothing reads."""
        batch = self.tokenizer.encode_batch_fast(list(documents), add_special_tokens=False)
        lists = [encoding.ids for encoding in batch]
        end = (END,)
        numbers = itertools.chain.from_iterable(
            itertools.chain.from_iterable(zip(lists, itertools.repeat(end), strict=False))
        )
        return np.fromiter(numbers, dtype=np.int64, count=sum(map(len, lists)) + len(lists))


def load_vocabulary(path: Path, name: str) -> dict[str, int]:
    """Load the numbers of words from a vocab.json.

    Raises:
        Refused: the file is no vocabulary.
    """
    hint = 'a vocabulary is one JSON object: {"<unk>": 0, "the": 1, ...}'
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refused(f"{name} is not JSON in UTF-8", why=str(error), hint=hint) from error
    if not isinstance(found, dict) or not found:
        raise Refused(f"{name} holds no vocabulary", hint=hint)
    wrong = [w for w, n in found.items() if type(n) is not int or not 0 <= n <= _MOST]
    if wrong:
        raise Refused(
            f"{name}: the number of {wrong[0]!r} is {found[wrong[0]]!r}",
            why=f"numbers go from 0 to {_MOST:,}",
            hint=hint,
        )
    twice = [n for n, count in Counter(found.values()).items() if count > 1]
    if twice:
        words = [w for w, n in found.items() if n == twice[0]]
        raise Refused(f"{name}: {' and '.join(map(repr, words[:3]))} share the number {twice[0]}")
    return found


def words(path: Path, name: str, unk: str) -> Words:
    """Return an encoder of the words of a vocab.json.

    Raises:
        Refused: the file is no vocabulary, or has no word for unknown words.
    """
    table = load_vocabulary(path, name)
    if unk not in table:
        raise Refused(
            f"{name} has no {unk!r}",
            why="a word that is not in the vocabulary has no number then",
            hint="add it to the vocabulary, or name its word for unknown words: --unk WORD",
        )
    return Words(table, table[unk], {"vocab.json": str(path)})


def tokens(folder: Path, name: str) -> Tokens:
    """Load the encoder of a folder with tokenizer.json, vocab.json and merges.txt, or spiece.model.

    Raises:
        Refused: the folder has none of them, or the tokenizer cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Refused(
            "this image has no tokenizers", hint="build the stack again: invoke build"
        ) from error
    there = {path.name: str(path) for path in sorted(folder.iterdir())}
    texts = {}
    try:
        if "tokenizer.json" in there:
            found = Tokenizer.from_file(there["tokenizer.json"])
        elif {"vocab.json", "merges.txt"} <= there.keys():
            found = _byte_level(there)
        else:
            found = _converted(folder, name)
            # Nodes, and programs that convert the model, then need neither SentencePiece nor transformers.
            texts = {"tokenizer.json": found.to_str(pretty=True)}
    except Refused:
        raise
    except Exception as error:  # the library has no type of its own for this
        raise Refused(f"{name} holds a tokenizer that cannot be read", why=str(error)) from error
    return Tokens(found, there, _own_end(folder), texts)


def _byte_level(there: Mapping[str, str]) -> Any:
    """Build the tokenizer of GPT-2's own two files."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    found = Tokenizer(models.BPE.from_file(there["vocab.json"], there["merges.txt"]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return found


def _converted(folder: Path, name: str) -> Any:
    """Load a tokenizer that only transformers can read, as a fast one."""
    try:
        import google.protobuf  # noqa: F401  without it a spiece.model is taken for something else
        import sentencepiece  # noqa: F401
        from transformers import AutoTokenizer
    except ImportError as error:
        raise Refused(
            f"{name} has no tokenizer.json, and this image cannot make one",
            why=f"no module {error.name}",
            hint="fairseq's and accelerate's images can: the folder of invoke data accelerate"
            " --tokenizer holds a tokenizer.json",
        ) from error
    return _with_bytes(AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer)


def _with_bytes(tokenizer: Any) -> Any:
    """Return a tokenizer that spells what it does not know in bytes, where its vocabulary has them.

    SentencePiece does so (mT5's vocabulary is made for it); transformers 5 leaves it out.
    """
    from tokenizers import Tokenizer

    about = json.loads(tokenizer.to_str())
    if tokenizer.token_to_id("<0x00>") is None or about["model"].get("byte_fallback") is not False:
        return tokenizer
    about["model"]["byte_fallback"] = True
    decoders = [about["decoder"]] if about["decoder"] else []
    about["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, *decoders]}
    return Tokenizer.from_str(json.dumps(about))


def _own_end(folder: Path) -> tuple[str, ...]:
    try:
        found = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        end = found["eos_token"]
        return (end["content"] if isinstance(end, dict) else str(end), *_ENDS) if end else _ENDS
    except (OSError, ValueError, KeyError, TypeError):
        return _ENDS


def end_of(encoder: Encoder, asked: str, name: str) -> tuple[str, int]:
    """Return the token that ends a document, and its number.

    Raises:
        Refused: the vocabulary has none.
    """
    ends = (asked,) if asked else getattr(encoder, "ends", _ENDS[:1])
    for token in ends:
        number = encoder.number(token)
        if number is not None:
            return token, number
    raise Refused(
        f"{name} has no {' and no '.join(map(repr, ends))}",
        why="every document is ended by that token",
        hint="add it to the vocabulary, name the one it has (--eod TOKEN), or leave documents"
        " without an end (--no-append-eod)",
    )
