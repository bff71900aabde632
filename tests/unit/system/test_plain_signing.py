"""Plain signatures: which keys can make them, and that other tools find them good."""

import base64
import struct
import subprocess

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)

from stackyard.system import plain_signing, signing
from stackyard.system.errors import ReleaseError

DATA = b"DSSEv1 4 text 5 hello"
KEYS = {
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "p384": ec.generate_private_key(ec.SECP384R1()),
    "p521": ec.generate_private_key(ec.SECP521R1()),
    "rsa": rsa.generate_private_key(65537, 2048),
}


def check(private, signature):
    """Verify as sigstore does, with cryptography's own calls; raise unless it is good."""
    public = private.public_key()
    if isinstance(public, ed25519.Ed25519PublicKey):
        public.verify(signature, DATA)
    elif isinstance(public, rsa.RSAPublicKey):
        public.verify(signature, DATA, padding.PKCS1v15(), hashes.SHA256())
    else:
        bits = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}
        public.verify(signature, DATA, ec.ECDSA(bits[public.curve.key_size]))


def public_text(private):
    return private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def write(folder, private, form=PrivateFormat.OpenSSH, public=None):
    path = folder / "key"
    path.touch(mode=0o600)
    path.write_bytes(private.private_bytes(Encoding.PEM, form, NoEncryption()))
    path.with_name("key.pub").write_bytes(public or public_text(private) + b" a comment\n")
    return path


def locked(folder, private):
    """Write a key with a passphrase, as ssh-keygen does (cryptography would need bcrypt)."""
    path = write(folder, private)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", path], check=True)
    return path


def string(data):
    return struct.pack(">I", len(data)) + data


class StandInAgent:
    """Answer as OpenSSH's agent does for one key (draft-ietf-sshm-ssh-agent)."""

    def __init__(self, private):
        self.private, self.asked = private, 0

    def __call__(self, request):
        self.asked += 1
        blob, rest = self.part(request[1:])
        data, flags = self.part(rest)
        if request[0] != 13 or blob != base64.b64decode(public_text(self.private).split()[1]):
            return b"\x05"
        return b"\x0e" + string(self.signature(data, struct.unpack(">I", flags)[0]))

    def signature(self, data, flags):
        if isinstance(self.private, ed25519.Ed25519PrivateKey):
            return string(b"ssh-ed25519") + string(self.private.sign(data))
        if isinstance(self.private, rsa.RSAPrivateKey):
            assert flags == 2  # without it an agent signs SHA-1
            made = self.private.sign(data, padding.PKCS1v15(), hashes.SHA256())
            return string(b"rsa-sha2-256") + string(made)
        size = self.private.curve.key_size
        kind = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}[size]
        numbers = decode_dss_signature(self.private.sign(data, ec.ECDSA(kind)))
        form = string(f"ecdsa-sha2-nistp{size}".encode())
        # mpint: a leading zero byte where the first bit is set.
        return form + string(b"".join(string(b"\0" + n.to_bytes(66, "big")) for n in numbers))

    @staticmethod
    def part(data):
        (length,) = struct.unpack(">I", data[:4])
        return data[4 : 4 + length], data[4 + length :]


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("form", [PrivateFormat.OpenSSH, PrivateFormat.PKCS8])
def test_a_private_key_in_a_file_signs(tmp_path, name, form):
    key = write(tmp_path, KEYS[name], form)
    found = plain_signing.sign(DATA, key, plain_signing.no_agent)
    check(KEYS[name], found)
    assert plain_signing.is_signed(DATA, found, signing.public_half(key))
    with pytest.raises(InvalidSignature):
        check(KEYS[name], bytes(len(found)))


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.parametrize("name", KEYS)
def test_an_agent_signs_for_a_public_key_and_for_a_locked_private_one(tmp_path, name):
    agent = StandInAgent(KEYS[name])
    key = locked(tmp_path, KEYS[name])
    for path in (key, key.with_name("key.pub")):
        check(KEYS[name], plain_signing.sign(DATA, path, agent))
    assert agent.asked == 2


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.parametrize(
    "agent",
    [
        plain_signing.no_agent,
        lambda request: b"\x05",
        lambda request: b"\x0e\0\0\xff\xff short",
        lambda request: b"\x0e" + string(string(b"ssh-ed25519") + string(bytes(64))),
        StandInAgent(ed25519.Ed25519PrivateKey.generate()),
    ],
)
def test_an_agent_that_refuses_or_errs_makes_no_signature(tmp_path, agent):
    key = locked(tmp_path, KEYS["ed25519"])
    assert plain_signing.sign(DATA, key, agent) is None


def test_a_key_in_a_token_makes_none_and_its_agent_is_not_asked(tmp_path):
    agent = StandInAgent(KEYS["ed25519"])
    blob = base64.b64encode(string(b"sk-ssh-ed25519@openssh.com")).decode()
    text = f"sk-ssh-ed25519@openssh.com {blob} me@site\n".encode()
    key = write(tmp_path, KEYS["ed25519"], public=text)
    assert plain_signing.sign(DATA, key, agent) is None
    assert agent.asked == 0


def test_a_private_key_beside_another_ones_public_half_makes_none(tmp_path):
    """The public half names the key, as for ssh-keygen, which asks the agent first."""
    other = ed25519.Ed25519PrivateKey.generate()
    key = write(tmp_path, KEYS["ed25519"], public=public_text(other))
    assert plain_signing.sign(DATA, key, plain_signing.no_agent) is None
    check(other, plain_signing.sign(DATA, key, StandInAgent(other)))


def test_other_bytes_keys_and_signatures_are_not_signed(tmp_path):
    key = write(tmp_path, KEYS["ed25519"])
    line, found = signing.public_half(key), KEYS["ed25519"].sign(DATA)
    assert plain_signing.is_signed(DATA, found, line)
    assert not plain_signing.is_signed(DATA + b".", found, line)
    assert not plain_signing.is_signed(DATA, found[:-1], line)
    assert not plain_signing.is_signed(DATA, found, public_text(KEYS["p256"]).decode())
    assert not plain_signing.is_signed(DATA, found, "ssh-ed25519 AAAA")


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.parametrize("name", ["ed25519", "p256", "rsa"])
def test_an_ssh_signature_names_its_key(tmp_path, name):
    key = write(tmp_path, KEYS[name])
    found = plain_signing.signer_of(signing.sign(DATA, key))
    assert found == signing.public_half(key)
    load_ssh_public_key(found.encode())


@pytest.mark.parametrize("data", [b"", b"no signature", b"U1NIU0lH", b"\xff", b"AAAAAAAAAAAAAAAA"])
def test_what_is_no_ssh_signature_names_nobody(data):
    with pytest.raises(ReleaseError, match="cannot be read"):
        plain_signing.signer_of(data)
