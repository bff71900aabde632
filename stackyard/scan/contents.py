"""Merge an image's layers into the files that a container sees, and say which layer has each.

Owns the rules by which one layer covers another. It must not know an engine, a registry or a
package format: `scan.layer` reads layers, `scan.installed` reads the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from stackyard.scan.layer import FileEntry, LayerContents, LayerReader

__all__ = ["Contents", "FileEntry", "Held", "LayerContents", "LayerReader", "merge"]

_HOPS = 40  # of symbolic links, as Linux has it


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Hold a file as a container sees it.

    layer: the position of the layer that added it; the lowest is 0.
    origin: its first name in that layer; differs from its path for hard links only.
    """

    entry: FileEntry
    layer: int
    origin: str

    @property
    def bytes(self) -> int:
        """Return the file's size; 0 for links."""
        return self.entry.size if self.entry.kind == "file" else 0


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Hold the files that a container sees (sorted by path), metadata texts, and the layers."""

    files: Mapping[str, Held]
    texts: Mapping[str, str]
    layers: tuple[LayerContents, ...]

    def real(self, path: str) -> str:
        """Return the path with symbolic links followed; a circle of links stays unresolved."""
        done, left, hops = "", [part for part in path.split("/") if part], 0
        while left:
            part = left.pop(0)
            if part in (".", ".."):
                done = done.rpartition("/")[0] if part == ".." else done
                continue
            here = f"{done}/{part}" if done else part
            held = self.files.get(here)
            if held is None or held.entry.kind != "symlink" or hops == _HOPS:
                done = here
                continue
            hops += 1
            done = "" if held.entry.link.startswith("/") else done
            left = [word for word in held.entry.link.split("/") if word] + left
        return done

    def text(self, path: str) -> str | None:
        """Return the text of a metadata file, links followed; None when there is no such file."""
        return self.texts.get(self.real(path))


def merge(layers: Sequence[LayerContents]) -> Contents:
    """Merge layers, the lowest first, into the files that a container sees."""
    overlay = _Overlay()
    for position, layer in enumerate(layers):
        for path in layer.removed:
            overlay.remove(path)
        for path in layer.emptied:
            overlay.empty(path)
        for path, entry in layer.files.items():
            overlay.put(path, overlay.held(path, entry, position))
    files = dict(sorted(overlay.files.items()))
    return Contents(
        files=MappingProxyType(files),
        texts=MappingProxyType(dict(_surviving(files, layers))),
        layers=tuple(layers),
    )


def _surviving(
    files: Mapping[str, Held], layers: Sequence[LayerContents]
) -> Iterator[tuple[str, str]]:
    for path, held in files.items():
        text = layers[held.layer].texts.get(held.origin)
        if text is not None:
            yield path, text


class _Overlay:
    """Hold the files while layers are applied, and the names that each folder has or had."""

    def __init__(self) -> None:
        self.files: dict[str, Held] = {}
        self._names: dict[str, set[str]] = {}

    def held(self, path: str, entry: FileEntry, layer: int) -> Held:
        """Return a layer's file; a hard link takes its target's entry, from here or from below."""
        if entry.kind != "hardlink":
            return Held(entry=entry, layer=layer, origin=path)
        if entry.sha256 or entry.link not in self.files:
            return Held(entry=entry, layer=layer, origin=entry.link)
        below = self.files[entry.link]
        return replace(below, entry=replace(below.entry, kind="hardlink", link=entry.link))

    def put(self, path: str, held: Held) -> None:
        """Put a file at a path and replace what was there; only folders keep what they hold."""
        if held.entry.kind != "directory":
            self.empty(path)
        self.files[path] = held
        while path:  # up to the first folder that is known
            folder, _, name = path.rpartition("/")
            names = self._names.setdefault(folder, set())
            if name in names:
                return
            names.add(name)
            above = self.files.get(folder)
            if above and above.entry.kind != "directory":
                del self.files[folder]
            path = folder

    def remove(self, path: str) -> None:
        """Remove a path and everything below it."""
        self.files.pop(path, None)
        self.empty(path)

    def empty(self, folder: str) -> None:
        """Remove everything below a folder."""
        open_ = [folder]
        while open_:
            here = open_.pop()
            for name in self._names.pop(here, ()):
                below = f"{here}/{name}" if here else name
                self.files.pop(below, None)
                open_.append(below)
