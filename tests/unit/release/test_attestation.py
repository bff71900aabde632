"""Attestations: verified without our code, and refused when they are not their release's."""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from stackyard.definitions.project import ROOT
from stackyard.release import attestation, publish, statement
from stackyard.release.attestation import BUNDLE, CYCLONEDX, SLSA
from stackyard.report import evidence
from stackyard.scan import oci
from stackyard.system import plain_signing, signing
from stackyard.system.errors import RegistryError, ReleaseError
from tests.unit.release.test_publish import ONE, TWO, Site
from tests.unit.releases import NAME, image, make_key, ran, state

pytestmark = pytest.mark.usefixtures("allow_processes")
DIGEST = oci.digest_of(ONE.manifest)
KINDS = {SLSA, CYCLONEDX, evidence.TEST_RESULT}


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "SETTLE_SECONDS", 0)
    return Site(tmp_path, monkeypatch)


def bundles(site, digest):
    """Find bundles as cosign does: by artifact type in the list of referrers, one layer each."""
    found = {}
    for entry in site.registry.referrers(digest):
        if entry.artifact_type != BUNDLE:
            continue
        manifest = json.loads(site.held.manifests[entry.digest])
        (layer,) = manifest["layers"]
        assert manifest["artifactType"] == layer["mediaType"] == BUNDLE
        assert manifest["subject"]["digest"] == digest
        assert manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
        assert manifest["annotations"] == entry.annotations
        assert entry.annotations["dev.sigstore.bundle.content"] == "dsse-envelope"
        kind = entry.annotations["dev.sigstore.bundle.predicateType"]
        found[kind] = json.loads(site.held.blobs[layer["digest"]])
    return found


def verified_by_others(bundle, key):
    """Verify a bundle with securesystemslib and cryptography alone; return its statement."""
    public = load_ssh_public_key(key.with_name(f"{key.name}.pub").read_bytes())
    envelope = Envelope.from_dict(json.loads(json.dumps(bundle["dsseEnvelope"])))
    (keyid,) = envelope.signatures
    envelope.verify([SSlibKey.from_crypto(public, keyid)], 1)
    assert envelope.payload_type == "application/vnd.in-toto+json"
    return json.loads(envelope.payload)


def test_securesystemslib_alone_verifies_every_attestation_of_a_release(site):
    digest = site.publish(proof=ran(ONE)).digest
    found = bundles(site, digest)
    assert set(found) == KINDS
    for kind, bundle in found.items():
        assert bundle["mediaType"] == BUNDLE
        assert set(bundle["verificationMaterial"]) == {"publicKey"}
        said = verified_by_others(bundle, site.key)
        assert said["_type"] == "https://in-toto.io/Statement/v1"
        assert said["predicateType"] == kind
        assert said["subject"][0]["digest"] == {"sha256": digest.removeprefix("sha256:")}
        with pytest.raises(VerificationError):
            verified_by_others(bundle, make_key(site.folder, "stranger"))


def test_the_pages_way_to_verify_by_hand_works(site, tmp_path):
    page = (ROOT / "docs" / "howto" / "releases.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    to_pem = re.search(r"python3 -c '([^']*)' < key.pub > key.pem", page)[1]
    file, stranger = tmp_path / "bundle.json", make_key(tmp_path, "stranger")
    for kind in ("ed25519", "ecdsa", "rsa"):
        key = tmp_path / kind
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", key], check=True)
        signed = made(site, key=key, signer=key)
        file.write_bytes(signed)
        for public, code in ((f"{key}.pub", 0), (f"{stranger}.pub", 1)):
            command = [sys.executable, "-c", program, file, public]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == code, done.stderr
            assert ('"predicateType"' in done.stdout) == (code == 0)
        with Path(f"{key}.pub").open("rb") as public:
            command = [sys.executable, "-c", to_pem]
            pem = subprocess.run(command, stdin=public, capture_output=True, check=True).stdout
        load_pem_public_key(pem)


def test_a_key_id_is_the_keys_ssh_fingerprint_as_verifiers_in_go_compare_it(site):
    bundle = bundles(site, site.publish().digest)[SLSA]
    (signature,) = bundle["dsseEnvelope"]["signatures"]
    assert signature["keyid"] == signing.fingerprint(site.key)
    assert signature["keyid"] == bundle["verificationMaterial"]["publicKey"]["hint"]


def test_predicates_hold_the_proofs_checks_the_sbom_and_the_build(site):
    found = bundles(site, site.publish(proof=ran(ONE)).digest)
    said = {kind: verified_by_others(one, site.key)["predicate"] for kind, one in found.items()}
    assert said[CYCLONEDX] == {"components": []}
    assert said[SLSA]["buildDefinition"]["externalParameters"] == {"stack": "toy", "base": "cpu"}
    result = said[evidence.TEST_RESULT]
    assert (result["result"], result["failedTests"]) == ("PASSED", [])
    assert "transport" in result["passedTests"]


def test_who_verifies_a_release_verifies_its_attestations(site):
    site.publish(proof=ran(ONE))
    assert set(site.verified(NAME).attested) == {"provenance", "sbom", "test-result"}


