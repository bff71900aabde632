"""Write and read the recipe that lies beside a release, from which anybody can build the image.

Owns its form: the build's whole context, so that no commit is needed, and what the base is made
from. The Debian packages travel beside it. Pure: it must not build anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from stackyard.build.recipe import BaseRecipe, BuildPlan
from stackyard.definitions import lock
from stackyard.scan.oci import text_of
from stackyard.system.errors import ReleaseError, shown

SCHEMA = "stackyard.recipe/1"
RECIPE = "application/vnd.stackyard.recipe.v1+json"
PACKAGES = "application/vnd.stackyard.packages.v1.tar+gzip"
INDEX = "application/vnd.stackyard.packages-index.v1+text"
# These become words of a command line.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:_-]*")
_PATTERN = re.compile(r"/[!-~]*")
_PLATFORM = re.compile(r"[a-z0-9]+/[a-z0-9]+")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Hold all that an image was built from, except downloads that its locks name.

    Attributes:
        distribution: of the base, as in `debian/bookworm`.
        base: what the base is made from.
        base_key: its content address, which includes the scripts that clean it.
        builder: what built it: versions of Stackyard and uv, the project's commit.
    """

    stack: str
    base_name: str
    distribution: str
    base: BaseRecipe
    base_key: str
    dockerfile: str
    context: Mapping[str, str]
    builder: Mapping[str, str]

    @property
    def pins(self) -> list[tuple[str, str]]:
        """Return names and versions of all Python packages that the locks name."""
        locks = [text for path, text in self.context.items() if path.endswith(".lock")]
        return [(one.name, one.version) for text in locks for one in lock.parse_lock(text)]

    @property
    def built_by(self) -> str:
        """Return which Stackyard built it, for people."""
        words = [f"Stackyard {self.builder.get('stackyard', '')}".strip()]
        commit = self.builder.get("commit", "")
        words += [f"commit {commit[:12]}"] if commit else []
        return ", ".join([*words, f"uv {self.builder.get('uv', 'unknown')}"])

    def plan(self, *, tag: str, base_image: str, packages: str) -> BuildPlan:
        """Return the plan of a build from this recipe alone, under names of the caller's."""
        return BuildPlan(
            stack=self.stack, base=self.base_name, tag=tag, dockerfile=self.dockerfile,
            base_image=base_image, context=self.context, labels={}, recipe="", packages=packages,
        )  # fmt: skip


def record_text(record: Record) -> bytes:
    """Return a recipe as a file; the same recipe gives the same bytes."""
    return text_of({"schema": SCHEMA, **asdict(record)})


def read_record(data: bytes) -> Record:
    """Read a recipe; the caller has verified the release that names it.

    Raises:
        ReleaseError: it is none, of another schema, or holds what no recipe holds.
    """
    try:
        value = json.loads(data)
        schema = value.pop("schema")
        if schema != SCHEMA:
            raise ReleaseError(f"a recipe of another form: {shown(str(schema))}",
                               hint="a newer stackyard may read it")  # fmt: skip
        base = BaseRecipe(**{f.name: _typed(value["base"], f.name) for f in fields(BaseRecipe)})
        record = Record(
            base=base, stack=str(value["stack"]), base_name=str(value["base_name"]),
            distribution=str(value["distribution"]), base_key=str(value["base_key"]),
            dockerfile=str(value["dockerfile"]), context=_texts(value["context"]),
            builder=_texts(value["builder"]),
        )  # fmt: skip
        _check(record)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ReleaseError("a release's recipe cannot be read", why=repr(error)) from error
    return record


def _typed(value: Any, name: str) -> Any:
    found = value[name]
    return tuple(str(one) for one in found) if isinstance(found, list) else str(found)


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()}


def _check(record: Record) -> None:
    base = record.base
    names = (base.suite, *base.packages, *base.steps, *base.texts, record.stack, record.base_name)
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    wrong += [pattern for pattern in base.exclude if not _PATTERN.fullmatch(pattern)]
    wrong += [base.platform] if not _PLATFORM.fullmatch(base.platform) else []
    if wrong:
        raise ValueError(f"{wrong[0]!r} cannot be a name")
    if record.dockerfile not in record.context:
        raise ValueError(f"{record.dockerfile!r} is not in the context")
