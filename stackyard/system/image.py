"""Describe an image as an engine does; a value only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """Describe an image that the engine holds.

    Attributes:
        size: of all layers, unpacked, in bytes.
        digests: its names in registries, `repository@sha256:...`.
    """

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    env: tuple[str, ...]
    size: int
    layers: tuple[str, ...]
    digests: tuple[str, ...] = ()

    @property
    def chain(self) -> str:
        """Return the ChainID of its layers, as OCI's image specification defines it.

        An image's id has the time of its making, too; this follows from the files alone.
        """
        chain = ""
        for layer in self.layers:
            pair = f"{chain} {layer}".encode()
            chain = f"sha256:{hashlib.sha256(pair).hexdigest()}" if chain else layer
        return chain

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of its containers, by name."""
        return dict(entry.split("=", 1) for entry in self.env if "=" in entry)
