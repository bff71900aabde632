"""Run `invoke list`, `show`, `render`, `base`, `bundle` and `engine`.

Owns the order of the steps of each. A module that only one of them needs is imported there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stackyard.build import catalog, dockerfile
from stackyard.build.choice import decide
from stackyard.cli import tables
from stackyard.cli.console import Terminal
from stackyard.cli.options.images import BundleRequest
from stackyard.definitions.project import Project, load_project
from stackyard.report import records
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError, UsageError
from stackyard.system.files import replace_texts

if TYPE_CHECKING:
    from stackyard.cli import answers

Say = Callable[[str, str], None]


def list_all(project: Project, engine: Engine | None) -> answers.Listed:
    """Return stacks and bases, with each one's image (if an engine answers) and last smoke."""
    rows = []
    for stack in sorted(project.definitions.stacks.values(), key=lambda s: s.name):
        for base in sorted(project.definitions.bases.values(), key=lambda b: b.name):
            rows.append(_row(project, engine, stack.name, base.name))
    bases: list[answers.BaseRow] = [
        {
            "base": base.name,
            "summary": base.summary,
            "reference": base.reference,
            "device": base.device,
            "never_built": base.never_built,
        }
        for base in project.definitions.bases.values()
    ]
    return {"engine": engine.version if engine else None, "images": rows, "bases": bases}


def _row(project: Project, engine: Engine | None, stack: str, base: str) -> answers.ImageRow:
    image = catalog.resolve(project.definitions, stack, base)
    info = engine.image(dockerfile.image_tag(stack, base)) if engine else None
    last = load_report(project.root, stack, base, "smoke")
    proven = last["outcome"] if last and info and last["image"]["id"] == info.id else ""
    return {
        "stack": stack,
        "base": base,
        "summary": image.stack.summary,
        "locked": image.locked,
        "image": dockerfile.image_tag(stack, base) if info else "",
        "id": info.id if info else "",
        "size_bytes": info.size if info else 0,
        "smoke": proven,
        "fixes": len(image.fixes),
    }


def load_report(root: Path, stack: str, base: str, kind: str) -> dict[str, Any] | None:
    """Return the last report of that kind; None when there is none."""
    path = root / records.path_of(stack, base, kind, "json")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def show_value(project: Project, stack: str, base: str) -> answers.Shown:
    """Return every value of one stack on one base, with its origin."""
    image = catalog.resolve(project.definitions, stack, base)

    def table(values: Mapping[str, catalog.Setting]) -> dict[str, answers.Sourced]:
        return {n: {"value": s.value, "from": s.source} for n, s in sorted(values.items())}

    return {
        "stack": stack,
        "base": base,
        "summary": image.stack.summary,
        "reference": image.base.image,
        "never_built": image.base.never_built,
        "tag": dockerfile.image_tag(stack, base),
        "dockerfile": dockerfile.dockerfile_path(stack, base),
        "locked": image.locked,
        "packages": table(image.packages),
        "provided": table(image.provided),
        "system": list(image.system),
        "built_here": {w.wheel.package: w.wheel.version for w in image.wheels},
        "environment": table(image.env),
        "fixes": {fix.id: fix.symptom for fix in image.fixes},
        "fixes_left_out": dict(image.left_out),
        "compiler_at_run_time": image.stack.compiler_at_run_time or "none",
        "facts": table(catalog.facts(image)),
    }


def render_files(project: Project, stack: str, *, check: bool) -> list[str]:
    """Write (or with `check` compare) rendered files; return the paths that differ."""

    files: dict[str, str] = {}
    for name in project.stacks(stack):
        for base in sorted(project.definitions.bases):
            files |= dockerfile.render_files(catalog.resolve(project.definitions, name, base))
    if not check:
        return replace_texts(project.root, files)
    return [path for path, text in sorted(files.items()) if _read(project.root / path) != text]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def make_base(project: Project, engine: Engine, name: str, say: Say) -> answers.MadeBase:
    """Make (or pull) a base unless the engine's own is current.

    Raises:
        NothingToRunOn: this machine cannot pull the base.
        EngineError: the disk space is too small.
    """
    from stackyard.build import base_host, base_image, buildkit, host, mirrors
    from stackyard.build.builder import cannot_have

    definitions = project.definitions
    base = catalog.choose_base(definitions, name)
    reference = base_image.base_reference(base, definitions.common)
    before = engine.image(reference)

    def tell(text: str) -> None:
        say(base.name, text)

    if base.host is not None:
        info = base_host.ensure(
            engine, base, lambda: buildkit.find_client(os.environ.get("PATH", "")), tell
        )
    else:
        if base.pulled and before is None:
            host.require_space(engine, base.disk_bytes or host.NEEDED_BYTES)
        caller = mirrors.collect(os.environ, distribution=base.distribution)
        try:
            info = base_image.ensure_base(engine, base, definitions.common, caller, tell)
        except StackyardError as error:
            raise error if base.bootstrap else cannot_have(project, name, error) from error
    return {
        "base": base.name,
        "reference": reference,
        "image": info.id,
        "made": before is None or before.id != info.id,
        "size_bytes": info.size,
    }


