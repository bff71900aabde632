"""Load the definitions under `images/`: strictly, and with every problem at once.

Owns reading and checking; it must not resolve (which fix applies on which base is
`stackyard.catalog`'s) and must not touch an engine or the network.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stackyard import compat, lock
from stackyard.document import Mapping, nearest, parse_document
from stackyard.errors import DefinitionError, Problem
from stackyard.launch import LAUNCHERS, OPTIONS
from stackyard.spec import (
    Base,
    Bootstrap,
    Common,
    Definitions,
    Fact,
    Fix,
    Layout,
    Remedy,
    Replacement,
    Smoke,
    Stack,
    Wheel,
    Witness,
)

PLACEHOLDERS = ("text", "data", "save", "record", "updates", "save_at", "nodes")
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]*$")
_DEVICES = ("cpu", "cuda")
T = TypeVar("T")


def load_definitions(root: Path, *, locks_required: bool = True) -> Definitions:
    """Load and check everything below `root/images`.

    Raises:
        DefinitionError: with all problems of all files.
    """
    problems: list[Problem] = []
    images = root / "images"
    common = _load_common(root, problems)
    bases = {b.name: b for b in _load_each(root, "images/bases", "*.yml", _read_base, problems)}
    fixes = {f.id: f for f in _load_each(root, "images/fixes", "*.yml", _read_fix, problems)}
    wheels = {
        w.package: w for w in _load_each(root, "images/wheels", "*.yml", _read_wheel, problems)
    }
    stacks = {s.name: s for s in _load_each(root, "images", "*/stack.yml", _read_stack, problems)}
    locks = {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in sorted(images.glob("*/*.lock"))
    }
    definitions = Definitions(common=common, bases=bases, fixes=fixes, wheels=wheels,
                              stacks=stacks, locks=locks)
    _check_references(root, definitions, locks_required, problems)
    if problems:
        raise DefinitionError(problems)
    return definitions


def _load_each(
    root: Path,
    folder: str,
    pattern: str,
    read: Callable[[Mapping, str], T],
    problems: list[Problem],
) -> list[T]:
    found: list[T] = []
    for path in sorted((root / folder).glob(pattern)):
        name = path.parent.name if path.name == "stack.yml" else path.stem
        top = _open(path, str(path.relative_to(root)), problems)
        if top is not None:
            found.append(read(top, name))
            top.done()
    return found


def _open(path: Path, file: str, problems: list[Problem]) -> Mapping | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(file=file, line=1, key="", message=f"cannot be read: {error}"))
        return None
    return parse_document(text, file=file, problems=problems)


def _load_common(root: Path, problems: list[Problem]) -> Common:
    top = _open(root / "images" / "common.yml", "images/common.yml", problems)
    if top is None:
        return Common(system=(), build_system=(), text_packages=(), env={})
    value = Common(
        system=top.texts("system"),
        build_system=top.texts("build_system"),
        text_packages=top.texts("text_packages"),
        env=top.table("env", {}),
    )
    top.done()
    return value


def _named(top: Mapping, key: str, name: str) -> str:
    value = top.text(key)
    if value and value != name:
        top.problem(f"must be {name!r}, like its file or folder, not {value!r}", key=key)
    if not _NAME.match(name):
        top.problem("a name is lower-case letters, digits and dashes", key=key)
    return name


def _facts(top: Mapping, key: str) -> dict[str, Fact]:
    facts = {}
    for name, entry in top.entries(key).items():
        facts[name] = Fact(value=entry.text("value"), source=entry.text("source"))
        entry.done()
    return facts


def _read_base(top: Mapping, name: str) -> Base:
    bootstrap = None
    made = top.mapping("bootstrap")
    if made is not None:
        bootstrap = Bootstrap(
            suite=made.text("suite"),
            packages=made.texts("packages"),
            exclude=made.texts("exclude", ()),
        )
        made.done()
    for requirement in top.texts("torch", ()):
        _check_pin(top, "torch", requirement)
    return Base(
        name=_named(top, "name", name),
        summary=top.text("summary"),
        reference=top.text("reference", "") or f"stackyard/base:{name}",
        digest=top.text("digest", ""),
        device=top.one_of("device", _DEVICES),
        python=_version(top, "python"),
        platform=top.text("platform"),
        distribution=top.text("distribution", ""),
        entrypoint=top.texts("entrypoint", ()),
        never_built=top.text("never_built", ""),
        bootstrap=bootstrap,
        torch=top.texts("torch", ()),
        torch_index=top.text("torch_index", ""),
        provides=_facts(top, "provides"),
        facts=_facts(top, "facts"),
        env=top.table("env", {}),
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
    except InvalidRequirement as error:
        top.problem(f"not a requirement: {requirement!r}: {error}", key=key)
        return
    pins = [spec for spec in parsed.specifier if spec.operator == "=="]
    if len(pins) != 1 or len(parsed.specifier) != 1 or "*" in str(parsed.specifier):
        top.problem(f"must be pinned with one ==, not {requirement!r}", key=key)


def _read_fix(top: Mapping, name: str) -> Fix:
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
        remedy=_read_remedy(top),
        witness=_read_witness(top),
        remove_when=top.text("remove_when"),
    )


def _read_remedy(top: Mapping) -> Remedy:
    blank = Remedy(stage="installed", replace=(), env={}, build_env={}, override=(), exclude=())
    entry = top.mapping("remedy")
    if entry is None:
        top.problem("required key is missing", key="remedy")
        return blank
    remedy = Remedy(
        stage=entry.one_of("stage", ("installed", "source"), "installed"),
        replace=tuple(_read_replacement(item) for item in entry.mappings("replace")),
        env=entry.table("env", {}),
        build_env=entry.table("build_env", {}),
        override=entry.texts("override", ()),
        exclude=entry.texts("exclude", ()),
    )
    for requirement in remedy.override:
        _check_pin(entry, "override", requirement)
    entry.done()
    parts = (remedy.replace, remedy.env, remedy.build_env, remedy.override, remedy.exclude)
    if not any(parts):
        top.problem("does nothing: give replace, env, build_env, override or exclude", key="remedy")
    return remedy


def _read_replacement(entry: Mapping) -> Replacement:
    value = Replacement(
        file=entry.text("file"),
        pattern=entry.text("pattern"),
        replacement=entry.text("replacement"),
        count=entry.integer("count"),
        fixed=entry.text("fixed"),
    )
    for key in ("pattern", "fixed"):
        try:
            re.compile(getattr(value, key))
        except (re.error, RecursionError, OverflowError) as error:
            entry.problem(f"not a regular expression: {error}", key=key)
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


def _read_stack(top: Mapping, name: str) -> Stack:
    packages = top.table("packages")
    for package, version in packages.items():
        wrong = compat.version_problem(version)
        if wrong:
            top.problem(f"{package}: not an exact version: {wrong}", key="packages")
    builds = top.texts("builds", ())
    for fix, count in {f: top.texts("fixes", ()).count(f) for f in top.texts("fixes", ())}.items():
        if count > 1:
            top.problem(f"{fix!r} is named {count} times", key="fixes")
    return Stack(
        name=_named(top, "name", name),
        summary=top.text("summary"),
        packages=packages,
        builds=builds,
        system=top.texts("system", ()),
        compiler_at_run_time=top.text("compiler_at_run_time", ""),
        env=top.table("env", {}),
        fixes=top.texts("fixes", ()),
        imports=top.texts("imports", ()),
        smoke=_read_smoke(top),
    )


def _read_wheel(top: Mapping, name: str) -> Wheel:
    value = Wheel(
        package=_named(top, "package", name),
        version=_version(top, "version"),
        requires=top.texts("requires"),
        compiler=top.flag("compiler", False),
        torch=top.flag("torch", False),
        env=top.table("env", {}),
        fixes=top.texts("fixes", ()),
    )
    for requirement in value.requires:
        _check_pin(top, "requires", requirement)
    return value


def _read_smoke(top: Mapping) -> Smoke:
    entry = top.mapping("smoke")
    if entry is None:
        top.problem("required key is missing", key="smoke")
        return Smoke(
            launcher="", env={}, prepare=(), program=(), updates=0, save_at=0, reference="",
            resume="", tolerance=0.0, start_seconds=0, stall_seconds=0, layouts=(),
        )  # fmt: skip
    launcher = entry.one_of("launcher", LAUNCHERS)
    layouts = tuple(
        _read_layout(item, name, launcher) for name, item in entry.entries("layouts").items()
    )
    smoke = Smoke(
        launcher=launcher,
        env=entry.table("env", {}),
        prepare=entry.texts("prepare"),
        program=entry.texts("program"),
        updates=entry.integer("updates", 40),
        save_at=entry.integer("save_at", 20),
        reference=entry.text("reference"),
        resume=entry.text("resume"),
        tolerance=entry.number("tolerance", 1e-3),
        start_seconds=entry.integer("start_seconds", 90),
        stall_seconds=entry.integer("stall_seconds", 60),
        layouts=layouts,
    )
    _check_smoke(entry, smoke)
    entry.done()
    return smoke


def _read_layout(entry: Mapping, name: str, launcher: str) -> Layout:
    layout = Layout(
        name=name,
        nodes=entry.integer("nodes"),
        args=entry.texts("args", ()),
        launcher=entry.one_of("launcher", LAUNCHERS, launcher),
        options=entry.table("options", {}),
    )
    wanted = OPTIONS.get(layout.launcher, ()) if layout.nodes > 1 else ()
    if set(layout.options) != set(wanted):
        say = f"exactly {', '.join(wanted)}" if wanted else "none"
        entry.problem(f"{layout.launcher} on {layout.nodes} nodes takes {say}", key="options")
    if not 1 <= layout.nodes <= 2:
        entry.problem("must be 1 or 2", key="nodes")
    _check_placeholders(entry, "args", layout.args)
    entry.done()
    return layout


def _check_smoke(entry: Mapping, smoke: Smoke) -> None:
    names = [layout.name for layout in smoke.layouts]
    for key, name in (("reference", smoke.reference), ("resume", smoke.resume)):
        if name and name not in names:
            entry.problem(f"unknown layout {name!r}; {nearest(name, names)}", key=key)
    for layout in smoke.layouts:
        if layout.name == smoke.reference and layout.nodes != 1:
            entry.problem(f"{layout.name!r} must have 1 node", key="reference")
    if smoke.updates < 40:
        entry.problem("a smoke has at least 40 updates", key="updates")
    if not 0 < smoke.save_at < smoke.updates:
        entry.problem("must lie between 0 and updates", key="save_at")
    for key, argv in (("prepare", smoke.prepare), ("program", smoke.program)):
        _check_placeholders(entry, key, argv)


def _check_placeholders(entry: Mapping, key: str, argv: tuple[str, ...]) -> None:
    for word in argv:
        try:
            fields = [f for _, f, _, _ in string.Formatter().parse(word) if f is not None]
        except ValueError as error:
            entry.problem(f"{word!r}: {error}", key=key)
            continue
        for name in fields:
            if name not in PLACEHOLDERS:
                entry.problem(f"unknown {{{name}}}; {nearest(name, PLACEHOLDERS)}", key=key)


def _check_references(
    root: Path, found: Definitions, locks_required: bool, problems: list[Problem]
) -> None:
    for stack in found.stacks.values():
        file = f"images/{stack.name}/stack.yml"
        for key, message in _stack_problems(found, stack, locks_required):
            line = _line_of(root / file, key)
            problems.append(Problem(file=file, line=line, key=key, message=message))
    for wheel in found.wheels.values():
        file = f"images/wheels/{wheel.package}.yml"
        pin = {canonicalize_name(wheel.package): wheel.version}
        for message in _fix_problems(found, wheel.fixes, [pin], "source"):
            line = _line_of(root / file, "fixes")
            problems.append(Problem(file=file, line=line, key="fixes", message=message))


def _stack_problems(
    found: Definitions, stack: Stack, locks_required: bool
) -> Iterator[tuple[str, str]]:
    places = _versions_by_base(found, stack)
    for message in _fix_problems(found, stack.fixes, places, "installed"):
        yield "fixes", message
    for name in stack.builds:
        if name not in found.wheels:
            yield "builds", f"unknown wheel {name!r}; {nearest(name, found.wheels)}"
            continue
        pinned = {canonicalize_name(n): v for n, v in stack.packages.items()}
        version = pinned.get(canonicalize_name(name), found.wheels[name].version)
        if version != found.wheels[name].version:
            yield (
                "packages",
                f"{name} {version} is to be built, but images/wheels/{name}.yml"
                f" builds {found.wheels[name].version}",
            )
    if locks_required and all(name in found.wheels for name in stack.builds):
        for base in found.bases.values():
            for message in _lock_problems(found, stack, base):
                yield "packages", message


def _fix_problems(
    found: Definitions, names: Iterable[str], places: list[dict[str, str]], stage: str
) -> Iterator[str]:
    """Problems of a list of fixes; `places` are the versions on each base they may apply to."""
    for name in names:
        if name not in found.fixes:
            yield f"unknown fix {name!r}; {nearest(name, found.fixes)}"
            continue
        fix = found.fixes[name]
        reasons = [compat.why_not(fix, versions) for versions in places]
        if reasons and all(reasons):
            yield f"fix {name!r} does not apply: {'; '.join(dict.fromkeys(reasons))}"
        source = bool(fix.remedy.build_env) or fix.remedy.stage == "source"
        if source != (stage == "source"):
            yield f"fix {name!r} belongs to {'a wheel' if source else 'a stack'}'s fixes"


def _versions_by_base(found: Definitions, stack: Stack) -> list[dict[str, str]]:
    """What is installed on each base, as far as pins and locks say; bases without a lock last.

    A base without a lock cannot rule a fix out (a dependency's version is not known yet), so it
    counts only when no base has one.
    """
    locked, pinned = [], []
    for base in found.bases.values():
        pins = {canonicalize_name(name): version for name, version in stack.packages.items()}
        pins |= {canonicalize_name(name): fact.value for name, fact in base.provides.items()}
        pins |= lock.versions(lock.parse_lock("\n".join(base.torch)))
        path = lock.lock_path(stack.name, base.name)
        for text in (found.locks.get(path), found.locks.get(lock.base_lock_path(base.name))):
            pins |= lock.versions(lock.parse_lock(text or ""))
        for name in stack.builds:
            if name in found.wheels:
                pins[canonicalize_name(name)] = found.wheels[name].version
        (locked if path in found.locks else pinned).append(pins)
    return locked or pinned


def _lock_problems(found: Definitions, stack: Stack, base: Base) -> Iterator[str]:
    wanted = {lock.lock_path(stack.name, base.name): lock.stack_inputs(stack, base, found.fixes)}
    if base.bootstrap is not None:
        wanted[lock.base_lock_path(base.name)] = lock.base_inputs(base)
    for name in stack.builds:
        inputs = lock.wheel_inputs(found.wheels[name], base)
        for kind in ("", "build"):
            wanted[lock.wheel_lock_path(name, base.name, kind)] = inputs
    type_this = f"type `invoke lock {stack.name} --base {base.name}`"
    for path, inputs in wanted.items():
        if path not in found.locks:
            if not base.never_built:
                yield f"missing lock {path}; {type_this}"
        elif lock.locked_inputs(found.locks[path]) != inputs:
            yield f"{path} was made from other packages or fixes than these; {type_this}"


def _line_of(path: Path, key: str) -> int:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith(f"{key}:"):
            return number
    return 1
