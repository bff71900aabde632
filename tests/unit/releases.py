"""A release without engine and network: a tiny image, keys, a registry that answers in-process."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import requests
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from requests.adapters import BaseAdapter

from stackyard.definitions.project import ROOT
from stackyard.mesh.certificates import private_text
from stackyard.release import connection, registry, statement
from stackyard.release.statement import Subject
from stackyard.report import evidence, vouch
from stackyard.report.evidence import Envelope
from stackyard.scan import oci
from stackyard.system import signing
from tests.unit.layers import tar

PLACE = oci.parse_repository("registry.example/team/yard")
SUBJECT = Subject(stack="toy", version="1.0", base_name="cpu", base_release="cpu")
NAME = statement.revision_tag(SUBJECT, 1)
CREATED = "2026-01-01T00:00:00+00:00"
WHO = "publisher@site"
REPORTS = ROOT / "docs" / "reports"
TEMPLATE = "template-gpt2-zero-2"
SAMPLES = {
    "smoke": REPORTS / "baselines" / "h200" / "fairseq-smoke.json",
    "smoke-isolated": ROOT / "tests" / "unit" / "reports" / "smoke-isolated.json",
    TEMPLATE: REPORTS / "2x-h100" / "accelerate" / f"{TEMPLATE}.json",
}


def make_key(folder: Path, name: str = "publisher") -> Path:
    """Write an ssh key and its public half."""
    key, path = Ed25519PrivateKey.generate(), folder / name
    path.touch(mode=0o600)
    path.write_bytes(private_text(key))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{name}.pub").write_bytes(public + b" a comment\n")
    return path


def accept(folder: Path, *keys: Path, name: str = WHO) -> Path:
    """Write a list of signers that accepts some keys."""
    path = folder / "allowed_signers"
    path.write_text("".join(f"{signing.signer_line(key, name)}\n" for key in keys))
    return path


@dataclass(frozen=True)
class Image:
    """A small image: its configuration, and compressed layers by digest, from the bottom."""

    config: bytes
    layers: dict[str, bytes]

    @property
    def said(self) -> list[dict[str, Any]]:
        """The layers as a statement says them."""
        plain = {digest: gzip.decompress(data) for digest, data in self.layers.items()}
        return [
            {"digest": digest, "diff_id": oci.digest_of(plain[digest]), "size": len(data),
             "unpacked": len(plain[digest])}
            for digest, data in self.layers.items()
        ]  # fmt: skip

    @property
    def manifest(self) -> bytes:
        """Its manifest, made anew of what it holds."""
        layers = [oci.described(oci.LAYER, data) for data in self.layers.values()]
        return oci.image_manifest(oci.described(oci.CONFIG, self.config), layers, {})


def image(*contents: str) -> Image:
    """An image with a layer for each content."""
    plain = [tar((f"file{number}", text)) for number, text in enumerate(contents)]
    packed = [gzip.compress(data, mtime=0) for data in plain]
    rootfs = {"type": "layers", "diff_ids": [oci.digest_of(data) for data in plain]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).encode()
    return Image(config=config, layers={oci.digest_of(data): data for data in packed})


def state(found: Image, **changes: Any) -> bytes:
    """Say what a release is; keywords replace what is said."""
    given: dict[str, Any] = {
        "name": NAME, "repository": str(PLACE),
        "image": oci.described(oci.MANIFEST, found.manifest),
        "image_id": oci.digest_of(found.config), "layers": found.said, "labels": {},
        "proof": None, "artifacts": [], "created": CREATED, "builder": {},
    }  # fmt: skip
    return statement.statement(SUBJECT, **{**given, **changes})


def ran(found: Image, name: str = "smoke", **changes: Any) -> dict[str, Any]:
    """Return a report of two GPUs as it was once, of this image; keywords replace what it says."""
    path = SAMPLES.get(name, REPORTS / "2x-h200" / "fairseq" / f"{name}.json")
    value = json.loads(path.read_text(encoding="utf-8"))
    own = {"id": oci.digest_of(found.config), "recipe": "sha256:" + 64 * "5"}
    names = {"stack": SUBJECT.stack, "base": SUBJECT.base_name}
    return {**value, **names, "image": {**value["image"], **own}, **changes}


def layers_of(found: Image) -> list[str]:
    """Return an image's diff ids."""
    return [str(layer["diff_id"]) for layer in found.said]


def shown_by(found: Image, *keys: Path, report: dict[str, Any] | None = None) -> bytes:
    """Return evidence of an image that these keys have signed."""
    payload = evidence.statement(report or ran(found), layers_of(found))
    envelope = Envelope(payload=payload)
    for key in keys:
        envelope = vouch.sign(envelope, key)
    return envelope.text()


Before = Callable[[requests.PreparedRequest], "requests.Response | None"]