def make_bundle(
    project: Project, stack: str, base_name: str, out: Path, say: Say
) -> answers.Bundled:
    """Fetch and pack the inputs of builds on a base; return the bundle's contents.

    Raises:
        UsageError: a stack has no lock on the base, the base cannot be built offline, or there is
            no folder for the bundle.
    """
    from stackyard.build import bundle, bundle_fetch, mirrors
    from stackyard.build.builder import require_lock

    definitions = project.definitions
    base = definitions.bases[catalog.choose("base", base_name, definitions.bases)]
    bundle.require_offline(base)
    images = [catalog.resolve(definitions, name, base.name) for name in project.stacks(stack)]
    for image in images:
        require_lock(image)
    if not out.parent.is_dir():
        raise UsageError(
            f"the bundle cannot be written to {out}",
            why=f"{out.parent} is no folder",
            hint=f"mkdir -p {shlex.quote(str(out.parent))}",
        )
    caller = mirrors.collect(os.environ, distribution=base.unpack)
    made = bundle_fetch.make(project.root, images, out, caller, lambda text: say(base.name, text))
    return {
        "base": base.name,
        "stacks": list(made.stacks),
        "file": str(out),
        "size_bytes": out.stat().st_size,
        "files": len(made.files),
        "bytes": made.bytes_by_folder(),
        "digest": made.digest,
    }


def list_images(terminal: Terminal) -> tuple[answers.Listed, int]:
    """Run `invoke list`."""
    with contextlib.ExitStack() as stack:
        held = _engine_or_none(stack)
        found = list_all(load_project(locks_required=False), held)
    terminal.table(tables.image_table(found["images"]))
    for stack_name, summary in {r["stack"]: r["summary"] for r in found["images"]}.items():
        terminal.text(f"stack {stack_name}: {summary}")
    for base in found["bases"]:
        never = f" (never built: {base['never_built']})" if base["never_built"] else ""
        terminal.text(f"base {base['base']}: {base['summary']}, {base['reference']}{never}")
    if found["engine"] is None:
        terminal.note("no container engine answers: what is built is not known")
    return found, 0


def _engine_or_none(stack: contextlib.ExitStack) -> Engine | None:
    try:
        return stack.enter_context(Engine())
    except StackyardError:
        return None


def show(terminal: Terminal, stack: str, base: str) -> tuple[answers.Shown, int]:
    """Run `invoke show STACK`."""
    project = load_project(locks_required=False)
    chosen = decide(project, stack, base)
    found = show_value(project, chosen.stack, chosen.base.name)
    terminal.table(tables.plan_table(found))
    if found["never_built"]:
        terminal.text(f"never built: {found['never_built']}")
    return found, 0


def render(terminal: Terminal, stack: str, *, check: bool) -> tuple[answers.Changed, int]:
    """Run `invoke render [--check]`."""
    changed = render_files(load_project(locks_required=False), stack, check=check)
    for path in changed:
        terminal.text(f"{'differs' if check else 'written'}: {path}")
    if check and changed:
        terminal.note("rendered files are not what the definitions say; type: invoke render")
    elif not changed:
        terminal.text("every rendered file is as the definitions say")
    return {"changed": changed}, 1 if check and changed else 0


def base(terminal: Terminal, name: str) -> tuple[answers.MadeBase, int]:
    """Run `invoke base NAME`."""
    project = load_project()
    catalog.choose("base", name, project.definitions.bases)
    with Engine() as held:
        made = make_base(project, held, name, terminal.say)
    done = "made" if made["made"] else "is current"
    terminal.done(name, f"{made['reference']} {done} ({made['size_bytes'] / 1e9:.2f} GB)")
    return made, 0


def bundle(terminal: Terminal, asked: BundleRequest) -> tuple[answers.Bundled, int]:
    """Run `invoke bundle [STACK] --base BASE`."""
    project = load_project()
    chosen = decide(project, asked.stack, asked.base).base.name
    path = Path(asked.out or f"stackyard-{chosen}.bundle.tar")
    made = make_bundle(project, asked.stack, chosen, path, terminal.say)
    parts = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in made["bytes"].items())
    total = f"{made['files']} files, {made['size_bytes'] / 1e6:.1f} MB"
    terminal.done(chosen, f"{path}: {total} ({parts})")
    return made, 0


def engine(terminal: Terminal) -> tuple[dict[str, str], int]:
    """Run `invoke engine`: find, install or start a container engine."""
    from stackyard.build import host

    host.ensure_engine(lambda text: terminal.say("engine", text))
    with Engine() as found:
        facts = found.facts()
    terminal.text(f"engine {facts['engine']} on {facts['os']}, {facts['cpus']} CPUs")
    return facts, 0
