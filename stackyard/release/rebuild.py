"""Build a released image again, from what lies beside it alone, and compare the files.

Owns the order: recipe and packages out of the registry, base and image from scratch under names of
their own, the comparison, and the removal of both. Nothing of this checkout's definitions is used.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from stackyard.build import base_image, buildkit, host, packages
from stackyard.build.buildkit import Client
from stackyard.build.mirrors import CallerSettings
from stackyard.release.layer_source import LayerSource
from stackyard.release.recipe_record import INDEX, PACKAGES, RECIPE, Record, read_record
from stackyard.release.registry import Registry
from stackyard.release.spool import Spool
from stackyard.release.statement import Release
from stackyard.release.verify import Verified
from stackyard.scan import oci
from stackyard.scan.contents import LayerContents, LayerReader, merge
from stackyard.scan.difference import Difference, differences, setting_differences
from stackyard.scan.installed import installed
from stackyard.scan.oci import Descriptor, digest_of
from stackyard.system import cleanup
from stackyard.system.engine import Engine
from stackyard.system.errors import BuildError, RegistryError, ReleaseError, UsageError

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Means:
    """Hold what a rebuild uses of this machine.

    Attributes:
        caller: package settings; `caller_of` asks for those of a distribution.
    """

    engine: Engine
    client: Client
    caller_of: Callable[[str], CallerSettings]
    store: Spool


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """Hold the result of a rebuild.

    Attributes:
        files: number of files of the rebuilt image.
        packages: number of Debian packages that it was built from.
        packages_from: where these came from: `release` or `archive`.
    """

    record: Record
    differences: tuple[Difference, ...]
    files: int
    packages: int
    packages_from: str


@dataclass(frozen=True, kw_only=True)
class _Names:
    image: str
    base: str
    packages: str


def rebuild(registry: Registry, found: Verified, means: Means, say: Say) -> Rebuilt:
    """Build the image of a verified release from scratch, and compare it with the released one.

    Raises:
        UsageError: the release was built from users' own source.
        ReleaseError: it carries no recipe, or something beside it is not what was signed.
        StackyardError: a package is neither in the registry nor in the package sources.
        EngineError: there is too little space.
        BuildError: a step failed.
    """
    entry = found.release
    record = recipe_of(registry, entry)
    base_image.require_mmdebstrap(f"the base of {entry.name}")
    unpacked = sum(int(layer["unpacked"]) for layer in entry.layers)
    host.require_space(means.engine, unpacked + host.MORE_BYTES)
    caller = means.caller_of(record.distribution)
    with _names(means.engine) as names, cleanup.folder("rebuild") as folder:
        locked = folder / "packages"
        origin = _fetch_packages(registry, entry, record, locked, means, caller, say)
        index = (locked / packages.INDEX).read_text(encoding="utf-8")
        say(f"making the base from {packages.count(packages.read_index(index))}")
        base_image.make_base(
            means.engine, record.base, locked, names.base, say, held=names.packages
        )
        image = _build(record, names, means, caller, entry.name, say)
        say("comparing the files")
        found_differences, files = _compare(registry, found, means, image)
    return Rebuilt(
        record=record, differences=found_differences, files=files, packages_from=origin,
        packages=len(packages.read_index(index)),
    )  # fmt: skip


def recipe_of(registry: Registry, entry: Release) -> Record:
    """Return the recipe that a release carries.

    Raises:
        UsageError: it was built from users' own source, which no release carries.
        ReleaseError: it carries none.
    """
    if entry.own:
        raise UsageError(
            f"{entry.name} was built from users' own source, which its release does not carry",
            hint="build it where that source is: invoke build STACK --source PATH",
        )
    blob = _beside(entry, RECIPE)
    if blob is None:
        raise ReleaseError(
            f"{entry.name} carries no recipe, so nobody can rebuild it",
            why="it is on a base that is pulled, or was released before recipes were",
            hint="its publisher builds and releases it again: invoke build STACK, smoke, publish",
        )
    record = read_record(registry.blob(blob))
    if (record.stack, record.base_name) != (entry.stack, entry.base):
        raise ReleaseError(f"{entry.name} carries the recipe of {record.stack} on"
                           f" {record.base_name}")  # fmt: skip
    return record


def _beside(entry: Release, kind: str) -> Descriptor | None:
    """Return the descriptor of a file that a release's statement names, by its media type."""
    blobs = (oci.read_descriptor(value) for value in entry.value.get("artifacts", []))
    return next((blob for blob in blobs if blob.media_type == kind), None)


