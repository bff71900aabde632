"""Write tokens in each stack's format: their numbers, their width, the files.

Owns the three formats. fairseq's and Megatron's begin the same; accelerate has no format of its
own, so its examples read blocks of tokens as one numpy array. Indexes are written piece by piece;
`shards` moves the tokens.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import encode
import numpy as np
from source import Refused

_MAGIC = b"MMIDIDX\x00\x00"
_FAIRSEQ_OWN = ("<s>", "<pad>", "</s>", "<unk>")
_FAIRSEQ_END, _FAIRSEQ_UNKNOWN = 2, 3
_MULTIPLE = 8
"""fairseq pads its dictionaries to a multiple of this number, which suits tensor cores."""


@dataclass(frozen=True)
class Form:
    """Hold how one stack numbers and stores tokens.

    Attributes:
        shift: added to every number of the encoder.
        end: the number that ends a document; None adds no end.
        unknown: the number that tokens outside the vocabulary get, None where there is none.
        size: one more than the largest number that can be written.
        code: code of `dtype` in the stack's own files.
        files: files to copy beside the data, by name; `texts` are written instead.
    """

    encoder: encode.Encoder
    shift: int
    end: int | None
    end_name: str
    unknown: int | None
    size: int
    dtype: np.dtype[Any]
    code: int
    files: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Hold some of a shard's documents: the range of tokens, and the length of each document.

    Attributes:
        number: the shard; `first` and `count` are in tokens.
    """

    number: int
    first: int
    count: int
    lengths: Callable[[], np.ndarray]


def form_of(settings: Mapping[str, Any]) -> Form:
    """Build the form that the settings ask for.

    Raises:
        Refused: the vocabulary lacks a token that is needed.
    """
    stack, how = settings["stack"], settings["tokens"]
    path, name = Path(how["path"]), str(how["name"])
    if stack == "fairseq":
        return _fairseq(settings, path, name)
    if how["kind"] == "words":
        encoder: encode.Encoder = encode.words(path, name, settings["unk"])
    else:
        encoder = encode.tokens(path, name)
    end_name, end = "", None
    if settings["append_eod"]:
        end_name, end = encode.end_of(encoder, settings["eod"], name)
    # Both read uint16; torch has no arithmetic of uint32. The bound is Megatron's own.
    narrow = encoder.size < 65500
    return Form(
        encoder=encoder,
        shift=0,
        end=end,
        end_name=end_name,
        unknown=encoder.unknown,
        size=encoder.size,
        dtype=np.dtype("<u2" if narrow else "<i4"),
        code=8 if narrow else 4,
        files=encoder.files,
    )


def _fairseq(settings: Mapping[str, Any], path: Path, name: str) -> Form:
    """Build fairseq's form, which has four words of its own before those of dict.txt."""
    shift, texts = 0, {}
    if settings["tokens"]["kind"] == "words":
        encoder: encode.Encoder
        encoder, texts = _fairseq_words(path, name)
        size, unknown = encoder.size, _FAIRSEQ_UNKNOWN
    else:
        encoder = encode.tokens(path, name)
        shift = len(_FAIRSEQ_OWN)
        texts, size = _dictionary([str(number) for number in range(encoder.size)])
        unknown = None if encoder.unknown is None else encoder.unknown + shift
    narrow = size < 65500
    return Form(
        encoder=encoder,
        shift=shift,
        end=_FAIRSEQ_END if settings["append_eod"] else None,
        end_name="</s>" if settings["append_eod"] else "",
        unknown=unknown,
        size=size,
        dtype=np.dtype("<u2" if narrow else "<u4"),
        code=8 if narrow else 9,
        files=encoder.files,
        texts=texts,
    )


def _dictionary(words: Sequence[str]) -> tuple[dict[str, str], int]:
    """Return a dict.txt with padding words as fairseq adds them, and its number of words."""
    lines = [f"{word} 1\n" for word in words]
    missing = -(len(words) + len(_FAIRSEQ_OWN)) % _MULTIPLE
    lines += [f"madeupword{number:04d} 0\n" for number in range(missing)]
    return {"dict.txt": "".join(lines)}, len(lines) + len(_FAIRSEQ_OWN)


