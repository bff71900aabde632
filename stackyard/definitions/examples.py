"""Turn an example, a training that comes with a stack, into a `Job`.

Owns what an example is; `definitions.read.example` reads its file, images/<stack>/examples/*.yml.
It is what a user of the stack would type, on CPU ranks and on GPUs. A template is an example in
full size, as in the notes of 2021, with a reduced size to try it with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stackyard.definitions.document import nearest
from stackyard.launch.job import Job
from stackyard.system.errors import UsageError, shown

TEXT = "/usr/local/share/stackyard/text"
FULL, REDUCED = "full", "reduced"
# Programs that lie beside every example's own, as what these import.
BESIDE = ("stackyard_record.py", "stackyard_stop.py")
GIVEN = (
    "text", "data", "save", "record", "tensorboard", "ranks", "nodes", "per_node", "groups",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Size:
    """Hold what an example adds on one kind of device, or in one size."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Hold a command that runs before the training, unless the user sets the value `unless`."""

    run: tuple[str, ...]
    unless: str = ""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Hold a change of a template that leaves out what may cost speed beside a plain loop.

    Attributes:
        what: what is left out, and what stands in its place.
        args: more arguments of the program.
        options: options of the launcher that are others.
        values: values that are others.
    """

    what: str
    args: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Hold the plain PyTorch loop that a template's speed is compared with.

    Attributes:
        program: takes the arguments of the template's program, and `--only N`: updates to make.
        costs: changes of the template by name, tried where it is slower than the loop.
    """

    what: str
    program: str
    costs: Mapping[str, Cost] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Example:
    """Hold one example of a stack.

    Attributes:
        summary: one line about it.
        launcher: how the ranks are started.
        options: options of the launcher.
        prepare: commands on every node before the training.
        program: the program and its arguments; placeholders stand in braces.
        files: folders of the stack (below images/<stack>/) by their place in the nodes.
        values: placeholders that `--set` changes, with their defaults; a default may contain
            placeholders that each run fills in, such as `{data}`.
        devices: what the example adds on each device; it does not run on a missing one.
        sizes: `full` and `reduced`; the value `size` chooses. Reduced is for CPU ranks.
        multiple: the ranks must be a multiple of this times the values named by `parallel`; the
            placeholder `groups` is the quotient.
        parallel: names of values that are parallel sizes.
        note: the example's name in the notes of 2021.
        plain: a plain loop of the same model, which `invoke bench --example` runs beside it.
        home: the folder that `files` are below; empty for the stack's own.
    """

    name: str
    stack: str
    summary: str
    launcher: str
    options: Mapping[str, str]
    files: Mapping[str, str]
    prepare: tuple[Step, ...]
    program: tuple[str, ...]
    values: Mapping[str, str]
    devices: Mapping[str, Size]
    sizes: Mapping[str, Size] = field(default_factory=dict)
    multiple: int = 1
    parallel: tuple[str, ...] = ()
    note: str = ""
    plain: Plain | None = None
    home: str = ""

    @property
    def ranks(self) -> str:
        """Return a phrase for people that says how many ranks it runs on."""
        names = " x ".join(self.parallel)
        product = self.multiple * math.prod(int(self.values[name]) for name in self.parallel)
        if product == 1:
            return "any"
        return f"a multiple of {names + ' = ' if names else ''}{product}"


@dataclass(frozen=True, kw_only=True)
class Where:
    """Hold where an example is to run.

    Attributes:
        folder: the job's folder on the nodes; data and records go below it.
        save: where checkpoints go, and TensorBoard's event files below them.
        record: where ranks record what they do; empty for a folder below `folder`.
    """

    name: str
    base: str
    image: str
    nodes: int
    per_node: int
    device: str
    folder: str
    save: str
    record: str = ""


