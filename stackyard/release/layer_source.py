"""Read a release's layers from this machine's cache, else from the registry.

Owns fetching each layer once: it is cached while it is passed on, and checked after its last byte.
What is read whole from the cache is checked, too: a disk may have lost bytes of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from stackyard.release.registry import Registry
from stackyard.release.spool import layer_path, note_place
from stackyard.system.chunks import Digest, chunks, digest_of_file
from stackyard.system.errors import ReleaseError, StackyardError
from stackyard.system.files import new_file


class LayerSource:
    """Read layers by digest.

    Args:
        folder: the cache; created when missing.
        sizes: size of each layer in bytes, by digest.

    Attributes:
        fetched: bytes read from the registry.
    """

    def __init__(self, registry: Registry, folder: Path, sizes: Mapping[str, int]) -> None:
        self._registry, self._folder, self._sizes = registry, folder, sizes
        self.fetched = 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, digest: str) -> Path:
        """Return a layer's path in the cache, whether or not it exists."""
        return layer_path(self._folder, digest)

    def holds(self, digest: str) -> bool:
        """Return whether the cache has a file of the layer's size, without checking its digest."""
        path = self.path(digest)
        return path.is_file() and path.stat().st_size == self._sizes[digest]

    def forget(self, digest: str) -> None:
        """Remove a layer from the cache, so that it is fetched again."""
        self.path(digest).unlink(missing_ok=True)

    def read(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """Yield a layer's bytes from `start` on; all bytes of a layer are checked by its digest.

        Raises:
            RegistryError: the registry does not answer.
            ReleaseError: the layer from the registry is not what was signed, or the cached copy
                was damaged; it is removed then.
            StackyardError: the cache cannot be read or written.
        """
        path = self.path(digest)
        with self._usable():
            cached = self.holds(digest)
            yield from (self._cached if cached else self._fetch)(digest, start, path)

    def verified(self, digest: str) -> Path:
        """Return the path of a layer that has its digest; fetch it where the cache has none.

        Raises:
            RegistryError: the registry does not answer.
            ReleaseError: the layer from the registry is not what was signed.
            StackyardError: the cache cannot be written.
        """
        path = self.path(digest)
        if self.holds(digest):
            if digest_of_file(path) == digest:
                os.utime(path)
                return path
            self.forget(digest)
        for _ in self.read(digest):
            pass
        return path

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Turn a failure of this machine's disk into an error that names the cache's folder."""
        try:
            yield
        except OSError as error:
            raise StackyardError(
                f"the cache of layers on this machine cannot be used: {self._folder}",
                why=error.strerror or str(error),
                hint="make room there and let this user write there, or name a folder on another"
                " disk in XDG_CACHE_HOME; then the same command again",
            ) from error

    def _cached(self, digest: str, start: int, path: Path) -> Iterator[bytes]:
        """Yield a cached layer from `start` on; check it where all of it passes."""
        os.utime(path)
        found = Digest()
        with path.open("rb") as file:
            file.seek(start)
            yield from chunks(file) if start else found.of(chunks(file))
        if not start and found.sha256 != digest:
            raise damaged(path, digest)

    def _fetch(self, digest: str, start: int, path: Path) -> Iterator[bytes]:
        """Fetch a whole layer, so that it can be checked and cached; yield it from `start` on."""
        found = Digest()
        with new_file(self._folder) as part:
            for chunk in found.of(self._registry.stream(digest)):
                part.file.write(chunk)
                self.fetched += len(chunk)
                if found.size > self._sizes[digest]:
                    break
                if found.size > start:
                    yield chunk[max(0, len(chunk) - (found.size - start)) :]
            if found.sha256 != digest:
                raise ReleaseError(
                    f"layer {digest[7:19]} is not what was signed",
                    why=f"{found.size} bytes came, with another digest or beyond its size",
                    hint="the registry, or somebody on the way to it, changed them: tell its"
                    " owner; no host uses them",
                )
            part.keep(path, durable=True)
        note_place(self._folder, digest, self._registry.repository)


class DamagedLayer(ReleaseError):
    """Report that this machine's copy of a layer was damaged; it is removed, all of it was read."""


def damaged(path: Path, digest: str) -> DamagedLayer:
    """Remove a cached layer that is not what its name says; return the error that says so."""
    path.unlink(missing_ok=True)
    return DamagedLayer(
        f"layer {digest[7:19]} was damaged in this machine's cache",
        why=f"{path} had its size and another digest, as after a power loss; it is gone now",
        hint="the same command again: it makes or fetches that layer anew",
    )
