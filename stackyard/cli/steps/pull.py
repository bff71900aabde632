"""Run `invoke pull` and `invoke prune`, from their arguments to the output.

Owns the meaning of their arguments. `release.pull` and `release.prune` take the steps.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stackyard.build.choice import decide
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.releases import PullRequest
from stackyard.cli.release_view import progress_text, seen_lines
from stackyard.cli.steps import pull_file
from stackyard.cli.steps.hosts import HOSTS_FILE, load_fleet
from stackyard.cli.steps.published import find_signers, open_registry, seen_value
from stackyard.cli.steps.pulled import lost, require_no_way_back, told
from stackyard.cli.typed import typed
from stackyard.definitions.document import nearest
from stackyard.definitions.project import load_project
from stackyard.mesh.link import HostError, Link, cause, on_each, remark
from stackyard.mesh.owner import sweep
from stackyard.mesh.preflight import muster
from stackyard.mesh.runs import Reached, reached
from stackyard.mesh.survey import choose_network
from stackyard.release import prune as pruning
from stackyard.release import verify
from stackyard.release.goods import ImageGoods
from stackyard.release.layer_source import LayerSource
from stackyard.release.pull import Puller, name_image
from stackyard.release.receiver import Progress
from stackyard.release.registry import Registry
from stackyard.release.spool import Spool, cache_folder
from stackyard.release.statement import latest_tag
from stackyard.release.verify import Verified
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError, StackyardError, UsageError

VIAS = ("hosts", "registry")
SQUASHFS = "squashfs"
KINDS = ("image", SQUASHFS)


def pull(terminal: Terminal, given: PullRequest) -> Answer:
    """Run `invoke pull STACK`: pull a release onto all hosts, or onto this machine without any."""
    project = load_project()
    chosen = decide(project, given.stack, given.base)
    name, base = chosen.stack, chosen.base.name
    _require_sense(given, name)
    reference = given.release or latest_tag(name, base)
    instead = {
        latest_tag(name, other): typed("pull", given, base=other)
        for other in project.definitions.bases if not given.release
    }  # fmt: skip
    signers = find_signers(given.signers)
    with open_registry(project, given.from_, "--from") as registry:
        found = verify.verify_release(registry, reference, signers, instead)
        if (found.release.stack, found.release.base) != (name, base):
            raise UsageError(
                f"{reference} is {found.release.stack} on {found.release.base},"
                f" not {name} on {base}",
                hint=typed("pull", given, stack=found.release.stack, base=found.release.base),
            )
        attested = f", with {', '.join(found.attested)}" if found.attested else ""
        terminal.say(name, f"{found.release.name}, signed by {found.signer}{attested}")
        seen = seen_value(registry, found, signers)
        for why in seen["evidence_refused"]:
            terminal.note(f"{found.release.name}: {why}")
        for text in seen_lines(seen):
            terminal.text(f"{found.release.name}: {text}")
        here = not given.hosts and not Path(HOSTS_FILE).is_file()
        if given.as_ == SQUASHFS:
            pull_one = pull_file.pull_here if here else pull_file.pull_hosts
            value, code = pull_one(registry, found, signers, given, terminal)
        elif here:
            value, code = _pull_here(registry, found, given, terminal)
        else:
            with reached(load_fleet(given.hosts)) as hosts:
                value, code = _pull_hosts(registry, found, signers, hosts, given, terminal)
        return {**value, **seen, "attested": list(found.attested)}, code


def _require_sense(given: PullRequest, stack: str) -> None:
    """Check options that have few values, and options that exclude each other.

    Raises:
        UsageError: one makes no sense.
    """
    for option, value, values in (("via", given.via, VIAS), ("as", given.as_, KINDS)):
        if value not in values:
            raise UsageError(
                f"--{option} is {' or '.join(values)}, not {value!r}",
                why=nearest(value, values),
                hint=f"invoke pull {stack} --{option} {values[0]}",
            )
    if given.as_ != SQUASHFS and given.into:
        raise UsageError("--into names the folder of a file", why="engines have a place of their"
                         " own for images", hint=f"--as {SQUASHFS}")  # fmt: skip
    if given.as_ == SQUASHFS and (given.via != VIAS[0] or given.mirror):
        raise UsageError("a registry holds layers, no squashfs file: hosts cannot pull one",
                         hint="leave out --via and --mirror")  # fmt: skip


def _pull_here(
    registry: Registry, found: Verified, given: PullRequest, terminal: Terminal
) -> tuple[Any, int]:
    """Pull the release into this machine's engine, by digest."""
    entry, place = found.release, str(registry.repository)
    started = time.monotonic()
    with Engine() as engine:
        if not given.release:
            require_no_way_back({"this machine": _tags(engine, place)}, entry.name)
        terminal.say(entry.stack, f"pulling {entry.size / 1e6:.0f} MB at most")
        _take(engine, f"{place}@{entry.digest}", found, place)
    seconds = round(time.monotonic() - started, 2)
    terminal.text(f"{entry.name} is here: {entry.digest}, {seconds:.1f} s")
    return {"release": entry.name, "digest": entry.digest, "seconds": seconds}, 0


