"""Releases that are not what they say: each is refused, whichever part of it is another."""

import json
import subprocess

import pytest

from stackyard.release import statement, verify
from stackyard.report import evidence, vouch
from stackyard.scan import oci
from stackyard.system import signing
from stackyard.system.errors import RegistryError, ReleaseError, StackyardError, UsageError
from tests.unit.releases import (
    NAME,
    SUBJECT,
    WHO,
    Held,
    accept,
    image,
    layers_of,
    make_key,
    ran,
    shown_by,
    state,
)

pytestmark = pytest.mark.usefixtures("allow_processes")
IMAGE, OTHER = image("one", "two", "three"), image("one", "two", "four")
DIGEST = oci.digest_of(IMAGE.manifest)
PROOF = {"kind": "smoke", "outcome": "passed"}


class Site:
    """A registry with one release, and whoever verifies it."""

    def __init__(self, folder, monkeypatch):
        self.held = Held()
        self.key = make_key(folder)
        self.signers = accept(folder, self.key)
        self.folder, self.registry = folder, self.held.open(monkeypatch)
        self.held.put(IMAGE, NAME, SUBJECT.latest)

    def sign(self, digest=DIGEST, text=None, **changes):
        text = state(IMAGE, **changes) if text is None else text
        self.held.sign(digest, text, signing.sign(text, self.key))

    def verify(self, reference=NAME):
        return verify.verify_release(self.registry, reference, self.signers)

    def refuses(self, why, reference=NAME):
        with pytest.raises(ReleaseError, match="cannot be believed; nothing was used") as caught:
            self.verify(reference)
        assert why in caught.value.why


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize("reference", [NAME, DIGEST, SUBJECT.latest])
def test_a_release_is_found_by_name_digest_and_as_the_latest(site, reference):
    site.sign()
    found = site.verify(reference)
    assert (found.signer, found.release.name, found.release.digest) == (WHO, NAME, DIGEST)
    assert found.manifest == IMAGE.manifest
    assert found.config.digest == oci.digest_of(IMAGE.config)
    assert [layer["digest"] for layer in found.release.layers] == list(IMAGE.layers)


def test_what_is_handed_on_can_be_verified_again(site):
    site.sign()
    found = site.verify()
    assert signing.verify(found.statement, found.signature, site.signers) == WHO


# Who signed, and what


def test_an_image_that_nobody_signed_is_refused(site):
    site.refuses("no signed statement lies beside it")


def test_a_statement_signed_by_a_stranger_is_refused(site):
    site.key = make_key(site.folder, "stranger")
    site.sign()
    site.refuses("not signed by anybody who may")


def test_a_signature_for_another_purpose_is_refused(site):
    text = state(IMAGE)
    words = ["ssh-keygen", "-Y", "sign", "-f", site.key, "-n", "file"]
    seal = subprocess.run(words, input=text, capture_output=True, check=True).stdout
    site.held.sign(DIGEST, text, seal)
    site.refuses("not signed by anybody who may")


def test_a_statement_that_was_changed_after_it_was_signed_is_refused(site):
    text = state(IMAGE)
    changed = text.replace(b'"proven": false', b'"proven": true')
    assert changed != text
    site.held.sign(DIGEST, changed, signing.sign(text, site.key))
    site.refuses("not signed by anybody who may")


# That statement, image and name belong together


def layers(*order, **changes):
    said = [dict(IMAGE.said[number]) for number in order]
    said[-1].update(changes)
    return said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"image": oci.described(oci.MANIFEST, OTHER.manifest)}, "it speaks of another image"),
        ({"image_id": oci.digest_of(OTHER.config)}, "it speaks of another configuration"),
        ({"layers": OTHER.said}, "it speaks of other layers"),
        ({"layers": layers(0, 1)}, "it speaks of other layers"),
        ({"layers": layers(0, 2, 1)}, "it speaks of other layers"),
        ({"layers": layers(0, 1, 2, size=1)}, "it speaks of other layers"),
        ({"layers": layers(0, 1, 2, digest=DIGEST)}, "it speaks of other layers"),
        ({"name": "toy-1.0-cpu-r2"}, "it is signed under another name"),
        ({"text": b'{"schema": "stackyard.release/1"}'}, "statement cannot be read"),
    ],
)
def test_a_signed_statement_of_something_else_is_refused(site, changes, why):
    site.sign(**changes)
    site.refuses(why)


