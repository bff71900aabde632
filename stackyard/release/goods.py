"""Say what a pull brings onto hosts: an image for their engines, or one squashfs file.

Owns what a host is asked before a pull, the parcel for those that lack something, and what they do
with it. It must not send anything: `release.pull` does. An engine loads only what was checked on
its host, and a file gets its name only when its digest is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stackyard.mesh.link import HostError, Link
from stackyard.mesh.preflight import Muster
from stackyard.release import parcel as parcels
from stackyard.release import relay
from stackyard.release.parcel import Parcel, Sendable, WholeFile
from stackyard.release.squashfs import SUFFIX, Squashed, file_name
from stackyard.release.verify import Verified

# $1: a folder, which may begin with `~/`. $2: a file in it. $3: its size.
# sha256sum reads gigabytes; openssl is several times as fast where the processor helps.
_LOOK = r"""
case $1 in "~"/*) folder="$HOME/${1#??}" ;; *) folder=$1 ;; esac
printf 'folder %s\n' "$folder"
at=$folder; while [ ! -d "$at" ]; do at=$(dirname "$at"); done
df -Pk "$at" | tail -n 1 | awk '{ print "free " $4 }'
for file in "$folder"/*"$4"; do [ -e "$file" ] && printf 'file %s\n' "${file##*/}"; done
file="$folder/$2"
if [ -f "$file" ] && [ "$(($(wc -c < "$file")))" = "$3" ]; then
    if command -v openssl > /dev/null; then sum=$(openssl dgst -sha256 -r < "$file")
    else sum=$(sha256sum < "$file"); fi
    printf 'sum %s\n' "${sum%% *}"
fi
"""
LOOK_SECONDS = 600.0


class Goods(Protocol):
    """Say what a pull brings, and what hosts do with it."""

    def ask(self, link: Link) -> Any:
        """Return what a host lacks; None where it lacks nothing."""

    def pack(self, lacking: Sequence[Any]) -> Sendable:
        """Return the parcel for hosts that lack this."""

    def plan(self, name: str) -> Mapping[str, bytes]:
        """Return the files that say what a host does with the parcel."""

    def why_no_room(self, name: str, at: int) -> tuple[str, str]:
        """Return why a host that has `at` bytes has no room for the rest, and a hint; or empty."""

    def is_there(self, link: Link) -> bool:
        """Return whether a host that took the parcel has what was brought."""


class ImageGoods:
    """Bring an image to container engines.

    Args:
        config: the image's configuration.
    """

    def __init__(self, verified: Verified, found: Muster, config: bytes) -> None:
        self._release, self._found, self._config = verified.release, found, config
        self._parcel: Parcel | None = None

    def ask(self, link: Link) -> set[str] | None:
        """Return the layers that a host's engine lacks; None where it holds the image."""
        wanted = [str(layer["diff_id"]) for layer in self._release.layers]
        if link.engine.image(self._release.image_id) is not None:
            return None
        if not self._takes_parts(link.host.name):
            return set(wanted)
        return parcels.lacking(wanted, link.engine.held_layers(but=parcels.PARTIAL))

    def _takes_parts(self, name: str) -> bool:
        return takes_parts(self._found.engines[name])

    def pack(self, lacking: Sequence[set[str]]) -> Parcel:
        """Return the parcel of every layer that some host lacks."""
        self._parcel = parcels.make_parcel(self._config, self._release.layers, lacking)
        return self._parcel

    @property
    def _packed(self) -> Parcel:
        assert self._parcel is not None
        return self._parcel

    def plan(self, name: str) -> Mapping[str, bytes]:
        """Return the steps in which a host's engine takes the parcel."""
        return relay.plan(self._packed, in_parts=self._takes_parts(name))

    def why_no_room(self, name: str, at: int) -> tuple[str, str]:
        """Return why a host's engine has no room for the parcel and the unpacked image."""
        room = self._found.facts[name].engine_free_bytes
        carried = {digest for digest, _ in self._packed.carried}
        layers = [layer for layer in self._release.layers if layer["digest"] in carried]
        need = self._packed.size + sum(layer["unpacked"] for layer in layers)
        if room is None or room >= need:
            return "", ""
        why = f"its engine needs {need / 1e9:.1f} GB to take the image and has {room / 1e9:.1f} GB"
        return why, "invoke prune --hosts ..."

    def is_there(self, link: Link) -> bool:
        """Return whether a host's engine holds the image."""
        return link.engine.image(self._release.image_id) is not None


