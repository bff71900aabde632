"""Prepare data in a container of the stack, and put them in their place whole or not at all.

Owns the folder of unfinished work beside the target, and the rename at the end. `container` runs
the program, images/data/prepare.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stackyard.data import container, dataset
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError, UsageError

Say = Callable[[str], None]
_BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "config.json", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "tokenizer.model", "chat_template.jinja",
)  # fmt: skip


def find_vocabulary(
    tokenizer: str, vocab: str, merges: str, stack: str, train: int = 0
) -> dataset.Vocabulary:
    """Return the vocabulary behind --tokenizer, --vocab (--merges) or --train-tokenizer.

    Raises:
        UsageError: a file is missing, or the options do not belong together.
    """
    if train:
        if tokenizer or vocab or merges:
            raise UsageError(
                "--train-tokenizer makes a vocabulary: it goes with no other",
                hint="leave --tokenizer, --vocab and --merges out",
            )
        return dataset.Vocabulary(
            kind="train", name=f"--train-tokenizer {train}", files={}, size=train
        )
    if bool(tokenizer) == bool(vocab):
        raise UsageError(
            "--tokenizer or --vocab, not both" if vocab else "--tokenizer or --vocab is missing",
            hint="--tokenizer FOLDER (Hugging Face), --vocab vocab.json (words between white space)"
            ", --vocab vocab.json --merges merges.txt (GPT-2) or --train-tokenizer 32000 (new)",
        )  # fmt: skip
    if merges and not vocab:
        raise UsageError(
            "--merges belongs to --vocab", hint="--vocab vocab.json --merges merges.txt"
        )
    if vocab:
        files = {Path(vocab).name if stack == "fairseq" else "vocab.json": _file(vocab, "--vocab")}
        if not merges:
            return dataset.Vocabulary(kind="words", name=vocab, files=files)
        found = {"vocab.json": _file(vocab, "--vocab"), "merges.txt": _file(merges, "--merges")}
        return dataset.Vocabulary(kind="tokenizer", name=f"{vocab} with {merges}", files=found)
    path = Path(tokenizer).expanduser()
    if path.is_file():
        found = {"tokenizer.json": str(path.resolve())}
    elif path.is_dir():
        found = {n: str((path / n).resolve()) for n in _BESIDE if (path / n).is_file()}
    else:
        raise UsageError(
            f"--tokenizer {tokenizer}: there is no such folder or file here",
            why="the container has no network, so a name on the hub is not looked up",
            hint=f"hf download {tokenizer} --local-dir FOLDER, then --tokenizer FOLDER",
        )
    readable = {"tokenizer.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"}
    if not readable & found.keys() and not {"vocab.json", "merges.txt"} <= found.keys():
        raise UsageError(
            f"--tokenizer {tokenizer} holds no tokenizer",
            why="no tokenizer.json, no vocab.json with merges.txt, no spiece.model",
            hint="save it there: tokenizer.save_pretrained(FOLDER)",
        )
    return dataset.Vocabulary(kind="tokenizer", name=tokenizer, files=found)


def _file(name: str, option: str) -> str:
    path = Path(name).expanduser()
    if not path.is_file():
        raise UsageError(f"{option} {name}: there is no such file")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{option} {name} cannot be read by this user")
    return str(path.resolve())


def find_inputs(patterns: list[str], option: str) -> list[str]:
    """Return the files that the user named; a quoted pattern stands for its matches, sorted.

    Raises:
        UsageError: a file does not exist, is empty, or cannot be read.
    """
    found: list[str] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        names = [str(path)]
        if not path.exists() and any(letter in pattern for letter in "*?["):
            # As in a shell and unlike Path.glob, hidden files (unfinished work) do not match.
            names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
            if not names:
                raise UsageError(f"{option} {pattern}: no file matches")
        found += names
    for name in found:
        path = Path(name)
        problem = ""
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "does not exist"
        elif not os.access(path, os.R_OK):
            problem = "cannot be read by this user"
        elif path.stat().st_size == 0:
            problem = "is empty"
        elif ":" in str(path.resolve()):
            problem = "has a colon in its path, which the engine cannot pass to a container"
        if problem:
            raise UsageError(f"{option} {name} {problem}")
    return found


def require_free(out: Path) -> None:
    """Refuse a target that exists, or that a finished folder cannot be renamed to.

    Raises:
        UsageError: it is a link, the top of a file system, or anything but an empty folder.
    """
    if out.is_symlink():
        raise UsageError(f"--out {out} is a link", hint="name the folder itself")
    if os.path.ismount(out) and not any(out.iterdir()):
        raise UsageError(
            f"--out {out} is the top of its own file system",
            why="a finished folder is put in its place by a rename",
            hint=f"--out {out / 'data'}",
        )
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"--out {out} is there already", hint="give another, or remove it")


def prepare(
    engine: Engine,
    image: str,
    request: dataset.Request,
    out: Path,
    workers: int,
    say: Say,
    note: Say,
    chunk: int = 0,
) -> dict[str, Any]:
    """Make the data; they appear at `out` when all is written.

    Args:
        chunk: bytes that a worker takes at a time; 0 for a size that fits the input.

    Raises:
        DataError: the program refused the text or the vocabulary.
        UsageError: another command is making the same data, or `out` is taken.
        StackyardError: the data could not be written, or the container ended.
    """
    total = sum(Path(name).stat().st_size for names in request.inputs.values() for name in names)
    given = dataset.settings(request, workers, chunk or dataset.chunk_size(total))
    vocabulary = {n: Path(p).read_bytes() for n, p in request.vocabulary.files.items()}
    identity = dataset.identity(given, image, vocabulary, container.program_texts())
    name = f".{out.name}.{identity}.partial"
    for other in sorted(out.parent.glob(f".{glob.escape(out.name)}.*.partial")):
        if other.name != name:
            note(f"unfinished work of other settings or another image is left in {other}")
    with _held(out.parent / name, out) as work:
        try:
            require_free(out)
            done = _in_container(engine, image, request, given, work, say)
            require_free(out)
            put(work / "ready", out)
        except (KeyboardInterrupt, StackyardError):
            if any(work.glob("shards/*.json")):
                note(f"what is finished stays in {work}: the same command goes on from there")
            else:
                shutil.rmtree(work)
            raise
        shutil.rmtree(work)
    return done


def put(ready: Path, out: Path) -> None:
    """Rename a finished folder to its place.

    Raises:
        StackyardError: it cannot be.
    """
    try:
        ready.rename(out)
    except OSError as error:
        raise StackyardError(f"{out} cannot be put in its place", why=str(error)) from error


@contextlib.contextmanager
def _held(work: Path, out: Path) -> Iterator[Path]:
    """Lock the folder of unfinished work, so that one command at a time uses it."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StackyardError(f"{work.parent} cannot be written to", why=str(error)) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another command is making {out} just now") from None
        try:
            same = os.path.samestat(os.fstat(handle), work.stat())
        except FileNotFoundError:
            same = False
        if not same:
            raise UsageError(f"another command was making {out} until now", hint="type it again")
        yield work
    finally:
        os.close(handle)


def _in_container(
    engine: Engine,
    image: str,
    request: dataset.Request,
    given: Mapping[str, Any],
    work: Path,
    say: Say,
) -> dict[str, Any]:
    """Run the program; it reads the inputs and the vocabulary, and writes one folder."""
    binds = {place: str(Path(name).resolve()) for name, place in request.places.items()}
    binds |= {f"{dataset.VOCABULARY}/{n}": path for n, path in request.vocabulary.files.items()}

    def heard(event: Mapping[str, Any], seconds: float) -> None:
        if event.get("event") == "progress":
            say(dataset.progress_text(event, seconds))
        elif event.get("event") == "training":
            say(f"training a vocabulary of {event['tokens']:,} tokens")

    program = container.Program(
        name="prepare.py", what="preparing the data", fewer="fewer --workers"
    )
    return container.run(engine, image, program, given, binds, work, heard)