def test_a_statement_of_another_image_cannot_be_laid_beside_this_one(site):
    """Signed as it should be, for an image that is in the registry, too."""
    site.held.put(OTHER, "toy-1.0-cpu-r2")
    site.sign(text=state(OTHER, name="toy-1.0-cpu-r2"))
    site.refuses("it speaks of another image")


def test_a_name_that_was_moved_to_another_release_is_refused(site):
    other = site.held.put(OTHER, NAME)
    site.sign(other, text=state(OTHER, name="toy-1.0-cpu-r2"))
    site.refuses("it is signed under another name")
    assert site.verify(other).release.name == "toy-1.0-cpu-r2"


@pytest.mark.parametrize("latest", ["toy-gpu-latest", "other-cpu-latest", "toy-cpu-src-latest"])
def test_another_ones_latest_is_not_this_one(site, latest):
    site.held.put(IMAGE, latest)
    site.sign()
    site.refuses("it is signed under another name", latest)


@pytest.mark.parametrize(
    "changed",
    [
        {"config": oci.described(oci.CONFIG, b"{}").value()},
        {"layers": [oci.described(oci.LAYER, b"x").value()]},
        {"annotations": {"a": "b"}},
    ],
)
def test_a_manifest_that_was_changed_has_no_statement(site, changed):
    site.sign()
    value = json.loads(IMAGE.manifest)
    site.held.manifests[NAME] = oci.text_of({**value, **changed})
    site.refuses("no signed statement lies beside it")


# What a registry gives


def test_a_manifest_of_another_digest_is_not_used(site):
    site.sign()
    site.held.manifests[DIGEST] = OTHER.manifest
    with pytest.raises(RegistryError, match="is not what its digest says"):
        site.verify(DIGEST)


@pytest.mark.parametrize("kind", [statement.STATEMENT, statement.SIGNATURE])
def test_a_statement_or_signature_of_another_digest_is_not_used(site, kind):
    text, seal = state(IMAGE), signing.sign(state(IMAGE), site.key)
    site.held.sign(DIGEST, text, seal)
    data = {statement.STATEMENT: text, statement.SIGNATURE: seal}[kind]
    site.held.blobs[oci.digest_of(data)] = data + b"\n"
    with pytest.raises(RegistryError, match="is not what its digest says"):
        site.verify()


def test_a_statement_without_end_is_not_read(site, monkeypatch):
    monkeypatch.setattr(verify, "LONGEST_STATEMENT", 100)
    site.sign()
    with pytest.raises(RegistryError, match="is too long to be read"):
        site.verify()


def test_what_else_lies_beside_an_image_does_no_harm(site):
    site.held.attach(DIGEST, statement.SBOM, bill=(statement.SBOM, b"{}"))
    site.held.attach(DIGEST, statement.STATEMENT, lonely=(statement.STATEMENT, b"{}"))
    site.sign()
    assert site.verify().release.name == NAME


def test_artifacts_that_are_gone_or_no_manifests_are_passed_over(site):
    for number in range(2):
        kind = statement.STATEMENT
        site.held.attach(DIGEST, kind, lonely=(kind, str(number).encode()))
    listed = oci.read_index(site.held.manifests[oci.referrers_tag(DIGEST)])
    del site.held.manifests[listed[0].digest]
    broken = oci.described(oci.MANIFEST, b"no manifest")
    site.held.manifests[broken.digest] = b"no manifest"
    index = oci.referrers_index([*listed, broken])
    site.held.manifests[oci.referrers_tag(DIGEST)] = index
    site.sign()
    assert site.verify().release.name == NAME


def test_an_image_of_several_platforms_is_none_of_ours(site):
    site.held.manifests[NAME] = oci.referrers_index([])
    with pytest.raises(ReleaseError, match="is no image of one platform"):
        site.verify()


def test_what_is_not_there_is_said_with_what_is(site):
    site.sign()
    with pytest.raises(UsageError, match="has no toy-9-cpu-r1") as caught:
        site.verify("toy-9-cpu-r1")
    assert NAME in caught.value.why and "sha256-" not in caught.value.why


