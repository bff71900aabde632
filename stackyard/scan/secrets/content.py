"""Find keys, key stores, logins, passwords and traces of the caller in the bytes of a file.

Owns what is looked for in which files, and reading long files in overlapping pieces, so that no
secret is missed at a border. `scan.secrets.tokens` finds tokens of known form. It must not open
files, archives or images.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stackyard.scan.mirror_traces import GAP, Caller, fingerprint, parse_certificates
from stackyard.scan.secrets.rules import Hit
from stackyard.scan.secrets.tokens import condense, digest, find_tokens, is_made_up
from stackyard.system.chunks import Readable

# A piece stays in the processor's cache while every rule is applied to it.
CHUNK = 256 * 2**10
# Longer than any key, certificate or token.
OVERLAP = 24 * 2**10
# Bytes before a secret that a rule looks at.
LEAD = 512

_BEGIN = b"-----BEGIN "
_MARKER = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
# Between the characters of a key: line breaks, also as escapes and in strings of source code.
_BREAK = rb"(?:%b|[\"',#])" % GAP
# At least 64 characters, 38 of them without a break, which prose does not have.
_BODY = rb"%b{0,80}[A-Za-z0-9+/]{38}(?:%b{0,80}[A-Za-z0-9+/=]){26,12000}" % (_BREAK, _BREAK)
_KEY = re.compile(
    _MARKER.pattern + rb"(?:%b{1,80}[A-Za-z-]{1,40}: [^\n\\]{0,200}){0,9}(%b)" % (_BREAK, _BODY)
)
# How the base64 forms of an OpenSSH key and of a PEM file begin.
_BARE_START = b"b3BlbnNzaC1rZXktdjEA"
_BARE = re.compile(_BARE_START + rb"(?:%b{0,80}[A-Za-z0-9+/=]){100,12000}" % _BREAK)
_WRAPPED_START = b"LS0tLS1CRUdJTi"
_WRAPPED = re.compile(_WRAPPED_START + rb"[A-Za-z0-9+/=]{80,16000}")
_PUTTY = re.compile(
    rb"PuTTY-User-Key-File-\d: [^\0]{1,4000}?Private-Lines: \d{1,4}\s{1,3}"
    rb"([A-Za-z0-9+/=\s]{32,8000})"
)
# DER: PKCS#8 plain and encrypted, PKCS#1, SEC 1; binary OpenPGP; each at the start of a file.
_BINARY_KEY = re.compile(
    rb"\x30\x82..\x02\x01\x00(?:\x30.\x06|\x02[\x81\x82])|\x30\x81.\x02\x01\x00(?:\x30.\x06|\x02)"
    rb"|\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65|\x30\x77\x02\x01\x01\x04\x20"
    rb"|\x30\x82..\x30.\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0d"
    rb"|(?:\x94.|\x95..|\xc5[\xc0-\xdf].|\xc5.)\x04....[\x01\x10\x11\x12\x13\x16]",
    re.DOTALL,
)
_PKCS12 = re.compile(
    rb"\x30(?:\x80|\x81.|\x82..|\x83...)\x02\x01\x03\x30(?:\x80|\x81.|\x82..|\x83...)"
    rb"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07[\x01\x02]",
    re.DOTALL,
)
_JAVA_STORES = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")

# Paths that package tools and builds write, as opposed to files from packages.
_WRITTEN = re.compile(
    r"(?!.*/(dist|site)-packages/)/(etc|root|home|srv|opt|tmp|run|mnt|media|usr/local)/.*"
    r"|/var/(?!lib/dpkg/info/).*"
    r"|.*\.dist-info/(direct_url\.json|uv_cache\.json|INSTALLER|RECORD)"
    r"|.*/(pip\.conf|uv\.toml|\.netrc|\.pypirc|\.npmrc|\.git-credentials|sources\.list"
    r"|[^/]*\.sources|\.git/config|\.dockercfg|\.dockerconfigjson)"
)
_SETTINGS = re.compile(r".*\.(json|ya?ml|toml|ini|conf|cfg|env|properties|xml)|.*/kubeconfig")
_VARIABLES = re.compile(
    r"/etc/(environment|profile|bash\.bashrc|default/.*|profile\.d/.*)"
    r"|.*/\.(bashrc|profile|bash_profile|zshrc|envrc|env(\.[^/]*)?)|.*\.env"
)
_LOGINS = re.compile(r".*/(\.?netrc|_netrc|\.pypirc|\.npmrc)|/etc/apt/auth\.conf(\.d/.*)?")

_URL_PASSWORD = re.compile(
    rb"://[^\s/:@\"'<>{}$\\]{0,100}:([^\s/@\"'<>{}$\\]{3,200})@[A-Za-z0-9\[]"
)
_LOGIN_PASSWORD = re.compile(
    rb"(?:\bpassword|_password|_auth)[\s:=]{1,8}[\"']?([^\s\"'<>{}$\\]{3,200})"
)
# Names that are given to secrets, whatever their case.
SECRET_NAME = (
    rb"(?:[A-Z0-9]+_)*[A-Z0-9]*(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY"
    rb"|ACCESS_?KEY|PRIVATE_?KEY|SECRET_?KEY|CREDENTIALS?)"
)
_VARIABLE = re.compile(
    rb"(?<![A-Za-z0-9_])(%b)(?:[\"']?\s{0,2}="
    rb"|[\"']\s{0,2}:)\s{0,2}[\"']?([^\s\"';,&|]{3,4000})" % SECRET_NAME,
    re.IGNORECASE,
)
# Not secrets: a path, a variable, a mount, an ellipsis, a switch or a number.
_NO_SECRET = re.compile(
    rb"/.*|[$<{%(*\[].*|file:.*|true|false|yes|no|none|null|\d{1,5}|x+|\.+|user|pass|passw(or)?d|pw"
    rb"|secret|token|key|changeme|.*(/run/secrets/).*",
    re.IGNORECASE | re.DOTALL,
)
_REGISTRY_LOGIN = re.compile(
    rb"\"(auth|identitytoken|registrytoken)\\?\"\s{0,9}:\s{0,9}\\?\"([A-Za-z0-9+/=._-]{4,8000})"
)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Hold some bytes of a file, including the overlap with the pieces around it."""

    data: bytes
    first: bool
    last: bool

    def owns(self, start: int) -> bool:
        """Say if this piece, and not a neighbour, reports a match that begins at `start`."""
        after = len(self.data) - OVERLAP + LEAD
        return (self.first or start >= LEAD) and (self.last or start < after)


