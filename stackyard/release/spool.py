"""Save an image from an engine: compress its layers into files, and feed all readers in one pass.

Owns the folder of compressed layers (kept between publications, so that an interrupted one can
resume), its notes of which repository has a layer, and reading `docker save` as a stream. It must
not know what its readers look for, nor how the files are used.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tarfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from zlib_ng import zlib_ng

from stackyard.scan.oci import Repository, digest_of
from stackyard.system.chunks import (
    CHUNK,
    Digest,
    Pieces,
    Readable,
    Reader,
    chunks,
    digest_of_stream,
    fan_out,
)
from stackyard.system.errors import EngineError
from stackyard.system.files import PART, NewFile, new_file, replace_file

# Never change these: another level or library would give every layer another digest.
LEVEL, GZIP = 6, 31
LONGEST_TEXT = 4 * 2**20
KEPT_DAYS = 30
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Describe a layer: `digest` and `size` compressed, `diff_id` and `unpacked` as a tar."""

    diff_id: str
    unpacked: int
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Hold a saved image: configuration, layers from the bottom, and its readers' results."""

    config: bytes
    layers: tuple[Layer, ...]
    read: Mapping[str, Sequence[Any]]


def cache_folder(env: Mapping[str, str]) -> Path:
    """Return the folder of compressed layers."""
    home = env.get("XDG_CACHE_HOME") or f"{env.get('HOME', '/root')}/.cache"
    return Path(home) / "stackyard" / "layers"


def layer_path(folder: Path, digest: str) -> Path:
    """Return a compressed layer's path in that folder."""
    return folder / digest.replace(":", "-")


def note_place(folder: Path, digest: str, repository: Repository) -> None:
    """Note that a repository has a layer, since it was uploaded there or came from there."""
    places = {**_places(folder, digest), repository.host: repository.name}
    replace_file(_places_path(folder, digest), [json.dumps(places).encode()])


def place_beside(folder: Path, digest: str, repository: Repository) -> str:
    """Return the name of another repository of the same registry that had a layer; or empty."""
    name = _places(folder, digest).get(repository.host, "")
    return name if isinstance(name, str) and name != repository.name else ""


