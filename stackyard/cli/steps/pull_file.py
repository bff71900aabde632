"""Run `invoke pull --as squashfs`: bring a release as one file, here or onto hosts without engines.

Owns where the file is made and kept. `release.squashfs` makes it, `release.pull` sends it, and
`schedulers.entering` knows how it is started.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stackyard.cli.console import Terminal
from stackyard.cli.options.releases import PullRequest
from stackyard.cli.release_view import progress_text
from stackyard.cli.steps.hosts import load_fleet
from stackyard.cli.steps.pulled import lost, require_no_way_back, told
from stackyard.mesh.link import HostError, on_each
from stackyard.mesh.owner import sweep
from stackyard.mesh.preflight import look_at
from stackyard.mesh.runs import Reached, reached
from stackyard.mesh.survey import choose_network
from stackyard.release import squashfs
from stackyard.release.goods import FileGoods, look
from stackyard.release.layer_source import LayerSource
from stackyard.release.pull import Puller
from stackyard.release.receiver import Progress
from stackyard.release.registry import Registry
from stackyard.release.spool import Spool, cache_folder
from stackyard.release.squashfs import SUFFIX, Squashed
from stackyard.release.verify import Verified
from stackyard.schedulers.entering import by_hand
from stackyard.system.chunks import chunks
from stackyard.system.errors import UsageError
from stackyard.system.lockfile import exclusive

FOLDER = "~/.cache/stackyard/squashfs"


class Maker:
    """Make the file of a release on this machine, unless it is there.

    Attributes:
        fetched: bytes read from the registry.
    """

    def __init__(
        self, registry: Registry, found: Verified, target: Path, terminal: Terminal
    ) -> None:
        self._registry, self._found, self._target = registry, found, target
        self._terminal = terminal
        self.fetched = 0

    def noted(self) -> Squashed:
        """Return what is known of the file, which may be gone meanwhile; make it if unknown."""
        return squashfs.read_note(self._target, self._found.release.digest) or self.made()

    def held(self) -> Squashed | None:
        """Return the file that is there, whole; None where there is none."""
        noted = squashfs.read_note(self._target, self._found.release.digest)
        return noted if noted and squashfs.is_whole(self._target, noted) else None

    def made(self) -> Squashed:
        """Return the file, which is there afterwards.

        Raises:
            StackyardError: it cannot be made.
        """
        self._target.parent.mkdir(parents=True, exist_ok=True)
        name = self._found.release.name
        with exclusive(f"squashfs-{name}", lambda: self._terminal.say(name, "another makes it")):
            return self.held() or self._make()

    def _make(self) -> Squashed:
        squashfs.require_program()
        entry = self._found.release
        sizes = {str(layer["digest"]): int(layer["size"]) for layer in entry.layers}
        Spool(cache_folder(os.environ)).forget_old()
        source = LayerSource(self._registry, cache_folder(os.environ), sizes)
        config = json.loads(self._registry.blob(self._found.config))
        self._terminal.say(entry.name, f"gathering {len(sizes)} layers")
        layers = [source.verified(str(layer["digest"])) for layer in entry.layers]
        self.fetched = source.fetched
        self._terminal.say(entry.name, f"making {self._target.name}")
        variables = (config.get("config") or {}).get("Env") or []
        return squashfs.make(
            self._target, layers, variables, release=entry.name, image=entry.digest
        )  # fmt: skip

    def read(self, digest: str, start: int) -> Iterator[bytes]:
        """Yield the file's bytes from `start` on."""
        with self._target.open("rb") as file:
            file.seek(start)
            yield from chunks(file)


