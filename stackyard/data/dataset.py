"""Text of the user's own as a stack's training data: what is asked for, as one value.

Owns what the arguments of `invoke data` mean and the settings that the program in the container
(images/data/prepare.py) is given. Pure: which files there are, the caller says.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackyard.system.errors import UsageError

CHUNKS, LEAST, MOST = 64, 1 << 20, 64 << 20
"""Into how many chunks the input is cut, and how many bytes one has at least and at most."""
SAMPLE = 1024
"""Tokens of a sample where they are cut here (accelerate), unless told otherwise."""
BAD_LINES = ("fail", "skip", "replace")
STACKS = ("fairseq", "megatron", "accelerate")
# Read by nobody but the program: a file is where the container has it.
INPUTS, VOCABULARY, WORK, PROGRAMS = "/data/input", "/data/vocabulary", "/data/work", "/srv/data"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """How text becomes numbers.

    Attributes:
        kind: `words` (between white space, by a vocab.json or fairseq's dict.txt) or `tokenizer`.
        name: what the user typed.
        files: on this machine, by the name that each has in the container.
    """

    kind: str
    name: str
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One preparation of data.

    Attributes:
        inputs: files by role, `train` at least, by the names that the user gave them.
        split: weights of train, valid and test, cut out of the train files; empty for none.
        key: where lines are JSON objects, the text's key; empty for plain text.
        eod: the token that ends a document; empty for the vocabulary's own.
        seq_length: tokens of a sample; 0 where the training decides.
    """

    stack: str
    inputs: Mapping[str, Sequence[str]]
    vocabulary: Vocabulary
    split: tuple[float, ...] = ()
    encoding: str = "utf-8"
    bad_lines: str = "fail"
    key: str = ""
    keep_blank: bool = False
    append_eod: bool = True
    eod: str = ""
    unk: str = "<unk>"
    seq_length: int = 0
    # Where each file of the inputs is in the container.
    places: Mapping[str, str] = field(default_factory=dict)


def parse_split(text: str) -> tuple[float, ...]:
    """`900,50,50` as weights of train, valid and test.

    Raises:
        UsageError: it is not that.
    """
    if not text:
        return ()
    hint = "--split 900,50,50: weights of train, valid and test, in documents"
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--split {text!r} is not three numbers", hint=hint) from None
    weights += (0.0,) * (3 - len(weights))
    good = len(weights) == 3 and all(0 <= weight < float("inf") for weight in weights)
    if not good or not weights[0]:
        raise UsageError(
            f"--split {text!r} cannot be", why="train, valid and test have a part each; train's"
            " is more than nothing", hint=hint,
        )  # fmt: skip
    return weights


def parse_encoding(text: str) -> str:
    """An encoding in which a line's end is always the one byte, and means it.

    Raises:
        UsageError: there is none of that name, or lines cannot be cut in it.
    """
    try:
        name = codecs.lookup(text).name
    except LookupError:
        raise UsageError(
            f"--encoding {text!r} is no encoding", hint="utf-8, gb18030, big5, latin-1, ..."
        ) from None
    if name == "utf-8-sig":  # a mark at the beginning of UTF-8 is left out anyway
        return "utf-8"
    turning = name.startswith(("iso2022", "hz", "utf-7"))
    try:
        single = "\n".encode(name) == b"\n"
    except (LookupError, TypeError, UnicodeError):
        single = False
    if turning or not single:
        raise UsageError(
            f"--encoding {text}: files in it cannot be cut at line ends",
            hint=f"iconv -f {text} -t utf-8 FILE > NEW, and then NEW",
        )
    return name


def require(request: Request) -> None:
    """See that what is asked for fits together.

    Raises:
        UsageError: it does not.
    """
    if request.bad_lines not in BAD_LINES:
        raise UsageError(
            f"--bad-lines {request.bad_lines!r} is not known", hint=" or ".join(BAD_LINES)
        )
    if request.split and any(request.inputs.get(role) for role in ("valid", "test")):
        raise UsageError(
            "--split and --valid or --test are two ways to say the same",
            hint="one of them: parts of the input, or files of their own",
        )
    if request.seq_length < 0:
        raise UsageError("--seq-length is a number of tokens, 1 or more")
    if request.stack == "fairseq" and request.eod:
        raise UsageError(
            "fairseq ends every document with its own </s>",
            hint="leave --eod out (--no-append-eod leaves the end out)",
        )
    if request.eod and not request.append_eod:
        raise UsageError("--eod and --no-append-eod contradict each other", hint="one of them")


def chunk_size(total: int) -> int:
    """Bytes of text that a worker takes at a time, about; a killed run does so many again.

    It depends on the input alone: unfinished work fits, whoever goes on with it.
    """
    return min(max(total // CHUNKS, LEAST), MOST)


def settings(request: Request, workers: int, chunk: int = LEAST) -> dict[str, Any]:
    """What the program is given on its standard input."""
    return {
        "stack": request.stack,
        "inputs": {
            role: [{"path": request.places[name], "name": name} for name in names]
            for role, names in request.inputs.items()
        },
        "split": list(request.split),
        "reading": {
            "encoding": request.encoding,
            "bad": request.bad_lines,
            "key": request.key,
            "keep_blank": request.keep_blank,
        },
        "tokens": {
            "kind": request.vocabulary.kind,
            "name": request.vocabulary.name,
            "path": _vocabulary_place(request.vocabulary),
        },
        "append_eod": request.append_eod,
        "eod": request.eod,
        "unk": request.unk,
        "seq_length": request.seq_length or (SAMPLE if request.stack == "accelerate" else 0),
        "work": WORK,
        "workers": workers,
        "chunk": chunk,
        "told": _told(request),
    }


def _vocabulary_place(vocabulary: Vocabulary) -> str:
    if vocabulary.kind == "words":
        return f"{VOCABULARY}/{next(iter(vocabulary.files))}"
    return VOCABULARY


def _told(request: Request) -> dict[str, Any]:
    """What the data say of how they were made: nothing that depends on the machine."""
    return {
        "inputs": {role: list(names) for role, names in request.inputs.items() if names},
        "split": list(request.split),
        "vocabulary": request.vocabulary.name,
        "encoding": request.encoding,
        "bad_lines": request.bad_lines,
        "key": request.key,
        "keep_blank": request.keep_blank,
        "append_eod": request.append_eod,
    }


_DECIDES = ("stack", "inputs", "reading", "tokens", "append_eod", "eod", "unk", "chunk")


def identity(
    given: Mapping[str, Any],
    image: str,
    vocabulary: Mapping[str, bytes],
    programs: Mapping[str, bytes],
) -> str:
    """A short name of what is made of the inputs, the same for any number of workers.

    Unfinished work goes under it, so that work of other settings is never taken for this. How the
    numbers are then cut into splits and samples changes nothing of them.

    Args:
        programs: what makes them, which is not in the image.
    """
    told = {key: given[key] for key in _DECIDES}
    found = hashlib.sha256(json.dumps([told, image], sort_keys=True).encode())
    for name, data in [*sorted(vocabulary.items()), *sorted(programs.items())]:
        found.update(json.dumps([name, hashlib.sha256(data).hexdigest()]).encode())
    return found.hexdigest()[:12]


def read_event(line: str) -> dict[str, Any]:
    """One line of the program; empty when it is no event (a warning of some library)."""
    if not line.startswith('{"event": '):
        return {}
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def progress_text(event: Mapping[str, Any], seconds: float) -> str:
    """How far it is: share, bytes, rate of what is new, time left.

    Args:
        seconds: since the first chunk was begun.
    """
    done, total, kept = event["done"], event["total"], event["kept"]
    share = 100 * done / total if total else 100.0
    text = f"{share:.0f} % of {size(total)}"
    rate = (done - kept) / seconds if seconds > 0 else 0.0
    if rate:
        left = (total - done) / rate
        text += f", {size(rate)}/s, {_duration(left)} left"
    return f"{text}, {event['tokens']:,} tokens"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"
