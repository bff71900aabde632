"""Read a release's layers from this machine's cache, else from the registry.

Owns fetching each layer once: it is cached while it is passed on, and checked after its last byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from stackyard.release.registry import Registry
from stackyard.release.spool import layer_path, note_place
from stackyard.system.chunks import Digest, chunks, digest_of_file
from stackyard.system.errors import ReleaseError
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
        """Yield a layer's bytes from `start` on.

        Raises:
            RegistryError: the registry does not answer.
            ReleaseError: the layer from the registry is not what was signed.
        """
        path = self.path(digest)
        if self.holds(digest):
            os.utime(path)
            with path.open("rb") as file:
                file.seek(start)
                yield from chunks(file)
            return
        yield from self._fetch(digest, start, path)

    def verified(self, digest: str) -> Path:
        """Return the path of a layer that has its digest; fetch it where the cache has none.

        Raises:
            RegistryError: the registry does not answer.
            ReleaseError: the layer from the registry is not what was signed.
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
            part.keep(path)
        note_place(self._folder, digest, self._registry.repository)