def _tags(engine: Engine, place: str) -> list[str]:
    """Return the tags of a repository that an engine holds."""
    names = [name for image in engine.held_images() for name in image.tags]
    return [name.removeprefix(f"{place}:") for name in names if name.startswith(f"{place}:")]


def _take(engine: Engine, reference: str, found: Verified, place: str) -> None:
    """Have an engine pull by digest, check the image, and tag it."""
    entry = found.release
    image = engine.pull(reference)
    held = engine.image(entry.image_id)
    if entry.image_id not in (image.id, held.id if held else "") and image.id != entry.digest:
        raise EngineError(f"{reference} is another image in the engine: {image.id}")
    for name in (entry.local_name, f"{place}:{entry.name}"):
        engine.tag(image.id, name)


def _pull_hosts(
    registry: Registry, found: Verified, signers: Path, hosts: Reached, given: PullRequest,
    terminal: Terminal,
) -> tuple[Any, int]:  # fmt: skip
    entry = found.release
    started = time.monotonic()
    fetched = 0
    place = str(registry.repository)
    failed: dict[str, StackyardError] = {**hosts.failed}
    on_each(hosts.links, sweep)
    if not given.release:
        held, _ = on_each(hosts.links, lambda link: _tags(link.engine, place))
        require_no_way_back(held, entry.name)
    if given.via == "registry" or given.mirror:
        progress = _each_pulls(registry, found, hosts, given, terminal)
    else:
        seen = muster(hosts.links, hosts.failed, hosts.fleet)
        network, problems = choose_network(
            seen.facts, {host.name: host.interface for host in hosts.fleet.hosts}
        )
        failed |= {**seen.failed, **{host: HostError(host, what) for host, what in problems}}
        links = {n: link for n, link in hosts.links.items() if n in network.chosen}
        sizes = {str(layer["digest"]): int(layer["size"]) for layer in entry.layers}
        Spool(cache_folder(os.environ)).forget_old()
        source = LayerSource(registry, cache_folder(os.environ), sizes)
        puller = Puller(
            links, seen.facts, network, found, signers.read_bytes(), source.read,
            lambda progress: terminal.say(entry.stack, progress_text(progress)),
        )  # fmt: skip
        puller.pull(ImageGoods(found, seen, registry.blob(found.config)))
        progress, fetched = puller.progress, source.fetched
        name_image(links, progress, found, place)
    progress |= {name: lost(name, error) for name, error in failed.items() if name not in progress}
    return told(found, progress, fetched, time.monotonic() - started, given, terminal)


def prune(terminal: Terminal, hosts_: str, keep: int, *, dry_run: bool) -> Answer:
    """Run `invoke prune`: remove old releases from all hosts."""
    with reached(load_fleet(hosts_)) as hosts:
        found, failed = pruning.prune(hosts.links, keep, really=not dry_run)
    for host, images in sorted(found.items()):
        names = [name for image in images for name in image.names if "@" not in name]
        freed = sum(image.bytes for image in images)
        verb = "would go" if dry_run else "are gone"
        text = f"{len(images)} {verb}: {', '.join(names)} ({freed / 1e9:.1f} GB at most)"
        terminal.text(f"{host}: {text if images else 'nothing is old'}")
    for host, error in {**hosts.failed, **failed}.items():
        terminal.text(remark(host, cause(host, error), error.hint))
    value = {host: [asdict(image) for image in images] for host, images in found.items()}
    broken = sorted({**hosts.failed, **failed})
    return {"removed": {} if dry_run else value, "old": value, "failed": broken}, 1 if broken else 0


def _each_pulls(
    registry: Registry, found: Verified, hosts: Reached, given: PullRequest, terminal: Terminal
) -> dict[str, Progress]:
    """Have every host pull by itself, from the registry or a mirror, which is warmed first."""
    entry, place = found.release, str(registry.repository)
    origin = f"{given.mirror}/{registry.repository.name}" if given.mirror else place
    progress = {name: Progress() for name in hosts.links}

    def one(link: Link) -> None:
        mark, began = progress[link.host.name], time.monotonic()
        if link.engine.image(entry.image_id) is not None:
            mark.state = "held"
        _take(link.engine, f"{origin}@{entry.digest}", found, place)
        mark.state = "held" if mark.state == "held" else "pulled"
        mark.digest, mark.seconds = entry.digest, round(time.monotonic() - began, 2)
        terminal.done(link.host.name, f"{mark.state}, {mark.seconds:.1f} s")

    names = list(hosts.links)
    first = names[:1] if given.mirror else []
    for group in (first, [name for name in names if name not in first]):
        links = {name: hosts.links[name] for name in group}
        for name, error in on_each(links, one)[1].items():
            progress[name].fail(cause(name, error), hint=error.hint)
    return progress