def pieces(content: Readable) -> Iterator[Piece]:
    """Yield a whole file in overlapping pieces."""
    data, first = content.read(CHUNK), True
    while data:
        rest = content.read(CHUNK)
        yield Piece(data=data, first=first, last=not rest)
        data, first = (data[-OVERLAP:] + rest if rest else b""), False


@dataclass(frozen=True, kw_only=True)
class Place:
    """Hold the facts about a file, from its path and first bytes, that select the rules.

    Attributes:
        program: an ELF binary, which may hold the first lines of keys as constants.
        written: a build or a package tool may have written it.
        settings: it may hold settings.
        variables: it sets environment variables.
        logins: it may hold passwords.
    """

    path: str
    program: bool = False
    written: bool = False
    settings: bool = False
    variables: bool = False
    logins: bool = False


def make_place(path: str, head: bytes) -> Place:
    """Classify a file by its path and first bytes."""
    written = bool(_WRITTEN.fullmatch(path))
    return Place(
        path=path,
        program=head.startswith(b"\x7fELF"),
        written=written,
        settings=written or bool(_SETTINGS.fullmatch(path)),
        variables=bool(_VARIABLES.fullmatch(path)),
        logins=bool(_LOGINS.fullmatch(path)),
    )


# An image's configuration is written by the build, and holds variables.
CONFIGURATION = Place(path="", written=True, settings=True, variables=True)


def find_all(piece: Piece, place: Place, caller: Caller) -> Iterator[Hit]:
    """Yield the rules that one piece of a file breaks."""
    data, runs = piece.data, condense(piece.data)
    armoured = _BEGIN in data
    placed = [*find_tokens(data, runs, settings=place.settings), *_bare_keys(data, runs)]
    placed += _armoured_keys(data, place) if armoured else ()
    yield from (hit for start, hit in placed if piece.owns(start))
    if piece.first:
        yield from _binary_keys(piece)
    yield from _caller(data, place, caller)
    yield from _certificates(data, caller, armoured)
    if place.settings:
        yield from _logins(piece)
    if place.written and b"://" in data:
        yield from _passwords(_URL_PASSWORD, piece, "a password in a URL")
    if place.logins:
        yield from _passwords(_LOGIN_PASSWORD, piece, "a password")
    if place.variables:
        yield from _variables(piece)


def _armoured_keys(data: bytes, place: Place) -> Iterator[tuple[int, Hit]]:
    bodies = {match.start(): match.group(1) for match in _KEY.finditer(data)}
    for match in _MARKER.finditer(data):
        if match.start() in bodies:
            yield match.start(), _key(bodies[match.start()])
        elif not place.program:
            yield match.start(), Hit(rule="key marker", what="a private key's first line")


