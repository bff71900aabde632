"""Copy changed files to all nodes of a run, from node to node, or back from them.

Owns the copying. Files go once from here to the first node, through its engine, and then from
nodes that have them to nodes that do not, over the mesh's ssh: the number of sources doubles with
every round. rsync does the work at both ends; the images have it.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stackyard.definitions.document import nearest
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.link import Link
from stackyard.mesh.node import PROGRAM_FOLDER
from stackyard.mesh.standing import Standing
from stackyard.system import process
from stackyard.system.errors import EngineError, UsageError, shown

SECONDS = 6 * 3600.0
EXCLUDED = (".git", "__pycache__", "*.pyc")
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Describe one copy: its source and target, and what it moved.

    Attributes:
        files: number of regular files that were missing or different.
        bytes: sent and received.
    """

    source: str
    target: str
    files: int
    bytes: int
    seconds: float


def place_of(fleet: Fleet, path: str) -> tuple[str, bool]:
    """Return the folder of hosts.yml that holds a path of the nodes, and whether it is shared.

    Raises:
        UsageError: no folder holds it, so that it would be gone with the container.
    """
    pure = PurePosixPath(path)
    for place, folder in sorted(fleet.folders.items(), key=lambda item: -len(item[0])):
        if pure == PurePosixPath(place) or PurePosixPath(place) in pure.parents:
            return place, folder.shared
    raise UsageError(
        f"{shown(path)} is in no folder of the hosts",
        why=f"{nearest(path, fleet.folders)}\nanything else is gone with the node",
        hint="folders:\n    /code: ~/code        in hosts.yml",
    )