def test_a_token_signs_the_release_and_that_covers_bare_statements(site, monkeypatch):
    monkeypatch.setattr(plain_signing, "sign", lambda *given: None)
    done = site.publish()
    assert (done.attested, done.unsigned) == ((), ("provenance", "sbom"))
    assert bundles(site, done.digest) == {}
    found = site.verified(NAME)
    assert found.attested == ("provenance", "sbom")
    titles = [a["annotations"][oci.TITLE] for a in found.release.value["artifacts"]]
    assert {"provenance.intoto.json", "sbom.intoto.json"} <= set(titles)
    assert site.publish().sent == 0


def test_a_release_without_attestations_gets_them_when_it_is_published_again(site):
    """A release of before them is still believed, and signed anew with them."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(publish.Publisher, "_attest", lambda *given: [])
    site.publish()
    monkeypatch.undo()
    assert site.verified(NAME).attested == ()
    done = site.publish()
    assert (done.name, done.attested) == (NAME, ("provenance", "sbom"))


# Attestations that do not count, each named in a statement that its publisher signed


def made(site, *, digest=DIGEST, kind=SLSA, key=None, signer=None, change=None):
    """Make an attestation; `signer` is the key that it names, `key` the one that signs it."""
    payload = attestation.statement("r", digest, kind, {})
    signed = plain_signing.sign(
        attestation.encoded(payload), key or site.key, plain_signing.no_agent
    )
    line = signing.public_half(signer or site.key)
    value = json.loads(attestation.attest(payload, line, signed, "").file.data)
    if change:
        change(value)
    return json.dumps(value).encode()


def release_with(site, data, media_type=BUNDLE):
    site.held.put(ONE, NAME)
    blob = oci.described(media_type, data, "one.json")
    site.held.blobs[blob.digest] = data
    text = state(ONE, artifacts=[blob])
    site.held.sign(DIGEST, text, signing.sign(text, site.key))
    return blob


def refused(site, data, why, media_type=BUNDLE):
    release_with(site, data, media_type)
    with pytest.raises(ReleaseError, match="cannot be believed; nothing was used") as caught:
        site.verified(NAME)
    assert why in caught.value.why


def test_a_good_attestation_counts(site):
    release_with(site, made(site))
    assert site.verified(NAME).attested == ("provenance",)


def other_payload(value):
    payload = attestation.statement("r", DIGEST, SLSA, {"changed": True})
    value["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"digest": oci.digest_of(TWO.manifest)}, "is of another image"),
        ({"change": other_payload}, "is not signed by the key of its release"),
        ({"change": lambda v: v["dsseEnvelope"]["signatures"].clear()}, "is not signed by the key"),
        ({"change": lambda v: v.update(mediaType="another")}, "a bundle of another form"),
        ({"change": lambda v: v.pop("dsseEnvelope")}, "cannot be read"),
        ({"change": lambda v: v.update(dsseEnvelope=[])}, "cannot be read"),
    ],
)
def test_an_attestation_of_something_else_is_refused_with_its_release(site, given, why):
    refused(site, made(site, **given), why)


def test_an_attestation_by_another_key_is_refused(site):
    refused(site, made(site, key=make_key(site.folder, "stranger")), "is not signed by the key")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff"])
@pytest.mark.parametrize("media_type", [BUNDLE, statement.PROVENANCE])
def test_what_is_no_attestation_is_refused(site, data, media_type):
    refused(site, data, "cannot be read", media_type)


def test_a_bare_statement_of_another_image_or_kind_is_refused(site):
    other = oci.digest_of(image("x").manifest)
    for digest, kind, why in ((other, SLSA, "of another image"), (DIGEST, "x", "another kind")):
        payload = attestation.statement("r", digest, kind, {})
        refused(site, payload, why, statement.PROVENANCE)


def test_an_attestation_that_the_registry_changed_or_lost_makes_its_release_refused(site):
    blob = release_with(site, made(site))
    site.held.blobs[blob.digest] += b" "
    with pytest.raises(ReleaseError) as caught:
        site.verified(NAME)
    assert "is not what its digest says" in caught.value.why
    del site.held.blobs[blob.digest]
    with pytest.raises(ReleaseError) as caught:
        site.verified(NAME)
    assert "404" in caught.value.why


def test_a_registry_in_trouble_is_no_release_that_cannot_be_believed(site):
    from tests.unit.releases import reply

    blob = release_with(site, made(site))
    site.held.before = lambda request: reply(503) if blob.digest in request.url else None
    with pytest.raises(RegistryError, match="503"):
        site.verified(NAME)


def test_a_statement_whose_artifacts_cannot_be_read_is_refused(site):
    site.held.put(ONE, NAME)
    value = {**json.loads(state(ONE)), "artifacts": [{"mediaType": 1}]}
    text = json.dumps(value).encode()
    site.held.sign(DIGEST, text, signing.sign(text, site.key))
    with pytest.raises(ReleaseError) as caught:
        site.verified(NAME)
    assert "artifacts cannot be read" in caught.value.why
