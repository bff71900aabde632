"""Read an example's text strictly, and collect every problem with its line.

Owns the format of images/<stack>/examples/<name>.yml (docs/howto/templates.md). It is pure: the
caller reads the file.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator

from stackyard.definitions.document import Mapping as Entry
from stackyard.definitions.document import nearest, parse_document
from stackyard.definitions.examples import (
    FULL,
    GIVEN,
    REDUCED,
    Cost,
    Example,
    Plain,
    Size,
    Step,
    counts,
)
from stackyard.launch import LAUNCHERS, wrong_options
from stackyard.system.errors import DefinitionError, Problem


def read_example(text: str, file: str, stack: str, name: str) -> Example:
    """Read one example.

    Raises:
        DefinitionError: there are problems; holds all of them.
    """
    problems: list[Problem] = []
    top = parse_document(text, file=file, problems=problems)
    found = read_top(top, stack, name) if top is not None else None
    if problems or found is None:
        raise DefinitionError(problems)
    return found


def read_top(top: Entry, stack: str, name: str) -> Example:
    """Read the top mapping of an example's file."""
    prepare = top.mappings("prepare")
    devices = _sizes(top, "devices", ("cpu", "cuda"), "a device is cpu or cuda")
    sizes = _sizes(top, "sizes", (FULL, REDUCED), "a size is full or reduced")
    if not top.has("devices"):
        top.missing("devices")
    elif not devices:
        top.problem("names no device", key="devices")
    example = Example(
        name=name,
        stack=stack,
        summary=top.single_line("summary"),
        launcher=top.one_of("launcher", LAUNCHERS),
        options=top.table("options", {}),
        files=top.table("files", {}),
        prepare=tuple(_step(entry) for entry in prepare),
        program=top.single_lines("program"),
        values=top.table("values", {}),
        devices=devices,
        sizes=sizes,
        multiple=top.integer("multiple", 1),
        parallel=top.single_lines("parallel", ()),
        note=top.single_line("note", ""),
        plain=_plain(top.mapping("plain")),
    )
    top.done()
    _check_words(top, example)
    return example


def _sizes(top: Entry, key: str, known: Collection[str], rule: str) -> dict[str, Size]:
    found = {}
    for name, entry in top.entries(key).items():
        found[name] = Size(
            args=entry.single_lines("args", ()),
            env=entry.env("env"),
            values=entry.table("values", {}),
        )
        if name not in known:
            entry.problem(rule)
        entry.done()
    return found


def _plain(entry: Entry | None) -> Plain | None:
    if entry is None:
        return None
    costs = {}
    for name, one in entry.entries("costs").items():
        found = costs[name] = Cost(
            what=one.single_line("what"),
            args=one.single_lines("args", ()),
            options=one.table("options", {}),
            values=one.table("values", {}),
        )
        if not re.fullmatch("[a-z][a-z0-9-]*", name):
            one.problem(f"{name!r} cannot be the name of a launch")
        elif not (found.args or found.options or found.values):
            one.problem("must change args, options or values")
        one.done()
    plain = Plain(what=entry.single_line("what"), program=entry.single_line("program"), costs=costs)
    entry.done()
    return plain


def _step(entry: Entry) -> Step:
    words = entry.single_lines("run")
    if entry.has("run") and not words:
        entry.problem("must name a command", key="run")
    unless = entry.single_line("unless", "")
    entry.done()
    return Step(run=words, unless=unless)


def _check_words(top: Entry, example: Example) -> None:
    if top.has("program") and not example.program:
        top.problem("must name a program", key="program")
    if top.has("multiple") and example.multiple < 1:
        top.problem("must be at least 1", key="multiple")
    if example.launcher in LAUNCHERS:
        for message in wrong_options(example.launcher, example.options):
            top.problem(message, key="options")
        for cost in example.plain.costs.values() if example.plain else ():
            for message in wrong_options(example.launcher, {**example.options, **cost.options}):
                top.problem(message, key="plain")
    _check_names(top, example)
    known = {*GIVEN, *example.values}
    parts = [("program", example.program), *(("prepare", step.run) for step in example.prepare)]
    kinds = (("devices", example.devices), ("sizes", example.sizes))
    several = [(f"{key}.{name}", size) for key, sizes in kinds for name, size in sizes.items()]
    parts += [(f"{key}.args", size.args) for key, size in several]
    costs = example.plain.costs if example.plain else {}
    parts += [("plain", cost.args) for cost in costs.values()]
    for key, words in parts:
        for message in (m for word in words for m in _wrong_fields(word, known)):
            top.problem(message, key=key)
    values = [("values", example.values), *((f"{k}.values", size.values) for k, size in several)]
    for key, table in values:
        for message in (m for word in table.values() for m in _wrong_fields(word, GIVEN)):
            top.problem(message, key=key)
    named = [(key, name) for key, table in values[1:] for name in table]
    named += [("plain", name) for cost in costs.values() for name in cost.values]
    named += [("prepare", step.unless) for step in example.prepare if step.unless]
    named += [("parallel", name) for name in example.parallel]
    for key, name in named:
        if name not in example.values:
            top.problem(f"unknown {name!r}; {nearest(name, example.values)}", key=key)
    for key, table in values:
        for name in example.parallel:
            if name in table and not counts(table[name]):
                top.problem(f"{name}: must be a whole number above 0", key=key)


def _check_names(top: Entry, example: Example) -> None:
    for name in example.values:
        if name in GIVEN or name == "size":
            top.problem(f"{name} is set by Stackyard; choose another name", key="values")
        elif not re.fullmatch("[a-z_][a-z0-9_]*", name):
            top.problem(f"{name!r} cannot be a placeholder's name", key="values")
    for place, folder in example.files.items():
        if not place.startswith("/") or not place.isprintable():
            top.problem(f"{place!r} must be an absolute path", key="files")
        if not folder or folder.startswith("/") or ".." in folder.split("/"):
            top.problem(f"{folder!r} must be a folder of the stack", key="files")
    program = example.plain.program if example.plain else ""
    if program and not any(program.startswith(f"{place}/") for place in example.files):
        top.problem(f"{program!r} must lie in a folder of files", key="plain")


def _wrong_fields(word: str, known: Collection[str]) -> Iterator[str]:
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as error:
        yield f"{word!r}: {error}; write a literal brace twice"
        return
    for _, name, form, conversion in parts:
        if name is not None and name not in known:
            yield f"unknown {{{name}}}; {nearest(name, known)}"
        elif form or conversion:
            yield f"{word!r}: a placeholder is {{{name}}} and nothing more"
