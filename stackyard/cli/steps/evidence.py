"""Run `invoke evidence`, from its arguments to the output.

Owns the meaning of its arguments: verify a file, sign it, attach it to an existing release.
`report.vouch` judges signatures; `release.verify` judges evidence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.releases import EvidenceRequest
from stackyard.cli.steps.published import SIGNERS, find_signers, open_registry, signer_name
from stackyard.definitions.project import load_project
from stackyard.release import publish, verify
from stackyard.release.registry import Registry, manifest_descriptor
from stackyard.report import evidence, vouch
from stackyard.report.vouch import Vouched
from stackyard.scan import oci
from stackyard.system import signing
from stackyard.system.errors import RegistryError, ReleaseError


def show(terminal: Terminal, given: EvidenceRequest) -> Answer:
    """Run `invoke evidence FILE [--sign [--key F]] [--add --to REGISTRY/NAME [--release NAME]]`."""
    signed = sign(given, terminal) if given.sign else ""
    signers = find_signers(given.signers)
    if given.add:
        project = load_project()
        with open_registry(project, given.to, "--to") as registry:
            value = add(given, registry, signers, terminal)
    elif signed:
        value = {}
    else:
        value = {**look(given, signers, terminal).value()}
    return {"file": given.file, **({"signer": signed} if signed else {}), **value}, 0


def sign(given: EvidenceRequest, terminal: Terminal) -> str:
    """Sign a file in place; return the key's line for allowed signers.

    Raises:
        ReleaseError: the file is no evidence, or the key cannot be used.
        UsageError: there is no such file or key.
    """
    path = Path(given.file)
    envelope = evidence.read_envelope(vouch.read_file(path), given.file)
    found = evidence.read_evidence(envelope, given.file)
    key = signing.find_key(given.key, Path.home())
    line = signing.signer_line(key, signer_name(), (signing.EVIDENCE,))
    vouch.save(path, vouch.sign(envelope, key))
    terminal.text(
        f"{given.file}: you vouch that the {found.what} of {found.started} {found.outcome} on"
        f" {found.hardware}, with image {found.image_id[7:19]}"
    )
    terminal.text(f"everybody who accepts it needs this line in {SIGNERS}:\n{line}")
    return line


def look(given: EvidenceRequest, signers: Path, terminal: Terminal) -> Vouched:
    """Verify a file and print what it shows.

    Raises:
        ReleaseError: the evidence cannot be verified, or did not pass.
        UsageError: there is no such file, or no list of signers.
    """
    found = vouch.verified(vouch.read_file(Path(given.file)), given.file, signers)
    evidence.require_passed(found.evidence, given.file)
    terminal.text(f"{given.file}: {vouch.words(found)}; image {found.evidence.image_id[7:19]}")
    return found


def add(
    given: EvidenceRequest, registry: Registry, signers: Path, terminal: Terminal
) -> dict[str, Any]:
    """Attach a file to an existing release, if it is evidence of the release's image.

    Raises:
        ReleaseError: the release or the evidence cannot be verified, or their images differ.
        RegistryError: the registry does not answer, or did not keep it.
        UsageError: there is no such file, release or list of signers.
    """
    found = vouch.verified(vouch.read_file(Path(given.file)), given.file, signers)
    evidence.require_passed(found.evidence, given.file)
    reference = given.release or found.evidence.tag
    standing = verify.verify_release(registry, reference, signers)
    try:
        verify.require_counts(found, standing.release)
    except ReleaseError as error:
        raise ReleaseError(
            error.what,
            why=f"{error.why} ({standing.release.name})",
            hint=f"name the release that it is of: --release NAME; or {error.hint}",
        ) from error
    file = publish.evidence_file(found)
    image = manifest_descriptor(standing.manifest)
    terminal.say(found.evidence.stack, f"attaching it to {standing.release.name}")
    _, sent = publish.attach(registry, [file], image)
    beside = verify.evidence_beside(registry, standing, signers)
    if found.data not in {one.data for one in beside.believed}:
        raise RegistryError(
            f"{registry.repository} does not list the evidence after it was brought",
            why="; ".join(beside.refused) or "somebody attached something else at the same time",
            hint="the same command again",
        )
    place = f"{registry.repository}:{standing.release.name}"
    known = " (it was there already)" if not sent else ""
    terminal.text(f"{place} has it{known}: {vouch.words(found)}")
    return {
        "release": standing.release.name, "digest": standing.release.digest,
        "artifact": oci.digest_of(found.data), "again": not sent, **found.value(),
    }  # fmt: skip
