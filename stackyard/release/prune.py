"""Old releases on hosts: which go, and removing them.

Owns the rule. Of each stack and base of one repository the newest `keep` releases stay; so does
what any container uses, and everything that is no release. What pulls left half done goes.
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
    """An image that goes, with all its names."""

    id: str
    names: tuple[str, ...]
    bytes: int


def old_releases(images: Iterable[HeldImage], used: Collection[str], keep: int) -> list[Old]:
    """The images that go.

    Args:
        used: ids of images that a container was made from.
        keep: how many revisions of one stack on one base stay.
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
        # A later version begins again at r1: time decides, and the number where times are equal.
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
    """What a pull left on a host that lost its power: images of some layers, without a name."""
    return [
        Old(id=image.id, names=(image.id,), bytes=image.size)
        for image in images
        if PARTIAL in image.labels and not image.tags and image.id not in used
    ]


def prune(
    links: Mapping[str, Link], keep: int, *, really: bool
) -> tuple[dict[str, list[Old]], dict[str, StackyardError]]:
    """Find old releases on every host, and remove them if `really`; also why that failed."""

    def one(link: Link) -> list[Old]:
        engine = link.engine
        images, used = engine.held_images(), engine.used_images()
        found = [*old_releases(images, used, keep), *broken_off(images, used)]
        for image in found if really else ():
            for name in image.names:
                engine.remove_image(name)
        return found

    return on_each(links, one)
