"""Verify a release in a registry by its signature and digests.

Owns the order: tag, image manifest, signed statement, and that they match each other. Unsigned data
of a registry is used to find things, never to trust them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from stackyard.release import attestation
from stackyard.release import statement as release
from stackyard.release.recipe_record import PACKAGES
from stackyard.release.registry import Registry
from stackyard.release.statement import Release
from stackyard.report import evidence, vouch
from stackyard.report.vouch import Vouched
from stackyard.scan import oci
from stackyard.scan.oci import Descriptor, Manifest, digest_of, is_digest, read_manifest
from stackyard.system import plain_signing, signing
from stackyard.system.errors import RegistryError, ReleaseError, StackyardError, UsageError

LONGEST_STATEMENT = 4 * 2**20
# Everybody who may push may attach artifacts without end; each costs requests and processes.
MOST_PIECES = 32
MOST_ARTIFACTS = 256


@dataclass(frozen=True, kw_only=True)
class Verified:
    """Hold a verified release.

    Attributes:
        signer: the name in the allowed-signers file.
        statement, signature: as signed, so that hosts can verify them again.
        attested: short names of its attestations, each checked; none of an old release.
    """

    release: Release
    signer: str
    statement: bytes
    signature: bytes
    manifest: bytes
    config: Descriptor
    attested: tuple[str, ...] = ()


def verify_release(
    registry: Registry, reference: str, signers: Path, instead: Mapping[str, str] | None = None
) -> Verified:
    """Find a release by tag or digest and verify it.

    Args:
        instead: what to type for other tags, where the registry has those and not this one.

    Raises:
        UsageError: the registry has nothing of that name.
        ReleaseError: no accepted signer signed it, or it is not what was signed.
        RegistryError: the registry does not answer.
    """
    data = registry.manifest(reference)
    if data is None:
        tags = registry.tags()
        others = [command for tag, command in (instead or {}).items() if tag in tags]
        raise UsageError(
            f"{registry.repository} has no {reference}",
            why=f"there: {_some(tags)}",
            hint=" or ".join(others)
            or f"invoke releases --from {registry.repository} lists what there is",
        )
    try:
        manifest = read_manifest(data)
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{registry.repository}:{reference} is no image of one platform",
                           why=str(error)) from error  # fmt: skip
    digest = digest_of(data)
    problems: list[str] = []
    found: list[Verified] = []
    statements = _statements(registry, digest)
    for statement, seal in islice(statements, MOST_PIECES):
        text = registry.blob(statement, LONGEST_STATEMENT)
        signature = registry.blob(seal, 65536)
        try:
            who = signing.verify(text, signature, signers)
            read = release.read_statement(text)
            _require_same(read, manifest, digest, reference)
            attested = _attested(registry, read, plain_signing.signer_of(signature))
        except UsageError:
            raise
        except StackyardError as error:
            if isinstance(error, RegistryError) and error.passing:
                raise
            problems.append(f"{error.what}: {error.why}" if error.why else error.what)
            continue
        found.append(Verified(release=read, signer=who, statement=text, signature=signature,
                              manifest=data, config=manifest.config,
                              attested=attested))  # fmt: skip
    if not found and next(statements, None) is not None:
        problems.append(f"further statements were not read: at most {MOST_PIECES} of an image are")
    if not found:
        raise ReleaseError(
            f"{registry.repository}:{reference} cannot be believed; nothing was used",
            why="\n".join(problems) or "no signed statement lies beside it",
            hint=f"{signers} names whose releases are accepted; ask its publisher",
        )
    return max(found, key=_weight)


def _attested(registry: Registry, read: Release, line: str) -> tuple[str, ...]:
    """Check the attestations that a release names; return their short names.

    Args:
        line: the public key that signed the release.

    Raises:
        ReleaseError: one of them does not count.
        RegistryError: the registry does not give one.
    """
    try:
        blobs = [oci.read_descriptor(value) for value in read.value.get("artifacts", [])]
    except (TypeError, ValueError) as error:
        raise ReleaseError("a release's artifacts cannot be read", why=repr(error)) from error
    return tuple(
        attestation.require_attests(registry.blob(blob), blob, read.digest, line)
        for blob in blobs
        if blob.media_type in attestation.KINDS
    )


def _weight(found: Verified) -> tuple[bool, bool, bool, str]:
    """Return the sort key of a statement among those of one image: its claims, then its age."""
    said = found.release
    carries = any(one["mediaType"] == PACKAGES for one in said.value.get("artifacts", []))
    return said.proven, said.seen_on_gpus, carries, said.created


def _some(tags: list[str]) -> str:
    shown = sorted(tag for tag in tags if not tag.startswith("sha256-"))
    return ", ".join(shown[:12]) + (" ..." if len(shown) > 12 else "") if shown else "no tags"


def _statements(registry: Registry, digest: str) -> Iterator[tuple[Descriptor, Descriptor]]:
    """Yield the descriptors of each statement beside an image and of its signature."""
    for artifact in _artifacts(registry, digest, release.STATEMENT):
        blobs = {layer.media_type: layer for layer in artifact.layers}
        if {release.STATEMENT, release.SIGNATURE} <= set(blobs):
            yield blobs[release.STATEMENT], blobs[release.SIGNATURE]


def _artifacts(registry: Registry, digest: str, kind: str) -> Iterator[Manifest]:
    """Yield the manifests of one kind of artifact beside an image; others are passed over."""
    listed = [one for one in registry.referrers(digest) if one.artifact_type in ("", kind)]
    for entry in listed[:MOST_ARTIFACTS]:
        data = registry.manifest(entry.digest)
        if data is None:
            continue
        try:
            yield read_manifest(data)
        except (ValueError, RecursionError):
            continue


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Hold the evidence attached to a release.

    Attributes:
        believed: pieces by an accepted signer, of this exact image, that passed.
        refused: the reason for each other piece, and for pieces that were not read.
    """

    believed: tuple[Vouched, ...]
    refused: tuple[str, ...]