def test_without_a_list_of_signers_nothing_is_believed(site):
    site.sign()
    site.signers.unlink()
    with pytest.raises(UsageError, match="there is no"):
        site.verify()


def test_where_another_tag_is_there_it_is_said_what_to_type_for_it(site):
    site.sign()
    instead = {SUBJECT.latest: "invoke pull toy --base cpu", "toy-far-latest": "invoke nothing"}
    with pytest.raises(UsageError, match="has no toy-gpu-latest") as caught:
        verify.verify_release(site.registry, "toy-gpu-latest", site.signers, instead)
    assert caught.value.hint == "invoke pull toy --base cpu"


# Several statements


def test_a_proven_statement_goes_before_a_newer_one_without_proof(site):
    for proof, created in ((None, "2026-03"), (PROOF, "2026-01"), (PROOF, "2026-02")):
        site.sign(proof=proof, created=created)
    found = site.verify().release
    assert (found.proven, found.created) == (True, "2026-02")


def test_a_strangers_statement_beside_a_good_one_does_no_harm(site):
    key, site.key = site.key, make_key(site.folder, "stranger")
    site.sign(proof=PROOF, created="2027-01")
    with pytest.raises(StackyardError):
        site.verify()
    site.key = key
    site.sign()
    assert site.verify().release.proven is False


# Evidence beside a release


def beside(site):
    return verify.evidence_beside(site.registry, site.verify(), site.signers)


def lay(site, data, digest=DIGEST):
    kind = evidence.ENVELOPE
    site.held.attach(digest, kind, one=(kind, data))
    return site


def test_evidence_is_told_with_who_vouches_for_it(site):
    site.sign()
    assert beside(site) == verify.Beside(believed=(), refused=())
    data = shown_by(IMAGE, site.key)
    (found,) = beside(lay(site, data)).believed
    assert (found.signer, found.data) == (WHO, data)
    assert found.evidence.hardware == "2 x NVIDIA H200, driver 580.159.04"


def test_one_piece_that_was_attached_twice_is_told_once(site):
    site.sign()
    data = shown_by(IMAGE, site.key)
    lay(site, data)
    site.held.attach(DIGEST, evidence.ENVELOPE, again=(evidence.ENVELOPE, data))
    assert len(beside(site).believed) == 1


def test_one_piece_that_was_attached_without_number_keeps_no_other_from_being_read(site):
    site.sign()
    for number in range(verify.MOST_PIECES):
        site.held.attach(DIGEST, evidence.ENVELOPE, **{f"a{number}": (evidence.ENVELOPE, b'"1"')})
    found = beside(lay(site, shown_by(IMAGE, site.key)))
    assert (len(found.believed), len(found.refused)) == (1, 1)


def test_several_pieces_are_told_those_on_gpus_first(site):
    site.sign()
    for report in (ran(IMAGE, "bench"), ran(IMAGE, gpus={}), ran(IMAGE)):
        lay(site, shown_by(IMAGE, site.key, report=report))
    found = [(one.evidence.kind, one.evidence.on_gpus) for one in beside(site).believed]
    assert found[0] == ("smoke", True) and len(found) == 3


def refuses_evidence(site, data, why):
    """Nothing of a piece is shown but why, and another piece is shown all the same."""
    site.sign()
    lay(site, data)
    found = beside(site)
    assert found.believed == () and [why in told for told in found.refused] == [True]
    assert "H200" not in found.refused[0]
    assert len(beside(lay(site, shown_by(IMAGE, site.key))).believed) == 1


def test_evidence_by_a_stranger_is_not_shown(site):
    data = shown_by(IMAGE, make_key(site.folder, "stranger"))
    refuses_evidence(site, data, "is not signed by anybody who may")


def test_evidence_that_nobody_signed_is_not_shown(site):
    refuses_evidence(site, shown_by(IMAGE), "is not signed: nobody vouches")


@pytest.mark.parametrize(
    ("of", "why"), [(OTHER, "of another image"), (image("one", "two"), "of another image")]
)
def test_evidence_of_another_image_is_not_shown(site, of, why):
    refuses_evidence(site, shown_by(of, site.key), why)


