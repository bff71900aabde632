"""An image out of an engine: its layers compressed into files, read by everybody at once.

Owns the folder of compressed layers (kept between publications: an interrupted one goes on where it
was) and reading `docker save` as a stream. It must not know what its readers look for, nor what
becomes of the files.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import queue
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from zlib_ng import zlib_ng

from stackyard.scan.oci import digest_of
from stackyard.system.errors import EngineError

# The same for ever: another level or library would give every layer another digest.
LEVEL, GZIP = 6, 31
CHUNK = 2**20
LONGEST_TEXT = 4 * 2**20
KEPT_DAYS = 30
_GZIP_MAGIC = b"\x1f\x8b"


class Readable(Protocol):
    """What can be read once, from start to end."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; none at the end."""


Reader = Callable[[IO[bytes]], Any]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer as it travels: `digest` and `size` compressed, `diff_id` and `unpacked` as a tar."""

    diff_id: str
    unpacked: int
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """An image that has been read: configuration, layers from the bottom, what readers answered."""

    config: bytes
    layers: tuple[Layer, ...]
    read: Mapping[str, Sequence[Any]]


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where compressed layers are kept."""
    home = env.get("XDG_CACHE_HOME") or f"{env.get('HOME', '/root')}/.cache"
    return Path(home) / "stackyard" / "layers"


def layer_path(folder: Path, digest: str) -> Path:
    """Where a compressed layer lies in that folder."""
    return folder / digest.replace(":", "-")


class Branch:
    """One reader's end of a stream that several read."""

    def __init__(self) -> None:
        self._chunks: queue.Queue[bytes] = queue.Queue(maxsize=8)
        self._rest, self._over = b"", False

    def put(self, chunk: bytes) -> None:
        """Pass on the next bytes; an empty chunk is the end."""
        self._chunks.put(chunk)

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        parts, have = [self._rest], len(self._rest)
        while not self._over and (size < 0 or have < size):
            chunk = self._chunks.get()
            self._over = not chunk
            parts.append(chunk)
            have += len(chunk)
        data = b"".join(parts)
        if 0 <= size < len(data):
            self._rest = data[size:]
            return data[:size]
        self._rest = b""
        return data

    def drain(self) -> None:
        """Read to the end, whatever for."""
        self._rest = b""
        while not self._over:
            self._over = not self._chunks.get()


def fan_out(source: Readable, readers: Sequence[Reader]) -> list[Any]:
    """Have several read one stream at the same time; their answers.

    A reader that fails or stops early holds nobody up; the first failure is raised at the end.
    """
    branches = [Branch() for _ in readers]

    def one(reader: Reader, branch: Branch) -> Any:
        try:
            return reader(cast(IO[bytes], branch))
        finally:
            branch.drain()

    with ThreadPoolExecutor(len(readers)) as pool:
        work = [pool.submit(one, r, b) for r, b in zip(readers, branches, strict=True)]
        try:
            while chunk := source.read(CHUNK):
                for branch in branches:
                    branch.put(chunk)
        finally:
            for branch in branches:
                branch.put(b"")
        return [future.result() for future in work]


