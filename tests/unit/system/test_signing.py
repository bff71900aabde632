"""Signatures by ssh-keygen itself: whose count, and of what."""

import subprocess

import pytest

from stackyard.system import signing
from stackyard.system.errors import ReleaseError, UsageError
from tests.unit.releases import WHO, accept, make_key

pytestmark = pytest.mark.usefixtures("allow_processes")
TEXT = b'{"name": "toy-1.0-cpu-r1"}\n'


@pytest.fixture
def key(tmp_path):
    return make_key(tmp_path)


def signed_as(key, namespace):
    """A signature of the text in any namespace."""
    words = ["ssh-keygen", "-Y", "sign", "-f", key, "-n", namespace]
    return subprocess.run(words, input=TEXT, capture_output=True, check=True).stdout


def test_a_signature_tells_who_signed(tmp_path, key):
    assert signing.verify(TEXT, signing.sign(TEXT, key), accept(tmp_path, key)) == WHO


def test_everybody_on_the_list_may_sign(tmp_path, key):
    other, signers = make_key(tmp_path, "other"), tmp_path / "signers"
    lines = [signing.signer_line(key, "ann@site"), signing.signer_line(other, "bob@site,robert")]
    signers.write_text("\n".join(["# whose releases we take", *lines, ""]))
    found = [signing.verify(TEXT, signing.sign(TEXT, one), signers) for one in (key, other)]
    assert found == ["ann@site", "bob@site"]


def refused(signature, signers, text=TEXT):
    with pytest.raises(ReleaseError, match="not signed by anybody who may") as caught:
        signing.verify(text, signature, signers)
    assert caught.value.hint.startswith(str(signers))


def test_a_key_that_is_not_on_the_list_is_refused(tmp_path, key):
    refused(signing.sign(TEXT, make_key(tmp_path, "stranger")), accept(tmp_path, key))


@pytest.mark.parametrize("change", [b" ", b"\n", b"x"])
def test_other_bytes_than_those_that_were_signed_are_refused(tmp_path, key, change):
    refused(signing.sign(TEXT, key), accept(tmp_path, key), TEXT + change)


@pytest.mark.parametrize("namespace", ["file", "git", "release@another"])
def test_what_a_publisher_signed_for_another_purpose_is_no_release(tmp_path, key, namespace):
    signers = tmp_path / "signers"
    # A line without a namespace lets its key sign whatever it likes.
    signers.write_text(f"{WHO} {(tmp_path / 'publisher.pub').read_text()}")
    assert signing.verify(TEXT, signing.sign(TEXT, key), signers) == WHO
    refused(signed_as(key, namespace), signers)


def test_a_key_that_may_sign_other_things_only_is_refused(tmp_path, key):
    signers = tmp_path / "signers"
    signers.write_text(f'{WHO} namespaces="git" {(tmp_path / "publisher.pub").read_text()}')
    refused(signing.sign(TEXT, key), signers)


PURPOSES = (signing.NAMESPACE, signing.EVIDENCE)


@pytest.mark.parametrize("purposes", [PURPOSES, PURPOSES[1:]])
def test_the_line_of_a_key_lets_it_sign_what_it_is_for_and_nothing_else(tmp_path, key, purposes):
    signers, seal = tmp_path / "signers", tmp_path / "seal"
    signers.write_text(signing.signer_line(key, WHO, purposes))

    def taken(namespace):
        seal.write_bytes(signed_as(key, namespace))
        words = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", WHO, "-n", namespace,
                 "-s", seal]  # fmt: skip
        return subprocess.run(words, input=TEXT, capture_output=True, check=False).returncode == 0

    asked = (*PURPOSES, "git", "file")
    assert tuple(purpose for purpose in asked if taken(purpose)) == purposes


def test_a_publishers_line_is_for_releases_and_evidence(tmp_path, key):
    assert f'namespaces="{",".join(PURPOSES)}"' in signing.signer_line(key, WHO)


def test_a_keys_fingerprint_is_ssh_keygens_own(key):
    words = ["ssh-keygen", "-l", "-f", key]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert signing.fingerprint(key) == told.split()[1]


def test_a_public_half_that_is_none_has_no_fingerprint(tmp_path):
    (tmp_path / "key.pub").write_text("ssh-ed25519 ???\n")
    with pytest.raises(ReleaseError, match="cannot be read"):
        signing.fingerprint(tmp_path / "key")


@pytest.mark.parametrize("seal", [b"", b"no signature", b"-----BEGIN SSH SIGNATURE-----\nAAAA\n"])
def test_what_is_no_signature_is_refused(tmp_path, key, seal):
    refused(seal, accept(tmp_path, key))


@pytest.mark.parametrize("broken", ["ann@site", "ann@site ssh-ed25519", "ann@site bad AAAA"])
def test_a_line_of_the_list_that_cannot_be_read_is_named(tmp_path, key, broken):
    signers = tmp_path / "signers"
    signers.write_text(f"# whose releases we take\n{broken}\n")
    with pytest.raises(ReleaseError) as caught:
        signing.verify(TEXT, signing.sign(TEXT, key), signers)
    assert "; its line 2 cannot be read (" in caught.value.hint


def test_without_a_list_of_signers_nothing_is_believed(tmp_path, key):
    with pytest.raises(UsageError, match="there is no") as caught:
        signing.verify(TEXT, signing.sign(TEXT, key), tmp_path / "missing")
    assert "invoke publish" in caught.value.hint


def test_a_file_that_is_no_key_does_not_sign(tmp_path):
    path = tmp_path / "key"
    path.write_text("no key\n")
    with pytest.raises(ReleaseError, match="does not sign") as caught:
        signing.sign(TEXT, path)
    assert "ssh-add" in caught.value.hint


def test_a_key_is_the_given_one_or_the_first_usual_one(tmp_path):
    (tmp_path / ".ssh").mkdir()
    with pytest.raises(UsageError, match="no ssh key to sign with"):
        signing.find_key("", tmp_path)
    for name in ("id_rsa", "id_ed25519", "id_dsa"):
        (tmp_path / ".ssh" / name).touch()
    assert signing.find_key("", tmp_path) == tmp_path / ".ssh" / "id_ed25519"
    own = make_key(tmp_path, "own")
    assert signing.find_key(str(own), tmp_path) == own
    with pytest.raises(UsageError, match="there is no key"):
        signing.find_key(str(tmp_path / "missing"), tmp_path)


def test_a_key_in_an_agent_is_named_by_its_public_half(tmp_path, key):
    assert signing.signer_line(tmp_path / "publisher.pub", WHO) == signing.signer_line(key, WHO)


@pytest.mark.parametrize("text", [None, "", "ssh-ed25519"])
def test_a_key_without_its_public_half_has_no_line(tmp_path, text):
    if text is not None:
        (tmp_path / "key.pub").write_text(text)
    with pytest.raises(ReleaseError, match=r"key\.pub cannot be read"):
        signing.signer_line(tmp_path / "key", WHO)
