"""Write and read OCI manifests; the same content gives the same bytes.

Owns descriptors, manifests of images and artifacts, and the index of an image's referrers. Pure:
it must not read files or speak to a registry. Source: the OCI image specification 1.1 and the OCI
distribution specification.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackyard.system.errors import UsageError, shown

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EMPTY = "application/vnd.oci.empty.v1+json"
EMPTY_CONTENT = b"{}"
TITLE = "org.opencontainers.image.title"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")


def digest_of(data: bytes) -> str:
    """Return the digest of bytes, `sha256:...`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_digest(text: str) -> bool:
    """Say if a text is a SHA-256 digest."""
    return bool(_DIGEST.fullmatch(text))


@dataclass(frozen=True, kw_only=True)
class Repository:
    """Name a repository of a registry; `str` gives `HOST[:PORT]/NAME`."""

    host: str
    name: str

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


def parse_repository(text: str) -> Repository:
    """Parse `HOST[:PORT]/NAME`; unlike docker, never guess the host.

    Raises:
        UsageError: the text is not a repository.
    """
    host, slash, name = text.partition("/")
    plausible = "." in host or ":" in host or host == "localhost"
    if not (slash and plausible and _HOST.fullmatch(host) and _NAME.fullmatch(name)):
        raise UsageError(
            f"{shown(text)!r} is not a repository",
            why="it must be a registry with a domain or port, a slash, and a name in lower case",
            hint="type it like registry.example:5000/team/stackyard",
        )
    return Repository(host=host, name=name)


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Describe one content of a manifest: media type, digest and size in bytes."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    def value(self) -> dict[str, Any]:
        """Return the descriptor as a JSON object."""
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            **({"artifactType": self.artifact_type} if self.artifact_type else {}),
            **({"annotations": dict(self.annotations)} if self.annotations else {}),
        }


def described(media_type: str, data: bytes, title: str = "") -> Descriptor:
    """Return the descriptor of bytes."""
    notes = {TITLE: title} if title else {}
    return Descriptor(
        media_type=media_type, digest=digest_of(data), size=len(data), annotations=notes
    )


def read_descriptor(value: Any) -> Descriptor:
    """Check and read a descriptor; its manifest may have any author.

    Raises:
        ValueError: it is not a descriptor.
    """
    if not isinstance(value, dict):
        raise ValueError("a descriptor is an object")
    media_type, digest, size = (value.get(key) for key in ("mediaType", "digest", "size"))
    if not isinstance(media_type, str) or not isinstance(digest, str) or not is_digest(digest):
        raise ValueError(f"a descriptor without a kind or a sha256 digest: {digest!r}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"a descriptor with {size!r} bytes")
    notes = value.get("annotations", {})
    if not isinstance(notes, dict):
        raise ValueError("annotations are an object")
    return Descriptor(
        media_type=media_type,
        digest=digest,
        size=size,
        artifact_type=str(value.get("artifactType", "")),
        annotations={str(key): str(note) for key, note in notes.items()},
    )


def text_of(value: Mapping[str, Any]) -> bytes:
    """Return a value as JSON; the same value gives the same bytes."""
    return json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"


def image_manifest(
    config: Descriptor, layers: Sequence[Descriptor], annotations: Mapping[str, str]
) -> bytes:
    """Return the manifest of an image for one platform."""
    return text_of(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.value(),
            "layers": [layer.value() for layer in layers],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
    )


def artifact_manifest(
    artifact_type: str,
    contents: Sequence[Descriptor],
    subject: Descriptor,
    annotations: Mapping[str, str],
) -> bytes:
    """Return the manifest of an artifact that refers to an image, its subject."""
    return text_of(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": artifact_type,
            "config": described(EMPTY, EMPTY_CONTENT).value(),
            "layers": [content.value() for content in contents],
            "subject": subject.value(),
            "annotations": dict(annotations),
        }
    )


def referrers_tag(digest: str) -> str:
    """Return the tag of an image's referrers index, for registries without a referrers API."""
    return digest.replace(":", "-")


def referrers_index(found: Iterable[Descriptor]) -> bytes:
    """Return the referrers index with each artifact once."""
    by_digest = {descriptor.digest: descriptor for descriptor in found}
    return text_of(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [descriptor.value() for _, descriptor in sorted(by_digest.items())],
        }
    )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Hold a manifest that was read."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    artifact_type: str
    subject: Descriptor | None
    annotations: Mapping[str, str]


def read_manifest(data: bytes) -> Manifest:
    """Read the manifest of an image or artifact.

    Raises:
        ValueError: it is not a manifest.
    """
    value = json.loads(data)
    if not isinstance(value, dict) or value.get("schemaVersion") != 2:
        raise ValueError("not a manifest of schema 2")
    layers = value.get("layers")
    if not isinstance(layers, list):
        raise ValueError("a manifest without a list of layers")
    subject = value.get("subject")
    notes = value.get("annotations", {})
    if not isinstance(notes, dict):
        raise ValueError("annotations are an object")
    return Manifest(
        config=read_descriptor(value.get("config")),
        layers=tuple(read_descriptor(layer) for layer in layers),
        artifact_type=str(value.get("artifactType", "")),
        subject=read_descriptor(subject) if subject is not None else None,
        annotations={str(key): str(note) for key, note in notes.items()},
    )


def read_index(data: bytes) -> tuple[Descriptor, ...]:
    """Read the descriptors of the manifests that an index lists.

    Raises:
        ValueError: it is not an index.
    """
    value = json.loads(data)
    if not isinstance(value, dict) or not isinstance(value.get("manifests"), list):
        raise ValueError("not an index")
    return tuple(read_descriptor(entry) for entry in value["manifests"])