def _places(folder: Path, digest: str) -> dict[str, Any]:
    try:
        found = json.loads(_places_path(folder, digest).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _places_path(folder: Path, digest: str) -> Path:
    return folder / f"places-{digest.replace(':', '-')}.json"


class Spool:
    """Keep compressed layers in a folder, by digest.

    Args:
        folder: created when missing; only its owner may read it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def folder(self) -> Path:
        """Return the folder of compressed layers."""
        return self._folder

    def path(self, layer: Layer) -> Path:
        """Return the path of a layer's compressed bytes."""
        return layer_path(self._folder, layer.digest)

    def save(
        self,
        stream: Iterator[bytes],
        readers: Mapping[str, Callable[[int], Reader]],
        *,
        diff_ids: Collection[str] = (),
        keep: bool = True,
    ) -> Saved:
        """Save an image from the stream of an engine's `save`.

        Args:
            stream: the archive, in pieces.
            diff_ids: of the image's layers; without them all layers are compressed again.
            readers: functions, by name, that return the reader of a layer's tar; they are called
                with the layer's position in the archive.
            keep: compress and keep its layers; without, they have neither digest nor size.

        Raises:
            EngineError: the stream ended early, or is no image.
        """
        texts: dict[str, bytes] = {}
        found: dict[str, tuple[Layer, dict[str, Any]]] = {}
        links: dict[str, str] = {}
        pieces, due = cast(IO[bytes], Pieces(stream)), set(diff_ids)
        try:
            with tarfile.open(fileobj=pieces, mode="r|", bufsize=CHUNK) as archive:
                for member in archive:
                    name = member.name
                    if member.issym() or member.islnk():
                        links[name] = _target(member)
                        continue
                    content = archive.extractfile(member) if member.isfile() else None
                    if content is None:
                        continue
                    head = content.read(CHUNK)
                    if _is_text(name, head, member.size):
                        texts[name] = head + content.read()
                    else:
                        who = {key: make(len(found)) for key, make in readers.items()}
                        take = partial(self._take, due) if keep else self._pass
                        found[name] = take(_after(head, content), head, member.size, who)
            return _ordered(texts, found, links)
        except (tarfile.TarError, EOFError, LookupError, ValueError) as error:
            raise EngineError("what the engine saved is no whole image", why=str(error)) from error

    def _take(
        self, due: set[str], source: Readable, head: bytes, size: int, readers: Mapping[str, Reader]
    ) -> tuple[Layer, dict[str, Any]]:
        """Compress a layer unless it is compressed or one of `due` in the cache; feed it to all."""
        mark = f"{size}-{hashlib.sha256(head).hexdigest()[:32]}"
        known = self._known(mark, due)
        compressed = head.startswith(_GZIP_MAGIC)
        if compressed:
            first: Reader = self._keep
            rest = {key: _unpacked(reader) for key, reader in readers.items()}
        else:
            first, rest = (digest_of_stream if known else self._compress), dict(readers)
        made, *answers = fan_out(source, [first, *rest.values()])
        if known and made != known.diff_id:
            # Two layers of one image have this length and begin alike: rare, and shown by digest.
            (self._folder / f"mark-{mark}.json").unlink(missing_ok=True)
            raise EngineError("a layer is not the one that was kept", hint="the same command again")
        layer = known or made
        due.discard(layer.diff_id)
        self._remember(mark, layer)
        return layer, dict(zip(readers, answers, strict=True))

    def _pass(
        self, source: Readable, head: bytes, size: int, readers: Mapping[str, Reader]
    ) -> tuple[Layer, dict[str, Any]]:
        """Feed a layer to all readers, and keep nothing of it."""
        packed = head.startswith(_GZIP_MAGIC)
        every = [_unpacked(one) if packed else one for one in (_counted, *readers.values())]
        plain, *answers = fan_out(source, every)
        layer = Layer(diff_id=plain.sha256, unpacked=plain.size, digest="", size=0)
        return layer, dict(zip(readers, answers, strict=True))

    def _compress(self, source: IO[bytes]) -> Layer:
        plain, packed = Digest(), Digest()
        press = zlib_ng.compressobj(LEVEL, zlib_ng.DEFLATED, GZIP)

        def pressed() -> Iterator[bytes]:
            for chunk in plain.of(chunks(source)):
                yield press.compress(chunk)
            yield press.flush()

        with new_file(self._folder) as part:
            part.file.writelines(packed.of(pressed()))
            return self._place(part, plain, packed)

    def _keep(self, source: IO[bytes]) -> Layer:
        """Keep a layer that the engine saved compressed, unchanged."""
        plain, packed = Digest(), Digest()
        with new_file(self._folder) as part:
            part.file.writelines(packed.of(chunks(source)))
            part.file.flush()
            with gzip.open(part.path) as content:
                for chunk in chunks(cast(IO[bytes], content)):
                    plain.add(chunk)
            return self._place(part, plain, packed)

    def _place(self, part: NewFile, plain: Digest, packed: Digest) -> Layer:
        layer = Layer(diff_id=plain.sha256, unpacked=plain.size,
                      digest=packed.sha256, size=packed.size)  # fmt: skip
        part.keep(self.path(layer), durable=True)
        return layer

    def _known(self, mark: str, due: set[str]) -> Layer | None:
        """Return the cached layer of this mark, if it is due and its file has the right size."""
        try:
            text = (self._folder / f"mark-{mark}.json").read_text(encoding="utf-8")
            layer = Layer(**json.loads(text))
            whole = self.path(layer).stat().st_size == layer.size
            return layer if whole and layer.diff_id in due else None
        except (OSError, ValueError, TypeError):
            return None

    def _remember(self, mark: str, layer: Layer) -> None:
        replace_file(self._folder / f"mark-{mark}.json", [json.dumps(asdict(layer)).encode()])
        os.utime(self.path(layer))

    def forget_old(self, now: float | None = None) -> None:
        """Remove files unused for KEPT_DAYS, and partial files that a killed command left."""
        now = time.time() if now is None else now
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                age = now - path.stat().st_mtime
                if age > KEPT_DAYS * 86400 or (path.name.startswith(PART) and age > 86400):
                    path.unlink()


def _counted(source: IO[bytes]) -> Digest:
    deque((found := Digest()).of(chunks(source)), maxlen=0)
    return found


def _unpacked(reader: Reader) -> Reader:
    def read(source: IO[bytes]) -> Any:
        with gzip.GzipFile(fileobj=source) as content:
            answer = reader(cast(IO[bytes], content))
            deque(chunks(cast(IO[bytes], content)), maxlen=0)
            return answer

    return read


def _is_text(name: str, head: bytes, size: int) -> bool:
    """Return whether a file of the archive describes the image and is no layer."""
    return size <= LONGEST_TEXT and (
        name.endswith(("json", "VERSION", "repositories", "oci-layout")) or head[:1] in (b"{", b"[")
    )


def _target(member: tarfile.TarInfo) -> str:
    """Return the target of a link, as a path from the archive's root."""
    if member.islnk():
        return member.linkname
    return os.path.normpath(f"{member.name.rpartition('/')[0]}/{member.linkname}")


def _ordered(
    texts: Mapping[str, bytes],
    found: Mapping[str, tuple[Layer, dict[str, Any]]],
    links: Mapping[str, str],
) -> Saved:
    (entry,) = json.loads(texts["manifest.json"])
    config = texts[entry["Config"]]
    names = [links.get(name, name) for name in entry["Layers"]]
    layers = tuple(found[name][0] for name in names)
    wanted = json.loads(config)["rootfs"]["diff_ids"]
    if [layer.diff_id for layer in layers] != wanted:
        raise ValueError(f"its configuration {digest_of(config)} names other layers")
    read = {key: [found[name][1][key] for name in names] for key in found[names[0]][1]}
    return Saved(config=config, layers=layers, read=read)


def _after(head: bytes, rest: Readable) -> Readable:
    """Return a stream of the bytes read already, followed by the rest of the file."""
    return Pieces(chain([head], chunks(rest)))
