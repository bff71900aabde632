"""Number the characters that the model is trained on.

Owns `<data>/vocab.json`. It must not import torch: data are prepared with it before any launch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

_SPECIAL = ("<eod>", "<pad>")


class CharacterTokenizer:
    """Encode one token a character, with the attributes that Megatron's datasets need."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self._vocabulary = vocabulary
        self.vocab_size = len(vocabulary)
        self.eod, self.pad = (vocabulary[token] for token in _SPECIAL)
        # Part of the name under which Megatron caches its sample index.
        self.unique_identifiers = {"class": type(self).__name__, "size": str(self.vocab_size)}

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> CharacterTokenizer:
        """Build the vocabulary of `lines`, in code point order after the special tokens."""
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
        """Return the ids of one line, ended by the end-of-document token."""
        return [*(self._vocabulary[character] for character in line), self.eod]
