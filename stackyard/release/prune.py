"""Find and remove old releases on hosts.

Owns the rule: of each stack and base of one repository the newest `keep` releases stay. Images that
a container uses and images that are no releases stay, too. Partial images of broken pulls go.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stackyard.mesh.link import Link, on_each
from stackyard.release.parcel import PARTIAL
from stackyard.system.engine import HeldImage
from stackyard.system.errors import StackyardError

_RELEASE = re.compile(r"(?P<place>.+):(?P<prefix>.+)-r(?P<number>[1-9][0-9]{0,5})")


@dataclass(frozen=True, kw_only=True)
class Old:
    """Hold an image to remove, with all its names."""

    id: str
    names: tuple[str, ...]
    bytes: int


def old_releases(images: Iterable[HeldImage], used: Collection[str], keep: int) -> list[Old]:
    """Return the releases to remove.

    Args:
        used: ids of images that a container was made from.
        keep: number of revisions of one stack on one base that stay.
    """
    groups: dict[tuple[str, str, str], list[tuple[int, int, HeldImage]]] = defaultdict(list)
    for image in images:
        for tag in image.tags:
            match = _RELEASE.fullmatch(tag)
            stack, base = (image.labels.get(f"stackyard.{key}", "") for key in ("stack", "base"))
            if match and stack and base:
                group = (match["place"], stack, base)
                groups[group].append((image.created, int(match["number"]), image))
    stay = set(used)
    every: dict[str, HeldImage] = {}
    for found in groups.values():
        # Each version starts at r1, so sort by time; by number only where times are equal.
        found.sort(key=lambda entry: (entry[0], entry[1]), reverse=True)
        newest = list(dict.fromkeys(image.id for _, _, image in found))
        stay |= set(newest[:keep])
        every |= {image.id: image for _, _, image in found}
    return [
        Old(id=image.id, names=(*image.tags, *image.digests), bytes=image.size)
        for image in every.values()
        if image.id not in stay
    ]


def broken_off(images: Iterable[HeldImage], used: Collection[str]) -> list[Old]:
    """Return the unnamed partial images that an interrupted pull left on a host."""
    return [
        Old(id=image.id, names=(image.id,), bytes=image.size)
        for image in images
        if PARTIAL in image.labels and not image.tags and image.id not in used
    ]


def prune(
    links: Mapping[str, Link], keep: int, *, really: bool
) -> tuple[dict[str, list[Old]], dict[str, StackyardError]]:
    """Find old releases on every host and remove them if `really`; return them, and errors."""

    def one(link: Link) -> list[Old]:
        engine = link.engine
        images, used = engine.held_images(), engine.used_images()
        found = [*old_releases(images, used, keep), *broken_off(images, used)]
        for image in found if really else ():
            for name in image.names:
                engine.remove_image(name)
        return found

    return on_each(links, one)
