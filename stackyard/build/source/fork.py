"""An image with the users' own code in place of a release: the same plan, with their tree in it.

Owns what changes in a resolved image and its plan, and nothing else: context, labels, tag and
recipe. Pure; `build.source.reading` reads trees, `build.builder` builds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name

from stackyard.build import catalog, dockerfile
from stackyard.build.catalog import ResolvedImage, ResolvedWheel, Setting
from stackyard.build.recipe import RECIPE_LABEL, BuildPlan
from stackyard.build.source.naming import (
    DESPITE_LABEL,
    SOURCES_LABEL,
    Source,
    archive_path,
    despite_of,
    sources_of,
    sources_text,
)
from stackyard.definitions import lock
from stackyard.definitions.document import nearest
from stackyard.definitions.spec import Definitions
from stackyard.system.errors import UsageError

_TAG = re.compile(r"[a-z0-9][a-z0-9._/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?")
# What build tools take a version from where there is no git to ask.
_VERSION_VARIABLES = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PBR_VERSION")


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Users' sources for one image.

    Attributes:
        archives: the trees, by package; empty where only the recipe is asked for.
        despite: fixes that are left out.
        tag: what the image is to be called; empty for its usual name.
    """

    sources: tuple[Source, ...]
    definitions: Definitions
    archives: Mapping[str, bytes] = field(default_factory=dict)
    despite: tuple[str, ...] = ()
    tag: str = ""

    def image(self, image: ResolvedImage) -> ResolvedImage:
        """The image with the sources as wheels that are built, and less fixes.

        Raises:
            UsageError: `--despite` names a fix that this image has not.
        """
        known = {fix.id for fix in [*image.fixes, *(f for w in image.wheels for f in w.fixes)]}
        for name in self.despite:
            if name not in known:
                raise UsageError(
                    f"--despite: {image.stack.name} on {image.base.name} has no fix {name!r}",
                    why=nearest(name, known),
                    hint=f"invoke show {image.stack.name} --base {image.base.name} lists them",
                )
        wheels = {wheel.wheel.package: wheel for wheel in image.wheels}
        packages = dict(image.packages)
        locks = dict(image.locks)
        for source in self.sources:
            wheel = wheels.get(source.package) or self._declared(source.package, image, locks)
            env = dict.fromkeys(_VERSION_VARIABLES, source.version) if source.version else {}
            wheels[source.package] = replace(wheel, source=source, env={**wheel.env, **env})
            packages[canonicalize_name(source.package)] = Setting(
                value=f"source {source.short}", source=source.says
            )
        said = dict.fromkeys(self.despite, "left out by --despite")
        gone = {f"images/fixes/{name}.yml" for name in self.despite}
        return replace(
            image,
            wheels=tuple(self._less(wheel) for _, wheel in sorted(wheels.items())),
            packages=packages,
            locks=locks,
            env={name: s for name, s in image.env.items() if s.source not in gone},
            fixes=tuple(fix for fix in image.fixes if fix.id not in self.despite),
            left_out={**image.left_out, **said},
        )

    def _less(self, wheel: ResolvedWheel) -> ResolvedWheel:
        left = [fix for fix in wheel.fixes if fix.id in self.despite]
        names = {name for fix in left for name in fix.remedy.build_env}
        return replace(
            wheel,
            fixes=tuple(fix for fix in wheel.fixes if fix not in left),
            env={name: value for name, value in wheel.env.items() if name not in names},
        )

    def _declared(self, package: str, image: ResolvedImage, locks: dict[str, str]) -> ResolvedWheel:
        """A package that otherwise comes as a wheel; the lock of its build joins `locks`."""
        path = lock.wheel_lock_path(package)
        text = self.definitions.locks.get(path, "")
        if lock.locked_inputs(text) != lock.wheel_inputs(self.definitions.wheels[package]):
            raise UsageError(
                f"building {package} from source has no lock",
                why=f"{path} is {'of another definition' if text else 'not there'}",
                hint=f"invoke lock {image.stack.name}",
            )
        locks[path] = text
        versions = {name: s.value for name, s in {**image.provided, **image.packages}.items()}
        return catalog.resolve_wheel(
            self.definitions, self.definitions.wheels[package], image.base, versions
        )

    def files(self, image: ResolvedImage, files: Mapping[str, str]) -> dict[str, str]:
        """The context's files, the stack's lock without what the sources take the place of."""
        path = lock.lock_path(image.stack.name, image.base.name)
        own = {canonicalize_name(source.package) for source in self.sources}
        return {**files, path: lock.without(files[path], own)}

    def plan(self, made: BuildPlan) -> BuildPlan:
        """The plan with the sources in its context, its labels, its tag and its recipe."""
        contents = [[s.package, s.digest] for s in self.sources]
        decided = [made.recipe, contents, sources_text(self.sources), list(self.despite)]
        recipe = "sha256:" + hashlib.sha256(json.dumps(decided).encode()).hexdigest()
        labels = {
            **made.labels,
            RECIPE_LABEL: recipe,
            SOURCES_LABEL: sources_text(self.sources),
            "org.opencontainers.image.version": f"src-{self.short}",
        }
        if self.despite:
            labels[DESPITE_LABEL] = ",".join(self.despite)
        return replace(
            made,
            tag=self.tag or f"{made.tag}-src-{self.short}",
            labels=labels,
            recipe=recipe,
            blobs={archive_path(name): data for name, data in self.archives.items()},
        )

    @property
    def short(self) -> str:
        """All sources, as part of a tag."""
        return "-".join(source.short for source in self.sources)


def buildable(definitions: Definitions, stack: str) -> list[str]:
    """Packages of a stack that can be built from source; its main one first, if that can."""
    found = definitions.stacks[stack]
    declared = {canonicalize_name(name): name for name in definitions.wheels}
    named = [*found.packages, *found.builds]
    names = [declared[key] for name in named if (key := canonicalize_name(name)) in declared]
    return list(dict.fromkeys(names))


def own_names(definitions: Definitions) -> set[str]:
    """What every stack's and every base's own image is called here."""
    bases = definitions.bases
    found = {dockerfile.image_tag(stack, base) for stack in definitions.stacks for base in bases}
    return found | {base.reference for base in bases.values()}


def require_tag(tag: str, stack: str, base: str, taken: Collection[str] = ()) -> str:
    """A tag for an image of users' sources; without `:` it is one of the stack's repository.

    Args:
        taken: names of other images that it must not take.

    Raises:
        UsageError: it is none, the stack's own, or taken.
    """
    if tag and ":" not in tag and "/" not in tag:
        tag = f"stackyard/{stack}:{tag}"
    if tag and not _TAG.fullmatch(tag):
        raise UsageError(f"--tag: {tag[:200]!r} is no image's name", hint="--tag NAME:TAG, or TAG")
    # To the engine a name without a registry is one of docker.io.
    plain = re.sub(r"^(index\.)?docker\.io/", "", tag)
    if plain == dockerfile.image_tag(stack, base):
        raise UsageError(
            f"--tag: {tag} is the stack's own image",
            why="an image of your sources would take its place for every command",
            hint="another --tag, or none: its name says the commit then",
        )
    if plain in taken:
        raise UsageError(f"--tag: {tag} is an image of stackyard's own",
                         hint="another --tag, or none: its name says the commit then"
                         )  # fmt: skip
    return tag


def fork_of(definitions: Definitions, labels: Mapping[str, str]) -> Fork | None:
    """What an image's labels say that it was built from; None for a stack's own image."""
    sources = sources_of(labels)
    if not sources:
        return None
    return Fork(sources=sources, definitions=definitions, despite=despite_of(labels))
