"""Make and verify signatures by ssh keys, with `ssh-keygen -Y`.

Owns the namespaces (what a signature is for), and the calls of ssh-keygen. Keys stay where they
are: in a file, an agent or a token. It must not decide what is signed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from stackyard.system import cleanup, process
from stackyard.system.errors import CommandError, ReleaseError, UsageError

NAMESPACE = "release@stackyard"
# A namespace of its own, so that a key may sign evidence from GPUs without signing releases.
EVIDENCE = "evidence@stackyard"
# What ssh-keygen says of a line that it cannot read; it also names lines that it can, by number.
_BROKEN = r"((?:missing|invalid) (?:key|line|principals)|bad options.*)$"
USUAL_KEYS = ("id_ed25519", "id_ed25519_sk", "id_ecdsa", "id_rsa")


def find_key(given: str, home: Path) -> Path:
    """Return the key to sign with: the given one, else the first usual one in ~/.ssh.

    The given file is the private key, or the public one where an agent holds the private key.

    Raises:
        UsageError: there is none.
    """
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise UsageError(f"there is no key {path}")
        return path
    for name in USUAL_KEYS:
        if (home / ".ssh" / name).is_file():
            return home / ".ssh" / name
    raise UsageError(
        "there is no ssh key to sign with",
        why=f"looked for {', '.join(USUAL_KEYS)} in {home / '.ssh'}",
        hint="--key FILE, or make one: ssh-keygen -t ed25519",
    )


def needs_touch(key: Path) -> bool:
    """Return whether a key's private half is in a token that somebody must touch to sign.

    Raises:
        ReleaseError: its public half is not beside it.
    """
    return public_half(key).startswith("sk-")


def sign(data: bytes, key: Path, namespace: str = NAMESPACE, *, unattended: bool = False) -> bytes:
    """Return a signature, in ssh-keygen's armored format.

    Args:
        unattended: no window may ask for a passphrase.

    Raises:
        ReleaseError: the key cannot be used.
    """
    with cleanup.folder("sign") as folder:
        path = folder / "statement"
        path.write_bytes(data)
        try:
            process.run(
                ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", namespace, str(path)],
                timeout=60,
                env={"SSH_ASKPASS_REQUIRE": "never"} if unattended else None,
            )
            return path.with_name("statement.sig").read_bytes()
        except (CommandError, OSError) as error:
            raise ReleaseError(
                f"{key} does not sign",
                why=getattr(error, "why", "") or str(error),
                hint="a key with a passphrase goes through an agent: ssh-add, then --key FILE.pub",
            ) from error


def verify(
    data: bytes,
    signature: bytes,
    signers: Path,
    namespace: str = NAMESPACE,
    what: str = "the release",
) -> str:
    """Return who signed, as an allowed-signers file (ssh-keygen(1)) names them.

    Raises:
        ReleaseError: no allowed signer made the signature, or it is of other bytes.
        UsageError: there is no such file.
    """
    if not signers.is_file():
        raise UsageError(
            f"there is no {signers}",
            why="it says whose releases are accepted: one line for each, a name and a public key",
            hint="invoke publish prints the line of its key",
        )
    with cleanup.folder("verify") as folder:
        seal = folder / "signature"
        seal.write_bytes(signature)
        asked = ["ssh-keygen", "-Y", "find-principals", "-s", str(seal), "-f", str(signers)]
        try:
            found = process.run(asked, timeout=20).output.split()
            name = found[0].split(",")[0]
            process.run(
                ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", name, "-n", namespace,
                 "-s", str(seal)],
                stdin=data, timeout=20,
            )  # fmt: skip
        except (CommandError, IndexError) as error:
            why = getattr(error, "why", "") or str(error)
            hint = f"{signers} names who may; add them there only if you know their key"
            line = rf"^{re.escape(str(signers))}:(\d+): {_BROKEN}"
            if broken := re.search(line, why, re.MULTILINE):
                hint += f"; its line {broken[1]} cannot be read ({broken[2]})"
            raise ReleaseError(
                f"{what} is not signed by anybody who may", why=why, hint=hint
            ) from error
    return name


def signer_line(key: Path, name: str, namespaces: Sequence[str] = (NAMESPACE, EVIDENCE)) -> str:
    """Return the line of an allowed-signers file for a key.

    Args:
        namespaces: those that the key may sign in.

    Raises:
        ReleaseError: its public half is not beside it.
    """
    return f'{name} namespaces="{",".join(namespaces)}" {public_half(key)}'


def fingerprint(key: Path) -> str:
    """Return a key's fingerprint, as `ssh-keygen -l` shows it.

    Raises:
        ReleaseError: its public half is not beside it, or is none.
    """
    try:
        return fingerprint_of(public_half(key))
    except binascii.Error as error:
        raise ReleaseError(f"the public half of {key} cannot be read", why=str(error)) from error


def fingerprint_of(line: str) -> str:
    """Return the fingerprint of a public key, `KIND BASE64`.

    Raises:
        binascii.Error: it is not base64.
    """
    raw = base64.b64decode(line.partition(" ")[2], validate=True)
    return f"SHA256:{base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip('=')}"


def public_half(key: Path) -> str:
    """Return a key's public half, `KIND BASE64`, from the file beside it.

    Raises:
        ReleaseError: it is not beside it, or is no public key.
    """
    public = key if key.suffix == ".pub" else key.with_name(f"{key.name}.pub")
    try:
        kind, body = public.read_text(encoding="utf-8").split()[:2]
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{public} cannot be read", why=str(error)) from error
    return f"{kind} {body}"
