"""The commands, from arguments to a result: what `tasks.py` calls and prints.

Owns the order of the project's steps for each command. Terminal output goes through
`cli.console`; exit codes are chosen in `cli.main`. As there, what only one command needs
is imported by it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stackyard.build import catalog, dockerfile
from stackyard.definitions.project import Project
from stackyard.report import records
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError, UsageError

Say = Callable[[str, str], None]


def list_all(project: Project, engine: Engine | None) -> dict[str, Any]:
    """Stacks and bases, with what the engine holds (if one answers) and the last smoke said."""
    rows = []
    for stack in sorted(project.definitions.stacks.values(), key=lambda s: s.name):
        for base in sorted(project.definitions.bases.values(), key=lambda b: b.name):
            rows.append(_row(project, engine, stack.name, base.name))
    bases = [
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


def _row(project: Project, engine: Engine | None, stack: str, base: str) -> dict[str, Any]:
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
    """The last report of that kind; None when there is none."""
    path = root / records.path_of(stack, base, kind, "json")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def show(project: Project, stack: str, base: str) -> dict[str, Any]:
    """Everything about one stack on one base: every value and where it came from."""
    image = catalog.resolve(project.definitions, stack, base)

    def table(values: Mapping[str, catalog.Setting]) -> dict[str, dict[str, str]]:
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


def diagnose_text(root: Path, text: str) -> dict[str, Any]:
    """The known failures recognised in a text, and how many are known.

    Raises:
        DefinitionError: their definitions are wrong.
    """
    from stackyard.definitions.load import load_failures
    from stackyard.validate.diagnose import diagnose, diagnosis_value

    failures = load_failures(root)
    found = [diagnosis_value(diagnosis) for diagnosis in diagnose(text, failures.values())]
    return {"known": len(failures), "diagnoses": found}


def render(project: Project, stack: str, *, check: bool) -> list[str]:
    """Write (or with `check` compare) every rendered file; the paths that differ."""
    from stackyard.build.locks import resolve

    files: dict[str, str] = {}
    for name in project.stacks(stack):
        for base in sorted(project.definitions.bases):
            files |= dockerfile.render_files(catalog.resolve(project.definitions, name, base))
    if not check:
        return resolve.write_files(project.root, files)
    return [path for path, text in sorted(files.items()) if _read(project.root / path) != text]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def make_base(project: Project, engine: Engine, name: str, say: Say) -> dict[str, Any]:
    """Make (or pull) a base unless the engine holds it as it would be made now.

    Raises:
        NothingToRunOn: it cannot be pulled here.
        EngineError: there is no room for it.
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
) -> dict[str, Any]:
    """Fetch what stacks on a base are built from and pack it; what the bundle holds.

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
