"""Evidence in files, with real keys: who vouches, whose word counts, and for which bytes."""

import json
import subprocess

import pytest

from stackyard.report import evidence, vouch
from stackyard.report.evidence import Envelope, Signature
from stackyard.system import signing
from stackyard.system.errors import ReleaseError, UsageError
from tests.unit.releases import WHO, accept, image, layers_of, make_key, ran, shown_by

pytestmark = pytest.mark.usefixtures("allow_processes")
IMAGE = image("one", "two")


@pytest.fixture
def key(tmp_path):
    return make_key(tmp_path)


@pytest.fixture
def signers(tmp_path, key):
    return accept(tmp_path, key)


def refused(data, signers, what):
    with pytest.raises(ReleaseError, match=f"FILE {what}") as caught:
        vouch.verified(data, "FILE", signers)
    return caught.value


def test_who_vouches_is_told_with_what_was_seen(key, signers):
    found = vouch.verified(shown_by(IMAGE, key), "FILE", signers)
    assert (found.signer, found.evidence.report) == (WHO, ran(IMAGE))
    told = vouch.words(found)
    assert told.startswith("smoke passed on 2 x NVIDIA H200, driver 580.159.04, together")
    ratio = found.evidence.ratios["throughput"]
    assert f"throughput {ratio:.3f} of the bare host" in told and told.endswith(f"signed by {WHO}")
    value = json.loads(json.dumps(found.value()))
    assert (value["signer"], value["on_gpus"]) == (WHO, True)
    assert value["gpus"] == ["NVIDIA H200", "NVIDIA H200"]


def test_what_nobody_signed_is_refused(signers):
    refused(shown_by(IMAGE), signers, r"is not signed\n")


def test_what_a_stranger_signed_is_refused(tmp_path, signers):
    error = refused(
        shown_by(IMAGE, make_key(tmp_path, "stranger")), signers, "is not signed by anybody who may"
    )
    assert error.hint.startswith(str(signers))


def test_a_strangers_signature_beside_a_good_one_does_no_harm(tmp_path, key, signers):
    stranger = make_key(tmp_path, "stranger")
    for keys in ((stranger, key), (key, stranger)):
        assert vouch.verified(shown_by(IMAGE, *keys), "FILE", signers).signer == WHO


def test_all_who_vouch_are_named(tmp_path, key):
    other = make_key(tmp_path, "other")
    signers = tmp_path / "both"
    lines = [signing.signer_line(key, "ann"), signing.signer_line(other, "bob")]
    signers.write_text("\n".join([*lines, ""]))
    assert vouch.verified(shown_by(IMAGE, key, other), "FILE", signers).signer == "ann, bob"


def test_what_was_changed_after_it_was_signed_is_refused(key, signers):
    good = evidence.read_envelope(shown_by(IMAGE, key), "FILE")
    report = ran(IMAGE)
    report["gpus"]["devices"][0]["name"] = "NVIDIA H300"
    other = Envelope(
        payload=evidence.statement(report, layers_of(IMAGE)), signatures=good.signatures
    )
    refused(other.text(), signers, "is not signed by anybody who may")
    assert vouch.verified(good.text(), "FILE", signers)


@pytest.mark.parametrize("namespace", [signing.NAMESPACE, "file"])
def test_a_signature_for_another_purpose_is_no_evidence(tmp_path, key, namespace):
    anything = tmp_path / "anything"
    anything.write_text(f"{WHO} {(tmp_path / 'publisher.pub').read_text()}")
    envelope = evidence.read_envelope(shown_by(IMAGE), "FILE")
    seal = signing.sign(envelope.signed, key, namespace)
    data = envelope.with_signature(Signature(keyid="", data=seal)).text()
    refused(data, anything, "is not signed by anybody who may")


def test_the_payload_alone_is_not_what_is_signed(key, signers):
    envelope = evidence.read_envelope(shown_by(IMAGE), "FILE")
    seal = signing.sign(envelope.payload, key, signing.EVIDENCE)
    data = envelope.with_signature(Signature(keyid="", data=seal)).text()
    refused(data, signers, "is not signed by anybody who may")


def test_a_key_that_may_vouch_may_not_release(tmp_path, key):
    signers = tmp_path / "vouchers"
    signers.write_text(f"{signing.signer_line(key, WHO, [signing.EVIDENCE])}\n")
    assert vouch.verified(shown_by(IMAGE, key), "FILE", signers).signer == WHO
    with pytest.raises(ReleaseError, match="not signed by anybody who may"):
        signing.verify(b"{}", signing.sign(b"{}", key), signers)


def test_a_line_of_before_takes_releases_and_no_evidence(tmp_path, key):
    signers = tmp_path / "old"
    signers.write_text(f"{signing.signer_line(key, WHO, [signing.NAMESPACE])}\n")
    error = refused(shown_by(IMAGE, key), signers, "is not signed by anybody who may")
    assert "not permitted" in error.why and "evidence@stackyard" in error.why


def test_signed_words_that_are_no_test_result_are_refused(key, signers):
    data = vouch.sign(Envelope(payload=b"{}"), key).text()
    refused(data, signers, "is not evidence written by")


def test_what_is_signed_again_by_one_key_has_one_signature(key):
    envelope = evidence.read_envelope(shown_by(IMAGE, key, key), "FILE")
    assert [one.keyid for one in envelope.signatures] == [signing.fingerprint(key)]