def _fairseq_words(path: Path, name: str) -> tuple[encode.Words, dict[str, str]]:
    """Give the words of a vocab.json, or of fairseq's own dict.txt, fairseq's numbers."""
    table = {word: number for number, word in enumerate(_FAIRSEQ_OWN)}
    if path.suffix != ".json":
        text = path.read_text(encoding="utf-8")
        for line, entry in enumerate(text.splitlines(), start=1):
            word, _, count = entry.rstrip().rpartition(" ")
            if not count.isdecimal() or not word or word in table:
                raise Refused(
                    f"{name}, line {line}: {entry[:80]!r} is not a new word and its count",
                    hint="give the dict.txt that fairseq-preprocess wrote, or a vocab.json",
                )
            table[word] = len(table)
        return encode.Words(table, _FAIRSEQ_UNKNOWN, {}), {"dict.txt": text}
    found = encode.load_vocabulary(path, name)
    words = [word for word in sorted(found, key=found.__getitem__) if word not in table]
    broken = [word for word in words if not word or word.split() != [word]]
    if broken:
        raise Refused(
            f"{name} holds {broken[0]!r}: a word of fairseq's dict.txt has no white space"
        )
    texts, size = _dictionary(words)
    table |= {word: number for number, word in enumerate(words, start=len(table))}
    encoder = encode.Words(table, _FAIRSEQ_UNKNOWN, {})
    encoder.size = size
    return encoder, texts


def data_file(stack: str, name: str) -> str:
    """Return the name of the file of a split's tokens."""
    return f"{name}.npy" if stack == "accelerate" else f"{name}.bin"


def head(stack: str, form: Form, parts: Sequence[Part], length: int) -> tuple[bytes, int]:
    """Return the bytes before a split's tokens, and how many tokens are written.

    Args:
        length: tokens of a sample, where samples are cut here (accelerate).
    """
    total = sum(part.count for part in parts)
    if stack != "accelerate":
        return b"", total
    blocks = total // length  # as `numpy.load(..., mmap_mode="r")` reads them
    header = (
        f"{{'descr': '{form.dtype.str}', 'fortran_order': False, 'shape': ({blocks}, {length}), }}"
    )
    padded = header.ljust(118 - 1) + "\n"
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode("latin-1")
    return magic, blocks * length


def describe(stack: str, parts: Sequence[Part], length: int) -> dict[str, int]:
    """Return what a split's description has beside its documents and tokens."""
    if stack != "accelerate":
        return {}
    blocks, left = divmod(sum(part.count for part in parts), length)
    return {"samples": blocks, "tokens left over": left}


def write_index(stack: str, path: Path, form: Form, parts: Sequence[Part]) -> None:
    """Write the index of one split, for the stacks that have one."""
    if stack == "accelerate":
        return
    with path.open("wb") as file:
        documents = sum(len(lengths) for lengths in _lengths(parts))
        file.write(_MAGIC + struct.pack("<QBQ", 1, form.code, documents))
        if stack == "megatron":
            file.write(struct.pack("<Q", documents + 1))
        for lengths in _lengths(parts):
            file.write(lengths.astype("<i4").tobytes())
        position = 0
        for lengths in _lengths(parts):
            ends = np.cumsum(lengths, dtype="<i8") * form.dtype.itemsize
            file.write((position + ends - lengths * form.dtype.itemsize).astype("<i8").tobytes())
            position += int(ends[-1])
        if stack == "megatron":
            first = 0
            for lengths in _lengths(parts):
                file.write(np.arange(first, first + len(lengths), dtype="<i8").tobytes())
                first += len(lengths)
            file.write(struct.pack("<q", documents))
        file.flush()
        os.fsync(file.fileno())


def _lengths(parts: Sequence[Part]) -> Iterator[np.ndarray]:
    for part in parts:
        lengths = part.lengths().astype(np.int64)
        if len(lengths):
            yield lengths


def write_beside(folder: Path, form: Form, folders: Sequence[str]) -> None:
    """Write the vocabulary or tokenizer beside the data, and the stack's own files in `folders`."""
    for name, path in form.files.items():
        shutil.copyfile(path, folder / name)
    for name, text in form.encoder.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, text in form.texts.items():
        for below in folders:
            (folder / below / name).write_text(text, encoding="utf-8")
