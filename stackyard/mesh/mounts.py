"""Read which of a user's trees replace installed packages in the nodes of a run.

Owns the syntax of `--overlay`, and what it adds to the folders of hosts. Pure: inside/own_code.py
puts the tree in the package's place, in the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stackyard.build.source.naming import same_package, split_package
from stackyard.mesh.hosts import Fleet, Folder, is_place
from stackyard.system.errors import UsageError, shown

FOLDER = "/srv/code"


@dataclass(frozen=True, kw_only=True)
class Mount:
    """Describe one tree.

    Attributes:
        package: the distribution that it replaces.
        source: folder of every host; empty where `place` is in a folder of the inventory.
        place: its folder in the nodes, read-only unless `source` is empty.
    """

    package: str
    source: str
    place: str


def parse_mount(text: str, default: str, packages: Iterable[str], fleet: Fleet) -> Mount:
    """Read `[PACKAGE=]PATH[:PLACE]`.

    Args:
        default: the package where none is named.
        packages: those of the stack.

    Raises:
        UsageError: the text is not such a mount, or the stack has no such package.
    """
    named, rest = split_package(text, default)
    names = list(packages)
    package = same_package(named, names)
    if not package:
        raise UsageError(f"--overlay: {shown(named)} is no package of this stack",
                         hint=f"one of: {', '.join(sorted(names))}")  # fmt: skip
    path, colon, place = rest.partition(":")
    path = path.rstrip("/")
    if not path.startswith(("/", "~/")) or (colon and not is_place(place)):
        raise UsageError(
            f"--overlay: {shown(text)!r} is not understood",
            why="it is a folder of every host by its absolute path, and its place in the"
            " nodes" if path.startswith(("/", "~/")) else "hosts know no folder of yours by"
            " a relative path",
            hint="--overlay /home/me/fairseq, --overlay PACKAGE=PATH:/code",
        )  # fmt: skip
    if not colon and any(path == at or path.startswith(f"{at}/") for at in fleet.folders):
        return Mount(package=package, source="", place=path)
    return Mount(package=package, source=path, place=place.rstrip("/") or f"{FOLDER}/{package}")


def with_mounts(fleet: Fleet, mounts: Sequence[Mount]) -> Fleet:
    """Return the hosts with one more read-only folder for each tree.

    Raises:
        UsageError: two trees, or a tree and a folder of the inventory, have one place.
    """
    folders: dict[str, Folder] = dict(fleet.folders)
    packages: set[str] = set()
    for mount in mounts:
        if mount.package in packages:
            raise UsageError(f"--overlay: {mount.package} is named twice")
        packages.add(mount.package)
        if not mount.source:
            continue
        if mount.place in folders:
            raise UsageError(f"--overlay: there is a folder at {mount.place} already",
                             hint="--overlay PATH:/another/place")  # fmt: skip
        folders[mount.place] = Folder(source=mount.source, read_only=True)
    return replace(fleet, folders=folders)


def require_there(asked: Sequence[Mount], there: Sequence[Mount], run: str, typed: str) -> None:
    """Require that a running mesh has the trees of a job.

    Raises:
        UsageError: it lacks one; a running container gets no new folder.
    """
    for mount in asked:
        if mount.source and mount not in there:
            have = ", ".join(f"{m.package} from {m.source}" for m in there if m.source) or "none"
            raise UsageError(
                f"run {run!r} is up without {mount.source} for {mount.package}",
                why=f"a folder comes into its nodes only when they start; it has: {have}",
                hint=f"invoke down --name {run}, then: {typed}",
            )


def together(asked: Sequence[Mount], there: Sequence[Mount]) -> tuple[Mount, ...]:
    """Return the trees of a job: the mesh's, but the job's own for a package that both name."""
    found = {mount.package: mount for mount in (*there, *asked)}
    return tuple(found[name] for name in sorted(found))


def differing(digests: Mapping[str, str]) -> list[str]:
    """Return the nodes whose tree differs from the first node's."""
    first = next(iter(digests.values()), "")
    return [node for node, found in digests.items() if found != first]
