"""Make a release's layers into one squashfs file, the same bytes wherever it is made.

Owns the merged tar that mksquashfs reads, its options, and the note beside the file. It must not
know a registry or a host: layers are files here, compressed and verified. Nothing is unpacked, so
no privilege is needed; all files belong to root, since only root exists where the file is mounted.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

from stackyard.scan.contents import Contents, Held, LayerReader, merge
from stackyard.scan.layer import normal_path
from stackyard.scan.layer_stream import members
from stackyard.system import process
from stackyard.system.chunks import Readable, digest_of_file
from stackyard.system.errors import NothingToRunOn, ReleaseError, StackyardError
from stackyard.system.files import new_file, replace_file

PROGRAM = "mksquashfs"
SUFFIX = ".sqsh"
# Since this version it reads a tar, and its output does not depend on the number of processors.
LEAST = (4, 5)
# Another option gives every release another digest. Level 15, the default, takes ten times as long.
OPTIONS = (
    "-tar", "-noappend", "-all-root", "-no-xattrs", "-no-progress", "-quiet",
    "-comp", "zstd", "-Xcompression-level", "3",
)  # fmt: skip
# The image's variables, where enroot and pyxis look for them, too.
ENVIRONMENT = "etc/environment"
END_SECONDS = 1800.0
# What is taken of the layers. 2: without devices.
CONTENTS = 2
_PIECE = 2**20
_LATEST = 2**32 - 1
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\n\r\0]*")


@dataclass(frozen=True, kw_only=True)
class Squashed:
    """Describe a release's squashfs file.

    Attributes:
        release: its name.
        image: digest of the image's manifest, which the release's publisher signed.
        sha256: digest of the file, `sha256:...`.
        made_by: name and version of the program that made it; another may make other bytes.
        contents: `CONTENTS` when it was made; a file with another one is made again.
    """

    release: str
    image: str
    sha256: str
    bytes: int
    made_by: str
    contents: int


def file_name(release: str) -> str:
    """Return the name of a release's file."""
    return f"{release}{SUFFIX}"


def make(
    target: Path, layers: Sequence[Path], environment: Sequence[str], *, release: str, image: str
) -> Squashed:
    """Make a release's file, whole or not at all, and its note.

    Args:
        layers: compressed, from the bottom; the caller has verified them.
        environment: the image's variables, as NAME=VALUE.

    Raises:
        NothingToRunOn: mksquashfs is not on this machine, or too old.
        ReleaseError: a layer cannot be read, or a variable cannot be written.
    """
    made_by = require_program()
    variables = environment_text(environment)
    contents = contents_of(layers)
    latest = max([entry.entry.mtime for entry in contents.files.values()], default=0)
    with new_file(target.parent) as part:
        _run(part.path, tree(layers, contents, variables), min(max(latest, 1), _LATEST))
        part.path.chmod(0o644)
        found = Squashed(
            release=release, image=image, sha256=digest_of_file(part.path),
            bytes=part.path.stat().st_size, made_by=made_by, contents=CONTENTS,
        )  # fmt: skip
        # A note without its file is harmless; a file without its note would be made again.
        replace_file(note_path(target), [json.dumps(asdict(found), indent=1).encode()])
        part.keep(target, durable=True)
    return found


def require_program() -> str:
    """Return the name and version of the program that makes the file.

    Raises:
        NothingToRunOn: it is not on this machine, or too old.
    """
    hint = "apt-get install squashfs-tools"
    if not shutil.which(PROGRAM):
        raise NothingToRunOn(f"{PROGRAM} is not on this machine", why="it makes the one file of a"
                             " release", hint=hint)  # fmt: skip
    said = process.run([PROGRAM, "-version"], timeout=20, check=False).output
    found = re.search(r"version (\d+)\.(\d+)[.\w-]*", said)
    if not found or (int(found[1]), int(found[2])) < LEAST:
        raise NothingToRunOn(
            f"{PROGRAM} {found[0] if found else ''} is too old".replace("  ", " "),
            why=f"it reads a tar since version {'.'.join(map(str, LEAST))}", hint=hint,
        )  # fmt: skip
    return f"{PROGRAM} {found[0].removeprefix('version ')}"


def note_path(target: Path) -> Path:
    """Return the path of the note beside a file."""
    return target.with_name(f"{target.name}.json")


def read_note(target: Path, image: str) -> Squashed | None:
    """Return what is noted of a file, though it may be gone; None for one to make again."""
    try:
        value = json.loads(note_path(target).read_text(encoding="utf-8"))
        found = Squashed(**value)
    except (OSError, ValueError, TypeError):
        return None
    return found if (found.image, found.contents) == (image, CONTENTS) else None


def is_whole(target: Path, found: Squashed) -> bool:
    """Return whether a file has the noted size and digest."""
    there = target.is_file() and target.stat().st_size == found.bytes
    return there and digest_of_file(target) == found.sha256