def reply(status: int, data: bytes = b"", **headers: str) -> requests.Response:
    """An answer; `_` in the name of a header is a hyphen."""
    found = requests.Response()
    found.status_code, found.raw = status, io.BytesIO(data)
    found.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    found.headers.setdefault("Content-Length", str(len(data)))
    return found


@dataclass
class Held(BaseAdapter):
    """A registry's store, which answers as the distribution specification says.

    Attributes:
        before: asked first for each request; None where the store is to answer.
        ranges: whether it knows ranges; `api`: whether it knows the API of referrers.
        beside: blobs of the registry's other repositories, by name.
        asked: every request, `METHOD path`.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    before: Before = field(default=lambda request: None)
    ranges: bool = True
    api: bool = False
    beside: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def open(self, monkeypatch: Any, **given: Any) -> registry.Registry:
        """A registry that asks this store."""
        monkeypatch.setattr(connection, "Certificates", lambda folder: self)
        # Whatever address it is: nobody else is asked.
        monkeypatch.setattr(requests.Session, "get_adapter", lambda session, url: self)
        given.setdefault("patience", connection.Patience(pause_seconds=0))
        return registry.Registry(PLACE, **given)

    def put(self, found: Image, *tags: str) -> str:
        """Hold an image; its digest."""
        digest = oci.digest_of(found.manifest)
        self.blobs |= {**found.layers, oci.digest_of(found.config): found.config}
        self.manifests |= dict.fromkeys((digest, *tags), found.manifest)
        return digest

    def attach(self, digest: str, kind: str, **files: tuple[str, bytes]) -> None:
        """Hold an artifact beside an image: files by title, with their kinds."""
        blobs = [oci.described(one, data, title) for title, (one, data) in files.items()]
        self.blobs |= {oci.digest_of(data): data for _, data in files.values()}
        subject = oci.Descriptor(media_type=oci.MANIFEST, digest=digest, size=1)
        manifest = oci.artifact_manifest(kind, blobs, subject, {})
        new = registry.manifest_descriptor(manifest, kind)
        self.manifests[new.digest] = manifest
        tag = oci.referrers_tag(digest)
        there = oci.read_index(self.manifests[tag]) if tag in self.manifests else ()
        self.manifests[tag] = oci.referrers_index([*there, new])

    def sign(self, digest: str, text: bytes, signature: bytes) -> None:
        """Hold a signed statement beside an image."""
        files = {"said": (statement.STATEMENT, text), "signed": (statement.SIGNATURE, signature)}
        self.attach(digest, statement.STATEMENT, **files)

    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:
        """Answer a request."""
        path = re.sub(r"^https?://[^/]+", "", str(request.url))
        self.asked.append(f"{request.method} {path}")
        found = self.before(request)
        if found is None:
            found = self._answer(request, path)
        found.request, found.url = request, str(request.url)
        return found

    def close(self) -> None:
        """Nothing is open."""

    def _answer(self, request: requests.PreparedRequest, path: str) -> requests.Response:
        path, _, query = path.removeprefix(f"/v2/{PLACE.name}").partition("?")
        place, _, name = path[1:].partition("/")
        if place == "manifests" and request.method == "PUT":
            body = bytes(request.body or b"")
            self.manifests |= dict.fromkeys((name, oci.digest_of(body)), body)
            return reply(201)
        if place == "manifests":
            return _found(self.manifests.get(name))
        if place == "tags":
            tags = [tag for tag in self.manifests if not oci.is_digest(tag)]
            return reply(200, json.dumps({"tags": tags}).encode())
        if place == "referrers" and self.api:
            listed = self.manifests.get(oci.referrers_tag(name), oci.referrers_index([]))
            return reply(200, listed, Content_Type=oci.INDEX)
        if path == "/blobs/uploads/":
            asked = dict(parse_qsl(query))
            data = self.beside.get(asked.get("from", ""), {}).get(asked.get("mount", ""))
            if data is not None:
                self.blobs[asked["mount"]] = data
                return reply(201)
            return reply(202, Location="/v2/upload/1")
        if path == "/v2/upload/1" and request.method == "PUT":
            body, digest = request.body.read(-1), query.partition("digest=")[2]  # type: ignore
            if oci.digest_of(body) != digest.replace("%3A", ":"):
                return reply(400)
            self.blobs[oci.digest_of(body)] = body
            return reply(201)
        if place == "blobs":
            return self._blob(request, self.blobs.get(name))
        return reply(404)

    def _blob(self, request: requests.PreparedRequest, data: bytes | None) -> requests.Response:
        if data is None:
            return reply(404)
        if request.method == "HEAD":
            return reply(200, Content_Length=str(len(data)))
        start = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        if start and self.ranges:
            return reply(206, data[int(start[1]) :])
        return reply(200, data)


def _found(data: bytes | None) -> requests.Response:
    return reply(404) if data is None else reply(200, data)
