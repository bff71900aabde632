"""Read one file of `images/fixes/` or `images/limits/`, with its remedy and its witness.

Owns what fixes and limits may say, and where they apply. Every wrong value becomes a problem of the
mapping being read. It must not run a witness: `validate.prove.play` does.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Mapping as TextByName
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackyard.definitions.document import Mapping, nearest, pattern_problem
from stackyard.definitions.read.files import DEVICES, check_pin, named, specifier
from stackyard.definitions.spec import Fix, Limit, Place, Remedy, Replacement, Witness

LIMITS = "images/limits"
_LONGEST_WITNESS = 300  # seconds
_FILE = re.compile(r"[\w.+-]+(/[\w.+-]+)*", re.ASCII)
_HASHED = re.compile(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+")


@dataclass(frozen=True, kw_only=True)
class Applies:
    """Hold `applies_to` of a fix or a limit."""

    versions: dict[str, str]
    python: str
    devices: tuple[str, ...]


def read_applies(top: Mapping) -> Applies:
    """Read the versions, Python and devices that a fix or a limit applies to."""
    applies = top.mapping("applies_to")
    if applies is None:
        top.missing("applies_to")
        return Applies(versions={}, python="", devices=DEVICES)
    versions = applies.table("versions")
    for package, wanted in list(versions.items()):
        versions[package] = specifier(applies, "versions", wanted)
    python = specifier(applies, "python", applies.text("python", ""))
    devices = applies.texts("devices", DEVICES)
    if not devices:
        applies.problem("names no device, so it would never apply", key="devices")
    for device in devices:
        if device not in DEVICES:
            applies.problem(f"unknown {device!r}; {nearest(device, DEVICES)}", key="devices")
    applies.done()
    return Applies(versions=versions, python=python, devices=tuple(devices))


def read_fix(top: Mapping, name: str, added: TextByName[str, str]) -> Fix:
    """Read `images/fixes/<name>.yml`; `added` are the modules that fixes may add, by path."""
    common = _read_recorded(top, name)
    remedy, witness = _read_remedy(top, added), common["witness"]
    return Fix(
        **common,
        remedy=remedy,
        places=tuple(_read_place(item, remedy, witness) for item in top.mappings("places")),
    )


def _read_recorded(top: Mapping, name: str) -> dict[str, Any]:
    """Read the keys that fixes and limits have in common."""
    applies = read_applies(top)
    return {
        "id": named(top, "id", name),
        **{key: top.text(key) for key in ("package", "symptom", "why", "upstream", "remove_when")},
        "versions": applies.versions,
        "python": applies.python,
        "devices": applies.devices,
        "witness": read_witness(top),
    }


def _read_place(entry: Mapping, remedy: Remedy, witness: Witness) -> Place:
    number = entry.integer("replacement")
    if not 1 <= number <= len(remedy.replace):
        entry.problem(f"there are {len(remedy.replace)} replacements", key="replacement")
    place = Place(replacement=number, witness=_witness(entry, witness.command, witness.seconds))
    entry.done()
    return place


def _read_remedy(top: Mapping, added: TextByName[str, str]) -> Remedy:
    blank = Remedy(
        stage="installed", replace=(), add={}, env={}, build_env={}, override=(), exclude=()
    )
    entry = top.mapping("remedy")
    if entry is None:
        top.missing("remedy")
        return blank
    remedy = Remedy(
        stage=entry.one_of("stage", ("installed", "source"), "installed"),
        replace=tuple(_read_replacement(item) for item in entry.mappings("replace")),
        add=_read_added(entry, added),
        env=entry.env("env"),
        build_env=entry.env("build_env"),
        override=entry.texts("override", ()),
        exclude=entry.single_lines("exclude", ()),
        without=entry.single_lines("without", ()),
    )
    for requirement in remedy.override:
        check_pin(entry, "override", requirement)
    for line in remedy.without:
        if not _HASHED.fullmatch(line):
            entry.problem(f"must be NAME==VERSION --hash=sha256:..., not {line!r}", key="without")
    if bool(remedy.without) != bool(remedy.override or remedy.exclude):
        entry.problem("must be given with override or exclude, and only with them", key="without")
    entry.done()
    parts = (
        remedy.replace,
        remedy.add,
        remedy.env,
        remedy.build_env,
        remedy.override,
        remedy.exclude,
    )
    if not any(parts):
        top.problem(
            "does nothing: give replace, add, env, build_env, override or exclude", key="remedy"
        )
    return remedy


def _read_added(entry: Mapping, added: TextByName[str, str]) -> dict[str, str]:
    """Read the modules that a fix adds, out of those below `images/fixes/files`."""
    found = {}
    for path in entry.texts("add", ()):
        if path in added:
            found[path] = added[path]
        else:
            entry.problem(f"images/fixes/files has no {path!r}; {nearest(path, added)}", key="add")
    return found


def _read_replacement(entry: Mapping) -> Replacement:
    value = Replacement(
        file=entry.text("file"),
        pattern=entry.text("pattern"),
        replacement=entry.text("replacement"),
        count=entry.integer("count"),
        fixed=entry.text("fixed"),
    )
    for key in ("pattern", "fixed"):
        wrong = pattern_problem(getattr(value, key))
        if wrong:
            entry.problem(f"not a regular expression: {wrong}", key=key)
    if value.count < 1:
        entry.problem("must be at least 1", key="count")
    if value.file.startswith("/") or ".." in Path(value.file).parts:
        entry.problem("must be relative to site-packages", key="file")
    elif not _FILE.fullmatch(value.file):  # the name is written into a Dockerfile
        entry.problem("must be letters, digits, and -_.+ between slashes", key="file")
    entry.done()
    return value


def read_witness(top: Mapping) -> Witness:
    """Read the witness, which shows that a fix or a limit is needed."""
    entry = top.mapping("witness")
    if entry is None:
        top.missing("witness")
        return Witness(command=(), fails_with="", seconds=0)
    value = _witness(entry, None, 60)
    entry.done()
    return value


def _witness(entry: Mapping, command: tuple[str, ...] | None, seconds: int) -> Witness:
    value = Witness(
        command=entry.texts("command", command),
        fails_with=entry.text("fails_with"),
        seconds=entry.integer("seconds", seconds),
    )
    wrong = pattern_problem(value.fails_with)
    if wrong:
        entry.problem(f"not a regular expression: {wrong}", key="fails_with")
    elif value.fails_with and re.search(value.fails_with, ""):
        entry.problem("found in every output", key="fails_with")
    if entry.has("command") and not value.command:
        entry.problem("names no command", key="command")
    if not 1 <= value.seconds <= _LONGEST_WITNESS:
        entry.problem(f"must be 1 to {_LONGEST_WITNESS}", key="seconds")
    return value


def read_limit(top: Mapping, name: str, stacks: Collection[str]) -> Limit:
    """Read `images/limits/<name>.yml`; `stacks` are the names of all stacks."""
    value = Limit(
        **_read_recorded(top, name), stacks=top.texts("stacks"), instead=top.text("instead")
    )
    if top.has("stacks") and not value.stacks:
        top.problem("names no stack, so nothing would prove it", key="stacks")
    for stack in value.stacks:
        if stack not in stacks:
            top.problem(f"unknown stack {stack!r}; {nearest(stack, stacks)}", key="stacks")
    return value
