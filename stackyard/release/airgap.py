"""Write releases into a folder that is carried to a site without a network.

Owns the folder's form: an OCI image layout of all its releases, which holds each layer once, even
if many releases have it. Beside the layout lie each release's signed statement with its attached
files, and an installer that needs only docker or podman.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from stackyard.release import parcel, publish, verify
from stackyard.release import statement as release
from stackyard.release.layer_source import LayerSource
from stackyard.release.recipe_record import PACKAGES
from stackyard.release.registry import Registry
from stackyard.release.verify import Verified
from stackyard.scan import oci
from stackyard.system.chunks import digest_of_file
from stackyard.system.errors import ReleaseError, UsageError
from stackyard.system.files import new_folder, replace_file

INSTALLER = Path(__file__).resolve().parent / "install.sh"


def write_release(
    folder: Path,
    registry: Registry,
    source: LayerSource,
    found: Verified,
    signers: Path,
    say: Callable[[str], None],
) -> Path:
    """Add a verified release to a folder, whole or not at all; return the statement's own folder.

    Blobs that the folder holds are kept, so an interrupted call continues where it stopped.

    Raises:
        RegistryError: the registry does not answer.
        ReleaseError: a file beside the image is not what was signed.
        UsageError: a folder of the release's name exists and holds no release.
    """
    entry = found.release
    place = folder / entry.name
    if place.exists() and not (place / "release.json").is_file():
        raise UsageError(f"{place} is there and is no release", hint="--out another folder")
    (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    _write_blobs(folder, registry, source, found, say)
    with new_folder(place) as new:
        (new / "release.json").write_bytes(found.statement)
        (new / "release.json.sig").write_bytes(found.signature)
        for title, data in _beside(registry, found, signers).items():
            (new / title.replace("/", "-")).write_bytes(data)
        shutil.rmtree(place, ignore_errors=True)
    for name, data in {
        "allowed_signers": signers.read_bytes(),
        "install.sh": INSTALLER.read_bytes(),
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": _index(folder),
    }.items():
        replace_file(folder / name, [data])
    return place


def carried_bytes(folder: Path) -> int:
    """Return the size of a folder's images in bytes, with shared layers counted once."""
    blobs = (folder / "blobs" / "sha256").glob("[!.]*")  # partial files begin with a dot
    return sum(path.stat().st_size for path in blobs)


def _write_blobs(
    folder: Path, registry: Registry, source: LayerSource, found: Verified,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Write those layers, configuration and manifest of an image that the folder lacks."""
    entry = found.release
    total = sum(int(layer["size"]) for layer in entry.layers)
    done = 0
    for layer in entry.layers:
        digest = str(layer["digest"])
        path = folder / parcel.path_of(digest)
        if not _holds(path, digest):
            _write_layer(path, digest, source)
        done += int(layer["size"])
        say(f"{entry.name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
    replace_file(folder / parcel.path_of(entry.image_id), [registry.blob(found.config)])
    replace_file(folder / parcel.path_of(entry.digest), [found.manifest])


def _write_layer(path: Path, digest: str, source: LayerSource) -> None:
    """Write a layer; fetch it again, once, when this machine's cached copy is damaged.

    Raises:
        ReleaseError: the registry's copy is not what was signed.
    """
    cached = source.holds(digest)
    try:
        replace_file(path, source.read(digest))
    except ReleaseError:
        if not cached:
            raise
        replace_file(path, source.read(digest))


def _holds(path: Path, digest: str) -> bool:
    """Return whether a file exists and has this digest."""
    return path.is_file() and digest == digest_of_file(path)


def _index(folder: Path) -> bytes:
    """Return the image layout's index.json, which lists every release of the folder."""
    described = []
    for statement in sorted(folder.glob("[!.]*/release.json")):
        entry = release.read_statement(statement.read_bytes())
        image = entry.value["image"]
        described.append({
            "mediaType": oci.MANIFEST, "digest": entry.digest, "size": image["size"],
            "annotations": {"org.opencontainers.image.ref.name": entry.name},
        })  # fmt: skip
    return json.dumps({"schemaVersion": 2, "manifests": described}).encode()


def _beside(registry: Registry, found: Verified, signers: Path) -> dict[str, bytes]:
    """Return the files that the statement names, and evidence attached later, by title."""
    believed = verify.evidence_beside(registry, found, signers).believed
    files = {file.title: file.data for file in map(publish.evidence_file, believed)}
    for value in found.release.value["artifacts"]:
        blob = oci.read_descriptor(value)
        title = blob.annotations.get(oci.TITLE, blob.digest[7:19])
        if not title.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ReleaseError(f"{title!r} cannot be a file's name")
        # Packages are for a rebuild, which asks a registry; they are as long as the image.
        if blob.media_type not in (release.STATEMENT, PACKAGES):
            files[title] = registry.blob(blob)
    return files
