"""Find, list, save, import, name, pull and remove an engine's images."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import docker.errors
import docker.utils

from stackyard.system.engine.connection import Connection, space_hint, translated
from stackyard.system.engine.values import HeldImage
from stackyard.system.errors import EngineError
from stackyard.system.image import ImageInfo


class Images(Connection):
    """Manage the images of an engine."""

    def image(self, reference: str) -> ImageInfo | None:
        """Return the image of a name or id; None when the engine does not hold it."""
        with translated(f"looking for image {reference}"):
            try:
                found = self._api.inspect_image(reference)
            except docker.errors.ImageNotFound:
                return None
        config = found.get("Config") or {}
        return ImageInfo(
            id=found["Id"],
            tags=tuple(found.get("RepoTags") or ()),
            labels=config.get("Labels") or {},
            env=tuple(config.get("Env") or ()),
            size=int(found["Size"]),
            layers=tuple(found["RootFS"].get("Layers") or ()),
            digests=tuple(found.get("RepoDigests") or ()),
        )

    def held_layers(self, *, but: str) -> list[tuple[str, ...]]:
        """Return the layers (diff_ids, from the bottom) of every image without the label `but`."""
        ids = {image.id for image in self.held_images() if but not in image.labels}
        found = [self.image(image) for image in ids]
        return [info.layers for info in found if info is not None]

    def held_images(self) -> list[HeldImage]:
        """Return all images, except those that are only parents of others."""
        with translated("listing its images"):
            found = self._api.images()
        return [
            HeldImage(
                id=entry["Id"],
                tags=tuple(tag for tag in entry.get("RepoTags") or () if "<none>" not in tag),
                digests=tuple(d for d in entry.get("RepoDigests") or () if "<none>" not in d),
                labels=entry.get("Labels") or {},
                created=int(entry["Created"]),
                size=int(entry["Size"]),
            )
            for entry in found
        ]

    def used_images(self) -> set[str]:
        """Return the ids of images that containers were made from, whatever their state."""
        with translated("listing its containers"):
            return {str(entry["ImageID"]) for entry in self._api.containers(all=True)}

    def remove_image(self, name: str) -> None:
        """Remove a name from an image, if it still exists; with its last name the image goes."""
        with translated(f"removing {name}"), contextlib.suppress(docker.errors.NotFound):
            self._api.remove_image(name)

    def history(self, reference: str) -> list[dict[str, Any]]:
        """Return the image's history, newest first, with the engine's keys (CreatedBy, Size)."""
        with translated(f"reading the history of {reference}"):
            return list(self._api.history(reference))

    def save(self, reference: str, path: Path) -> None:
        """Write an image as a tar archive (as `docker save` does)."""
        with translated(f"saving {reference}"), path.open("wb") as file:
            for chunk in self._api.get_image(reference):
                file.write(chunk)

    def saved(self, reference: str) -> Iterator[bytes]:
        """Yield an image as a tar archive (as `docker save` does), in pieces as they come."""
        with translated(f"saving {reference}"):
            yield from self._api.get_image(reference)

    def import_tar(self, path: Path, reference: str, changes: Sequence[str]) -> str:
        """Make an image from a root file system, and return its id."""
        repository, _, tag = reference.rpartition(":")
        with translated(f"importing {reference}"):
            self._api.import_image(str(path), repository=repository, tag=tag, changes=list(changes))
        found = self.image(reference)
        if found is None:
            raise EngineError(f"the engine took {reference} in but does not hold it")
        return found.id

    def tag(self, reference: str, new: str) -> None:
        """Give an image another name."""
        repository, _, tag = new.rpartition(":")
        with translated(f"naming {reference} {new}"):
            self._api.tag(reference, repository, tag)

    def pull(self, reference: str, on_event: Callable[[], None] = lambda: None) -> ImageInfo:
        """Pull an image, by tag or digest.

        Args:
            on_event: called at each event, several a second; the pull ends if it raises.

        Raises:
            EngineError: the registry cannot be reached or refuses, or the image does not arrive.
        """
        repository, tag = docker.utils.parse_repository_tag(reference)
        with translated(f"pulling {reference}"):
            events = self._api.pull(repository, tag=tag or "latest", stream=True, decode=True)
            # Errors after the first response arrive as events, not exceptions.
            failed: list[str] = []
            for event in events:
                on_event()
                failed += [str(event["error"])] if "error" in event else []
        found = self.image(reference)
        if failed or found is None:
            why = failed[-1] if failed else "the engine does not hold it afterwards"
            raise EngineError(f"{reference} could not be pulled", why=why, hint=space_hint(why))
        return found
