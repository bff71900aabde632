"""Read one layer of an image as a stream: facts about its files, and the texts of metadata.

Owns the facts that are kept of a layer's members, OCI's whiteouts included, and which small
files are kept as text. It must not know an engine or a registry, and keeps no content of other
files: layers are large.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import IO

from stackyard.scan.layer_stream import members
from stackyard.system.chunks import Readable, chunks
from stackyard.system.errors import EngineError

_CHUNK = 256 * 2**10

_WHITEOUT, _OPAQUE, _OTHER = ".wh.", ".wh..wh..opq", ".wh..wh."
_DIST = r"(?:.*/)?[^/]+\.dist-info/"
_EGG = r"(?:.*/)?[^/]+\.egg-info"
# Metadata to keep: pattern of the path, limit in bytes, error handler of the UTF-8 decoder. Lists
# of paths are decoded as tarfile decodes a layer's paths, so that both can be compared.
_KEPT = (
    (re.compile(rf"{_DIST}METADATA|{_EGG}(?:/PKG-INFO)?"), 2**18, "replace"),
    (re.compile(rf"{_DIST}RECORD"), 2**26, "surrogateescape"),
    (re.compile(rf"{_DIST}(?:INSTALLER|direct_url\.json)"), 2**16, "replace"),
    (re.compile(r"var/lib/dpkg/info/[^/]+\.list"), 2**24, "surrogateescape"),
    (re.compile(r"var/lib/dpkg/status(?:\.d/[^/]+(?<!\.md5sums))?"), 2**26, "replace"),
    (re.compile(r"(?:etc|usr/lib)/os-release"), 2**16, "replace"),
)
_HEAD_ONLY = _KEPT[0][0]
_XATTR = "SCHILY.xattr."


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """Describe one file of a layer.

    kind: file, directory, symlink, hardlink, device or fifo.
    size: in bytes; for a hard link, the size of the file that it links to.
    mtime: seconds since 1970.
    sha256: of a regular file's content; empty for other kinds and empty files.
    link: where a symbolic link points, as written; the path that a hard link shares; the numbers
    of a device.
    source: modification time and size of the source, as bytecode records them; else None.
    owner: ids of user and group. attributes: extended attributes, as the tar records them.
    """

    kind: str
    size: int = 0
    mode: int = 0
    mtime: int = 0
    sha256: str = ""
    link: str = ""
    source: tuple[int, int] | None = None
    owner: tuple[int, int] = (0, 0)
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerContents:
    """Hold a layer's files by path (no leading slash), its whiteouts and its metadata texts.

    removed: paths that are deleted, with everything below them (whiteouts). emptied: folders that
    keep nothing of the layers below (opaque whiteouts). Both concern lower layers only. Paths that
    are not UTF-8 hold surrogates.
    """

    number: int
    files: Mapping[str, FileEntry]
    removed: frozenset[str] = frozenset()
    emptied: frozenset[str] = frozenset()
    texts: Mapping[str, str]

    @property
    def size(self) -> int:
        """Return the unpacked size of all its files, in bytes."""
        return sum(entry.size for entry in self.files.values() if entry.kind == "file")


class LayerReader:
    """Read one layer, an uncompressed tar; `number` is its position, for messages."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._files: dict[str, FileEntry] = {}
        self._texts: dict[str, str] = {}
        self._removed: set[str] = set()
        self._emptied: set[str] = set()

    def read(self, stream: IO[bytes]) -> LayerContents:
        """Read the stream once, to its end, without seeking.

        Raises EngineError when it is not a complete tar archive.
        """
        try:
            for member, content in members(stream):
                if member is None:
                    for _ in chunks(content):
                        pass
                else:
                    self._add(member, content)
        except tarfile.TarError as error:
            raise EngineError(
                f"layer {self._number} of the image cannot be read: it is damaged or cut off",
                why=str(error),
            ) from error
        return LayerContents(
            number=self._number,
            files=MappingProxyType(self._files),
            removed=frozenset(self._removed),
            emptied=frozenset(self._emptied),
            texts=MappingProxyType(self._texts),
        )

    def _add(self, member: tarfile.TarInfo, content: Readable) -> None:
        path = _normal(member.name)
        folder, _, name = path.rpartition("/")
        if name.startswith(_WHITEOUT):
            self._hide(folder, name)
        elif path:
            # Of a path that is there twice, the last member counts, and its position.
            self._files.pop(path, None)
            self._texts.pop(path, None)
            entry = self._entry(member, content, path)
            self._files[path] = entry if entry.kind == "hardlink" else _owned(entry, member)

    def _hide(self, folder: str, name: str) -> None:
        if name == _OPAQUE:
            self._emptied.add(folder)
        elif not name.startswith(_OTHER):  # aufs' own metadata, which means nothing here
            self._removed.add(posixpath.join(folder, name.removeprefix(_WHITEOUT)))

    def _entry(self, member: tarfile.TarInfo, content: Readable, path: str) -> FileEntry:
        mode, mtime = member.mode & 0o7777, int(member.mtime)
        if member.islnk():
            return self._hard_link(_normal(member.linkname), mode, mtime)
        if member.issym():
            return FileEntry(kind="symlink", mode=mode, mtime=mtime, link=member.linkname)
        if not member.isreg():
            kind = "directory" if member.isdir() else "fifo" if member.isfifo() else "device"
            numbers = f"{member.devmajor}:{member.devminor}" if kind == "device" else ""
            return FileEntry(kind=kind, mode=mode, mtime=mtime, link=numbers)
        digest, source = "", None
        limit, errors = _keeping(path)
        bytecode = path.endswith(".pyc")
        if member.size:
            digest, head = _read(content, member.size, 16 if bytecode else limit)
            source = _source(head) if bytecode else None
            if limit:
                self._texts[path] = _text(path, head, errors)
        return FileEntry(
            kind="file", size=member.size, mode=mode, mtime=mtime, sha256=digest, source=source
        )

    def _hard_link(self, target: str, mode: int, mtime: int) -> FileEntry:
        first = self._files.get(target)
        if first is None:
            return FileEntry(kind="hardlink", mode=mode, mtime=mtime, link=target)
        link = first.link if first.kind == "hardlink" else target
        return replace(first, kind="hardlink", link=link)


