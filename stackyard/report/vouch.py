"""Write evidence beside a report, sign it and verify it.

Owns who vouches: whose key signs, and whose signature counts. `report.evidence` owns what evidence
says and what it counts for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackyard.report import evidence, records
from stackyard.report.evidence import Envelope, Evidence, Signature
from stackyard.report.shapes import EvidenceValue
from stackyard.system import cleanup, signing
from stackyard.system.errors import ReleaseError, StackyardError, UsageError
from stackyard.system.files import replace_file


@dataclass(frozen=True, kw_only=True)
class Vouched:
    """Hold a piece of evidence that somebody vouches for.

    Attributes:
        name: name of its file, or its name beside an image.
        signer: the names in the allowed-signers file of all who signed.
        data: the envelope, as it travels.
    """

    name: str
    evidence: Evidence
    signer: str
    data: bytes

    def value(self) -> EvidenceValue:
        """Return the evidence as data for JSON, without the report."""
        found = self.evidence
        return {
            "kind": found.kind, "outcome": found.outcome, "hardware": found.hardware,
            "gpus": list(found.gpus), "driver": found.driver, "placement": found.placement,
            "ratios": dict(found.ratios), "on_gpus": found.on_gpus, "started": found.started,
            "image_id": found.image_id, "signer": self.signer,
        }  # fmt: skip


def sign(envelope: Envelope, key: Path, *, unattended: bool = False) -> Envelope:
    """Add a key's signature to an envelope.

    Raises:
        ReleaseError: the key cannot be used, or too many have signed.
    """
    seal = signing.sign(envelope.signed, key, signing.EVIDENCE, unattended=unattended)
    signed = envelope.with_signature(Signature(keyid=signing.fingerprint(key), data=seal))
    if len(signed.signatures) > evidence.MOST_SIGNATURES:
        raise ReleaseError(
            "it has as many signatures as evidence may have",
            why=f"at most {evidence.MOST_SIGNATURES} are verified",
        )
    return signed


def verified(data: bytes, name: str, signers: Path) -> Vouched:
    """Verify an envelope; return its evidence and accepted signers.

    Signatures of others are ignored.

    Raises:
        ReleaseError: it is no evidence, is unsigned, or is signed by nobody who may.
        UsageError: there is no list of signers.
    """
    envelope = evidence.read_envelope(data, name)
    evidence.require_signed(envelope, name)
    names, refused = [], None
    for one in envelope.signatures:
        try:
            names.append(signing.verify(envelope.signed, one.data, signers, signing.EVIDENCE, name))
        except ReleaseError as error:
            refused = error
    if not names and refused is not None:
        raise refused
    found = evidence.read_evidence(envelope, name)
    return Vouched(name=name, evidence=found, signer=", ".join(dict.fromkeys(names)), data=data)


def read_file(path: Path) -> bytes:
    """Read a file of evidence.

    Raises:
        UsageError: there is none.
        ReleaseError: it is too long to be any.
    """
    try:
        with path.open("rb") as file:
            data = file.read(evidence.LONGEST + 1)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read",
            why=error.strerror or str(error),
            hint="invoke smoke, bench and certify write evidence beside their reports:"
            f" reports/STACK/BASE/*.{evidence.SUFFIX}",
        ) from error
    if len(data) > evidence.LONGEST:
        raise ReleaseError(f"{path} {evidence.WRITTEN}", why="it is too long")
    return data


def load(paths: Sequence[str], signers: Path, own: str) -> list[Vouched]:
    """Read and verify files of evidence.

    Args:
        signers: file of those whose signatures count; it may be missing.
        own: the line of the publisher's own key, which counts, too.

    Raises:
        UsageError: a file is missing.
        ReleaseError: a file cannot be trusted.
    """
    if not paths:
        return []
    known = signers.read_text(encoding="utf-8") if signers.is_file() else ""
    with cleanup.folder("signers") as folder:
        both = folder / "allowed_signers"
        # First: of several lines of one key ssh-keygen takes the first, whatever it is for.
        both.write_text(f"{own}\n{known}\n", encoding="utf-8")
        try:
            return [verified(read_file(Path(path)), path, both) for path in paths]
        except ReleaseError as error:
            hint = error.hint.replace(str(both), str(signers))
            raise ReleaseError(error.what, why=error.why, hint=hint) from error


def words(found: Vouched) -> str:
    """Describe a piece of evidence: its outcome, hardware, ratios and signers."""
    one = found.evidence
    ratios = ", ".join(f"{name} {ratio:.3f} of the bare host" for name, ratio in one.ratios.items())
    told = f" ({ratios})" if ratios else ""
    placement = f", {one.placement}" if one.placement else ""
    return f"{one.what} {one.outcome} on {one.hardware}{placement}{told}, signed by {found.signer}"


def path_of(value: Mapping[str, Any]) -> str:
    """Return the path of a report's evidence, which lies beside it."""
    if value["kind"] == "certify":
        from stackyard.report import certify

        return certify.path_of(value["run"], evidence.SUFFIX)
    return records.path_of_report(value, evidence.SUFFIX)


def write(root: Path, value: Mapping[str, Any], diff_ids: Sequence[str], home: Path) -> None:
    """Write the evidence of a report beside it, signed where a key is at hand.

    A missing key must not lose a run that took minutes of GPUs: without a key that
    signs by itself the evidence is unsigned, and a user who saw the run can sign it later.

    Args:
        home: where ssh keys are looked for, as `invoke publish` does.
    """
    envelope = Envelope(payload=evidence.statement(value, diff_ids))
    with contextlib.suppress(StackyardError):
        key = signing.find_key("", home)
        if not signing.needs_touch(key):
            envelope = sign(envelope, key, unattended=True)
    save(root / path_of(value), envelope)


def save(path: Path, envelope: Envelope) -> None:
    """Write an envelope whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [envelope.text()])


def told(root: Path, value: Mapping[str, Any]) -> str:
    """Say where the evidence of a report lies, and who signed it or how to sign it."""
    path = path_of(value)
    signatures = evidence.read_envelope(read_file(root / path), path).signatures
    if not signatures:
        return f"evidence in {path}, unsigned: invoke evidence {path} --sign"
    return f"evidence in {path}, signed with key {signatures[0].keyid}"