def test_evidence_of_other_layers_is_not_shown(site):
    payload = evidence.statement(ran(IMAGE), layers_of(IMAGE)[:2])
    data = vouch.sign(evidence.Envelope(payload=payload), site.key).text()
    refuses_evidence(site, data, "of other layers")


def test_evidence_of_a_failed_run_is_not_shown(site):
    report = ran(IMAGE, outcome="failed")
    refuses_evidence(site, shown_by(IMAGE, site.key, report=report), "did not pass: failed")


def test_what_is_no_evidence_is_not_shown(site):
    refuses_evidence(site, b"{}", "is not evidence written by")


def test_evidence_that_the_registry_changed_or_lost_is_not_shown(site):
    site.sign()
    data = shown_by(IMAGE, site.key)
    lay(site, data)
    digest = oci.digest_of(data)
    site.held.blobs[digest] = data + b"\n"
    assert "is not what its digest says" in beside(site).refused[0]
    del site.held.blobs[digest]
    assert "404" in beside(site).refused[0]


def test_evidence_without_end_is_not_read(site, monkeypatch):
    monkeypatch.setattr(evidence, "LONGEST", 100)
    site.sign()
    found = beside(lay(site, shown_by(IMAGE, site.key)))
    assert found.believed == () and "is too long to be read" in found.refused[0]


def test_of_evidence_without_number_some_is_read_and_the_rest_is_told(site):
    site.sign()
    lay(site, shown_by(IMAGE, site.key))
    laid = [b'"%d"' % number for number in range(33)]
    for data in laid[:31]:
        lay(site, data)
    found = beside(site)
    assert (len(found.believed), len(found.refused)) == (1, 31)
    for data in laid[31:]:
        lay(site, data)
    asked = len(site.held.asked)
    found = beside(site)
    assert len(found.believed) + len(found.refused) == 33
    assert found.refused[-1].startswith("further evidence was not read: at most 32 pieces")
    digests = {oci.digest_of(data) for data in laid}
    read = [line for line in site.held.asked[asked:] if line[-71:] in digests and "/blobs/" in line]
    assert len(read) == 32 - len(found.believed)


def test_statements_without_number_are_not_all_read(site):
    for number in range(40):
        text = b'{"not": %d}' % number
        site.held.attach(
            DIGEST, statement.STATEMENT,
            a=(statement.STATEMENT, text), b=(statement.SIGNATURE, b"none"),
        )  # fmt: skip
    with pytest.raises(ReleaseError) as caught:
        site.verify()
    last = caught.value.why.splitlines()[-1]
    assert last == "further statements were not read: at most 32 of an image are"
    assert len(caught.value.why.split("is not signed by anybody who may")) == 33
    assert len([line for line in site.held.asked if "/blobs/" in line]) == 64


def test_evidence_that_was_attached_to_another_image_is_passed_over(site):
    """Somebody lists it here; it says itself where it belongs."""
    site.sign()
    other = site.held.put(OTHER, "toy-1.0-cpu-r2")
    lay(site, shown_by(IMAGE, site.key), other)
    listed = site.held.manifests[oci.referrers_tag(other)]
    site.held.manifests[oci.referrers_tag(DIGEST)] = oci.referrers_index(
        [*oci.read_index(listed), *oci.read_index(site.held.manifests[oci.referrers_tag(DIGEST)])]
    )
    assert beside(site) == verify.Beside(believed=(), refused=())


def test_what_else_lies_beside_a_release_is_no_evidence(site):
    site.sign()
    site.held.attach(DIGEST, statement.SBOM, bill=(statement.SBOM, b"{}"))
    site.held.attach(DIGEST, evidence.ENVELOPE, other=(statement.SBOM, b"{}"))
    assert beside(site) == verify.Beside(believed=(), refused=())


def test_of_several_statements_the_one_with_gpus_goes_before_a_newer_one_without(site):
    for seen, created in (((), "2026-03"), (("a GPU",), "2026-01")):
        site.sign(needs_gpus=True, seen_on=seen, created=created)
    found = site.verify().release
    assert (found.needs_gpus, found.seen_on_gpus, found.created) == (True, True, "2026-01")
