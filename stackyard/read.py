"""One definition file to one value: the known keys, their types, and the rules within a file.

Owns what a base, a fix, a wheel and a stack may say. Every wrong value becomes a problem of the
mapping being read, never an exception; what is returned then is only fit to look for more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping as TextByName
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from stackyard import compat
from stackyard.document import Mapping, nearest, pattern_problem
from stackyard.read_left_out import read_left_out
from stackyard.read_smoke import read_smoke
from stackyard.spec import (
    Base,
    Bootstrap,
    Common,
    Fact,
    Fix,
    HostBase,
    Remedy,
    Replacement,
    Stack,
    Wheel,
    Witness,
)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_DEVICES = ("cpu", "cuda")


def read_common(top: Mapping) -> Common:
    """`images/common.yml`."""
    return Common(
        system=top.single_lines("system"),
        build_system=top.single_lines("build_system"),
        text_packages=top.single_lines("text_packages"),
        env=top.env("env"),
        left_out=read_left_out(top),
    )


def _named(top: Mapping, key: str, name: str) -> str:
    value = top.text(key)
    if value and value != name:
        top.problem(f"must be {name!r}, like its file or folder, not {value!r}", key=key)
    if not _NAME.fullmatch(name):
        top.problem("a name is lower-case letters, digits and dashes", key=key)
    return name


def _facts(top: Mapping, key: str, *, blank: bool = False) -> dict[str, Fact]:
    facts = {}
    for name, entry in top.entries(key).items():
        value = entry.text("value", "" if blank else None)
        facts[name] = Fact(value=value, source=entry.text("source"))
        entry.done()
    return facts


def _provided(top: Mapping, *, blank: bool) -> dict[str, Fact]:
    provided = _facts(top, "provides", blank=blank)
    for package, fact in provided.items():
        wrong = compat.version_problem(fact.value) if fact.value else ""
        if wrong:
            top.problem(f"{package}: not a version: {wrong}", key="provides")
    return provided


def _read_host(top: Mapping) -> HostBase | None:
    entry = top.mapping("host")
    if entry is None:
        return None
    host = HostBase(
        paths=entry.single_lines("paths"),
        exclude=entry.single_lines("exclude", ()),
        keep=entry.single_lines("keep", ()),
        distributions=entry.single_lines("distributions"),
    )
    for path in host.paths:
        if not path.startswith("/") or ".." in Path(path).parts or path == "/":
            entry.problem(f"must be a path below /, not {path!r}", key="paths")
    for key in ("paths", "distributions"):
        if entry.has(key) and not getattr(host, key):
            entry.problem("names nothing to carry", key=key)
    if top.has("bootstrap"):
        top.problem("a base is made of packages or of a host's files, not of both", key="host")
    entry.done()
    return host


def read_base(top: Mapping, name: str) -> Base:
    """`images/bases/<name>.yml`."""
    bootstrap = None
    made = top.mapping("bootstrap")
    if made is not None:
        bootstrap = Bootstrap(
            suite=made.single_line("suite"),
            packages=made.single_lines("packages"),
            exclude=made.single_lines("exclude", ()),
        )
        made.done()
    torch = top.single_lines("torch", ())
    for requirement in torch:
        _check_pin(top, "torch", requirement)
    host = _read_host(top)
    reference = top.single_line("reference", "") or f"stackyard/base:{name}"
    if not _IMAGE.fullmatch(reference):
        top.problem(f"not the name of an image: {reference!r}", key="reference")
    return Base(
        name=_named(top, "name", name),
        summary=top.text("summary"),
        reference=reference,
        digest=top.text("digest", ""),
        device=top.one_of("device", _DEVICES),
        python=_version(top, "python"),
        platform=top.single_line("platform"),
        distribution=top.single_line("distribution", ""),
        entrypoint=top.single_lines("entrypoint", ()),
        never_built=top.single_line("never_built", ""),
        bootstrap=bootstrap,
        torch=torch,
        torch_index=top.single_line("torch_index", ""),
        provides=_provided(top, blank=host is not None),
        facts=_facts(top, "facts", blank=True),
        env=top.env("env"),
        host=host,
        given_system=top.single_lines("given_system", ()),
        unpack=top.single_line("unpack", ""),
        unpack_with=top.single_lines("unpack_with", ()),
    )


def _version(top: Mapping, key: str) -> str:
    value = top.text(key)
    wrong = compat.version_problem(value) if value else ""
    if wrong:
        top.problem(f"not a version: {wrong}", key=key)
        return "0"
    return value or "0"


def _specifier(top: Mapping, key: str, value: str) -> str:
    wrong = compat.specifier_problem(value)
    if wrong:
        top.problem(f"not a version specifier: {wrong}", key=key)
        return ""
    return value


def _check_pin(top: Mapping, key: str, requirement: str) -> None:
    try:
        parsed = Requirement(requirement)
    except (InvalidRequirement, RecursionError) as error:
        top.problem(f"not a requirement: {requirement!r}: {error}", key=key)
        return
    pins = [spec for spec in parsed.specifier if spec.operator == "=="]
    if len(pins) != 1 or len(parsed.specifier) != 1 or "*" in str(parsed.specifier):
        top.problem(f"must be pinned with one ==, not {requirement!r}", key=key)


def read_fix(top: Mapping, name: str, added: TextByName[str, str]) -> Fix:
    """`images/fixes/<name>.yml`; `added` are the modules that fixes may add, by their path."""
    applies = top.mapping("applies_to")
    versions: dict[str, str] = {}
    python, devices = "", _DEVICES
    if applies is None:
        top.problem("required key is missing", key="applies_to")
    else:
        versions = applies.table("versions")
        for package, specifier in list(versions.items()):
            versions[package] = _specifier(applies, "versions", specifier)
        python = _specifier(applies, "python", applies.text("python", ""))
        devices = applies.texts("devices", _DEVICES)  # type: ignore[assignment]
        if not devices:
            applies.problem("names no device, so the fix would never apply", key="devices")
        for device in devices:
            if device not in _DEVICES:
                applies.problem(f"unknown {device!r}; {nearest(device, _DEVICES)}", key="devices")
        applies.done()
    return Fix(
        id=_named(top, "id", name),
        package=top.text("package"),
        symptom=top.text("symptom"),
        why=top.text("why"),
        upstream=top.text("upstream"),
        versions=versions,
        python=python,
        devices=tuple(devices),
        remedy=_read_remedy(top, added),
        witness=_read_witness(top),
        remove_when=top.text("remove_when"),
    )


def _read_remedy(top: Mapping, added: TextByName[str, str]) -> Remedy:
    blank = Remedy(
        stage="installed", replace=(), add={}, env={}, build_env={}, override=(), exclude=()
    )
    entry = top.mapping("remedy")
    if entry is None:
        top.problem("required key is missing", key="remedy")
        return blank
    remedy = Remedy(
        stage=entry.one_of("stage", ("installed", "source"), "installed"),
        replace=tuple(_read_replacement(item) for item in entry.mappings("replace")),
        add=_read_added(entry, added),
        env=entry.env("env"),
        build_env=entry.env("build_env"),
        override=entry.texts("override", ()),
        exclude=entry.single_lines("exclude", ()),
    )
    for requirement in remedy.override:
        _check_pin(entry, "override", requirement)
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
    """The modules that a fix adds, out of those below `images/fixes/files`."""
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
    entry.done()
    return value


def _read_witness(top: Mapping) -> Witness:
    entry = top.mapping("witness")
    if entry is None:
        top.problem("required key is missing", key="witness")
        return Witness(command=(), fails_with="", seconds=0)
    value = Witness(
        command=entry.texts("command"),
        fails_with=entry.text("fails_with"),
        seconds=entry.integer("seconds", 60),
    )
    entry.done()
    return value


def read_stack(top: Mapping, name: str) -> Stack:
    """`images/<name>/stack.yml`."""
    packages = top.table("packages")
    for package, version in packages.items():
        wrong = compat.version_problem(version)
        if wrong:
            top.problem(f"{package}: not an exact version: {wrong}", key="packages")
    builds = top.texts("builds", ())
    fixes = top.texts("fixes", ())
    smoke, gpu_smoke = read_smoke(top)
    for fix, count in Counter(fixes).items():
        if count > 1:
            top.problem(f"{fix!r} is named {count} times", key="fixes")
    return Stack(
        name=_named(top, "name", name),
        summary=top.text("summary"),
        packages=packages,
        builds=builds,
        system=top.single_lines("system", ()),
        compiler_at_run_time=top.text("compiler_at_run_time", ""),
        env=top.env("env"),
        fixes=fixes,
        imports=top.single_lines("imports", ()),
        smoke=smoke,
        gpu_smoke=gpu_smoke,
    )


def read_wheel(top: Mapping, name: str) -> Wheel:
    """`images/wheels/<name>.yml`."""
    value = Wheel(
        package=_named(top, "package", name),
        version=_version(top, "version"),
        requires=top.single_lines("requires"),
        compiler=top.flag("compiler", False),
        torch=top.flag("torch", False),
        env=top.env("env"),
        fixes=top.texts("fixes", ()),
    )
    for requirement in value.requires:
        _check_pin(top, "requires", requirement)
    return value
