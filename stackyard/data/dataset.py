"""Hold a request to make training data from users' text, as one value.

Owns the meaning of the arguments of `invoke data`, and the settings of the program in the container
(images/data/prepare.py). It is pure: the caller says which files there are.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackyard.system.errors import UsageError

CHUNKS, LEAST, MOST = 64, 1 << 20, 16 << 20
"""The number of chunks of the input, and the least and most bytes of one chunk."""
SAMPLE = 1024
"""Default tokens of a sample for accelerate; the other stacks cut samples in their training."""
BAD_LINES = ("fail", "skip", "replace")
STACKS = ("fairseq", "megatron", "accelerate")
# Paths in the container; only the program there uses them.
INPUTS, VOCABULARY, WORK, PROGRAMS = "/data/input", "/data/vocabulary", "/data/work", "/srv/data"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Hold the vocabulary by which text becomes token ids.

    Attributes:
        kind: `words` (between white space, by a vocab.json or fairseq's dict.txt), `tokenizer`, or
            `train` (a tokenizer that is trained on the text first).
        name: what the user typed.
        files: paths on this machine, by the name that each file has in the container.
        size: tokens to train, without the sentinels; 0 for the other kinds.
    """

    kind: str
    name: str
    files: Mapping[str, str]
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Request:
    """Hold what one preparation of data is asked for.

    Attributes:
        inputs: files by role, `train` at least, by the names that the user gave them.
        split: weights of train, valid and test, cut out of the train files; empty for none.
        key: the text's key where lines are JSON objects; empty for plain text.
        eod: the token that ends a document; empty for the vocabulary's own.
        seq_length: tokens of a sample; 0 for the default, or where the training decides.
        shards: fairseq's folders of train, each read in an epoch of its own; 0 for one whole.
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
    shards: int = 0
    # The path in the container of each file of the inputs.
    places: Mapping[str, str] = field(default_factory=dict)


def parse_split(text: str) -> tuple[float, ...]:
    """Read `900,50,50` as weights of train, valid and test.

    Raises:
        UsageError: the text is not one to three weights, or train's is 0.
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
            f"--split {text!r} is not valid", why="it takes at most three weights, 0 or more; that"
            " of train, the first, must be above 0", hint=hint,
        )  # fmt: skip
    return weights


def parse_encoding(text: str) -> str:
    """Return Python's name of an encoding in which the byte 0x0A is a line end and nothing else.

    Raises:
        UsageError: there is no such encoding, or text in it cannot be cut at line ends.
    """
    try:
        name = codecs.lookup(text).name
    except LookupError:
        raise UsageError(
            f"--encoding {text!r} is not known", hint="utf-8, gb18030, big5, latin-1, ..."
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
            hint=f"convert the files first: iconv -f {text} -t utf-8 FILE > NEW",
        )
    return name


def require(request: Request) -> None:
    """Refuse a request whose options contradict each other.

    Raises:
        UsageError: two options do not fit together, or the value of one is not known.
    """
    if request.bad_lines not in BAD_LINES:
        raise UsageError(
            f"--bad-lines {request.bad_lines!r} is not known", hint=" or ".join(BAD_LINES)
        )
    if request.split and any(request.inputs.get(role) for role in ("valid", "test")):
        raise UsageError(
            "--split cannot be given together with --valid or --test",
            hint="--split cuts parts out of the input; --valid and --test name files of their own",
        )
    if request.seq_length < 0:
        raise UsageError("--seq-length is a number of tokens, 1 or more")
    if request.shards and request.stack != "fairseq":
        raise UsageError(
            f"--shards is fairseq's way to read large data, not that of {request.stack}",
            why="it maps one large file into memory, whatever its size",
        )
    if request.stack == "fairseq" and request.eod:
        raise UsageError(
            "fairseq ends every document with its own </s>",
            hint="leave --eod out (--no-append-eod leaves the end out)",
        )
    if request.eod and not request.append_eod:
        raise UsageError("--eod and --no-append-eod contradict each other", hint="give one of them")


def chunk_size(total: int) -> int:
    """Return about how many bytes of text a worker takes at a time; a killed run repeats as many.

    The number depends on the input alone, so that any later run can go on with unfinished work.
    """
    return min(max(total // CHUNKS, LEAST), MOST)


def settings(request: Request, workers: int, chunk: int = LEAST) -> dict[str, Any]:
    """Return the settings that the program reads on its standard input."""
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
            **({"size": request.vocabulary.size} if request.vocabulary.size else {}),
        },
        "append_eod": request.append_eod,
        "eod": request.eod,
        "unk": request.unk,
        "seq_length": request.seq_length or (SAMPLE if request.stack == "accelerate" else 0),
        "folders": request.shards,
        "work": WORK,
        "workers": workers,
        "chunk": chunk,
        "told": _told(request),
    }


def _vocabulary_place(vocabulary: Vocabulary) -> str:
    if vocabulary.kind == "words":
        return f"{VOCABULARY}/{next(iter(vocabulary.files))}"
    return f"{WORK}/vocabulary" if vocabulary.kind == "train" else VOCABULARY


def _told(request: Request) -> dict[str, Any]:
    """Return what the data record of their making; nothing of it depends on the machine."""
    return {
        "inputs": {role: list(names) for role, names in request.inputs.items() if names},
        "split": list(request.split),
        "vocabulary": request.vocabulary.name,
        "encoding": request.encoding,
        "bad_lines": request.bad_lines,
        "key": request.key,
        "keep_blank": request.keep_blank,
        "append_eod": request.append_eod,
        **({"shards": request.shards} if request.shards else {}),
    }


_DECIDES = ("stack", "inputs", "reading", "tokens", "append_eod", "eod", "unk", "chunk")


def identity(
    given: Mapping[str, Any],
    image: str,
    vocabulary: Mapping[str, bytes],
    programs: Mapping[str, bytes],
) -> str:
    """Return a short name for the token ids of a request, the same for any number of workers.

    Unfinished work lies under this name, so that work of other settings is never taken for it. The
    split and the length of samples are not part of it, since they do not change token ids.

    Args:
        programs: texts of the programs that make the data; they are not in the image.
    """
    told = {key: given[key] for key in _DECIDES}
    found = hashlib.sha256(json.dumps([told, image], sort_keys=True).encode())
    for name, data in [*sorted(vocabulary.items()), *sorted(programs.items())]:
        found.update(json.dumps([name, hashlib.sha256(data).hexdigest()]).encode())
    return found.hexdigest()[:12]


def read_event(line: str) -> dict[str, Any]:
    """Read an event from one line of the program; return {} for others, such as warnings."""
    if not line.startswith('{"event": '):
        return {}
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def progress_text(event: Mapping[str, Any], seconds: float) -> str:
    """Return the progress for people: share, bytes, rate of new text, time left, tokens.

    Args:
        seconds: time since the first chunk was begun.
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
    """Return a number of bytes for people, as in `1.5 MB`."""
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