def pull_here(
    registry: Registry, found: Verified, signers: Path, given: PullRequest, terminal: Terminal
) -> tuple[Any, int]:
    """Bring a release onto this machine, as one file."""
    entry, started = found.release, time.monotonic()
    folder = Path(given.into or FOLDER).expanduser().resolve()
    if not given.release:
        _require_no_way_back({"this machine": [path.name for path in folder.glob(f"*{SUFFIX}")]},
                             entry.name)  # fmt: skip
    target = folder / squashfs.file_name(entry.name)
    maker = Maker(registry, found, target, terminal)
    file = maker.held()
    verb = "was" if file else "is"
    file = file or maker.made()
    seconds = round(time.monotonic() - started, 2)
    value: dict[str, Any] = {
        "release": entry.name, "digest": entry.digest, "seconds": seconds,
        "squashfs": _value(file, str(target), found),
    }  # fmt: skip
    terminal.text(f"{target} {verb} here: {file.bytes / 1e6:.0f} MB, {file.sha256},"
                  f" {seconds:.1f} s")  # fmt: skip
    _show_starts(value["squashfs"]["start"], terminal)
    return value, 0


def pull_hosts(
    registry: Registry, found: Verified, signers: Path, given: PullRequest, terminal: Terminal
) -> tuple[Any, int]:
    """Bring a release onto hosts, as one file that is made here and passed on from host to host."""
    folder = given.into or FOLDER
    if not folder.startswith(("/", "~/")):
        raise UsageError(f"--into {folder!r} is no absolute path, and hosts have several users",
                         hint=f"--into {Path(folder).resolve()}, or ~/{folder}")  # fmt: skip
    mine = cache_folder(os.environ).parent / "squashfs" / squashfs.file_name(found.release.name)
    with reached(load_fleet(given.hosts), engines=False) as hosts:
        maker = Maker(registry, found, mine, terminal)
        started = time.monotonic()
        progress, goods = _send(hosts, found, signers.read_bytes(), folder, maker, given, terminal)
        progress |= {name: lost(name, error) for name, error in hosts.failed.items()}
        seconds = time.monotonic() - started
        value, code = told(found, progress, maker.fetched, seconds, given, terminal)
    paths = [goods.path(name) for name in goods.found]
    path = paths[0] if paths else f"{folder}/{mine.name}"
    value["squashfs"] = _value(goods.file, path, found)
    if code == 0:
        _show_starts(value["squashfs"]["start"], terminal)
    return value, code


def _send(
    hosts: Reached, found: Verified, signers: bytes, folder: str, maker: Maker,
    given: PullRequest, terminal: Terminal,
) -> tuple[dict[str, Progress], FileGoods]:  # fmt: skip
    """Send the file to the hosts that lack it."""
    entry = found.release
    on_each(hosts.links, sweep)
    if not given.release:
        seen, _ = on_each(hosts.links, lambda link: look(link, folder).files)
        _require_no_way_back({name: [*files] for name, files in seen.items()}, entry.name)
    facts, broken = on_each(hosts.links, look_at)
    network, problems = choose_network(facts, {h.name: h.interface for h in hosts.fleet.hosts})
    failed = {**broken, **{host: HostError(host, what) for host, what in problems}}
    links = {name: link for name, link in hosts.links.items() if name in network.chosen}
    goods = FileGoods(file=maker.noted(), folder=folder, ready=maker.made)
    puller = Puller(
        links, facts, network, found, signers, maker.read,
        lambda marks: terminal.say(entry.stack, progress_text(marks)),
    )  # fmt: skip
    puller.pull(goods)
    for mark in puller.progress.values():
        if mark.state in ("held", "pulled"):
            mark.digest = goods.file.sha256
    progress = puller.progress
    progress |= {name: lost(name, error) for name, error in failed.items() if name not in progress}
    return progress, goods


def _require_no_way_back(files: dict[str, list[str]], name: str) -> None:
    stems = {who: [one.removesuffix(SUFFIX) for one in names] for who, names in files.items()}
    require_no_way_back(stems, name)


def _value(file: Squashed, path: str, found: Verified) -> dict[str, Any]:
    release = found.release
    start = by_hand(path, release.stack, release.base, gpus=release.needs_gpus)
    return {
        "path": path, "sha256": file.sha256, "bytes": file.bytes, "made_by": file.made_by,
        "start": {name: {"line": line.text, "seen": line.seen} for name, line in start.items()},
    }  # fmt: skip


def _show_starts(starts: dict[str, dict[str, Any]], terminal: Terminal) -> None:
    for name, start in starts.items():
        seen = "" if start["seen"] else " (unverified: it was not to be had here)"
        terminal.text(f"  {name}{seen}: {start['line']}")
