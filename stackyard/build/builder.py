"""Build a stack's image: make the base and tools, plan the build, run it.

Owns what several builds share (base, tools, caller's settings, client), and running builds at the
same time. `build.recipe` decides what is built, `build.buildkit` drives BuildKit; modules that
only a build needs are imported when one runs.

Over 300 lines: one class whose builds share a lock and what was made once.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stackyard.build import base_image, catalog, dockerfile
from stackyard.build import recipe as plan
from stackyard.build.catalog import ResolvedImage
from stackyard.definitions import lock
from stackyard.definitions.project import Project
from stackyard.definitions.spec import Base
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import NothingToRunOn, StackyardError, UsageError
from stackyard.system.image import ImageInfo
from stackyard.system.stream import Note, ToolLine

if TYPE_CHECKING:
    from stackyard.build import buildkit, bundle, mirrors
    from stackyard.build.buildkit import Client
    from stackyard.build.source.fork import Fork

Say = Callable[[str, str], None]

# Steps that take seconds to minutes, by the stage of the Dockerfile; wheels have one each.
_STAGES = {
    "torch": "installing torch",
    "packages": "installing packages",
    "compiler": "installing a compiler",
    "system": "installing system packages",
    "image": "finishing the image",
}
_STEP = re.compile(rf"\[(?P<stage>{'|'.join(_STAGES)}|wheel-[\w.-]+) \d+/\d+\] RUN ")


@dataclass(frozen=True, kw_only=True)
class Built:
    """Describe an image that was built now or existed already.

    Attributes:
        tag: its name; another command may have given the name to a later image since.
    """

    image: ResolvedImage
    tag: str
    info: ImageInfo
    seconds: float
    made: bool


class Builder:
    """Build images of one project on one engine; prepare what they share only once.

    Images are built at the same time: BuildKit runs a step that several of them have only once,
    and single-threaded steps of one use the cores that another leaves idle.
    """

    def __init__(
        self,
        project: Project,
        engine: Engine,
        say: Say,
        offline: Path | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        """Build with `offline`, a bundle, and no network; or with the caller's package sources.

        With `fresh`, build from scratch: bootstrap the base again, and run every step.
        """
        self._project, self._engine, self._say = project, engine, say
        self._offline, self._fresh = offline, fresh
        self._manifest: bundle.BundleIndex | None = None
        self._shared = threading.Lock()
        self._roomy: set[str] = set()
        self._client: buildkit.Client | None = None
        self._tools: dict[str, str] = {}
        self._foundations: dict[str, tuple[ImageInfo, str]] = {}
        self._callers: dict[str, mirrors.CallerSettings] = {}
        self._announced: set[str] = set()
        self._refused: dict[str, StackyardError] = {}
        self._interrupted = threading.Event()

    def build_all(self, stacks: Sequence[str], base: str, *, again: bool = False) -> list[Built]:
        """Build several stacks on one base at the same time; return them in the order given.

        Raises:
            StackyardError: the first failure, once every other build has ended.
        """
        with self.building(stacks, base, again=again) as jobs:
            wait(jobs)
        return [job.result() for job in jobs]

    @contextlib.contextmanager
    def building(
        self, stacks: Sequence[str], base: str, *, again: bool = False
    ) -> Iterator[list[Future[Built]]]:
        """Build several stacks on one base beside the block; the block's end waits for all."""
        with ThreadPoolExecutor(max(1, len(stacks))) as pool:
            jobs = [pool.submit(self.build, stack, base, again=again) for stack in stacks]
            try:
                yield jobs
            except BaseException:
                # Interrupted: stopping the docker clients ends their builds. A build that was in
                # the engine's own work goes on to its next command, which is stopped, too.
                self._interrupted.set()
                for job in jobs:
                    job.cancel()
                process.stop_all()
                while wait(jobs, timeout=0.1).not_done:
                    process.stop_all()
                raise

    def build(
        self, stack: str, base: str, *, again: bool = False, fork: Fork | None = None
    ) -> Built:
        """Return the image of a stack on a base; build it only if its recipe has changed.

        Args:
            again: build it in any case.
            fork: the users' own sources in place of releases.

        Raises:
            NothingToRunOn: the base is not available here.
            BuildError: a step failed.
        """
        started = time.monotonic()
        image = catalog.resolve(self._project.definitions, stack, base)
        image = fork.image(image) if fork else image
        base_info, reference = self._found_on(image)
        made = self._plan(image, reference, base_info, fork)
        info = self._engine.image(made.tag)
        current = info is not None and info.labels.get(plan.RECIPE_LABEL) == made.recipe
        again = again or self._fresh
        if again or not current:
            info = self._engine.image(self._run(image, made))
        assert info is not None
        seconds = time.monotonic() - started
        return Built(
            image=image, tag=made.tag, info=info, seconds=seconds, made=again or not current
        )

    def export(self, image: ResolvedImage, stages: str, more: Mapping[str, str], out: Path) -> None:
        """Add stages to an image's Dockerfile, and write the last stage's files to `out`.

        Args:
            more: further files of the build's context, by path.

        Raises:
            BuildError: a step failed.
        """
        from stackyard.build import buildkit

        base_info, reference = self._found_on(image)
        made = self._plan(image, reference, base_info)
        text = made.context[made.dockerfile] + stages
        changed = replace(made, context={**made.context, **more, made.dockerfile: text})
        client, tools, caller = self._means(image)
        buildkit.export(changed, client, tools, caller, out, offline=self._offline is not None)

    def _plan(
        self,
        image: ResolvedImage,
        reference: str,
        base_info: ImageInfo,
        fork: Fork | None = None,
    ) -> plan.BuildPlan:
        files = plan.context_files(self._project.root, image)
        files = fork.files(image, files) if fork else files
        content = base_image.content(image.base, image.common, base_info)
        made = plan.make_plan(image, files, base_image=reference, content=content)
        return fork.plan(made) if fork else made

    def _means(self, image: ResolvedImage) -> tuple[Client, str, mirrors.CallerSettings]:
        """Return the docker client, the name of the tools image, and the caller's settings."""
        from stackyard.build.buildkit import find_client

        with self._shared:
            caller, tools = self._caller(image), self._ensure_tools(image)
            if self._client is None:
                self._client = find_client(os.environ.get("PATH", ""))
            return self._client, tools, caller

    def _run(self, image: ResolvedImage, made: plan.BuildPlan) -> str:
        from stackyard.build import buildkit

        if image.base.unpack and self._offline is None:
            stack, base = image.stack.name, image.base.name
            raise UsageError(
                f"{stack} on {base} is built from a bundle, but none was named",
                why="the base's own package sources do not hold what the image needs",
                hint=f"invoke build {stack} --base {base} --offline FILE; invoke bundle --base"
                f" {base} makes the file where there is a network",
            )
        with self._shared:
            self._require_space(image.base)
        client, tools, caller = self._means(image)
        say = self._say
        return buildkit.build(
            made, client, tools, caller,
            lambda step: say(made.stack, self._step(step)), offline=self._offline is not None,
            fresh=self._fresh,
        )  # fmt: skip

    def _step(self, step: str) -> str:
        """Return a step as it is shown: in words once, as BuildKit names it for all else.

        A step that several stacks share runs once, though each of their builds names it.
        """
        words = "" if step in self._announced else step_words(step)
        self._announced.add(step)
        return words or ToolLine(short(step))

    def _ensure_tools(self, image: ResolvedImage) -> str:
        name = image.base.name
        if self._offline is not None and self._manifest is not None:
            return base_image.ensure_bundle(self._engine, self._offline, self._manifest)
        if name not in self._tools:
            wanted = [(package, setting.value) for package, setting in image.provided.items()]
            tools = base_image.ensure_tools(self._engine, self._caller(image), wanted)
            self._tools[name] = tools
        return self._tools[name]

    def _require_space(self, base: Base) -> None:
        """Check once, before anything is fetched, that there is space for images on a base.

        Raises:
            EngineError: there is too little space; says how much is missing.
        """
        from stackyard.build import host

        if base.name in self._roomy:
            return
        host.require_space(self._engine, self._needed_bytes(base))
        self._roomy.add(base.name)

    def _needed_bytes(self, base: Base) -> int:
        """Return how many bytes a build on a base writes at most; less if layers exist."""
        from stackyard.build import host

        needed = base.disk_bytes or host.NEEDED_BYTES
        reference = base_image.base_reference(base, self._project.definitions.common)
        there = self._engine.image(reference)
        if there is None:
            return needed
        if base.pulled:
            needed = max(needed - there.size, host.MORE_BYTES)
        stacks = self._project.definitions.stacks
        if not self._fresh and any(
            self._is_current(stack, base.name, reference, there) for stack in stacks
        ):
            needed = min(needed, host.MORE_BYTES)
        return needed

    def _is_current(self, stack: str, base: str, reference: str, base_info: ImageInfo) -> bool:
        """Say if the engine holds a stack's image with the recipe of today."""
        info = self._engine.image(dockerfile.image_tag(stack, base))
        recipe = info.labels.get(plan.RECIPE_LABEL) if info else None
        if not recipe:
            return False
        image = catalog.resolve(self._project.definitions, stack, base)
        return image.locked and self._plan(image, reference, base_info).recipe == recipe

    def _require_sources(self, image: ResolvedImage) -> None:
        """Check that a bundle, if one is named, is readable and fits the image."""
        from stackyard.build import bundle

        if self._offline is None:
            return
        bundle.require_offline(image.base)
        if self._manifest is None:
            self._manifest = bundle.read(self._offline)
        bundle.require_fit(self._offline, self._manifest, image)

    def _caller(self, image: ResolvedImage) -> mirrors.CallerSettings:
        from stackyard.build import mirrors

        if self._offline is not None:
            return mirrors.CallerSettings(secrets={}, wheel_folders=(), proxies={})
        key = image.base.distribution
        if key not in self._callers:
            self._callers[key] = mirrors.collect(os.environ, distribution=key)
            for note in self._callers[key].notes:
                self._say(image.base.name, Note(note))
        return self._callers[key]

    def _found_on(self, image: ResolvedImage) -> tuple[ImageInfo, str]:
        """Check lock and sources, then return the base image and its name."""
        require_lock(image)  # before gigabytes are pulled or made in vain
        with self._shared:
            self._require_sources(image)
            return self._foundation(image)

    def _foundation(self, image: ResolvedImage) -> tuple[ImageInfo, str]:
        base = image.base
        if base.name in self._refused:
            raise self._refused[base.name]
        if base.name not in self._foundations:
            reference = base_image.base_reference(base, image.common)
            info = self._engine.image(reference)
            made_again = self._fresh and base.bootstrap is not None
            if info is None or made_again or not base_image.whole(self._engine, base, info):
                info = self._make_foundation(image)
            self._foundations[base.name] = (info, reference)
        return self._foundations[base.name]

    def _go_on(self) -> None:
        """Raise if the builds were interrupted; a pull calls it at each of its events."""
        if self._interrupted.is_set():
            raise StackyardError("the build was interrupted")

    def _make_foundation(self, image: ResolvedImage) -> ImageInfo:
        base = image.base
        if base.host is None:
            self._require_space(base)
        caller = self._caller(image)
        try:
            # At the same time: a bootstrap leaves a core idle, and packing a torch wheel takes
            # seconds.
            with ThreadPoolExecutor(1) as beside:
                tools = beside.submit(self._ensure_tools, image)
                info = base_image.ensure_base(
                    self._engine, base, image.common, caller,
                    lambda text: self._say(base.name, text), fresh=self._fresh,
                    on_event=self._go_on,
                )  # fmt: skip
            tools.result()
            return info
        except StackyardError as error:
            # The other stacks need not try again what takes a minute to fail.
            self._refused[base.name] = error
            if base.bootstrap is not None or base.host is not None:
                raise
            told = self._refused[base.name] = cannot_have(self._project, base.name, error)
            raise told from error


