"""The commands, from arguments to a result: what `tasks.py` calls and prints.

Owns the order of the project's steps for each command. Terminal output goes through
`stackyard.console`; exit codes are chosen in `stackyard.cli`.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackyard import (
    build,
    catalog,
    dockerfile,
    foundation,
    host,
    lock,
    page,
    plan,
    report,
    resolve,
    settings,
    smoke,
)
from stackyard.catalog import ResolvedImage
from stackyard.engine import Engine
from stackyard.errors import NothingToRunOn, StackyardError, UsageError
from stackyard.image import ImageInfo
from stackyard.project import Project

Say = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image that is there: made now or found."""

    image: ResolvedImage
    info: ImageInfo
    seconds: float
    made: bool


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
    path = root / report.path_of(stack, base, kind, "json")
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
        "reference": image.base.reference,
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
        "facts": {n: {"value": f.value, "from": f.source} for n, f in image.base.facts.items()},
    }


def render(project: Project, stack: str, *, check: bool) -> list[str]:
    """Write (or with `check` compare) every rendered file; the paths that differ."""
    files: dict[str, str] = {}
    for name in project.stacks(stack):
        for base in sorted(project.definitions.bases):
            files |= dockerfile.render_files(catalog.resolve(project.definitions, name, base))
    if not check:
        return resolve.write_files(project.root, files)
    return [path for path, text in sorted(files.items()) if _read(project.root / path) != text]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def lock_all(project: Project, stack: str, base_name: str, say: Say) -> list[str]:
    """Resolve over the network and write the locks; the paths that changed."""
    definitions = project.definitions
    base = definitions.bases[catalog.choose("base", base_name, definitions.bases)]
    names = [catalog.choose("stack", n, definitions.stacks) for n in project.stacks(stack)]
    caller = settings.collect(os.environ, distribution=base.distribution)
    files: dict[str, str] = {}
    if base.bootstrap is not None:
        say(base.name, "resolving the shared layer")
        files |= resolve.lock_base(base, caller)
        given = lock.versions(lock.parse_lock(files[lock.base_lock_path(base.name)]))
    else:
        say(base.name, f"reading the inventory of {base.reference}")
        given = _inventory(project, base_name)
    wheels = dict.fromkeys(w for name in names for w in definitions.stacks[name].builds)
    for wheel in wheels:
        say(base.name, f"resolving the build of {wheel}")
        files |= resolve.lock_wheel(definitions.wheels[wheel], base, caller)
    for name in names:
        say(name, f"resolving on {base.name}")
        files |= resolve.lock_stack(
            definitions.stacks[name], base, definitions.fixes, given, caller
        )
    return resolve.write_files(project.root, files)


def _inventory(project: Project, base_name: str) -> dict[str, str]:
    base = project.definitions.bases[base_name]
    try:
        with Engine() as engine:
            return resolve.inventory(engine, base, base.reference)
    except StackyardError as error:
        raise _cannot_have(project, base_name, error) from error


def _cannot_have(project: Project, base_name: str, error: StackyardError) -> NothingToRunOn:
    base = project.definitions.bases[base_name]
    local = [b.name for b in project.definitions.bases.values() if b.bootstrap is not None]
    return NothingToRunOn(
        f"base {base_name!r} ({base.reference}) cannot be had on this machine",
        why=f"{error.what}\n{error.why}".strip(),
        hint="reach its registry (docker login, proxy), or take a base that is made here: "
        + ", ".join(f"--base {name}" for name in local),
    )


