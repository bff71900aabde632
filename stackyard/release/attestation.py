"""Write and check a release's attestations: in-toto statements in DSSE, in Sigstore bundles.

Owns the formats and what a bundle must hold to count. `system.plain_signing` signs; the release's
statement names each attestation by digest, and `release.verify` fetches it. Sources: in-toto's
statement v1, DSSE v1, Sigstore's bundle v0.3, and cosign's BUNDLE_SPEC.md for the registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stackyard.release.statement import PROVENANCE, Attached
from stackyard.report import evidence
from stackyard.report.evidence import Envelope, Signature
from stackyard.scan.oci import Descriptor
from stackyard.system import plain_signing, signing
from stackyard.system.errors import ReleaseError

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
SLSA = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"
# The only keys under which an attestation may lie, each with its short name.
NAMES = {SLSA: "provenance", evidence.TEST_RESULT: "test-result", CYCLONEDX: "sbom"}
CONTENT_NOTE = "dev.sigstore.bundle.content"
PREDICATE_NOTE = "dev.sigstore.bundle.predicateType"
KINDS = (BUNDLE, PROVENANCE)


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """Hold one attestation of an image, ready to be attached.

    Attributes:
        name: short, one of the values of `NAMES`.
        signed: it is a bundle with a signature of its own, not a bare statement.
        annotations: of the artifact's manifest.
    """

    name: str
    file: Attached
    signed: bool
    annotations: Mapping[str, str] = field(default_factory=dict)


def statement(name: str, digest: str, kind: str, predicate: Mapping[str, Any]) -> bytes:
    """Return an in-toto statement about an image.

    Args:
        name: the repository.
        digest: the digest of the image's manifest.
        kind: the predicate's type, one of `NAMES`.
    """
    value = {
        "_type": evidence.STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": kind,
        "predicate": dict(predicate),
    }
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def attest(payload: bytes, line: str, signature: bytes | None, created: str) -> Attestation:
    """Return an attestation: a Sigstore bundle, or the bare statement without a signature.

    Args:
        payload: an in-toto statement.
        line: the public key of the signer, `KIND BASE64`.
        signature: the plain signature of the payload in DSSE's encoding.
        created: time of the signature in ISO 8601.
    """
    kind = json.loads(payload)["predicateType"]
    notes = {PREDICATE_NOTE: kind, "org.opencontainers.image.created": created}
    if signature is None:
        title = f"{NAMES[kind]}.intoto.json"
        file = Attached(title=title, media_type=PROVENANCE, data=payload)
        return Attestation(name=NAMES[kind], file=file, signed=False, annotations=notes)
    # Verifiers of DSSE in Go compare a key id with the key's ssh fingerprint.
    keyid = signing.fingerprint_of(line)
    envelope = Envelope(payload=payload, signatures=(Signature(keyid=keyid, data=signature),))
    value = {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": keyid}},
        "dsseEnvelope": json.loads(envelope.text()),
    }
    file = Attached(
        title=f"{NAMES[kind]}.sigstore.json", media_type=BUNDLE, data=json.dumps(value).encode()
    )
    notes = {CONTENT_NOTE: "dsse-envelope", **notes}
    return Attestation(name=NAMES[kind], file=file, signed=True, annotations=notes)


def encoded(payload: bytes) -> bytes:
    """Return the bytes that a signature of an in-toto statement is made over."""
    return Envelope(payload=payload).signed


def require_attests(data: bytes, blob: Descriptor, digest: str, line: str) -> str:
    """Check an attestation that a verified release names; return its short name.

    Args:
        digest: the digest of the image's manifest.
        line: the public key that signed the release.

    Raises:
        ReleaseError: it is of another image, of another kind, or signed by another key.
    """
    title = f"the attestation {blob.digest[7:19]}"
    payload = _payload(data, title, line) if blob.media_type == BUNDLE else data
    try:
        value = json.loads(payload)
        kind = value["predicateType"]
        subjects = [subject["digest"]["sha256"] for subject in value["subject"]]
        if value["_type"] != evidence.STATEMENT or kind not in NAMES:
            raise ValueError(f"another kind of statement: {kind!r}")
        if not isinstance(value["predicate"], dict):
            raise ValueError("it has no predicate")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ReleaseError(f"{title} cannot be read", why=repr(error)) from error
    if subjects != [digest.removeprefix("sha256:")]:
        raise ReleaseError(f"{title} is of another image", why=f"it names {subjects}")
    return NAMES[kind]


def _payload(data: bytes, title: str, line: str) -> bytes:
    """Return a bundle's statement, after checking that the release's key signed it."""
    try:
        value = json.loads(data)
        if value["mediaType"] != BUNDLE:
            raise ValueError(f"a bundle of another form: {value['mediaType']!r}")
        envelope = evidence.read_envelope(json.dumps(value["dsseEnvelope"]).encode(), title)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ReleaseError(f"{title} cannot be read", why=repr(error)) from error
    except ReleaseError as error:
        raise ReleaseError(f"{title} cannot be read", why=error.why) from error
    if not any(
        plain_signing.is_signed(envelope.signed, one.data, line) for one in envelope.signatures
    ):
        raise ReleaseError(
            f"{title} is not signed by the key of its release",
            why=f"the release is signed with {signing.fingerprint_of(line)}",
        )
    return envelope.payload