def receivers(fleet: Fleet, run: Standing, path: str) -> tuple[str, ...]:
    """Return the nodes to copy to: one for each host, or the first alone for a shared folder."""
    _, shared = place_of(fleet, path)
    by_host: dict[str, str] = {}
    for node in run.plan.nodes:
        if node.name in run.containers:
            by_host.setdefault(node.host, node.name)
    found = tuple(by_host.values())
    return found[:1] if shared else found


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return by round the pairs (source, target): each node that has the files copies to one."""
    have, need = list(nodes[:1]), list(nodes[1:])
    found = []
    while need:
        pairs = list(zip(have, need, strict=False))
        found.append(pairs)
        have += [target for _, target in pairs]
        need = need[len(pairs) :]
    return found


def flags(*, checksum: bool, delete: bool) -> list[str]:
    """Return the options of every rsync of a sync."""
    return [
        "-a", "--stats", "--partial-dir=.rsync-partial", "--no-owner", "--no-group",
        *(["--checksum"] if checksum else []),
        *(["--delete"] if delete else []),
        *(f"--exclude={name}" for name in EXCLUDED),
    ]  # fmt: skip


def bring(
    links: Mapping[str, Link],
    fleet: Fleet,
    run: Standing,
    sources: Sequence[Path],
    to: str,
    *,
    checksum: bool = False,
    delete: bool = False,
    say: Say = lambda text: None,
) -> list[Copied]:
    """Copy files and folders from here into a folder of every node.

    Args:
        checksum: compare contents, not sizes and times; at the end, compare the copies, too.
        delete: remove there what is not here.

    Raises:
        UsageError: a source does not exist, or the folder is in no folder of the hosts.
        EngineError: a copy failed, or copies differ.
    """
    missing = [str(path) for path in sources if not path.exists()]
    if missing or not sources:
        raise UsageError(f"there is no {', '.join(missing)}" if missing else "say what to copy",
                         hint="invoke sync SOURCE... --to FOLDER")  # fmt: skip
    targets = receivers(fleet, run, to)
    first = targets[0]
    words = flags(checksum=checksum, delete=delete)
    say(f"here to {first}")
    done = [_to_first(links, run, first, sources, to, words)]
    names = [path.resolve().name for path in sources]
    for number, pairs in enumerate(rounds(targets), 1):
        say(f"round {number}: {', '.join(f'{a} to {b}' for a, b in pairs)}")
        with ThreadPoolExecutor(len(pairs)) as pool:
            copies = [
                pool.submit(_between, links, run, source, target, names, to, words)
                for source, target in pairs
            ]
            done += [copy.result() for copy in copies]
    if checksum and len(targets) > 1:
        say("comparing the copies")
        different = differences(links, run, targets, [f"{to}/{n}" for n in names], content=True)
        if different:
            raise EngineError("the copies differ", why="\n".join(different))
    return done


def _argv(to: str) -> list[str]:
    return ["mkdir", "-p", to]


def _to_first(
    links: Mapping[str, Link],
    run: Standing,
    node: str,
    sources: Sequence[Path],
    to: str,
    words: Sequence[str],
) -> Copied:
    link, container = links[run.plan.node(node).host], run.containers[node]
    link.engine.exec(container, _argv(to), seconds=30)
    started = time.monotonic()
    paths = [str(path.resolve()) for path in sources]
    done = process.run(
        [_rsync(), *words, "-e", f"{_docker()} exec -i", "--", *paths, f"{container}:{to}/"],
        env={"DOCKER_HOST": link.docker_host},
        timeout=SECONDS,
    )
    return _copied("here", node, done.output, time.monotonic() - started)


def _between(
    links: Mapping[str, Link],
    run: Standing,
    source: str,
    target: str,
    names: Sequence[str],
    to: str,
    words: Sequence[str],
) -> Copied:
    started = time.monotonic()
    receiving = run.plan.node(target)
    links[receiving.host].engine.exec(run.containers[target], _argv(to), seconds=30)
    engine = links[run.plan.node(source).host].engine
    # Times are kept (`-a`), so rsync sees files that are equal already by time and size.
    argv = ["rsync", *words, "--", *(f"{to}/{name}" for name in names), f"{target}:{to}/"]
    done = engine.exec(run.containers[source], argv, seconds=SECONDS)
    if done.code:
        raise EngineError(
            f"copying from {source} to {target} failed", why=process.last_lines(done.output, 10)
        )
    return _copied(source, target, done.output, time.monotonic() - started)


def back(
    links: Mapping[str, Link],
    fleet: Fleet,
    run: Standing,
    path: str,
    out: Path,
    *,
    nodes: Sequence[str] = (),
    checksum: bool = False,
) -> list[Copied]:
    """Copy a folder or file of the nodes back to here.

    From several nodes each gets a folder of its own below `out`, named after it; from one, or where
    all hosts share the folder, the files come into `out` itself.

    Raises:
        UsageError: the path is in no folder of the hosts, or a node does not exist.
        CommandError: a copy failed.
    """
    there = receivers(fleet, run, path)
    for node in nodes:
        if node not in run.containers:
            raise UsageError(
                f"there is no node {shown(node)!r}", hint=f"one of: {', '.join(there)}"
            )
    chosen = tuple(nodes) or there
    done = []
    for node in chosen:
        target = out if len(chosen) == 1 else out / node
        target.mkdir(parents=True, exist_ok=True)
        link, container = links[run.plan.node(node).host], run.containers[node]
        started = time.monotonic()
        words = flags(checksum=checksum, delete=False)
        said = process.run(
            [_rsync(), *words, "-e", f"{_docker()} exec -i", "--", f"{container}:{path}",
             f"{target}/"],
            env={"DOCKER_HOST": link.docker_host},
            timeout=SECONDS,
        )  # fmt: skip
        done.append(_copied(node, "here", said.output, time.monotonic() - started))
    return done


def _rsync() -> str:
    found = shutil.which("rsync")
    if found is None:
        raise UsageError("rsync is not installed here", hint="apt-get install rsync")
    return found


def _docker() -> str:
    found = shutil.which("docker")
    if found is None:
        raise UsageError(
            "the docker client is not installed here", hint="apt-get install docker.io"
        )
    return found


def _copied(source: str, target: str, said: str, seconds: float) -> Copied:
    def number(name: str) -> int:
        found = re.search(rf"{name}: ([0-9.,]+)", said)
        return int(re.sub(r"[.,]", "", found[1])) if found else 0

    return Copied(
        source=source,
        target=target,
        files=number("Number of regular files transferred"),
        bytes=number("Total bytes sent") + number("Total bytes received"),
        seconds=round(seconds, 2),
    )


def differences(
    links: Mapping[str, Link],
    run: Standing,
    nodes: Sequence[str],
    paths: Sequence[str],
    *,
    content: bool = False,
    limit: int = 5,
) -> list[str]:
    """Describe how the same paths differ from the first node's, in one line for each node."""
    found: dict[str, dict[str, str]] = {node: {} for node in nodes}

    def look(node: str) -> None:
        engine = links[run.plan.node(node).host].engine
        for path in paths:
            argv = ["python3", f"{PROGRAM_FOLDER}/compare.py", path]
            done = engine.exec(
                run.containers[node], [*argv, *(["--content"] if content else [])], seconds=600
            )
            if done.code == 0:
                files = json.loads(done.output.splitlines()[-1])["files"]
                found[node] |= {f"{path}/{name}": mark for name, mark in files.items()}

    with ThreadPoolExecutor(max(1, min(32, len(nodes)))) as pool:
        list(pool.map(look, nodes))
    first, *others = nodes
    lines = []
    for node in others:
        names = sorted(
            name for name in found[first].keys() | found[node].keys()
            if found[first].get(name) != found[node].get(name)
        )  # fmt: skip
        if names:
            more = f" and {len(names) - limit} more" if len(names) > limit else ""
            lines.append(f"{node} differs from {first} in {', '.join(names[:limit])}{more}")
    return lines
