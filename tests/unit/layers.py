"""Layers made in memory, as tars, for the tests of what an image holds."""

from __future__ import annotations

import io
import tarfile

from stackyard.scan.contents import Contents, LayerContents, LayerReader, merge

KINDS = {
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}
SITE = "usr/lib/python3.11/site-packages"


class Forward(io.RawIOBase):
    """A stream that can be read once, in small pieces, as from a pipe."""

    def __init__(self, data: bytes, piece: int = 700) -> None:
        self._data, self._piece = io.BytesIO(data), piece

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def readinto(self, buffer) -> int:
        found = self._data.read(min(len(buffer), self._piece))
        buffer[: len(found)] = found
        return len(found)


def link(target: str) -> tuple[str, str]:
    return "symlink", target


def hard(target: str) -> tuple[str, str]:
    return "hardlink", target


FOLDER = ("directory", "")


def tar(*members, mtime: int = 1000) -> bytes:
    """A tar of (path, content) in order; content is bytes, text, or a kind and its link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT,
                      encoding="utf-8", errors="surrogateescape") as archive:  # fmt: skip
        for path, content, *when in members:
            info = tarfile.TarInfo(path)
            info.mode, info.mtime = 0o644, when[0] if when else mtime
            if isinstance(content, tuple):
                info.type, info.linkname = KINDS[content[0]], content[1]
                archive.addfile(info)
                continue
            data = content.encode() if isinstance(content, str) else content
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def layer(*members, number: int = 0) -> LayerContents:
    return LayerReader(number).read(Forward(tar(*members)))


def image(*layers) -> Contents:
    """The contents of layers, each a list of members or a dict of contents by path."""
    lists = [list(found.items()) if isinstance(found, dict) else found for found in layers]
    return merge([layer(*members, number=n) for n, members in enumerate(lists)])


def distribution(name: str, version: str, *, site: str = SITE, files=None, **more) -> dict:
    """The files of a Python distribution: its modules, METADATA, RECORD and INSTALLER.

    Keywords are fields of METADATA with underscores for hyphens (a list for several), and
    `direct_url`, a text.
    """
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {f"{name.replace('-', '_')}/__init__.py": "x = 1\n"} if files is None else files
    url = more.pop("direct_url", None)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    for field, values in more.items():
        for value in [values] if isinstance(values, str) else values:
            lines.append(f"{field.replace('_', '-')}: {value}")
    found = {f"{site}/{path}": content for path, content in files.items()}
    found[f"{site}/{info}/METADATA"] = "\n".join(lines) + "\n\nA description: not a field\n"
    found[f"{site}/{info}/INSTALLER"] = "uv\n"
    if url is not None:
        found[f"{site}/{info}/direct_url.json"] = url
    names = [path.removeprefix(f"{site}/") for path in found] + [f"{info}/RECORD"]
    found[f"{site}/{info}/RECORD"] = "".join(f'"{path}",sha256=x,1\n' for path in names)
    return found
