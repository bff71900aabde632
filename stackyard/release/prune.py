"""Find and remove old releases on hosts.

Owns the rule: of each stack and base of one repository the newest `keep` releases stay. The image
that runs use (it has the stack's local name), images that a container uses and images that are no
releases stay, too. Partial images of broken pulls go.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stackyard.build.dockerfile import image_tag
from stackyard.mesh.link import HostError, Link, on_each
from stackyard.release.parcel import PARTIAL
from stackyard.system.engine import Engine, HeldImage
from stackyard.system.errors import StackyardError, shown

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
    stay = set(used)
    groups: dict[tuple[str, str, str], list[tuple[int, int, HeldImage]]] = defaultdict(list)
    for image in images:
        for tag in image.tags:
            match = _RELEASE.fullmatch(tag)
            stack, base = (image.labels.get(f"stackyard.{key}", "") for key in ("stack", "base"))
            if match and stack and base:
                group = (match["place"], stack, base)
                groups[group].append((image.created, int(match["number"]), image))
                if image_tag(stack, base) in image.tags:
                    stay.add(image.id)  # somebody may have gone back to it
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
    """Find old releases on every host and remove them if `really`; return them, and errors.

    A host whose engine refused some has both: what is gone, and one error.
    """
    refused: dict[str, StackyardError] = {}

    def one(link: Link) -> list[Old]:
        engine, name = link.engine, link.host.name
        images, used = engine.held_images(), engine.used_images()
        found = [*old_releases(images, used, keep), *broken_off(images, used)]
        if not really:
            return found
        gone, errors = _remove(engine, found)
        if errors and not gone:
            raise _kept(name, errors)
        if errors:
            refused[name] = _kept(name, errors)
        return gone

    found, failed = on_each(links, one)
    return found, {**refused, **failed}


def _remove(engine: Engine, images: Sequence[Old]) -> tuple[list[Old], list[StackyardError]]:
    """Remove images as long as the engine answers; return those that are gone, and refusals."""
    gone: list[Old] = []
    errors: list[StackyardError] = []
    for image in images:
        try:
            for name in image.names:
                engine.remove_image(name)
            gone.append(image)
        except StackyardError as error:
            errors.append(error)
            if not engine.answers():
                break
    return gone, errors


def _kept(host: str, errors: Sequence[StackyardError]) -> HostError:
    """Return one error of all refusals of a host's engine, each with its reason."""
    said = [f"{error.what} ({shown(error.why)})" if error.why else error.what for error in errors]
    hint = errors[0].hint or f"see on {host} what uses them (docker ps -a), then invoke prune again"
    return HostError(host, "; ".join(said), hint=hint)
