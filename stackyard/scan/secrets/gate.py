"""Find what an image holds that must not be published.

Owns turning layers and an image's configuration into findings. A file that a later layer deletes
stays in the earlier layer, so every layer is scanned by itself. It must not talk to an engine or a
registry, write files, or show a secret.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from stackyard.scan.layer_stream import members
from stackyard.scan.mirror_traces import Caller
from stackyard.scan.secrets.allowed import NOTHING, Allowed, read_allowed
from stackyard.scan.secrets.content import CONFIGURATION, Piece, find_all, make_place, pieces
from stackyard.scan.secrets.parts import LIMIT, PACKED, Section, Unreadable, unpack
from stackyard.scan.secrets.rules import SECRETS, Hit, is_key_name, untidy
from stackyard.scan.secrets.tokens import digest
from stackyard.system.chunks import Readable
from stackyard.system.errors import EngineError

__all__ = ["NOTHING", "Allowed", "Finding", "read_allowed", "scan_config", "scan_layer"]

# Files of at most this size (bytes) are read whole, so that they can be hashed.
WHOLE = 4 * 2**20


@dataclass(frozen=True, kw_only=True, order=True)
class Finding:
    """Report one thing that must not be in an image.

    Attributes:
        rule: which of `scan.secrets.rules` it breaks.
        path: the file, `archive!/member` in a compressed one; or a place of the configuration.
        what: what it is, with a fingerprint, never the secret.
        secret: true if it forbids publication; otherwise it is only untidy.
    """

    rule: str
    path: str
    what: str
    secret: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(kw_only=True)
class _Layer:
    """Collect the findings of one layer."""

    caller: Caller
    allowed: Allowed
    found: set[Finding] = field(default_factory=set)
    # Hashes by path: of files with certificates of the caller, and those that wheels record.
    unproven: dict[str, str] = field(default_factory=dict)
    recorded: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, hits: Iterable[Hit]) -> None:
        """Keep the hits that are not allowed."""
        for hit in hits:
            if not self.allowed.lets(hit.rule, path, hit.digest):
                known = hit.digest and hit.digest not in hit.what
                what = f"{hit.what} {hit.digest}" if known else hit.what
                secret = hit.rule in SECRETS
                self.found.add(Finding(rule=hit.rule, path=path, what=what, secret=secret))

    def proven(self, finding: Finding) -> bool:
        """Say if a wheel's RECORD proves that a certificate file came from the wheel."""
        known = self.unproven.get(finding.path)
        return (
            finding.rule == "certificate"
            and known is not None
            and self.recorded.get(finding.path) == known
        )


def scan_layer(stream: IO[bytes], caller: Caller, allowed: Allowed = NOTHING) -> list[Finding]:
    """Return everything in one layer that breaks a rule.

    Args:
        stream: the layer as an uncompressed tar; need not be seekable, and is read to its end.
        caller: the caller's settings, which must not be found.
        allowed: public secrets that may be published.

    Raises:
        EngineError: the stream is not a complete archive.
    """
    layer = _Layer(caller=caller, allowed=allowed)
    try:
        for member, content in members(stream):
            if member is None:
                _scan_rest(content, layer)
            else:
                _scan_member(member, content, layer)
    except tarfile.TarError as error:
        hint = "save the image again"
        raise EngineError("a layer is not a whole archive", why=str(error), hint=hint) from error
    return sorted(finding for finding in layer.found if not layer.proven(finding))


def _scan_member(member: tarfile.TarInfo, content: Readable, layer: _Layer) -> None:
    path = "/" + member.name.removeprefix("./")
    layer.add(path, untidy(path, member))
    head = content.read(min(member.size, WHOLE)) if member.isfile() else b""
    if is_key_name(path) and not member.isdir():
        layer.add(path, [Hit(rule="key file", what="named as a key", digest=digest(head))])
    if head.startswith(PACKED):
        _scan_packed(path, Section(head, content, member.size), member.size, layer)
    elif head:
        _scan_file(path, head, Section(head, content, member.size), member.size, layer)


def _scan_packed(path: str, content: Section, size: int, layer: _Layer) -> None:
    """Scan a compressed file and its members."""
    if size > LIMIT:
        layer.add(path, [Hit(rule="unread", what=f"{size} bytes, compressed")])
        _scan_file(path, b"", content, size, layer)
        return
    data = content.read(size)
    inside: set[Hit] = set()
    try:
        for name, inner in unpack(data):
            within = f"{path}!/{name}" if name else path
            inside |= _scan_file(within, inner, io.BytesIO(inner), len(inner), layer)
    except Unreadable as error:
        layer.add(path, [Hit(rule="unread", what=str(error))])
    _scan_file(path, data, io.BytesIO(data), size, layer, known=inside)


def _scan_file(
    path: str, head: bytes, content: Readable, size: int, layer: _Layer, known: Iterable[Hit] = ()
) -> set[Hit]:
    """Scan one file, and return the hits that are not `known`."""
    place = make_place(path, head)
    hits = {hit for piece in pieces(content) for hit in find_all(piece, place, layer.caller)}
    hits.difference_update(known)
    layer.add(path, hits)
    if len(head) == size and any(hit.rule == "certificate" for hit in hits):
        layer.unproven[path] = _record_hash(head)
    if len(head) == size and path.endswith(".dist-info/RECORD"):
        layer.recorded |= _recorded(path, head)
    return hits


def _scan_rest(content: Readable, layer: _Layer) -> None:
    """Scan what follows the end of the archive, which should be zeros only."""
    path = "(behind the last file)"
    place = make_place(path, b"")
    for piece in pieces(content):
        if piece.data.count(0) < len(piece.data):
            layer.add(path, [Hit(rule="unread", what="bytes that belong to no file")])
            layer.add(path, find_all(piece, place, layer.caller))


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _recorded(path: str, content: bytes) -> dict[str, str]:
    """Return the hashes in a wheel's RECORD, by path."""
    folder = path.rsplit("/", 2)[0]
    found = {}
    for line in content.decode("utf-8", "replace").splitlines():
        name, _, rest = line.rpartition(",")[0].rpartition(",")
        found[f"{folder}/{name}"] = rest.removeprefix("sha256=")
    return found


def scan_config(
    config: Mapping[str, Any], caller: Caller, allowed: Allowed = NOTHING
) -> list[Finding]:
    """Return everything in an image's configuration and history that breaks a rule.

    Args:
        config: the configuration, as OCI and docker write it.
        caller: the caller's settings, which must not be found.
        allowed: public secrets that may be published.
    """
    layer = _Layer(caller=caller, allowed=allowed)
    for path, text in _texts("configuration", "", config):
        piece = Piece(data=text.encode("utf-8", "replace"), first=True, last=True)
        layer.add(path, find_all(piece, CONFIGURATION, caller))
    return sorted(layer.found)


def _texts(path: str, name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield every text of a configuration with its path, as `name=text` where it has a name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(f"{path}.{key}", str(key), inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _texts(f"{path}[{number}]", "", inner)
    elif isinstance(value, str):
        if path.startswith("configuration.config.Env["):
            path = f"configuration.config.Env.{value.partition('=')[0]}"
        yield path, f"{name}={value}" if name else value
