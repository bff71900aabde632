"""Scan the layers of a saved image for what must not be in any of them.

Owns the rules and reading layers as streams. A later layer does not take away what an earlier
one holds, so every layer is looked at by itself. It must not talk to an engine.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.images.caller import GAP, Caller, fingerprint, parse_certificates

RULES = {
    "key": "private key material",
    "key file": "a file named as ssh names keys and lists of keys",
    "identity": "what makes one machine itself: name, id, resolver, histories",
    "cache": "a package manager's caches and downloads",
    "log": "a log",
    "left over": "something in a folder that an image has empty, or deleted too late",
    "world-writable": "a file that everybody may change",
    "setuid": "a program with more rights than its user, beyond Debian's own",
    "caller": "an address, password or folder of the caller's package settings",
    "certificate": "a certificate of the caller's bundle that no package brought",
}
CHUNK = 4 * 2**20
# More than any key or certificate is long, so that none hides on the border of two chunks.
OVERLAP = 16 * 2**10

# Set in Debian's packages; runs are started with no-new-privileges, where none has any effect.
SETUID = {
    "/usr/bin/chage": 0o2755,  # passwd
    "/usr/bin/chfn": 0o4755,
    "/usr/bin/chsh": 0o4755,
    "/usr/bin/expiry": 0o2755,
    "/usr/bin/gpasswd": 0o4755,
    "/usr/bin/passwd": 0o4755,
    "/usr/bin/newgrp": 0o4755,  # login
    "/usr/bin/su": 0o4755,  # util-linux
    "/usr/bin/ssh-agent": 0o2755,  # openssh-client
    "/usr/lib/openssh/ssh-keysign": 0o4755,
    "/usr/sbin/unix_chkpwd": 0o2755,  # libpam-modules-bin
    "/usr/bin/netkit-rcp": 0o4755,  # rsh-client, which Debian's pdsh depends on
    "/usr/bin/netkit-rlogin": 0o4755,
    "/usr/bin/netkit-rsh": 0o4755,
}

_MARKER = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
# With the first 64 characters of what follows, which no two keys share.
_KEY = re.compile(
    _MARKER.pattern + rb"(?:%b*[A-Za-z-]+: [^\n]*)*%b+((?:[A-Za-z0-9+/=]%b*){64})" % (GAP, GAP, GAP)
)
# Keys that are no secret, by the file that ships them and the digest of those 64 characters.
_GNUTLS = re.compile(r"/usr/lib/[^/]+/libgnutls\.so\.[0-9.]+")
PUBLIC_KEYS = {  # libgnutls30 tests itself with these, which are in its source
    "8dd51545b81e4a0a": _GNUTLS,  # GOST, three kinds
    "c50f38f5a25dad1a": _GNUTLS,
    "4b86104d3a39ae36": _GNUTLS,
    "36d32468a4353827": _GNUTLS,  # EC
    "e36ff64abc8431d1": _GNUTLS,  # DSA
    "d76d8725f92d8728": _GNUTLS,  # RSA
}
# How the base64 form of an OpenSSH key begins; PuTTY's first line.
_OTHER_KEYS = (b"b3BlbnNzaC1rZXktdjEA", b"PuTTY-User-Key-File-")

_KEY_NAME = re.compile(
    r"(ssh_host_.*|.*_key|id_(rsa|dsa|ecdsa|ed25519|xmss)(_sk)?|.*\.(ppk|key|p12|pfx|jks)"
    r"|authorized_keys2?|known_hosts2?|.*-cert\.pub)"
)
_IDENTITY = re.compile(
    r"/etc/(hostname|resolv\.conf|hosts|mtab)|/var/lib/dbus/machine-id|/var/lib/systemd/random-seed"
    r"|.*/\.(bash_history|python_history|lesshst|viminfo|wget-hsts)"
)
_CACHE = re.compile(
    r"/var/cache/.*|/var/lib/apt/lists/.*|/(root|home/[^/]+)/\.(cache|npm|cargo)(/.*)?"
    r"|.*\.(whl|deb|rpm)"
)
_LOG = re.compile(r"/var/log/.*|.*\.log(\.\d+)?(\.gz)?")
_EMPTY = re.compile(
    r"/(tmp|var/tmp|run|mnt|media|home|srv|opt|boot)/.+|/root/(?!\.(bashrc|profile)$).+"
)
# Where package tools and builds write, as opposed to the files that packages bring.
_WRITTEN = re.compile(
    r"/(etc|root|home|srv|opt|tmp|run|mnt|media)/.*|/var/(?!lib/dpkg/info/).*"
    r"|/usr/local/(?!lib/python[^/]*/(dist|site)-packages/).*"
    r"|.*\.dist-info/(direct_url\.json|uv_cache\.json|INSTALLER|RECORD)"
    r"|.*/(pip\.conf|uv\.toml|\.netrc|\.pypirc|\.git-credentials|sources\.list|[^/]*\.sources)"
)


@dataclass(frozen=True, kw_only=True, order=True)
class Finding:
    """One thing that must not be there."""

    rule: str
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class SavedImage:
    """An image's configuration as saved, and what was found, by layer."""

    config: Mapping[str, Any]
    layers: tuple[tuple[Finding, ...], ...]

    def of_rule(self, rule: str) -> list[str]:
        """What breaks a rule, once for each path."""
        return sorted({str(f) for layer in self.layers for f in layer if f.rule == rule})