@contextlib.contextmanager
def _names(engine: Engine) -> Iterator[_Names]:
    """Give names for what a rebuild makes; the images of these names are gone at the end."""
    run = f"stackyard/rebuild:{os.getpid()}-{secrets.token_hex(4)}"
    names = _Names(image=f"{run}-image", base=f"{run}-base", packages=f"{run}-packages")
    with contextlib.ExitStack() as stack:
        for name in (names.packages, names.base, names.image):
            stack.enter_context(cleanup.undoing(cleanup.IMAGE, name))
            stack.callback(engine.remove_image, name)
        yield names


def _fetch_packages(
    registry: Registry, entry: Release, record: Record, out: Path, means: Means,
    caller: CallerSettings, say: Say,
) -> str:  # fmt: skip
    """Put the release's Debian packages into a folder; return where they came from."""
    index, blob = _beside(entry, INDEX), _beside(entry, PACKAGES)
    if index is None:
        raise ReleaseError(
            f"{entry.name} does not say which Debian packages it was built from",
            hint="its publisher builds and releases it again: invoke build STACK, smoke, publish",
        )
    text = registry.blob(index, packages.LONGEST_INDEX).decode("utf-8", errors="replace")
    try:
        if blob is None:
            raise RegistryError(f"{entry.name} carries no Debian packages")
        say(f"fetching its Debian packages, {blob.size / 1e6:.0f} MB")
        source = LayerSource(registry, means.store.folder, {blob.digest: blob.size})
        path = source.verified(blob.digest)
    except RegistryError as error:
        if error.passing:
            raise
        say(f"{error.what}: asking the package sources")
        packages.fetch_locked(
            out, text, platform=record.base.platform,
            sources=packages.sources_of(record.base.suite, caller),
        )  # fmt: skip
        return "archive"
    with gzip.open(path) as content:
        found = packages.unpack(cast(IO[bytes], content), out)
    if found != digest_of(text.encode()):
        raise ReleaseError(f"{entry.name} carries other Debian packages than it names",
                           hint="tell its publisher; nothing was built")  # fmt: skip
    return "release"


def _build(
    record: Record, names: _Names, means: Means, caller: CallerSettings, name: str, say: Say
) -> str:
    """Build the image from a recipe, from scratch; return its id."""
    tools = base_image.ensure_tools(means.engine, caller, record.pins)
    secret = {key: data for key, data in caller.secrets.items() if key != "apt.sources"}
    made = record.plan(tag=names.image, base_image=names.base, packages=names.packages)
    try:
        return buildkit.build(
            made, means.client, tools, replace(caller, secrets=secret), say, fresh=True
        )
    except BuildError as error:
        raise BuildError(
            f"{name} cannot be built again: {error.what.partition(': ')[2] or error.what}",
            why=error.why,
            hint=f"correct what the lines above name, then: invoke verify --rebuild {name}",
        ) from error


def _compare(
    registry: Registry, found: Verified, means: Means, image: str
) -> tuple[tuple[Difference, ...], int]:
    """Return what differs between a release and an image here, and the number of files here."""
    readers = {"contents": lambda number: LayerReader(number).read}
    saved = means.store.save(means.engine.saved(image), readers, keep=False)
    there: list[LayerContents] = list(saved.read["contents"])
    known = {layer.diff_id: one for layer, one in zip(saved.layers, there, strict=True)}
    entry = found.release
    sizes = {str(layer["digest"]): int(layer["size"]) for layer in entry.layers}
    source = LayerSource(registry, means.store.folder, sizes)
    released = [
        known.get(str(layer["diff_id"])) or _read(source, str(layer["digest"]), number)
        for number, layer in enumerate(entry.layers)
    ]
    before, after = installed(merge(released)), installed(merge(there))
    settings = setting_differences(
        json.loads(registry.blob(found.config)), json.loads(saved.config)
    )
    return (*differences(before, after), *settings), len(after.contents.files)


def _read(source: LayerSource, digest: str, number: int) -> LayerContents:
    """Read a released layer, whose digest is signed."""
    with gzip.open(source.verified(digest)) as content:
        return LayerReader(number).read(cast(IO[bytes], content))
