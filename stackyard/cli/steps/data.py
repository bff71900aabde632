"""Run `invoke data`, from its arguments to a folder that the stack's own training reads.

Owns the meaning of the arguments, and the output. `data.encoding` makes the data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stackyard.build.builder import Builder
from stackyard.build.choice import decide
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.trainings import DataRequest
from stackyard.data import dataset
from stackyard.data import encoding as data_run
from stackyard.definitions.document import nearest
from stackyard.definitions.project import load_project
from stackyard.mesh import nodes
from stackyard.system.engine import Engine
from stackyard.system.errors import UsageError


def data(terminal: Terminal, typed: DataRequest) -> Answer:
    """Run `invoke data STACK --input FILE --out FOLDER [...]`."""
    project = load_project()
    if typed.stack not in dataset.STACKS:
        what = f"there is no form of data for a stack {typed.stack!r}"
        why = nearest(typed.stack, dataset.STACKS)
        raise UsageError(what, why=why, hint=f"one of {', '.join(dataset.STACKS)}")
    request, out = _request(typed)
    workers = len(os.sched_getaffinity(0)) if typed.workers is None else typed.workers
    chosen = decide(project, typed.stack, typed.base, gpus=0, cpu_ranks_anywhere=True)
    with Engine() as held:
        built = Builder(project, held, terminal.say).build(chosen.stack, chosen.base.name)
        nodes.sweep(held)
        done = data_run.prepare(
            held,
            built.info.id,
            request,
            out,
            workers,
            say=lambda text: terminal.say(typed.stack, text),
            note=terminal.note,
        )
    _show(done, out, terminal)
    return {"out": str(out), **done["about"]}, 0


def _request(typed: DataRequest) -> tuple[dataset.Request, Path]:
    """Check the arguments and return them as one request, with the folder to write.

    Raises:
        UsageError: an argument is missing or does not fit.
    """
    if not typed.input or not typed.out:
        missing = "--input" if not typed.input else "--out"
        raise UsageError(
            f"{missing} is missing",
            hint=f"invoke data {typed.stack} --input text.txt --tokenizer FOLDER --out FOLDER",
        )
    out = Path(typed.out).expanduser().absolute()
    data_run.require_free(out)
    inputs = {
        role: data_run.find_inputs(list(names), option)
        for role, names, option in (
            ("train", typed.input, "--input"),
            ("valid", typed.valid, "--valid"),
            ("test", typed.test, "--test"),
        )
    }
    request = dataset.Request(
        stack=typed.stack,
        inputs=inputs,
        vocabulary=data_run.find_vocabulary(
            typed.tokenizer, typed.vocab, typed.merges, typed.stack, typed.train_tokenizer
        ),
        split=dataset.parse_split(typed.split),
        encoding=dataset.parse_encoding(typed.encoding),
        bad_lines=typed.bad_lines,
        key=typed.json_key or _usual_key(inputs),
        keep_blank=typed.keep_blank,
        append_eod=typed.append_eod,
        eod=typed.eod,
        unk=typed.unk,
        seq_length=typed.seq_length,
        shards=typed.shards,
        places=_places(inputs),
    )
    dataset.require(request)
    return request, out


def _usual_key(inputs: Mapping[str, list[str]]) -> str:
    """Return `text` if all files are named as JSON lines, an empty key if none is.

    Raises:
        UsageError: some are and others are not.
    """
    names = [name for found in inputs.values() for name in found]
    lines = [name for name in names if ".jsonl" in Path(name).suffixes]
    others = [name for name in names if name not in lines]
    if lines and others:
        raise UsageError(
            f"{lines[0]} is named as JSON lines, {others[0]} is not",
            why="all files of a command are read alike",
            hint="--json-key text if all are JSON lines; else give one kind, or convert the other",
        )
    return "text" if lines else ""


def _places(inputs: Mapping[str, list[str]]) -> dict[str, str]:
    """Return each name's path in the container; names of one file share a path."""
    by_file: dict[str, str] = {}
    found = {}
    for name in (name for names in inputs.values() for name in names):
        file = str(Path(name).resolve())
        place = f"{dataset.INPUTS}/{len(by_file)}"
        found[name] = by_file.setdefault(file, place)
    return found


def _show(done: Mapping[str, Any], out: Path, terminal: Terminal) -> None:
    about = done["about"]
    if done["kept"]:
        terminal.note(f"{done['kept']} of {done['shards']} parts were finished by an earlier run")
    for role, split in about["splits"].items():
        more = f", {split['samples']:,} samples" if "samples" in split else ""
        terminal.text(f"{role}: {split['documents']:,} documents, {split['tokens']:,} tokens{more}")
    total = sum(split["tokens"] for split in about["splits"].values())
    for what in ("unknown tokens", "blank lines", "bad lines"):
        if about[what]:
            share = f" ({100 * about[what] / total:.2f} %)" if what == "unknown tokens" else ""
            terminal.text(f"{what}: {about[what]:,}{share}")
    if len(about["splits"]) == 1 and about["stack"] == "fairseq":
        terminal.note("fairseq-train opens a validation set, too: --split 98,2 or --valid FILE")
    if "folders" in about:
        folders = ":".join(str(out / name) for name in about["folders"])
        terminal.note(f"an epoch reads one folder: fairseq-train {folders}")
    terminal.text(
        f"{about['vocabulary']:,} tokens in the vocabulary, {about['dtype']}; data in {out}"
    )
