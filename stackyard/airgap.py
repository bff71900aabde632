"""Releases as a folder that is carried to a site without a network.

Owns the folder's form: for each release the image as one archive (docker's and OCI's at once), its
signed statement and all that lies beside it; and an installer that needs only docker or podman.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from stackyard import oci, parcel, release
from stackyard.errors import ReleaseError, UsageError
from stackyard.layer_source import LayerSource
from stackyard.registry import Registry
from stackyard.verify import Verified

INSTALLER = Path(__file__).resolve().parent / "install.sh"


def write_release(
    folder: Path,
    registry: Registry,
    source: LayerSource,
    found: Verified,
    signers: Path,
    say: Callable[[str], None],
) -> Path:
    """Add a verified release to a folder, whole or not at all; where it lies.

    Raises:
        RegistryError: the registry does not answer.
        ReleaseError: something beside the image is not what was signed.
        UsageError: something else lies there.
    """
    entry = found.release
    place = folder / entry.name
    if place.exists() and not (place / "release.json").is_file():
        raise UsageError(f"{place} is there and is no release", hint="--out another folder")
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{entry.name}.{os.getpid()}"
    try:
        new.mkdir()
        _write(new, registry, source, found, say)
        shutil.rmtree(place, ignore_errors=True)
        new.rename(place)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    for name, data in {
        "allowed_signers": signers.read_bytes(),
        "install.sh": INSTALLER.read_bytes(),
    }.items():
        part = folder / f".{name}.{os.getpid()}"
        part.write_bytes(data)
        part.rename(folder / name)
    return place


def _write(
    place: Path, registry: Registry, source: LayerSource, found: Verified,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    entry = found.release
    (place / "release.json").write_bytes(found.statement)
    (place / "release.json.sig").write_bytes(found.signature)
    for title, data in _beside(registry, found).items():
        (place / title.replace("/", "-")).write_bytes(data)
    layers = {str(layer["digest"]): int(layer["size"]) for layer in entry.layers}
    archive = parcel.whole_archive(
        registry.blob(found.config), found.manifest, layers, entry.name
    )  # fmt: skip
    done = 0
    with (place / "image.tar").open("wb") as file:
        for piece in archive.pieces(0):
            chunks = source.read(piece.digest) if piece.digest else [piece.data]
            for chunk in chunks:
                done += file.write(chunk)
            say(f"{entry.name}: {done / 1e6:.0f} of {archive.size / 1e6:.0f} MB")


def _beside(registry: Registry, found: Verified) -> dict[str, bytes]:
    """The files that the statement names, by title."""
    files = {}
    for value in found.release.value["artifacts"]:
        blob = oci.read_descriptor(value)
        title = blob.annotations.get(oci.TITLE, blob.digest[7:19])
        if not title.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ReleaseError(f"{title!r} cannot be a file's name")
        if blob.media_type != release.STATEMENT:
            files[title] = registry.blob(blob)
    return files
