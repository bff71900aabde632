"""Change an image's plan so that users' own code replaces a release.

Owns the changes of a resolved image and its plan: context, labels, tag and recipe. Pure:
`build.source.reading` reads trees, `build.builder` builds.
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
# Build tools take the version from these variables where there is no git repository.
_VERSION_VARIABLES = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PBR_VERSION")


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Hold users' sources for one image.

    Attributes:
        archives: the packed trees, by package; empty where only the recipe is needed.
        despite: ids of the fixes to leave out.
        tag: name of the image; empty for its default name.
    """

    sources: tuple[Source, ...]
    definitions: Definitions
    archives: Mapping[str, bytes] = field(default_factory=dict)
    despite: tuple[str, ...] = ()
    tag: str = ""

    def image(self, image: ResolvedImage) -> ResolvedImage:
        """Return the image with wheels built from the sources, and without fixes in `despite`.

        Raises:
            UsageError: `--despite` names a fix that this image does not have.
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
        """Resolve a package that otherwise comes as a wheel; add its build lock to `locks`."""
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
        """Return the context's files; the stack's lock loses the packages that sources replace."""
        path = lock.lock_path(image.stack.name, image.base.name)
        own = {canonicalize_name(source.package) for source in self.sources}
        return {**files, path: lock.without(files[path], own)}

    def plan(self, made: BuildPlan) -> BuildPlan:
        """Return the plan with the sources in its context, labels, tag and recipe."""
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
        """Return the part of a tag that names all sources."""
        return "-".join(source.short for source in self.sources)


def buildable(definitions: Definitions, stack: str) -> list[str]:
    """Return the packages of a stack that can be built from source, its main one first."""
    found = definitions.stacks[stack]
    declared = {canonicalize_name(name): name for name in definitions.wheels}
    named = [*found.packages, *found.builds]
    names = [declared[key] for name in named if (key := canonicalize_name(name)) in declared]
    return list(dict.fromkeys(names))


def own_names(definitions: Definitions) -> set[str]:
    """Return the names of all stacks' and bases' own images."""
    bases = definitions.bases
    found = {dockerfile.image_tag(stack, base) for stack in definitions.stacks for base in bases}
    return found | {base.reference for base in bases.values()}


def require_tag(tag: str, stack: str, base: str, taken: Collection[str] = ()) -> str:
    """Return the full tag for an image of users' sources; a bare TAG gets the stack's name.

    Args:
        taken: names of other images, which it must not have.

    Raises:
        UsageError: it is not a valid name, or the stack's own, or taken.
    """
    if tag and ":" not in tag and "/" not in tag:
        tag = f"stackyard/{stack}:{tag}"
    if tag and not _TAG.fullmatch(tag):
        raise UsageError(f"--tag: {tag[:200]!r} is not a valid name", hint="--tag NAME:TAG, or TAG")
    # The engine takes a name without a registry for one of docker.io.
    plain = re.sub(r"^(index\.)?docker\.io/", "", tag)
    if plain == dockerfile.image_tag(stack, base):
        raise UsageError(
            f"--tag: {tag} is the stack's own image",
            why="an image of your sources would replace it for every command",
            hint="another --tag, or none: its name then holds the commit",
        )
    if plain in taken:
        raise UsageError(f"--tag: {tag} is an image of stackyard's own",
                         hint="another --tag, or none: its name then holds the commit"
                         )  # fmt: skip
    return tag


def fork_of(definitions: Definitions, labels: Mapping[str, str]) -> Fork | None:
    """Return the sources in an image's labels; None for a stack's own image."""
    sources = sources_of(labels)
    if not sources:
        return None
    return Fork(sources=sources, definitions=definitions, despite=despite_of(labels))