class Spool:
    """Compressed layers in a folder, by digest.

    Args:
        folder: made when it is not there; only its owner may read it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, layer: Layer) -> Path:
        """Where a layer's compressed bytes lie."""
        return layer_path(self._folder, layer.digest)

    def save(
        self, stream: Iterator[bytes], readers: Mapping[str, Callable[[int], Reader]]
    ) -> Saved:
        """Take an image from an engine's `save`.

        Args:
            stream: the archive, in pieces.
            readers: by name, given a layer's number of appearance: who reads it as a tar.

        Raises:
            EngineError: it ended early, or is no image.
        """
        texts: dict[str, bytes] = {}
        found: dict[str, tuple[Layer, dict[str, Any]]] = {}
        links: dict[str, str] = {}
        pieces = cast(IO[bytes], _Pieces(stream))
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
                        found[name] = self._take(_After(head, content), head, member.size, who)
            return _ordered(texts, found, links)
        except (tarfile.TarError, EOFError, KeyError, ValueError) as error:
            raise EngineError("what the engine saved is no whole image", why=str(error)) from error

    def _take(
        self, source: Readable, head: bytes, size: int, readers: Mapping[str, Reader]
    ) -> tuple[Layer, dict[str, Any]]:
        """One layer: compressed unless it is or was, and read by all."""
        mark = f"{size}-{hashlib.sha256(head).hexdigest()[:32]}"
        known = self._known(mark)
        compressed = head.startswith(_GZIP_MAGIC)
        if compressed:
            first: Reader = lambda s: self._keep(s)  # noqa: E731
            rest = {key: _unpacked(reader) for key, reader in readers.items()}
        else:
            first, rest = (_hashed if known else self._compress), dict(readers)
        made, *answers = fan_out(source, [first, *rest.values()])
        if known and made != known.diff_id:
            # Two layers of one length that begin alike: rare, and told by their hash.
            (self._folder / f"mark-{mark}.json").unlink(missing_ok=True)
            raise EngineError("a layer is not the one that was kept", hint="the same command again")
        layer = known or made
        self._remember(mark, layer)
        return layer, dict(zip(readers, answers, strict=True))

    def _compress(self, source: IO[bytes]) -> Layer:
        plain, packed = hashlib.sha256(), hashlib.sha256()
        press = zlib_ng.compressobj(LEVEL, zlib_ng.DEFLATED, GZIP)
        unpacked = size = 0
        with self._new() as (path, file):
            while chunk := source.read(CHUNK):
                plain.update(chunk)
                unpacked += len(chunk)
                data = press.compress(chunk)
                packed.update(data)
                size += file.write(data)
            data = press.flush()
            packed.update(data)
            size += file.write(data)
            layer = Layer(
                diff_id=f"sha256:{plain.hexdigest()}", unpacked=unpacked,
                digest=f"sha256:{packed.hexdigest()}", size=size,
            )  # fmt: skip
            self._place(path, file, layer)
        return layer

    def _keep(self, source: IO[bytes]) -> Layer:
        """A layer that the engine holds compressed: as it is."""
        packed, plain = hashlib.sha256(), hashlib.sha256()
        size = 0
        with self._new() as (path, file):
            while chunk := source.read(CHUNK):
                packed.update(chunk)
                size += file.write(chunk)
            file.flush()
            unpacked = 0
            with gzip.open(path) as content:
                while chunk := content.read(CHUNK):
                    plain.update(chunk)
                    unpacked += len(chunk)
            layer = Layer(
                diff_id=f"sha256:{plain.hexdigest()}", unpacked=unpacked,
                digest=f"sha256:{packed.hexdigest()}", size=size,
            )  # fmt: skip
            self._place(path, file, layer)
        return layer

    @contextlib.contextmanager
    def _new(self) -> Iterator[tuple[Path, IO[bytes]]]:
        path = self._folder / f"part-{os.getpid()}-{threading.get_ident()}"
        try:
            with path.open("wb") as file:
                yield path, file
        finally:
            path.unlink(missing_ok=True)

    def _place(self, path: Path, file: IO[bytes], layer: Layer) -> None:
        file.flush()
        os.fsync(file.fileno())
        path.rename(self.path(layer))

    def _known(self, mark: str) -> Layer | None:
        """The layer that began like this, if its file is there whole."""
        try:
            text = (self._folder / f"mark-{mark}.json").read_text(encoding="utf-8")
            layer = Layer(**json.loads(text))
            return layer if self.path(layer).stat().st_size == layer.size else None
        except (OSError, ValueError, TypeError):
            return None

    def _remember(self, mark: str, layer: Layer) -> None:
        place = self._folder / f"mark-{mark}.json"
        new = place.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(asdict(layer)), encoding="utf-8")
        new.rename(place)
        os.utime(self.path(layer))

    def forget_old(self, now: float | None = None) -> None:
        """Remove what nobody used for long, and parts that a killed command left."""
        now = time.time() if now is None else now
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                age = now - path.stat().st_mtime
                if age > KEPT_DAYS * 86400 or (path.name.startswith("part-") and age > 86400):
                    path.unlink()


def _hashed(source: IO[bytes]) -> str:
    plain = hashlib.sha256()
    while chunk := source.read(CHUNK):
        plain.update(chunk)
    return f"sha256:{plain.hexdigest()}"


def _unpacked(reader: Reader) -> Reader:
    def read(source: IO[bytes]) -> Any:
        with gzip.GzipFile(fileobj=source) as content:
            answer = reader(cast(IO[bytes], content))
            while content.read(CHUNK):
                pass
            return answer

    return read


def _is_text(name: str, head: bytes, size: int) -> bool:
    """Whether a file of the archive describes the image, rather than being a layer."""
    return size <= LONGEST_TEXT and (
        name.endswith(("json", "VERSION", "repositories", "oci-layout")) or head[:1] in (b"{", b"[")
    )


def _target(member: tarfile.TarInfo) -> str:
    """What a link in the archive points to, from its root."""
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
    keys = found[names[0]][1] if names else {}
    read = {key: [found[name][1][key] for name in names] for key in keys}
    return Saved(config=config, layers=layers, read=read)


class _Pieces:
    """Pieces of bytes as a file that can only be read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read(self, size: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            parts.append(piece)
            have += len(piece)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]


class _After:
    """What has been read of a file, and then the rest of it."""

    def __init__(self, head: bytes, rest: Readable) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        if self._head:
            data, self._head = self._head, b""
            return data
        return self._rest.read(size)