def evidence_beside(registry: Registry, found: Verified, signers: Path) -> Beside:
    """Find the evidence attached to a verified release, and verify it.

    Raises:
        RegistryError: the registry does not answer.
    """
    entry = found.release
    believed: dict[str, Vouched] = {}
    refused = []
    pieces = _pieces(registry, entry.digest)
    for blob in islice(pieces, MOST_PIECES):
        name = f"evidence {blob.digest[7:19]}"
        try:
            data = registry.blob(blob, evidence.LONGEST)
            one = vouch.verified(data, name, signers)
            require_counts(one, entry)
        except StackyardError as error:
            refused.append(f"{error.what}: {error.why}" if error.why else error.what)
            continue
        believed[blob.digest] = one
    if next(pieces, None) is not None:
        refused.append(
            f"further evidence was not read: at most {MOST_PIECES} pieces of an image are"
        )
    order = sorted(
        believed.values(), key=lambda one: (not one.evidence.on_gpus, one.evidence.started)
    )
    return Beside(believed=tuple(order), refused=tuple(refused))


def _pieces(registry: Registry, digest: str) -> Iterator[Descriptor]:
    """Yield each piece of evidence attached to an image once, in the registry's order."""
    known: set[str] = set()
    for artifact in _artifacts(registry, digest, evidence.ENVELOPE):
        if artifact.subject is None or artifact.subject.digest != digest:
            continue
        for blob in artifact.layers:
            if blob.media_type == evidence.ENVELOPE and blob.digest not in known:
                known.add(blob.digest)
                yield blob


def require_counts(one: Vouched, entry: Release) -> None:
    """Check that a piece of evidence is of a release's image, and passed.

    Raises:
        ReleaseError: it is of another image, or did not pass.
    """
    diff_ids = [str(layer["diff_id"]) for layer in entry.layers]
    evidence.require_image(one.evidence, one.name, entry.image_id, diff_ids)
    evidence.require_passed(one.evidence, one.name)


def _require_same(read: Release, manifest: Manifest, digest: str, reference: str) -> None:
    """Check that a statement is of this image, under this name."""
    if read.digest != digest:
        raise ReleaseError("it speaks of another image", why=f"{read.digest}, not {digest}")
    latest = release.latest_tag(read.stack, read.base, own=read.own)
    if not is_digest(reference) and reference not in (read.name, latest):
        raise ReleaseError("it is signed under another name", why=f"{read.name}, not {reference}")
    if read.image_id != manifest.config.digest:
        raise ReleaseError("it speaks of another configuration")
    said = [(layer["digest"], layer["size"]) for layer in read.layers]
    if said != [(layer.digest, layer.size) for layer in manifest.layers]:
        raise ReleaseError("it speaks of other layers")