def _owned(entry: FileEntry, member: tarfile.TarInfo) -> FileEntry:
    """Return an entry with owner and attributes; most files have root's and none."""
    attributes = tuple(
        (key, value) for key, value in sorted(member.pax_headers.items()) if key.startswith(_XATTR)
    )
    owner = (member.uid, member.gid)
    if owner == (0, 0) and not attributes:
        return entry
    return replace(entry, owner=owner, attributes=attributes)


def _normal(name: str) -> str:
    return posixpath.normpath("/" + name.lstrip("/"))[1:]


def _keeping(path: str) -> tuple[int, str]:
    """Return how many bytes of a file to keep as text, and the decoder's error handler."""
    for pattern, limit, errors in _KEPT:
        if pattern.fullmatch(path):
            return limit, errors
    return 0, ""


def _read(content: Readable, size: int, keep: int) -> tuple[str, bytes]:
    """Return the SHA-256 of a file's content, and its first bytes."""
    digest, head = hashlib.sha256(), b""
    while size and (chunk := content.read(min(size, _CHUNK))):
        digest.update(chunk)
        size -= len(chunk)
        if len(head) < keep:
            head += chunk[: keep - len(head)]
    return digest.hexdigest(), head


def _text(path: str, raw: bytes, errors: str) -> str:
    text = raw.decode("utf-8", errors).replace("\r\n", "\n")
    return text.partition("\n\n")[0] if _HEAD_ONLY.fullmatch(path) else text


def _source(head: bytes) -> tuple[int, int] | None:
    """Return time and size of bytecode's source; None if it is hash-based (PEP 552)."""
    if len(head) < 16 or int.from_bytes(head[4:8], "little"):
        return None
    return int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
