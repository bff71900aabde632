"""Describe an image as an engine does; a value only."""

from __future__ import annotations

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
    def environment(self) -> dict[str, str]:
        """Return the environment of its containers, by name."""
        return dict(entry.split("=", 1) for entry in self.env if "=" in entry)