def job_of(
    example: Example,
    where: Where,
    files: Mapping[str, bytes],
    given: Mapping[str, str] | None = None,
    more: Sequence[str] = (),
) -> Job:
    """Return an example as a job.

    Args:
        files: contents by place in the nodes, of the folders that the example names.
        given: values that the user set.
        more: arguments that the user added for the program; they are passed unchanged.

    Raises:
        UsageError: it does not run on this device or on so many ranks, or has no such value.
    """
    given = given or {}
    size = chosen_size(example, where.device, given)
    values = _values(example, where, size, given)
    device = example.devices[where.device]
    program = (*example.program, *size.args, *device.args)

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
        program=(*fill(program), *more),
        prepare=tuple(fill(step.run) for step in example.prepare if step.unless not in given),
        env={**size.env, **device.env},
        folder=next(iter(example.files), "/root"),
        files=files,
        launcher=example.launcher,
        options=example.options,
        updates=_updates(program, values, more),
    )


def _updates(
    program: Sequence[str], values: Mapping[str, object], more: Sequence[str]
) -> int | None:
    """Return the updates of an example; None where the user's own arguments may change them."""
    names = {word.partition("=")[0] for word in program if "{updates}" in word}
    changed = any(word.partition("=")[0] in names for word in more)
    text = str(values.get("updates", ""))
    known = text.isascii() and text.isdecimal() and len(text) < 16
    return int(text) if known and not changed else None


def chosen_size(example: Example, device: str, given: Mapping[str, str]) -> Size:
    """Return the size that the user set, else the reduced one on CPU ranks, else the full one.

    Raises:
        UsageError: the example does not run on this device, or has no such size.
    """
    if device not in example.devices:
        there = ", ".join(sorted(example.devices))
        raise UsageError(f"{example.name} has no size for {device} ranks, only for {there}")
    usual = REDUCED if device == "cpu" and REDUCED in example.sizes else FULL
    name = given.get("size", usual) if example.sizes else usual
    if name not in (FULL, *example.sizes):
        raise UsageError(f"{example.name} has no size {shown(name)!r}",
                         hint=nearest(name, (FULL, *example.sizes)))  # fmt: skip
    return example.sizes.get(name, Size())


def require_values(example: Example, given: Mapping[str, str]) -> None:
    """Refuse a value that the example does not have.

    Raises:
        UsageError: a name is unknown; names the nearest known one.
    """
    settable = (*example.values, *(["size"] if example.sizes else []))
    for name in given:
        if name not in settable:
            raise UsageError(
                f"{example.name} has no value {shown(name)!r}",
                hint=nearest(name, settable),
            )


def _values(
    example: Example, where: Where, size: Size, given: Mapping[str, str]
) -> dict[str, object]:
    """Return the values of the placeholders; refuse numbers of ranks that do not fit."""
    require_values(example, given)
    ranks = where.nodes * where.per_node
    place: dict[str, object] = {
        "text": TEXT,
        "data": f"{where.folder}/data",
        "save": where.save,
        "record": where.record or f"{where.folder}/record",
        "tensorboard": f"{where.save}/tensorboard",
        "ranks": ranks,
        "nodes": where.nodes,
        "per_node": where.per_node,
    }
    usual = {**example.values, **size.values, **example.devices[where.device].values}
    multiple = example.multiple
    for name in example.parallel:
        text = given.get(name, usual[name])
        if not counts(text):
            raise UsageError(f"{example.name}: {name} must be a whole number, not {shown(text)!r}")
        multiple *= int(text)
    if ranks % multiple:
        raise UsageError(
            f"{example.name} needs a multiple of {multiple} ranks, not {ranks}",
            hint=f"--per-node, so that {where.nodes} nodes make a multiple of {multiple}",
        )
    place["groups"] = ranks // multiple
    return {**place, **{name: word.format(**place) for name, word in usual.items()}, **given}


def counts(text: str) -> bool:
    """Return whether a text is a whole number above 0, as a parallel size is."""
    return re.fullmatch("[1-9][0-9]{0,5}", text, re.ASCII) is not None
