"""Sign and verify bytes with the plain algorithm of an ssh key, as DSSE and Sigstore expect it.

Owns which keys can do so: a private key in a file without passphrase, or in an agent. A key in a
token signs more than the given bytes, so it can only make ssh signatures (`system.signing`). It
must not know what is signed.
"""

from __future__ import annotations

import base64
import binascii
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    SSHCertificate,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_identity,
)
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey

from stackyard.system import signing
from stackyard.system.errors import ReleaseError

# Takes the body of a request to an ssh agent and returns its answer; empty without an agent.
Agent = Callable[[bytes], bytes]
# The protocol's numbers: draft-ietf-sshm-ssh-agent, section 6.
SIGN_REQUEST, SIGN_RESPONSE, RSA_SHA2_256 = 13, 14, 2
# OpenSSH's agent closes the connection on longer messages.
LONGEST_REQUEST = 256 * 1024
AGENT_SECONDS = 60
_ARMOR = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"


def no_agent(request: bytes) -> bytes:
    """Answer as no agent does."""
    return b""


def agent_at(path: str) -> Agent:
    """Return the agent that listens at a socket (SSH_AUTH_SOCK); none for an empty path."""

    def ask(request: bytes) -> bytes:
        if len(request) > LONGEST_REQUEST:
            return b""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talk:
                talk.settimeout(AGENT_SECONDS)
                talk.connect(path)
                talk.sendall(_string(request))
                with talk.makefile("rb") as answer:
                    (length,) = struct.unpack(">I", answer.read(4))
                    return answer.read(min(length, LONGEST_REQUEST))
        except (OSError, struct.error):
            return b""

    return ask if path else no_agent


def sign(data: bytes, key: Path, agent: Agent) -> bytes | None:
    """Return the plain signature of bytes; None where the key can make none.

    Args:
        key: the private key's file, or the public one's where an agent holds the private key.

    Raises:
        ReleaseError: the public half is not beside the private one, or cannot be read.
    """
    line = signing.public_half(key)
    if line.startswith("sk-"):
        return None
    found = _by_file(data, key, line)
    found = _by_agent(data, line, agent) if found is None else found
    # A file and its public half may belong to different keys.
    return found if found is not None and is_signed(data, found, line) else None


def is_signed(data: bytes, signature: bytes, line: str) -> bool:
    """Return whether a plain signature of bytes is by this public key (`KIND BASE64`)."""
    try:
        public = _public(line)
        public.verify_signature(Signature(public.keyid, signature.hex()), data)
    except (UnverifiedSignatureError, ReleaseError):
        return False
    return True


def signer_of(signature: bytes) -> str:
    """Return the public key (`KIND BASE64`) that an ssh signature names; the caller verifies it.

    Raises:
        ReleaseError: it is no ssh signature.
    """
    try:
        text = signature.decode().strip()
        body = text.removeprefix(_ARMOR[0]).removesuffix(_ARMOR[1])
        raw = base64.b64decode("".join(body.split()), validate=True)
        if raw[:6] != b"SSHSIG":
            raise ValueError("no ssh signature")
        blob, _ = _parted(raw[10:])
        kind, _ = _parted(blob)
        return f"{kind.decode('ascii')} {base64.b64encode(blob).decode()}"
    except (ValueError, struct.error) as error:
        raise ReleaseError("a signature cannot be read", why=repr(error)) from error


def _public(line: str) -> SSlibKey:
    try:
        found = load_ssh_public_identity(line.encode())
        public = found.public_key() if isinstance(found, SSHCertificate) else found
        # Sigstore's RSA is PKCS #1 v1.5, as agents sign; the library's default is PSS.
        scheme = "rsa-pkcs1v15-sha256" if isinstance(public, RSAPublicKey) else None
        return SSlibKey.from_crypto(public, signing.fingerprint_of(line), scheme)
    except (ValueError, UnsupportedAlgorithm, binascii.Error) as error:
        raise ReleaseError("a public key cannot be read", why=str(error)) from error


def _by_file(data: bytes, key: Path, line: str) -> bytes | None:
    try:
        text = key.read_bytes()
        load = load_ssh_private_key if b"OPENSSH" in text[:64] else load_pem_private_key
        signer = CryptoSigner(load(text, None), _public(line))
        return bytes.fromhex(signer.sign(data).signature)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        return None  # a public key, one with a passphrase, or one of another kind


def _by_agent(data: bytes, line: str, agent: Agent) -> bytes | None:
    kind, _, body = line.partition(" ")
    blob = base64.b64decode(body)
    flags = RSA_SHA2_256 if kind == "ssh-rsa" else 0
    answer = agent(bytes([SIGN_REQUEST]) + _string(blob) + _string(data) + struct.pack(">I", flags))
    if answer[:1] != bytes([SIGN_RESPONSE]):
        return None
    try:
        signature, _ = _parted(answer[1:])
        form, rest = _parted(signature)
        found, _ = _parted(rest)
        if not form.startswith(b"ecdsa-"):
            return found
        r, rest = _parted(found)
        s, _ = _parted(rest)
        return encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
    except (ValueError, struct.error):
        return None


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _parted(data: bytes) -> tuple[bytes, bytes]:
    """Return the first string of ssh's wire format, and the rest."""
    (length,) = struct.unpack(">I", data[:4])
    if length > len(data) - 4:
        raise ValueError("a string that is longer than its data")
    return data[4 : 4 + length], data[4 + length :]