def environment_text(variables: Sequence[str]) -> bytes:
    """Return the text of /etc/environment.

    Raises:
        ReleaseError: a variable has no place on a line.
    """
    wrong = [one.partition("=")[0] for one in variables if not _VARIABLE.fullmatch(one)]
    if wrong:
        raise ReleaseError(
            f"the image's variable {wrong[0]!r} cannot be written to /etc/environment",
            why="each is one line, NAME=VALUE",
        )
    return "".join(f"{one}\n" for one in variables).encode("utf-8", "surrogateescape")


def contents_of(layers: Sequence[Path]) -> Contents:
    """Return the files that all layers together make.

    Raises:
        ReleaseError: a layer cannot be read.
    """
    found = []
    for number, path in enumerate(layers):
        with _opened(path, number) as stream:
            found.append(LayerReader(number).read(stream))
    return merge(found)


def _opened(path: Path, number: int) -> IO[bytes]:
    try:
        return cast(IO[bytes], gzip.open(path, "rb"))
    except OSError as error:
        raise ReleaseError(f"layer {number} cannot be read", why=str(error)) from error


def tree(layers: Sequence[Path], contents: Contents, variables: bytes) -> Iterator[bytes]:
    """Yield a tar of the files that a container sees, in an order that the layers decide.

    Devices are left out.

    Raises:
        ReleaseError: a layer names a file twice, or lacks one that it was seen to have.
    """
    wanted = _wanted(contents.files)
    yield from _file(ENVIRONMENT, variables)
    for number, path in enumerate(layers):
        seen: set[str] = set()
        with _opened(path, number) as stream:
            for member, content in members(stream):
                if member is None:
                    break
                name = normal_path(member.name)
                paths = wanted.pop((number, name), ())
                if name in seen and not member.isdir():
                    raise ReleaseError(f"layer {number} names {name!r} twice")
                if paths:
                    seen.add(name)
                    # A user's namespace can make no device, so unsquashfs would fail there; the
                    # node's own /dev is what a job sees.
                    if not (member.ischr() or member.isblk()):
                        yield from _member(member, content, paths)
    if wanted:
        number, name = next(iter(wanted))
        raise ReleaseError(f"layer {number} does not hold {name!r}", why="it was there before")
    yield bytes(2 * tarfile.BLOCKSIZE)


def _wanted(files: Mapping[str, Held]) -> dict[tuple[int, str], list[str]]:
    """Return the paths that a container sees, by the layer's number and path of their content."""
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for path, held in files.items():
        if path != ENVIRONMENT:
            found[held.layer, held.origin].append(path)
    return dict(found)


def _member(member: tarfile.TarInfo, content: Readable, paths: Sequence[str]) -> Iterator[bytes]:
    """Yield a layer's member under its first path, and hard links to it under the others."""
    first, *others = paths
    info = tarfile.TarInfo(first)
    info.mode, info.mtime = member.mode & 0o7777, min(max(int(member.mtime), 0), _LATEST)
    if member.isreg():
        info.size = member.size
    else:
        info.type, info.linkname = member.type, member.linkname if member.issym() else ""
    yield _header(info)
    if member.isreg():
        yield from _content(content, member.size, first)
    for path in others:
        link = tarfile.TarInfo(path)
        link.type, link.linkname, link.mode, link.mtime = (
            tarfile.LNKTYPE, first, info.mode, info.mtime,
        )  # fmt: skip
        yield _header(link)


def _content(content: Readable, size: int, path: str) -> Iterator[bytes]:
    left = size
    while left:
        chunk = content.read(min(left, _PIECE))
        if not chunk:
            raise ReleaseError(f"{path!r} ends early in its layer")
        left -= len(chunk)
        yield chunk
    yield bytes(-size % tarfile.BLOCKSIZE)


def _file(path: str, data: bytes) -> Iterator[bytes]:
    info = tarfile.TarInfo(path)
    info.mode, info.size = 0o644, len(data)
    yield from (_header(info), data, bytes(-len(data) % tarfile.BLOCKSIZE))


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _run(path: Path, pieces: Iterable[bytes], latest: int) -> None:
    """Feed a tar to mksquashfs.

    Args:
        latest: time of the newest file; folders without one of their own get it, the root too.

    Raises:
        StackyardError: it failed; holds its last lines.
    """
    words = ["env", f"SOURCE_DATE_EPOCH={latest}", PROGRAM, "-", str(path), *OPTIONS]
    child = process.Companion(words, held=True)
    try:
        for piece in _large(pieces):
            if not child.write(piece):
                break
        code = child.finish(END_SECONDS)
        if code != 0:
            raise StackyardError(f"{PROGRAM} made no file (exit code {code})", why=child.said)
    finally:
        child.end()


def _large(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join small pieces, so that a file of a few bytes does not cost a write of its own."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)