class Builder:
    """Builds images of one project on one engine; what they share is had once.

    Images are built at the same time: BuildKit runs a step that several of them have only once,
    and single-threaded steps of one fill the cores that another leaves idle.
    """

    def __init__(self, project: Project, engine: Engine, say: Say) -> None:
        self._project, self._engine, self._say = project, engine, say
        self._shared = threading.Lock()
        self._client: build.Client | None = None
        self._tools: dict[str, str] = {}
        self._foundations: dict[str, tuple[ImageInfo, str]] = {}
        self._callers: dict[str, settings.CallerSettings] = {}

    def build_all(self, stacks: Sequence[str], base: str, *, again: bool = False) -> list[Built]:
        """Build several stacks on one base, at the same time; in the order given.

        Raises:
            StackyardError: the first failure, once every other build has ended.
        """
        with ThreadPoolExecutor(max(1, len(stacks))) as pool:
            jobs = [pool.submit(self.build, stack, base, again=again) for stack in stacks]
        return [job.result() for job in jobs]

    def build(self, stack: str, base: str, *, again: bool = False) -> Built:
        """The image of a stack on a base; built only when its recipe has changed.

        Raises:
            NothingToRunOn: the base cannot be had here.
            BuildError: a step failed.
        """
        started = time.monotonic()
        image = catalog.resolve(self._project.definitions, stack, base)
        with self._shared:
            base_info, reference = self._foundation(image)
        self._require_lock(image)
        files = {
            path: (self._project.root / path).read_text(encoding="utf-8")
            for path in plan.context_paths(image)
        }
        made = plan.make_plan(image, files, base_image=reference, base_digest=base_info.id)
        info = self._engine.image(made.tag)
        current = info is not None and info.labels.get(plan.RECIPE_LABEL) == made.recipe
        if again or not current:
            self._run(image, made)
            info = self._engine.image(made.tag)
        assert info is not None
        seconds = time.monotonic() - started
        return Built(image=image, info=info, seconds=seconds, made=again or not current)

    def _run(self, image: ResolvedImage, made: plan.BuildPlan) -> None:
        with self._shared:
            host.require_space(self._engine)
            caller = self._caller(image)
            if image.base.name not in self._tools:
                wanted = [(name, setting.value) for name, setting in image.provided.items()]
                tools = foundation.ensure_tools(self._engine, caller, wanted)
                self._tools[image.base.name] = tools
            if self._client is None:
                self._client = build.find_client(os.environ.get("PATH", ""))
        tools = self._tools[image.base.name]
        build.build(made, self._client, tools, caller, lambda s: self._say(made.stack, short(s)))

    def _require_lock(self, image: ResolvedImage) -> None:
        if not image.locked:
            stack, base = image.stack.name, image.base.name
            raise UsageError(
                f"{stack} has no lock on {base}",
                why=f"{lock.lock_path(stack, base)} is not there",
                hint=f"invoke lock {stack} --base {base}",
            )

    def _caller(self, image: ResolvedImage) -> settings.CallerSettings:
        key = image.base.distribution
        if key not in self._callers:
            self._callers[key] = settings.collect(os.environ, distribution=key)
            for note in self._callers[key].notes:
                self._say(image.base.name, f"note: {note}")
        return self._callers[key]

    def _foundation(self, image: ResolvedImage) -> tuple[ImageInfo, str]:
        base = image.base
        if base.name not in self._foundations:
            reference = foundation.base_reference(base, image.common)
            info = self._engine.image(reference)
            if info is None:
                info = self._make_foundation(image)
            self._foundations[base.name] = (info, reference)
        return self._foundations[base.name]

    def _make_foundation(self, image: ResolvedImage) -> ImageInfo:
        base = image.base
        try:
            return foundation.ensure_base(
                self._engine, base, image.common, self._caller(image),
                lambda text: self._say(base.name, text),
            )  # fmt: skip
        except StackyardError as error:
            if base.bootstrap is not None:
                raise
            raise _cannot_have(self._project, base.name, error) from error


def short(step: str) -> str:
    """A build step for one line: without its mounts."""
    return " ".join(word for word in step.split() if not word.startswith("--mount="))


def smoke_base(project: Project, base: str, gpus: int) -> str:
    """The base of a smoke: `cpu` without GPUs unless told otherwise."""
    return base or ("cpu" if gpus == 0 else project.default_base)


def smoke_one(
    project: Project, engine: Engine, built: Built, node_count: int, watcher: smoke.Watcher
) -> dict[str, Any]:
    """Smoke one image, write its reports, return the record."""
    image = built.image
    started = datetime.datetime.now(datetime.timezone.utc)
    clock = time.monotonic()
    declared = image.stack.smoke
    folder = project.root / "images" / image.stack.name / "smoke"
    env = dict(entry.split("=", 1) for entry in built.info.env if "=" in entry)
    outcome = smoke.run_smoke(
        engine,
        declared,
        smoke.node_settings(built.info.id, declared, smoke.workload_files(folder)),
        run=f"{image.stack.name}-{secrets.token_hex(4)}",
        node_count=node_count,
        image_env=env,
        watcher=watcher,
    )
    value = report.smoke_report(
        image,
        built.info,
        outcome,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - clock,
        host=engine.facts(),
        build_seconds=built.seconds,
    )
    write_reports(project.root, value)
    return value


def write_reports(root: Path, value: dict[str, Any]) -> None:
    """The JSON record and the page, each written whole."""
    stack, base, kind = value["stack"], value["base"], value["kind"]
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    files = {report.path_of(stack, base, kind, "json"): text}
    files[report.path_of(stack, base, kind, "html")] = page.render_page(value)
    resolve.write_files(root, files)
