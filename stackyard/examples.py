"""Trainings that come with a stack, ready to be run: images/<stack>/examples/<name>.yml.

Owns their format and how one becomes a `Job`. Pure: the caller reads the files. An example is what
a user of the stack would type, with a size for CPU ranks and one for GPUs.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stackyard.document import Mapping as Entry
from stackyard.document import nearest, parse_document
from stackyard.errors import DefinitionError, Problem, UsageError, shown
from stackyard.job import Job
from stackyard.launch import LAUNCHERS, wrong_options

TEXT = "/usr/local/share/stackyard/text"
GIVEN = ("text", "data", "save", "record", "ranks", "nodes", "per_node", "groups")


@dataclass(frozen=True, kw_only=True)
class Size:
    """What an example adds on one kind of device."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Example:
    """One training of a stack.

    Attributes:
        files: folders of the stack (below images/<stack>/) by their place in the nodes.
        values: placeholders that `--set` changes, with what they are unless told otherwise.
        sizes: by device; a device that is missing has no such example.
        multiple: the ranks must be a multiple of it (a product of parallel sizes); how often it
            goes into them is the placeholder `groups`.
    """

    name: str
    stack: str
    summary: str
    launcher: str
    options: Mapping[str, str]
    files: Mapping[str, str]
    prepare: tuple[tuple[str, ...], ...]
    program: tuple[str, ...]
    values: Mapping[str, str]
    sizes: Mapping[str, Size]
    multiple: int = 1


def read_example(text: str, file: str, stack: str, name: str) -> Example:
    """One example.

    Raises:
        DefinitionError: with every problem.
    """
    problems: list[Problem] = []
    top = parse_document(text, file=file, problems=problems)
    found = _read(top, stack, name) if top is not None else None
    if problems or found is None:
        raise DefinitionError(problems)
    return found


def _read(top: Entry, stack: str, name: str) -> Example:
    prepare = top.mappings("prepare")
    sizes = {}
    for device, entry in top.entries("devices").items():
        sizes[device] = Size(
            args=entry.single_lines("args", ()),
            env=entry.env("env"),
            values=entry.table("values", {}),
        )
        if device not in ("cpu", "cuda"):
            entry.problem("a device is cpu or cuda")
        entry.done()
    if not sizes:
        top.problem("required key is missing", key="devices")
    example = Example(
        name=name,
        stack=stack,
        summary=top.single_line("summary"),
        launcher=top.one_of("launcher", LAUNCHERS),
        options=top.table("options", {}),
        files=top.table("files", {}),
        prepare=tuple(_command(entry) for entry in prepare),
        program=top.single_lines("program"),
        values=top.table("values", {}),
        sizes=sizes,
        multiple=top.integer("multiple", 1),
    )
    top.done()
    _check_words(top, example)
    return example


def _command(entry: Entry) -> tuple[str, ...]:
    words = entry.single_lines("run")
    if entry.has("run") and not words:
        entry.problem("must name a command", key="run")
    entry.done()
    return words


def _check_words(top: Entry, example: Example) -> None:
    if top.has("program") and not example.program:
        top.problem("must name a program", key="program")
    if top.has("multiple") and example.multiple < 1:
        top.problem("must be at least 1", key="multiple")
    if example.launcher in LAUNCHERS:
        for message in wrong_options(example.launcher, example.options):
            top.problem(message, key="options")
    _check_names(top, example)
    known = {*GIVEN, *example.values}
    parts = [("program", example.program), *(("prepare", words) for words in example.prepare)]
    parts += [(f"devices.{device}.args", size.args) for device, size in example.sizes.items()]
    for key, words in parts:
        for message in (m for word in words for m in _wrong_fields(word, known)):
            top.problem(message, key=key)
    for device, size in example.sizes.items():
        for name in size.values:
            if name not in example.values:
                problem = f"unknown {name!r}; {nearest(name, example.values)}"
                top.problem(problem, key=f"devices.{device}.values")


def _check_names(top: Entry, example: Example) -> None:
    for name in example.values:
        if name in GIVEN:
            top.problem(f"{name} is given by the place where it runs", key="values")
        elif not re.fullmatch("[a-z_][a-z0-9_]*", name):
            top.problem(f"{name!r} cannot be a placeholder's name", key="values")
    for place, folder in example.files.items():
        if not place.startswith("/") or not place.isprintable():
            top.problem(f"{place!r} must be an absolute path", key="files")
        if not folder or folder.startswith("/") or ".." in folder.split("/"):
            top.problem(f"{folder!r} must be a folder of the stack", key="files")


def _wrong_fields(word: str, known: Collection[str]) -> Iterator[str]:
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as error:
        yield f"{word!r}: {error}; a brace that is meant as one is written twice"
        return
    for _, name, form, conversion in parts:
        if name is not None and name not in known:
            yield f"unknown {{{name}}}; {nearest(name, known)}"
        elif form or conversion:
            yield f"{word!r}: a placeholder is {{{name}}} and nothing more"


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where an example is to run.

    Attributes:
        folder: of this job on the nodes; data and records go below it.
        save: where checkpoints go.
    """

    name: str
    base: str
    image: str
    nodes: int
    per_node: int
    device: str
    folder: str
    save: str


def job_of(
    example: Example,
    where: Where,
    files: Mapping[str, bytes],
    given: Mapping[str, str] | None = None,
) -> Job:
    """An example as a job.

    Args:
        files: contents by place in the nodes, of the folders that the example names.
        given: values that the user set.

    Raises:
        UsageError: it does not run on this device or on so many ranks, or has no such value.
    """
    values = _values(example, where, given or {})
    size = example.sizes[where.device]

    def fill(words: Sequence[str]) -> tuple[str, ...]:
        return tuple(word.format(**values) for word in words)

    return Job(
        name=where.name,
        stack=example.stack,
        base=where.base,
        image=where.image,
        nodes=where.nodes,
        per_node=where.per_node,
        device=where.device,
        program=fill((*example.program, *size.args)),
        prepare=tuple(fill(words) for words in example.prepare),
        env=dict(size.env),
        folder=next(iter(example.files), "/root"),
        files=files,
        launcher=example.launcher,
        options=example.options,
    )


def _values(example: Example, where: Where, given: Mapping[str, str]) -> dict[str, object]:
    """What the placeholders stand for; see that the example fits its place."""
    size = example.sizes.get(where.device)
    if size is None:
        there = ", ".join(sorted(example.sizes))
        raise UsageError(f"{example.name} has no size for {where.device} ranks, only for {there}")
    for name in given:
        if name not in example.values:
            raise UsageError(
                f"{example.name} has no value {shown(name)!r}",
                hint=nearest(name, example.values),
            )
    ranks = where.nodes * where.per_node
    if ranks % example.multiple:
        raise UsageError(
            f"{example.name} needs a multiple of {example.multiple} ranks, not {ranks}",
            hint=f"--per-node, so that {where.nodes} nodes make a multiple of {example.multiple}",
        )
    return {
        "text": TEXT,
        "data": f"{where.folder}/data",
        "save": where.save,
        "record": f"{where.folder}/record",
        "ranks": ranks,
        "nodes": where.nodes,
        "per_node": where.per_node,
        "groups": ranks // example.multiple,
        **example.values,
        **size.values,
        **given,
    }
