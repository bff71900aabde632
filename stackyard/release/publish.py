"""Publish an image as a release: upload, describe and sign it, and only then tag it.

Owns the order of these steps. Everything is uploaded by digest; tags come last, after all that they
lead to has been read back. So an interrupted publication leaves no tag behind, and the next one
uploads only what is missing. `release.statement` defines what a release states.

Over 300 lines: one publication, whose steps share what was sent.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from stackyard.release import attestation, statement, verify
from stackyard.release.attestation import Attestation
from stackyard.release.layer_source import damaged
from stackyard.release.recipe_record import PACKAGES
from stackyard.release.registry import Registry, manifest_descriptor
from stackyard.release.spool import Layer, Saved, Spool, note_place, place_beside
from stackyard.release.statement import NOWHERE, Attached, Origin, Subject
from stackyard.report import evidence
from stackyard.report.vouch import Vouched
from stackyard.scan import oci
from stackyard.scan.oci import Descriptor
from stackyard.scan.secrets.gate import Finding
from stackyard.system import cleanup, plain_signing, signing
from stackyard.system.chunks import digest_of_file
from stackyard.system.errors import RegistryError, ReleaseError
from stackyard.system.image import ImageInfo
from stackyard.system.plain_signing import Agent

CLAIM = "application/vnd.stackyard.claim.v1"
UPLOADS = 4
CLAIMS = 20
SETTLE_SECONDS = 0.2
MOST_DOUBLINGS = 5
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PublishPlan:
    """Hold an image to release, and all that its statement needs.

    Attributes:
        proof: the passed smoke of this image; None publishes it as unproven.
        attached: files to attach to the image (locks, reports, SBOM).
        key: path of the key that signs the statement.
        builder: version of each tool that made the image and this release, by name.
        source: the project's revision: `commit`, `dirty`.
        origin: where the image comes from, for the annotations of its manifest.
        needs_gpus: the image is for GPUs.
        evidence: verified evidence of this image.
        audit: what is known of vulnerabilities in it today.
        agent: the ssh agent that may hold the key.
        packages: the Debian packages that it was built from, a file of the spool.
    """

    subject: Subject
    info: ImageInfo
    created: str
    proof: Mapping[str, Any] | None
    attached: Sequence[Attached]
    locks: Mapping[str, str]
    key: Path
    builder: Mapping[str, str]
    source: Mapping[str, str]
    origin: Origin = NOWHERE
    needs_gpus: bool = False
    evidence: Sequence[Vouched] = ()
    audit: Mapping[str, Any] | None = None
    agent: Agent = plain_signing.no_agent
    packages: Layer | None = None

    @property
    def seen_on(self) -> list[str]:
        """Return the GPUs on which the image has trained, by its evidence."""
        found = (one.evidence for one in self.evidence)
        return sorted({one.hardware for one in found if one.on_gpus})


@dataclass(frozen=True, kw_only=True)
class Published:
    """Hold the result of a publication.

    Attributes:
        sent: bytes uploaded to the registry.
        held: bytes of layers that the registry had already.
        again: whether this image had been released before under that name.
        attested: short names of the attestations that this publication signed.
        unsigned: those that the key could not sign; the release's signature covers them.
    """

    name: str
    digest: str
    latest: str
    layers: tuple[Layer, ...]
    artifacts: tuple[str, ...]
    sent: int
    held: int
    again: bool
    attested: tuple[str, ...] = ()
    unsigned: tuple[str, ...] = ()


def require_clean(findings: Sequence[Finding], name: str) -> None:
    """Check that no finding is a secret.

    Raises:
        ReleaseError: lists the secrets, 40 of them at most.
    """
    secret = sorted({finding for finding in findings if finding.secret})
    if not secret:
        return
    lines = [f"{finding.rule}: {finding}" for finding in secret[:40]]
    more = [f"and {len(secret) - 40} more"] if len(secret) > 40 else []
    raise ReleaseError(
        f"{name} holds what must not be published: {len(secret)} places",
        why="\n".join([*lines, *more]),
        hint="take it out where it comes in (a later layer does not take it away) and build again;"
        " what is no secret is named in images/gate.yml, with the reason",
    )


def bring(registry: Registry, blob: Descriptor, data: bytes) -> int:
    """Upload a small blob; return the number of bytes sent."""
    return len(data) if registry.upload(blob, lambda: BytesIO(data), lambda count: None) else 0


def attach(
    registry: Registry,
    files: Sequence[Attached],
    image: Descriptor,
    annotations: Mapping[str, str] | None = None,
) -> tuple[list[Descriptor], int]:
    """Upload an artifact and attach it to an image; return its blobs and the bytes sent."""
    blobs = [oci.described(file.media_type, file.data, file.title) for file in files]
    sent = sum(bring(registry, blob, file.data) for blob, file in zip(blobs, files, strict=True))
    return blobs, sent + _refer(registry, blobs, image, annotations or {})


def _refer(
    registry: Registry, blobs: Sequence[Descriptor], image: Descriptor, notes: Mapping[str, str]
) -> int:
    """Attach an artifact of uploaded blobs to an image; return the bytes sent."""
    kind = blobs[0].media_type
    sent = bring(registry, oci.described(oci.EMPTY, oci.EMPTY_CONTENT), oci.EMPTY_CONTENT)
    data = oci.artifact_manifest(kind, blobs, image, notes)
    # The list under the fallback tag shows an artifact's annotations, as the API of referrers does.
    entry = replace(manifest_descriptor(data, kind), annotations=notes)
    registry.attach(entry, data, image.digest)
    return sent


def _packages_blob(layer: Layer) -> Descriptor:
    return Descriptor(media_type=PACKAGES, digest=layer.digest, size=layer.size,
                      annotations={oci.TITLE: "packages.tar.gz"})  # fmt: skip


def evidence_file(found: Vouched) -> Attached:
    """Return a piece of evidence as a file to attach to an image."""
    title = evidence.file_name(found.data, found.evidence.kind)
    return Attached(title=title, media_type=evidence.ENVELOPE, data=found.data)


class Publisher:
    """Publish one image.

    Args:
        say: called with a text for every step and for the progress of uploads.
    """

    def __init__(self, registry: Registry, spool: Spool, say: Say) -> None:
        self._registry, self._spool, self._say = registry, spool, say
        self._lock = threading.Lock()
        self._sent = self._held = 0

    def publish(self, saved: Saved, wanted: PublishPlan) -> Published:
        """Upload an image and all that belongs to it, then tag it.

        Raises:
            RegistryError: the registry does not answer or refuses; no tag was put.
            ReleaseError: the registry holds other bytes than were uploaded, or signing failed.
        """
        config = oci.described(oci.CONFIG, saved.config)
        layers = [Descriptor(media_type=oci.LAYER, digest=layer.digest, size=layer.size)
                  for layer in saved.layers]  # fmt: skip
        notes = statement.image_annotations(
            wanted.subject, wanted.info, wanted.created, wanted.origin
        )
        manifest = oci.image_manifest(config, layers, notes)
        image = manifest_descriptor(manifest)
        before = self._named(wanted.subject, image)
        own = [_packages_blob(wanted.packages)] if wanted.packages else []
        self._upload([*saved.layers, *([wanted.packages] if wanted.packages else [])])
        self._bring(config, saved.config)
        self._registry.put_manifest(image.digest, manifest)
        self._say("attaching what belongs to it")
        attached = [self._attach(file, image) for file in self._files(wanted)]
        self._sent += _refer(self._registry, own, image, {}) if own else 0
        self._require_there(image, manifest, [config, *layers, *own])
        number = before or self._claim(wanted.subject, image)
        name = statement.revision_tag(wanted.subject, number)
        made: list[Attestation] = []
        if not self._sealed(wanted, image, name):
            self._say(f"signing {name}")
            created = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
            made = self._attest(saved, wanted, image, created)
            attached += [self._attach([one.file], image, one.annotations) for one in made]
            attached += [own]
            self._seal(saved, wanted, image, name, attached, created)
        self._name(wanted.subject, number, image, manifest)
        return Published(
            name=name, digest=image.digest, latest=wanted.subject.latest, layers=saved.layers,
            artifacts=tuple(e.artifact_type for e in self._registry.referrers(image.digest)),
            sent=self._sent, held=self._held, again=bool(before),
            attested=tuple(one.name for one in made if one.signed),
            unsigned=tuple(one.name for one in made if not one.signed),
        )  # fmt: skip

    def _named(self, subject: Subject, image: Descriptor) -> int:
        """Return the revision whose tag names this image already; 0 if there is none."""
        for number in sorted(statement.revisions(subject, self._registry.tags()), reverse=True):
            data = self._registry.manifest(statement.revision_tag(subject, number))
            if data is not None and oci.digest_of(data) == image.digest:
                return number
        return 0

    def _upload(self, layers: Sequence[Layer]) -> None:
        """Upload the missing blobs, several at the same time, largest first."""
        unique = {layer.digest: layer for layer in layers}
        total = sum(layer.size for layer in unique.values())
        started = time.monotonic()
        shown = [0.0]

        def told(count: int) -> None:
            with self._lock:
                self._sent += count
                now = time.monotonic()
                if now - shown[0] < 1.0:
                    return
                shown[0], sent = now, self._sent
            rate = sent / max(now - started, 0.001)
            left = max(0.0, (total - self._held - sent) / rate) if rate else 0.0
            self._say(f"uploading: {sent / 1e6:.0f} of {(total - self._held) / 1e6:.0f} MB,"
                      f" {rate / 1e6:.1f} MB/s, {left:.0f} s left")  # fmt: skip

        def one(layer: Layer) -> None:
            path = self._spool.path(layer)
            blob = Descriptor(media_type=oci.LAYER, digest=layer.digest, size=layer.size)
            repository = self._registry.repository
            source = place_beside(self._spool.folder, layer.digest, repository)
            try:
                brought = self._registry.upload(blob, lambda: path.open("rb"), told, source)
            except RegistryError as error:
                # A registry refuses content of another digest, and would refuse it every time.
                if error.status == 400 and digest_of_file(path) != layer.digest:
                    raise damaged(path, layer.digest) from error
                raise
            if not brought:
                with self._lock:
                    self._held += layer.size
            note_place(self._spool.folder, layer.digest, repository)

        with ThreadPoolExecutor(UPLOADS) as pool:
            try:
                for _ in pool.map(one, sorted(unique.values(), key=lambda layer: -layer.size)):
                    pass
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                # After a failure what runs is finished: the next publication finds it there.
                if not isinstance(error, Exception):
                    self._registry.give_up()
                self._registry.close()
                raise

    def _bring(self, blob: Descriptor, data: bytes) -> None:
        self._sent += bring(self._registry, blob, data)

    def _files(self, wanted: PublishPlan) -> list[list[Attached]]:
        """Return the files to attach to the image, grouped by artifact."""
        files = wanted.attached
        kinds = dict.fromkeys(file.media_type for file in files)
        grouped = [[file for file in files if file.media_type == kind] for kind in kinds]
        # One artifact each, as for evidence that is attached later.
        return [*grouped, *([evidence_file(one)] for one in wanted.evidence)]

    def _attest(
        self, saved: Saved, wanted: PublishPlan, image: Descriptor, created: str
    ) -> list[Attestation]:
        """Return the image's attestations: provenance, its SBOM, and the proof's test result."""
        predicates: dict[str, Mapping[str, Any]] = {
            attestation.SLSA: statement.provenance(
                wanted.subject, labels=wanted.info.labels, locks=wanted.locks,
                source=wanted.source, builder=wanted.builder, place=wanted.origin.source,
            )
        }  # fmt: skip
        for file in wanted.attached:
            if file.media_type == statement.SBOM:
                predicates[attestation.CYCLONEDX] = json.loads(file.data)
        if wanted.proof is not None:
            layers = [layer.diff_id for layer in saved.layers]
            predicates[evidence.TEST_RESULT] = evidence.predicate(wanted.proof, layers)
        line, name = signing.public_half(wanted.key), str(self._registry.repository)
        found = []
        for kind, predicate in predicates.items():
            payload = attestation.statement(name, image.digest, kind, predicate)
            seal = plain_signing.sign(attestation.encoded(payload), wanted.key, wanted.agent)
            found.append(attestation.attest(payload, line, seal, created))
        return found

    def _attach(
        self,
        files: Sequence[Attached],
        image: Descriptor,
        annotations: Mapping[str, str] | None = None,
    ) -> list[Descriptor]:
        """Upload an artifact and attach it to the image; return its blobs."""
        blobs, sent = attach(self._registry, files, image, annotations)
        self._sent += sent
        return blobs

    def _require_there(
        self, image: Descriptor, manifest: bytes, blobs: Sequence[Descriptor]
    ) -> None:
        """Check that the registry holds the whole image."""
        if self._registry.manifest(image.digest) != manifest:
            raise ReleaseError(f"{image.digest} is not there after it was brought",
                               hint="again; if that stays so, the registry is broken")  # fmt: skip
        for blob in blobs:
            size = self._registry.blob_size(blob.digest)
            if size != blob.size:
                raise ReleaseError(
                    f"{blob.digest} is not whole in the registry",
                    why=f"{blob.size} bytes were brought, {size} are there",
                    hint="the same command again brings it anew",
                )

    def _claim(self, subject: Subject, image: Descriptor) -> int:
        """Claim a free revision number by a tag that names no image, and return the number.

        Two publishers that want the same number see each other's claims (each puts its own before
        it looks), and both try the next one. Each waits a random time before it does, so that they
        do not meet at every number.
        """
        data = oci.artifact_manifest(
            CLAIM, [oci.described(oci.EMPTY, oci.EMPTY_CONTENT)], image, {}
        )
        for clashes in range(CLAIMS):
            found = statement.revisions(subject, self._registry.tags())
            number = statement.next_revision(found, image.digest)
            self._registry.put_manifest(statement.claim_tag(subject, number, image.digest), data)
            time.sleep(SETTLE_SECONDS)
            claims = statement.revisions(subject, self._registry.tags()).get(number, set())
            taken = self._registry.manifest(statement.revision_tag(subject, number)) is not None
            if len(claims) == 1 and not taken:
                return number
            time.sleep(random.uniform(0, SETTLE_SECONDS * 2 ** min(clashes, MOST_DOUBLINGS)))
        raise RegistryError(
            f"{self._registry.repository}: no revision of {subject.prefix} is free",
            why="other publishers take them at the same time",
            hint="again, when they are done",
        )

    def _seal(
        self,
        saved: Saved,
        wanted: PublishPlan,
        image: Descriptor,
        name: str,
        attached: Sequence[Sequence[Descriptor]],
        created: str,
    ) -> None:
        """Write and sign the release's statement, upload both, and read them back."""
        text = statement.statement(
            wanted.subject, name=name, repository=str(self._registry.repository), image=image,
            image_id=oci.digest_of(saved.config), layers=[asdict(layer) for layer in saved.layers],
            labels=wanted.info.labels, proof=wanted.proof,
            artifacts=[blob for blobs in attached for blob in blobs],
            created=created, builder=wanted.builder, needs_gpus=wanted.needs_gpus,
            seen_on=wanted.seen_on, audit=wanted.audit,
        )  # fmt: skip
        signature = signing.sign(text, wanted.key)
        files = [
            Attached(title="release.json", media_type=statement.STATEMENT, data=text),
            Attached(title="release.json.sig", media_type=statement.SIGNATURE, data=signature),
        ]
        for blob in self._attach(files, image):
            self._registry.blob(blob)

    def _sealed(self, wanted: PublishPlan, image: Descriptor, name: str) -> bool:
        """Return whether an earlier try left the same statement, signed with this key."""
        line = signing.signer_line(wanted.key, "us")
        with cleanup.folder("signers") as folder:
            signers = folder / "signers"
            signers.write_text(f"{line}\n", encoding="utf-8")
            try:
                verified = verify.verify_release(self._registry, image.digest, signers)
            except ReleaseError:
                return False
        found, attested = verified.release, bool(verified.attested)
        named = {value["digest"] for value in found.value["artifacts"]}
        if wanted.packages is not None and wanted.packages.digest not in named:
            return False
        said = found.name, found.proven, found.needs_gpus, found.value.get("seen_on", [])
        return attested and said == (
            name,
            wanted.proof is not None,
            wanted.needs_gpus,
            wanted.seen_on,
        )

    def _name(self, subject: Subject, number: int, image: Descriptor, manifest: bytes) -> None:
        """Put the release's own tag, and `latest` unless a later revision exists."""
        name = statement.revision_tag(subject, number)
        there = self._registry.manifest(name)
        if there is not None and there != manifest:
            raise ReleaseError(
                f"{self._registry.repository}:{name} names another image",
                why=f"{oci.digest_of(there)} is there, {image.digest} was to be",
                hint="releases are never changed; the same command again takes the next number",
            )
        if there is None:
            self._registry.put_manifest(name, manifest)
        found = statement.revisions(subject, self._registry.tags())
        if max(found, default=0) <= number:
            self._registry.put_manifest(subject.latest, manifest)
        if self._registry.manifest(name) != manifest:
            raise ReleaseError(f"{self._registry.repository}:{name} was changed meanwhile",
                               hint="the same command again takes the next number")  # fmt: skip