def takes_parts(info: Mapping[str, object]) -> bool:
    """Return whether an engine skips layers that it has; with containerd's store it does not."""
    return "io.containerd.snapshotter" not in str(info.get("DriverStatus", ""))


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """Describe the folder of a host that a release's file goes to.

    Attributes:
        path: absolute.
        files: names of all squashfs files in it.
        sha256: digest of the release's own file; empty where there is none of its size.
    """

    path: str
    free_bytes: int
    files: tuple[str, ...]
    sha256: str


def look(link: Link, folder: str, name: str = "", size: int = 0) -> FolderFacts:
    """Look into a host's folder, and at one file in it.

    Raises:
        HostError: the host does not answer as it should.
    """
    words = (folder, name, str(size), SUFFIX)
    lines = link.shell(_LOOK, *words, seconds=LOOK_SECONDS).splitlines()
    told = [line.partition(" ") for line in lines]
    found = {word: rest for word, _, rest in told}
    if not found.get("folder", "").startswith("/") or not found.get("free", "").isdecimal():
        raise HostError(link.host.name, "its shell does not answer as a shell does",
                        why="\n".join(lines[-5:]))  # fmt: skip
    return FolderFacts(
        path=found["folder"], free_bytes=int(found["free"]) * 1024,
        files=tuple(rest for word, _, rest in told if word == "file"),
        sha256=f"sha256:{found['sum']}" if "sum" in found else "",
    )  # fmt: skip


@dataclass(kw_only=True)
class FileGoods:
    """Bring one file into a folder of hosts, which need no container engine.

    Args:
        file: as it is known; hosts that have it lack nothing.
        folder: absolute, or in the user's home (`~/...`).
        ready: makes the file on this machine, unless it is there.

    Attributes:
        found: the folder of each host that was asked, by the host's name.
    """

    file: Squashed
    folder: str
    ready: Callable[[], Squashed]
    found: dict[str, FolderFacts] = field(default_factory=dict)

    def ask(self, link: Link) -> bool | None:
        """Return true where a host lacks the file, or has another of its name; else None."""
        there = look(link, self.folder, file_name(self.file.release), self.file.bytes)
        self.found[link.host.name] = there
        return None if there.sha256 == self.file.sha256 else True

    def pack(self, lacking: Sequence[Any]) -> WholeFile:
        """Return the file as a parcel; it is there afterwards."""
        self.file = self.ready()
        return self._packed

    @property
    def _packed(self) -> WholeFile:
        return WholeFile(digest=self.file.sha256, size=self.file.bytes)

    def path(self, name: str) -> str:
        """Return the file's path on a host that was asked."""
        return f"{self.found[name].path.rstrip('/')}/{file_name(self.file.release)}"

    def plan(self, name: str) -> Mapping[str, bytes]:
        """Return the steps in which a host checks the file and gives it its path."""
        return relay.file_plan(self._packed, self.path(name))

    def why_no_room(self, name: str, at: int) -> tuple[str, str]:
        """Return why the folder has no room for what is to come."""
        free, need = self.found[name].free_bytes, self.file.bytes - at
        if free >= need:
            return "", ""
        where = self.found[name].path
        why = f"{need / 1e9:.1f} GB are to come and {free / 1e9:.1f} GB are free in {where}"
        return why, "--into another folder"

    def is_there(self, link: Link) -> bool:
        """Return whether a host has a file of that name and size; it checked its digest itself."""
        return file_name(self.file.release) in look(link, self.folder).files
