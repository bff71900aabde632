"""Write tokens in each stack's format: their numbers, their width, the files.

Owns the three formats. fairseq's and Megatron's begin the same; accelerate has no format of its
own, so its examples read blocks of tokens as one numpy array. Everything is written piece by piece.
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
        file: file of the tokens; `first` and `count` are in tokens.
    """

    file: Path
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


def write(stack: str, folder: Path, role: str, form: Form, parts: Sequence[Part],
          length: int) -> dict[str, int]:  # fmt: skip
    """Write one split; return what else its description needs.

    Args:
        length: tokens of a sample, where samples are cut here (accelerate).
    """
    if stack == "accelerate":
        return _write_blocks(folder / f"{role}.npy", form, parts, length)
    _write_tokens(folder / f"{role}.bin", b"", form, parts, None)
    with (folder / f"{role}.idx").open("wb") as file:
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
        _settle(file)
    return {}


def _lengths(parts: Sequence[Part]) -> Iterator[np.ndarray]:
    for part in parts:
        lengths = part.lengths().astype(np.int64)
        if len(lengths):
            yield lengths


def _write_blocks(path: Path, form: Form, parts: Sequence[Part], length: int) -> dict[str, int]:
    """Write blocks of `length` tokens, as `numpy.load(..., mmap_mode="r")` reads them."""
    total = sum(part.count for part in parts)
    blocks = total // length
    header = (
        f"{{'descr': '{form.dtype.str}', 'fortran_order': False, 'shape': ({blocks}, {length}), }}"
    )
    padded = header.ljust(118 - 1) + "\n"
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode("latin-1")
    _write_tokens(path, magic, form, parts, blocks * length)
    return {"samples": blocks, "tokens left over": total - blocks * length}


def _write_tokens(
    path: Path, head: bytes, form: Form, parts: Sequence[Part], most: int | None
) -> None:
    width = form.dtype.itemsize
    with path.open("wb") as out:
        out.write(head)
        out.flush()
        for part in parts:
            count = part.count if most is None else min(part.count, most)
            _copy(part.file, part.first * width, count * width, out.fileno())
            most = None if most is None else most - count
        _settle(out)


def _copy(source: Path, start: int, count: int, out: int) -> None:
    """Copy bytes in the kernel; some file systems share the blocks."""
    with source.open("rb") as file:
        while count > 0:
            try:
                done = os.copy_file_range(file.fileno(), out, min(count, 1 << 30), start)
            except OSError:
                file.seek(start)
                done = os.write(out, file.read(min(count, 1 << 24)))
            if not done:
                raise OSError(f"{source.name} is shorter than it was")
            start, count = start + done, count - done


def _settle(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def write_beside(folder: Path, form: Form) -> None:
    """Write the vocabulary or tokenizer, and the stack's other files, beside the data."""
    for name, path in form.files.items():
        shutil.copyfile(path, folder / name)
    for name, text in form.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
