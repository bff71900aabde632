"""Read the file of a base, a wheel or a stack, or `images/common.yml`, by the rules of each.

Owns what these may say (`definitions.read.fix` owns fixes and limits). Every wrong value becomes a
problem of the mapping being read, never an exception; the value that is returned then serves only
to find more problems.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from stackyard.definitions import compat
from stackyard.definitions.document import Mapping
from stackyard.definitions.read.left_out import read_left_out
from stackyard.definitions.read.smoke import read_smoke
from stackyard.definitions.spec import Base, Bootstrap, Common, Fact, HostBase, Stack, Wheel

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
DEVICES = ("cpu", "cuda")
DISK = re.compile(r"[1-9][0-9]{0,3} GiB")


def read_common(top: Mapping) -> Common:
    """Read `images/common.yml`."""
    return Common(
        system=top.single_lines("system"),
        build_system=top.single_lines("build_system"),
        text_packages=top.single_lines("text_packages"),
        env=top.env("env"),
        left_out=read_left_out(top),
    )


def named(top: Mapping, key: str, name: str) -> str:
    """Return the name of a file or folder; a problem where its definition says another one."""
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
        if name == "disk" and value and not DISK.fullmatch(value):
            entry.problem("must be like '12 GiB'", key="value")
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
    """Read `images/bases/<name>.yml`."""
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
        check_pin(top, "torch", requirement)
    host = _read_host(top)
    reference = top.single_line("reference", "") or f"stackyard/base:{name}"
    if not _IMAGE.fullmatch(reference):
        top.problem(f"not the name of an image: {reference!r}", key="reference")
    return Base(
        name=named(top, "name", name),
        summary=top.text("summary"),
        reference=reference,
        device=top.one_of("device", DEVICES),
        python=_version(top, "python"),
        platform=top.single_line("platform"),
        distribution=top.single_line("distribution", ""),
        entrypoint=top.single_lines("entrypoint", ()),
        never_built=top.single_line("never_built", ""),
        bootstrap=bootstrap,
        torch=torch,
        torch_layers=_layers(top),
        torch_index=top.single_line("torch_index", ""),
        provides=_provided(top, blank=host is not None),
        facts=_facts(top, "facts", blank=True),
        env=top.env("env"),
        host=host,
        given_system=top.single_lines("given_system", ()),
        unpack=top.single_line("unpack", ""),
        unpack_with=top.single_lines("unpack_with", ()),
        replaceable=tuple(compat.canonical(name) for name in top.single_lines("replaceable", ())),
    )


def _layers(top: Mapping) -> tuple[tuple[str, ...], ...]:
    layers = []
    for entry in top.mappings("torch_layers"):
        layers.append(entry.single_lines("names"))
        entry.done()
    return tuple(layers)


def _version(top: Mapping, key: str) -> str:
    value = top.text(key)
    wrong = compat.version_problem(value) if value else ""
    if wrong:
        top.problem(f"not a version: {wrong}", key=key)
        return "0"
    return value or "0"


def specifier(top: Mapping, key: str, value: str) -> str:
    """Return `value` if it is a version specifier; else record a problem and return nothing."""
    wrong = compat.specifier_problem(value)
    if wrong:
        top.problem(f"not a version specifier: {wrong}", key=key)
        return ""
    return value


def check_pin(top: Mapping, key: str, requirement: str) -> None:
    """Refuse a requirement that is not one exact version (`==`) or one exact build (`===`)."""
    try:
        parsed = Requirement(requirement)
    except (InvalidRequirement, RecursionError) as error:
        top.problem(f"not a requirement: {requirement!r}: {error}", key=key)
        return
    pins = [spec for spec in parsed.specifier if spec.operator in ("==", "===")]
    if len(pins) != 1 or len(parsed.specifier) != 1 or "*" in str(parsed.specifier):
        top.problem(f"must be pinned with one ==, not {requirement!r}", key=key)


def read_stack(top: Mapping, name: str) -> Stack:
    """Read `images/<name>/stack.yml`."""
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
        name=named(top, "name", name),
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
    """Read `images/wheels/<name>.yml`."""
    value = Wheel(
        package=named(top, "package", name),
        version=_version(top, "version"),
        requires=top.single_lines("requires"),
        compiler=top.flag("compiler", False),
        torch=top.flag("torch", False),
        env=top.env("env"),
        fixes=top.texts("fixes", ()),
    )
    for requirement in value.requires:
        check_pin(top, "requires", requirement)
    return value
