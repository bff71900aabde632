"""One layer of an image, read as a stream: facts about its files, and the texts of metadata.

Owns the facts that are taken of a layer's members, OCI's whiteouts among these, and which small
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
# Metadata that is kept: names, bytes at most, how bytes that are no UTF-8 are read. Lists of
# paths are read as the paths of a layer are, so that they can be compared.
_KEPT = (
    (re.compile(rf"{_DIST}METADATA|{_EGG}(?:/PKG-INFO)?"), 2**18, "replace"),
    (re.compile(rf"{_DIST}RECORD"), 2**26, "surrogateescape"),
    (re.compile(rf"{_DIST}(?:INSTALLER|direct_url\.json)"), 2**16, "replace"),
    (re.compile(r"var/lib/dpkg/info/[^/]+\.list"), 2**24, "surrogateescape"),
    (re.compile(r"var/lib/dpkg/status(?:\.d/[^/]+(?<!\.md5sums))?"), 2**26, "replace"),
    (re.compile(r"(?:etc|usr/lib)/os-release"), 2**16, "replace"),
)
_HEAD_ONLY = _KEPT[0][0]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of a layer.

    kind: file, directory, symlink, hardlink, device or fifo.
    size: bytes; of a hard link, those of the file that it is another name of.
    mtime: seconds since 1970.
    sha256: of a regular file's content; empty where there is none.
    link: where a symbolic link points, as written; the path that a hard link shares.
    source: time and size of the source that bytecode says it was made of; None for all else.
    """

    kind: str
    size: int = 0
    mode: int = 0
    mtime: int = 0
    sha256: str = ""
    link: str = ""
    source: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class LayerContents:
    """One layer: its files by path (no slash before it), what it hides of those below, its texts.

    removed: paths that are gone, with everything below them. emptied: folders that keep nothing of
    the layers below. Both concern lower layers only. Paths that are no UTF-8 hold surrogates.
    """

    number: int
    files: Mapping[str, FileEntry]
    removed: frozenset[str] = frozenset()
    emptied: frozenset[str] = frozenset()
    texts: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes of all its files, unpacked."""
        return sum(entry.size for entry in self.files.values() if entry.kind == "file")


class LayerReader:
    """Reads one layer, an uncompressed tar; `number` is its place, for messages."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._files: dict[str, FileEntry] = {}
        self._texts: dict[str, str] = {}
        self._removed: set[str] = set()
        self._emptied: set[str] = set()

    def read(self, stream: IO[bytes]) -> LayerContents:
        """Read the stream to its end, once, forwards.

        Raises EngineError when it is no whole tar archive.
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
            # A path that is there twice is what came last, and in its place.
            self._files.pop(path, None)
            self._texts.pop(path, None)
            self._files[path] = self._entry(member, content, path)

    def _hide(self, folder: str, name: str) -> None:
        if name == _OPAQUE:
            self._emptied.add(folder)
        elif not name.startswith(_OTHER):  # aufs' own notes mean nothing here
            self._removed.add(posixpath.join(folder, name.removeprefix(_WHITEOUT)))

    def _entry(self, member: tarfile.TarInfo, content: Readable, path: str) -> FileEntry:
        mode, mtime = member.mode & 0o7777, int(member.mtime)
        if member.islnk():
            return self._hard_link(_normal(member.linkname), mode, mtime)
        if member.issym():
            return FileEntry(kind="symlink", mode=mode, mtime=mtime, link=member.linkname)
        if not member.isreg():
            kind = "directory" if member.isdir() else "fifo" if member.isfifo() else "device"
            return FileEntry(kind=kind, mode=mode, mtime=mtime)
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


def _normal(name: str) -> str:
    return posixpath.normpath("/" + name.lstrip("/"))[1:]


def _keeping(path: str) -> tuple[int, str]:
    """How many bytes of a file are kept as its text, and how they are decoded."""
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
    """Time and size of bytecode's source (PEP 552); None where a hash stands instead."""
    if len(head) < 16 or int.from_bytes(head[4:8], "little"):
        return None
    return int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