def _bare_keys(data: bytes, runs: bytes) -> Iterator[tuple[int, Hit]]:
    """Yield keys without header and footer, keys in base64 twice, and PuTTY's keys."""
    if _BARE_START in runs:
        yield from ((m.start(), _key(m.group(0))) for m in _BARE.finditer(data))
    if _WRAPPED_START in runs:
        for match in _WRAPPED.finditer(data):
            inner = _KEY.search(_unwrapped(match.group(0)))
            if inner:
                yield match.start(), _key(inner.group(1))
    if b"PuTTY-User-Key-File-" in runs:
        yield from ((m.start(), _key(m.group(1))) for m in _PUTTY.finditer(data))


def _key(body: bytes) -> Hit:
    return Hit(rule="key", what="a private key", digest=key_digest(body))


def key_digest(body: bytes) -> str:
    """Return the fingerprint of a key, which does not depend on its line breaks."""
    return digest(re.sub(_BREAK, b"", body))


def _unwrapped(text: bytes) -> bytes:
    try:
        return base64.b64decode(text[: len(text) // 4 * 4])
    except binascii.Error:
        return b""


def _binary_keys(piece: Piece) -> Iterator[Hit]:
    head = piece.data
    if piece.last and len(head) < 16_384 and _BINARY_KEY.match(head) and _fits(head):
        yield Hit(rule="key", what="a private key in binary form", digest=digest(head))
    if _PKCS12.match(head):
        yield Hit(rule="keystore", what="a PKCS#12 key store", digest=digest(head))
    if head.startswith(_JAVA_STORES) and _java_keys(head):
        yield Hit(rule="keystore", what="a Java key store", digest=digest(head))


def _fits(der: bytes) -> bool:
    """Say if a DER value is as long as the file; an OpenPGP packet may be shorter."""
    if der[0] != 0x30:
        size = der[1] if der[0] == 0x94 else int.from_bytes(der[1:3], "big")
        return der[0] == 0xC5 or 40 < size <= len(der)
    many = der[1] & 0x7F if der[1] & 0x80 else 0
    size = int.from_bytes(der[2 : 2 + many], "big") if many else der[1]
    return 2 + many + size == len(der)


def _java_keys(store: bytes) -> bool:
    """Say if a Java key store holds a key or cannot be read; most hold certificates only."""
    version, count = (int.from_bytes(store[at : at + 4], "big") for at in (4, 8))
    at = 12
    for _ in range(count):
        tag = int.from_bytes(store[at : at + 4], "big")
        if tag != 2:
            return True
        at += 4 + 2 + int.from_bytes(store[at + 4 : at + 6], "big") + 8
        if version == 2:
            at += 2 + int.from_bytes(store[at : at + 2], "big")
        at += 4 + int.from_bytes(store[at : at + 4], "big")
    return False


def _caller(data: bytes, place: Place, caller: Caller) -> Iterator[Hit]:
    for text, what in caller.everywhere:
        if text in data:
            yield Hit(rule="caller", what=what)
    if place.written:
        yield from (Hit(rule="caller", what=what) for what in caller.names(data))


def _certificates(data: bytes, caller: Caller, armoured: bool) -> Iterator[Hit]:
    given = parse_certificates(data) if armoured else [data] if len(data) < OVERLAP else []
    for der in caller.certificates.intersection(given):
        name = fingerprint(der)
        yield Hit(rule="certificate", what=name, digest=name.rpartition(":")[2])


def _logins(piece: Piece) -> Iterator[Hit]:
    if b'"auth' not in piece.data:
        return
    for match in _REGISTRY_LOGIN.finditer(piece.data):
        kind, value = match.groups()
        plain = _unwrapped(value) if kind == b"auth" else value
        if kind == b"auth" and not re.fullmatch(rb"[\x20-\x7e]+:[\x20-\x7e]+", plain):
            continue
        if piece.owns(match.start()) and not _is_no_secret(plain.rpartition(b":")[2]):
            yield Hit(rule="login", what="a login to a registry", digest=digest(value))


def _passwords(pattern: re.Pattern[bytes], piece: Piece, what: str) -> Iterator[Hit]:
    for match in pattern.finditer(piece.data):
        if piece.owns(match.start()) and not _is_no_secret(match.group(1)):
            yield Hit(rule="password", what=what, digest=digest(match.group(1)))


def _variables(piece: Piece) -> Iterator[Hit]:
    for match in _VARIABLE.finditer(piece.data):
        name, value = match.groups()
        if piece.owns(match.start()) and not _is_no_secret(value):
            what = f"{name.decode()} with a value"
            yield Hit(rule="variable", what=what, digest=digest(value))


def _is_no_secret(value: bytes) -> bool:
    return _NO_SECRET.fullmatch(value) is not None or is_made_up(value)
