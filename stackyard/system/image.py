"""An image as an engine describes it. A value only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """An image the engine holds. `size` is unpacked bytes, all layers.

    Attributes:
        digests: the names under which registries have it, `repository@sha256:...`.
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
        """The environment of its containers, by name."""
        return dict(entry.split("=", 1) for entry in self.env if "=" in entry)