def test_nobody_signs_what_would_have_too_many_signatures(key):
    envelope = Envelope(payload=b"{}")
    for number in range(16):
        envelope = envelope.with_signature(Signature(keyid=str(number), data=b"x"))
    with pytest.raises(ReleaseError, match="as many signatures as evidence may have"):
        vouch.sign(envelope, key)


# Files


def test_the_publishers_own_word_counts_beside_those_of_the_list(tmp_path, key, signers):
    other = make_key(tmp_path, "other")
    files = [tmp_path / "one", tmp_path / "two"]
    for file, by in zip(files, (key, other), strict=True):
        file.write_bytes(shown_by(IMAGE, by))
    own = signing.signer_line(other, "me")
    found = vouch.load([str(file) for file in files], signers, own)
    assert [(one.name, one.signer) for one in found] == [
        (str(files[0]), WHO), (str(files[1]), "me"),
    ]  # fmt: skip
    (alone,) = vouch.load([str(files[1])], tmp_path / "missing", own)
    assert alone.signer == "me"
    with pytest.raises(ReleaseError, match="not signed by anybody who may") as caught:
        vouch.load([str(files[0])], tmp_path / "missing", own)
    assert caught.value.hint.startswith(str(tmp_path / "missing"))


def test_an_old_line_of_the_publishers_own_key_does_not_stand_in_the_way(tmp_path, key, signers):
    signers.write_text(f"{signing.signer_line(key, WHO, [signing.NAMESPACE])}\n")
    file = tmp_path / "file"
    file.write_bytes(shown_by(IMAGE, key))
    (found,) = vouch.load([str(file)], signers, signing.signer_line(key, "me"))
    assert found.signer == "me"


def test_no_files_need_no_list(tmp_path):
    assert vouch.load([], tmp_path / "missing", "") == []


def test_a_file_that_is_not_there_or_has_no_end_is_said(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="cannot be read") as caught:
        vouch.read_file(tmp_path / "missing")
    assert "intoto.jsonl" in caught.value.hint
    monkeypatch.setattr(evidence, "LONGEST", 3)
    (tmp_path / "long").write_bytes(b"1234")
    with pytest.raises(ReleaseError, match="not evidence written by"):
        vouch.read_file(tmp_path / "long")
    (tmp_path / "long").write_bytes(b"123")
    assert vouch.read_file(tmp_path / "long") == b"123"


PLACE = "reports/toy/cpu/smoke.intoto.jsonl"


def home(folder, *options):
    """A home with a usual key."""
    (folder / ".ssh").mkdir()
    words = ["ssh-keygen", "-q", "-t", "ed25519", *options, "-f", folder / ".ssh" / "id_ed25519"]
    subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return folder


def test_a_run_leaves_signed_evidence_beside_its_report(tmp_path):
    own = home(tmp_path, "-N", "")
    vouch.write(tmp_path, ran(IMAGE), layers_of(IMAGE), own)
    key = own / ".ssh" / "id_ed25519"
    found = vouch.verified((tmp_path / PLACE).read_bytes(), "FILE", accept(tmp_path, key))
    assert (found.signer, found.evidence.report) == (WHO, ran(IMAGE))
    assert list(found.evidence.diff_ids) == layers_of(IMAGE)
    told = vouch.told(tmp_path, ran(IMAGE))
    assert told == f"evidence in {PLACE}, signed with key {signing.fingerprint(key)}"
    assert [path.name for path in (tmp_path / PLACE).parent.iterdir()] == ["smoke.intoto.jsonl"]


@pytest.mark.parametrize("kind", ["none", "locked", "token"])
def test_without_a_key_that_signs_alone_the_evidence_waits_for_a_signature(
    tmp_path, monkeypatch, kind
):
    """Neither a passphrase nor a touch is asked for: nobody sits beside a smoke."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    asked = tmp_path / "asked"
    window = tmp_path / "window"
    window.write_text(f"#!/bin/sh\ntouch {asked}\necho a passphrase\n")
    window.chmod(0o755)
    for name, value in (("SSH_ASKPASS", str(window)), ("SSH_ASKPASS_REQUIRE", "force")):
        monkeypatch.setenv(name, value)
    own = (
        home(tmp_path, "-N", "a passphrase" if kind == "locked" else "")
        if kind != "none"
        else tmp_path
    )
    if kind == "token":
        (own / ".ssh" / "id_ed25519.pub").write_text("sk-ssh-ed25519@openssh.com AAAA me\n")
    vouch.write(tmp_path, ran(IMAGE), layers_of(IMAGE), own)
    assert not asked.exists()
    assert evidence.read_envelope((tmp_path / PLACE).read_bytes(), "FILE").signatures == ()
    assert vouch.told(tmp_path, ran(IMAGE)).endswith(f"unsigned: invoke evidence {PLACE} --sign")


def test_each_placement_has_evidence_of_its_own(tmp_path):
    report = ran(IMAGE, "smoke-shared-ipc")
    assert vouch.path_of(report) == "reports/toy/cpu/smoke-shared-ipc.intoto.jsonl"
    assert vouch.path_of(ran(IMAGE, "bench")) == "reports/toy/cpu/bench.intoto.jsonl"
