"""Make the plan of a build: context, labels, and the recipe's hash.

Owns the definition of "the same image": everything that decides the content, and nothing else (no
clock, machine or mirror of the caller). `build.buildkit` executes the plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stackyard.build import dockerfile
from stackyard.build.catalog import ResolvedImage

INSIDE = (
    "stackyard/inside/apply_fixes.py",
    "stackyard/inside/build.sh",
    "stackyard/inside/leave_out.py",
    "stackyard/inside/node.py",
    "stackyard/inside/ssh_config",
    "stackyard/inside/sshd_config",
)
RECIPE_LABEL = "stackyard.recipe"
BASE_LABEL = "stackyard.base.digest"
# On a base, and so on what is built on it: the digest of the index of its Debian packages.
PACKAGES_LABEL = "stackyard.packages"


@dataclass(frozen=True, kw_only=True)
class BaseRecipe:
    """Hold all that a bootstrapped base is made from, except the versions of its packages.

    Attributes:
        packages: installed in it, with all that they need.
        exclude: patterns of their files that stay out.
        steps: packages that build steps may install on it: compilers, and those of single stacks.
        texts: packages that build steps only unpack.
    """

    platform: str
    suite: str
    packages: tuple[str, ...]
    exclude: tuple[str, ...]
    steps: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BaseContent:
    """Hold what decides the content of a base, on whatever machine it was made or pulled.

    Attributes:
        digest: of its layers; of a pulled base, of its configuration.
        packages: image with the Debian packages that build steps install, which follows from the
            base; empty where they use package sources.
        key: content address of what a bootstrapped base is made from; empty for all others.
    """

    digest: str
    packages: str = ""
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """Hold everything that an engine needs to build one image, except the caller's settings.

    Attributes:
        context: file contents by path inside the build context.
        recipe: hash of everything that decides the image's content.
        blobs: binary files of the context, by path; the recipe has their digests.
        packages: the base's, see `BaseContent`.
    """

    stack: str
    base: str
    tag: str
    dockerfile: str
    base_image: str
    context: Mapping[str, str]
    labels: Mapping[str, str]
    recipe: str
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    packages: str = ""


def context_files(root: Path, image: ResolvedImage) -> dict[str, str]:
    """Return the project's files in a build's context, besides rendered ones, by path."""
    inside = {path: (root / path).read_text(encoding="utf-8") for path in INSIDE}
    return {**inside, **image.locks}


def make_plan(
    image: ResolvedImage, files: Mapping[str, str], *, base_image: str, content: BaseContent
) -> BuildPlan:
    """Assemble the plan of a build.

    Args:
        files: the result of `context_files`.
        base_image: the reference after FROM.
        content: what that image holds.
    """
    stack, base = image.stack.name, image.base.name
    context = {**files, **dockerfile.render_files(image)}
    path = dockerfile.dockerfile_path(stack, base)
    told = _labels(image, content.digest)
    decided = {"base": asdict(content), "uv": dockerfile.UV_VERSION,
               "files": sorted(context.items()), "labels": sorted(told.items())}  # fmt: skip
    recipe = "sha256:" + hashlib.sha256(json.dumps(decided).encode()).hexdigest()
    return BuildPlan(
        stack=stack,
        base=base,
        tag=dockerfile.image_tag(stack, base),
        dockerfile=path,
        base_image=base_image,
        context=context,
        labels={RECIPE_LABEL: recipe, **told},
        recipe=recipe,
        packages=content.packages,
    )


def _labels(image: ResolvedImage, base_digest: str) -> dict[str, str]:
    """Return an image's labels; OCI's are set, too, or the image would inherit its base's."""
    first = next(iter(image.stack.packages))
    return {
        "org.opencontainers.image.title": f"stackyard/{image.stack.name}",
        "org.opencontainers.image.version": image.stack.packages[first],
        "org.opencontainers.image.ref.name": f"{image.stack.name}-{image.base.name}",
        "org.opencontainers.image.base.name": image.base.reference,
        # OCI means the digest of the pulled manifest; a base that is made here has none.
        "org.opencontainers.image.base.digest": image.base.digest or base_digest,
        "stackyard.stack": image.stack.name,
        "stackyard.base": image.base.name,
        BASE_LABEL: base_digest,
        "stackyard.fixes": ",".join(fix.id for fix in image.fixes),
    }