def scan_image(path: Path, caller: Caller, known: dict[str, tuple[Finding, ...]]) -> SavedImage:
    """Read a saved image; layers in `known` (by digest) are not read again, new ones added."""
    with tarfile.open(path, "r:") as outer:
        manifest = json.loads(_member(outer, "manifest.json").read())[0]
        config = json.loads(_member(outer, manifest["Config"]).read())
        digests = config["rootfs"]["diff_ids"]
        for digest, name in zip(digests, manifest["Layers"], strict=True):
            if digest not in known:
                known[digest] = tuple(scan_layer(_member(outer, name), caller))
    return SavedImage(config=config, layers=tuple(known[digest] for digest in digests))


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None, name
    return found


def scan_layer(layer: IO[bytes], caller: Caller) -> list[Finding]:
    """Everything in one layer that breaks a rule."""
    found: set[Finding] = set()
    unproven: dict[str, str] = {}
    recorded: dict[str, str] = {}
    with tarfile.open(fileobj=layer, mode="r:") as archive:
        for member in archive:
            path = "/" + member.name.removeprefix("./")
            found |= set(of_name(path, member))
            if not member.isfile():
                continue
            content = _member(archive, member)  # type: ignore[arg-type]
            here = set(of_content(path, content, caller))
            if any(finding.rule == "certificate" for finding in here):
                unproven[path] = _digest(content)
            if path.endswith(".dist-info/RECORD"):
                recorded |= _recorded(path, content)
            found |= here
    proven = {path for path, digest in unproven.items() if recorded.get(path) == digest}
    return sorted(f for f in found if not (f.rule == "certificate" and f.path in proven))


def of_name(path: str, member: tarfile.TarInfo) -> Iterator[Finding]:
    """What a file's name, kind and mode say."""
    name = path.rpartition("/")[2]
    mode = member.mode & 0o7777
    if name.startswith(".wh."):
        yield Finding(rule="left over", path=path, what="deleted here, still in an earlier layer")
    if _EMPTY.fullmatch(path):
        yield Finding(rule="left over", path=path, what="this folder has to be empty")
    if _IDENTITY.fullmatch(path) or (path == "/etc/machine-id" and member.size):
        yield Finding(rule="identity", path=path, what="belongs to one machine")
    # A character device has its mode by right: /dev/null.
    if mode & 0o002 and not (
        member.issym() or member.ischr() or (member.isdir() and mode & 0o1000)
    ):
        yield Finding(rule="world-writable", path=path, what=f"mode {mode:o}")
    if member.isdir():
        return
    if mode & 0o6000 and SETUID.get(path) != mode:
        yield Finding(rule="setuid", path=path, what=f"mode {mode:o}")
    if _KEY_NAME.fullmatch(name):
        yield Finding(rule="key file", path=path, what="named as a key, or a list of keys")
    if _CACHE.fullmatch(path):
        yield Finding(rule="cache", path=path, what=f"{member.size} bytes")
    if _LOG.fullmatch(path):
        yield Finding(rule="log", path=path, what=f"{member.size} bytes")


