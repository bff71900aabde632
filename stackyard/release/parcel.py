"""Build a parcel: the layers of an image that some hosts lack, as one archive that engines load.

Owns the archive's bytes, and a parcel that is one file. They are the same for the same layers, of
known length, and readable from any offset, so that a broken transfer can resume. Pure. The format
is that of `docker save` (manifest.json), whose layers may be compressed. An engine skips the files
of layers that it has, so the archive may omit them.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

BLOCK = 512
# Loading fewer bytes than this separately is not worth its cost.
STAGE_BYTES = 16 * 2**20
PARTIAL = "stackyard.partial"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Hold a part of a parcel: bytes, or a blob of the registry from `start` on."""

    data: bytes = b""
    digest: str = ""
    start: int = 0
    size: int = 0


class Sendable(Protocol):
    """Send bytes of known length, from any offset on."""

    @property
    def name(self) -> str:
        """Return a name that identifies exactly these bytes."""

    @property
    def size(self) -> int:
        """Return the number of bytes."""

    def pieces(self, start: int) -> Iterator[Piece]:
        """Yield the bytes from `start` on."""


@dataclass(frozen=True, kw_only=True)
class WholeFile:
    """Hold a parcel that is one file: its digest and size."""

    digest: str
    size: int

    @property
    def name(self) -> str:
        """Return a name that identifies exactly these bytes."""
        return f"file-{self.digest.removeprefix('sha256:')[:16]}"

    def pieces(self, start: int) -> Iterator[Piece]:
        """Yield the file from byte `start` on."""
        if start < self.size:
            yield Piece(digest=self.digest, start=start, size=self.size - start)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Hold layers that an engine can load before the rest of a parcel has arrived.

    Attributes:
        head: first bytes of the archive of a partial image: the layers so far, nothing to run.
        start, size: the range of the parcel's bytes that follow `head`.
        image: the id of the partial image, which has no name and the label `stackyard.partial`.
    """

    head: bytes
    start: int
    size: int
    image: str


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """Hold an image's configuration, and the layers to send to hosts.

    Attributes:
        config: the image's configuration.
        layers: digests of all layers, compressed, from the bottom.
        carried: digest and size of the layers to send.
    """

    config: bytes
    layers: tuple[str, ...]
    carried: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """Return a name that identifies exactly these bytes."""
        told = json.dumps([hashlib.sha256(self.config).hexdigest(), self.layers, self.carried])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def size(self) -> int:
        """Return the size of the whole archive in bytes."""
        return sum(piece.size or len(piece.data) for piece in self._pieces())

    def pieces(self, start: int) -> Iterator[Piece]:
        """Yield the archive from byte `start` on."""
        skip = start
        for piece in self._pieces():
            size = piece.size or len(piece.data)
            if skip >= size:
                skip -= size
            elif piece.digest:
                yield Piece(digest=piece.digest, start=skip, size=size - skip)
                skip = 0
            else:
                yield Piece(data=piece.data[skip:])
                skip = 0

    @property
    def body(self) -> int:
        """Return the offset of the first layer's header."""
        return len(self._head())

    def places(self) -> list[tuple[str, int, int]]:
        """Return digest, first byte and size of every carried layer, in their order."""
        found, at = [], self.body
        for digest, size in self.carried:
            found.append((digest, at + BLOCK, size))
            at += BLOCK + size + len(_padding(size))
        return found

    def stages(self) -> list[Stage]:
        """Return the stages that engines can load early; the last layers load with the image."""
        diffs = json.loads(self.config)["rootfs"]["diff_ids"]
        found: list[Stage] = []
        begin = self.body
        places = self.places()
        for (_, at, size), (after, _, _) in pairwise(places):
            end = at + size + len(_padding(size))
            if end - begin >= STAGE_BYTES:
                count = self.layers.index(after)
                config = _partial(self.config, diffs[:count])
                head = _archive_head(config, self.layers[:count])
                image = f"sha256:{hashlib.sha256(config).hexdigest()}"
                found.append(Stage(head=head, start=begin, size=end - begin, image=image))
                begin = end
        return found

    def _head(self) -> bytes:
        return _archive_head(self.config, self.layers)

    def _pieces(self) -> Iterator[Piece]:
        yield Piece(data=self._head())
        for digest, size in self.carried:
            yield Piece(data=_header(path_of(digest), size))
            if size:
                yield Piece(digest=digest, size=size)
            if size % BLOCK:
                yield Piece(data=_padding(size))
        yield Piece(data=bytes(2 * BLOCK))


def path_of(digest: str) -> str:
    """Return a blob's path in a parcel."""
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _archive_head(config: bytes, layers: Sequence[str]) -> bytes:
    """Return an image archive's first bytes: everything but its layers."""
    name = path_of(f"sha256:{hashlib.sha256(config).hexdigest()}")
    names = [path_of(digest) for digest in layers]
    manifest = json.dumps([{"Config": name, "RepoTags": None, "Layers": names}]).encode()
    texts = {"manifest.json": manifest, name: config}
    return b"".join(_header(n, len(d)) + d + _padding(len(d)) for n, d in texts.items())


def _partial(config: bytes, diffs: Sequence[str]) -> bytes:
    """Return the configuration of an image of the lowest layers alone."""
    whole = json.loads(config)
    kept = {key: whole[key] for key in ("architecture", "os", "variant") if key in whole}
    rootfs = {"type": "layers", "diff_ids": list(diffs)}
    return json.dumps({**kept, "config": {"Labels": {PARTIAL: "1"}}, "rootfs": rootfs}).encode()


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT if size < 8 * 2**30 else tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def make_parcel(
    config: bytes, layers: Sequence[Mapping[str, object]], lacking: Iterable[set[str]]
) -> Parcel:
    """Return the parcel of every layer that some host lacks.

    Args:
        layers: of the release, each with digest, diff_id and size.
        lacking: for each host, the diff_ids that it lacks.
    """
    wanted: set[str] = set().union(*lacking)
    carried = {
        str(layer["digest"]): int(str(layer["size"]))
        for layer in layers
        if layer["diff_id"] in wanted
    }
    names = tuple(str(layer["digest"]) for layer in layers)
    return Parcel(config=config, layers=names, carried=tuple(carried.items()))


def lacking(layers: Sequence[str], images: Iterable[Sequence[str]]) -> set[str]:
    """Return the layers that an engine lacks: those above the longest prefix that it holds.

    Args:
        layers: diff_ids of the image, from the bottom.
        images: diff_ids of each image that the engine holds.
    """
    longest = 0
    for held in images:
        same = 0
        for own, other in zip(layers, held, strict=False):
            if own != other:
                break
            same += 1
        longest = max(longest, same)
    return set(layers[longest:])