def require_lock(image: ResolvedImage) -> None:
    """Require a stack's lock on a base.

    Raises:
        UsageError: there is none.
    """
    if image.locked:
        return
    stack, base = image.stack.name, image.base
    paths = [lock.lock_path(stack, base.name)]
    paths += [lock.base_lock_path(base.name)] if base.pulled else []
    missing = " and ".join(path for path in paths if path not in image.locks)
    reads = f" (pulls {base.reference}, to read what it holds)" if base.pulled else ""
    raise UsageError(
        f"{stack} has no lock on {base.name}",
        why=f"not there: {missing}" + (f"; {base.never_built}" if base.never_built else ""),
        hint=f"invoke lock {stack} --base {base.name}{reads}",
    )


def short(step: str) -> str:
    """Return a build step without its mounts, to be shown in one line."""
    return " ".join(word for word in step.split() if not word.startswith("--mount="))[:100]


def step_words(step: str) -> str:
    """Return what a step of a stack's Dockerfile does; empty where it is BuildKit's own affair."""
    found = _STEP.match(step)
    if not found:
        return ""
    stage = found["stage"]
    return _STAGES.get(stage) or f"building the wheel of {stage.removeprefix('wheel-')}"


def cannot_have(project: Project, base_name: str, error: StackyardError) -> NothingToRunOn:
    """Return the error for a base that cannot be pulled; it names bases that can be made."""
    base = project.definitions.bases[base_name]
    local = [b.name for b in project.definitions.bases.values() if b.bootstrap is not None]
    return NothingToRunOn(
        f"base {base_name!r} ({base.reference}) cannot be had on this machine",
        why=f"{error.what}\n{error.why}".strip(),
        hint=f"{error.hint or 'reach its registry (docker login, proxy)'}; or take a base that is"
        " made here: " + ", ".join(f"--base {name}" for name in local),
    )