def of_content(path: str, content: IO[bytes], caller: Caller) -> Iterator[Finding]:
    """What a file's bytes say, read in overlapping chunks."""
    chunk = content.read(CHUNK)
    program = chunk.startswith(b"\x7fELF")
    while chunk:
        yield from _keys(path, chunk, program)
        yield from _certificates(path, chunk, caller)
        yield from _traces(path, chunk, caller)
        rest = content.read(CHUNK)
        chunk = chunk[-OVERLAP:] + rest if rest else b""


def _keys(path: str, chunk: bytes, program: bool) -> Iterator[Finding]:
    if b"PRIVATE KEY" in chunk:
        # ssh, gpgv and the TLS libraries hold the first line of a key as a constant.
        for match in _KEY.finditer(chunk) if program else _MARKER.finditer(chunk):
            name = key_name(match.group(1)) if program else ""
            if name not in PUBLIC_KEYS or not PUBLIC_KEYS[name].fullmatch(path):
                yield Finding(rule="key", path=path, what=f"a private key {name}".strip())
    for start in _OTHER_KEYS:
        if start in chunk:
            yield Finding(rule="key", path=path, what=start.decode())


def key_name(body: bytes) -> str:
    """A name for a key that tells nothing about it."""
    return hashlib.sha256(re.sub(GAP, b"", body)).hexdigest()[:16]


def _certificates(path: str, chunk: bytes, caller: Caller) -> Iterator[Finding]:
    given = parse_certificates(chunk) if b"BEGIN CERTIFICATE" in chunk else [chunk]
    for der in caller.certificates.intersection(given):
        yield Finding(rule="certificate", path=path, what=fingerprint(der))


def _traces(path: str, chunk: bytes, caller: Caller) -> Iterator[Finding]:
    for text in (*caller.private_hosts, *caller.credentials):
        if text.encode() in chunk:
            yield Finding(rule="caller", path=path, what=_masked(text, caller))
    if _WRITTEN.fullmatch(path):
        for what in traces(chunk.decode("latin-1"), caller):
            yield Finding(rule="caller", path=path, what=what)


def traces(text: str, caller: Caller) -> list[str]:
    """The caller's addresses, passwords, folders and certificates that a text gives away."""
    found = [host for host in caller.hosts if _word(host).search(text)]
    found += [folder for folder in caller.folders if _folder(folder).search(text)]
    found += [_masked(secret, caller) for secret in caller.credentials if secret in text]
    given = parse_certificates(text.encode("latin-1", errors="replace"))
    found += [fingerprint(der) for der in caller.certificates.intersection(given)]
    return sorted(found)


def _masked(text: str, caller: Caller) -> str:
    return "a password" if text in caller.credentials else text


def _word(host: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])", re.IGNORECASE)


def _folder(folder: str) -> re.Pattern[str]:
    return re.compile(rf"(?:file://|(?<![\w./-])){re.escape(folder)}(?![\w.-])")


def _digest(content: IO[bytes]) -> str:
    content.seek(0)
    digest = hashlib.sha256()
    while chunk := content.read(CHUNK):
        digest.update(chunk)
    return base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def _recorded(path: str, content: IO[bytes]) -> dict[str, str]:
    """The hashes that a wheel's RECORD states, by path."""
    content.seek(0)
    folder = path.rsplit("/", 2)[0]
    found = {}
    for line in content.read().decode().splitlines():
        name, _, rest = line.rpartition(",")[0].rpartition(",")
        found[f"{folder}/{name}"] = rest.removeprefix("sha256=")
    return found
