"""Write, check and read a bundle: all downloads that builds on one base need, in one file.

Owns the file's format and the check that a bundle fits an image. It must not fetch anything:
`build.bundle_fetch` does. The file is an uncompressed tar:

    bundle.json   its base, stacks and locks; sha256 and size of every other file
    wheels/       every wheel that the locks name, for the base's Python and platform
    sdists/       the sources of packages that are built
    debs/         system and text packages
    tool/         wheels that Stackyard itself needs, uv among them, and their requirements.lock
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from stackyard.build.catalog import ResolvedImage
from stackyard.definitions.spec import Base
from stackyard.system.chunks import digest_of_file, digest_of_stream
from stackyard.system.errors import UsageError
from stackyard.system.files import new_file

MANIFEST = "bundle.json"
FORMAT = 1
FOLDERS = ("wheels", "sdists", "debs", "tool")
_MEMBER = re.compile(rf"(?:{'|'.join(FOLDERS)})/[A-Za-z0-9][A-Za-z0-9._+~%!-]*")
_COMMAND = "invoke bundle --base BASE, where there is a network"
_UV = re.compile(r"tool/uv-[^/]*\.whl")


@dataclass(frozen=True, kw_only=True)
class BundleIndex:
    """Hold the content of a bundle's bundle.json.

    Attributes:
        locks: sha256 of each lock's text, by path from the project's root.
        packages: names of the requested system and text packages.
        files: sha256 of each file, by its name in the bundle.
        sizes: bytes of each file.
    """

    base: str
    stacks: tuple[str, ...]
    python: str
    platform: str
    locks: Mapping[str, str]
    packages: tuple[str, ...]
    files: Mapping[str, str]
    sizes: Mapping[str, int]

    @property
    def digest(self) -> str:
        """Return the content address of the whole bundle."""
        return hashlib.sha256(_text(self)).hexdigest()

    def bytes_by_folder(self) -> dict[str, int]:
        """Return the size of each of the bundle's folders, in bytes."""
        found: Counter[str] = Counter()
        for name, size in self.sizes.items():
            found[name.partition("/")[0]] += size
        return dict(found)


def _text(manifest: BundleIndex) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, sort_keys=True).encode()


def require_offline(base: Base) -> None:
    """Require a base whose images can be built without a network.

    Raises:
        UsageError: its images install system packages from package sources.
    """
    if not base.unpack:
        raise UsageError(
            f"images on {base.name} cannot be built from a bundle",
            why="their system packages (a compiler among them) are installed from package sources",
            hint="build it where there is a network and copy it with docker save and docker load;"
            " bases with `unpack` in their definition can be built from a bundle",
        )


def lock_digests(images: Iterable[ResolvedImage]) -> dict[str, str]:
    """Return the sha256 of every lock that images are built from, by path."""
    return {
        path: hashlib.sha256(text.encode()).hexdigest()
        for image in images
        for path, text in sorted(image.locks.items())
    }


def packages(images: Iterable[ResolvedImage]) -> tuple[str, ...]:
    """Return the names of all system and text packages that images are built from."""
    found: set[str] = set()
    for image in images:
        found |= {*image.system, *image.build_system, *image.base.unpack_with}
        found |= set(image.common.text_packages)
    return tuple(sorted(found))


def write(out: Path, folder: Path, images: list[ResolvedImage]) -> BundleIndex:
    """Pack the `FOLDERS` in `folder` into a bundle, atomically."""
    paths = {
        f"{name}/{path.name}": path
        for name in FOLDERS
        for path in sorted((folder / name).iterdir())
    }
    manifest = BundleIndex(
        base=images[0].base.name,
        stacks=tuple(image.stack.name for image in images),
        python=images[0].base.python,
        platform=images[0].base.platform,
        locks=lock_digests(images),
        packages=packages(images),
        files={name: digest_of_file(path)[7:] for name, path in paths.items()},
        sizes={name: path.stat().st_size for name, path in paths.items()},
    )
    with new_file(out.parent) as part:
        with tarfile.open(fileobj=part.file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, MANIFEST, io.BytesIO(_text(manifest)), len(_text(manifest)))
            for name, path in paths.items():
                with path.open("rb") as file:
                    _add(archive, name, file, manifest.sizes[name])
        part.keep(out)
    return manifest


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    """Add a file of root without a time, so that the same bytes give the same tar."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o755
    archive.addfile(member, file)


def read(path: Path) -> BundleIndex:
    """Read a bundle's manifest, and check the hash of every file in it.

    Raises:
        UsageError: it is not a bundle, or has another format, or is damaged.
    """
    with _opened(path) as archive:
        manifest = _manifest(path, archive)
        left = dict(manifest.files)
        for member, file in _files(archive):
            if member.name == MANIFEST:
                continue
            wanted = left.pop(member.name, None)
            if wanted is None:
                raise _damaged(path, f"{member.name!r} is not in its {MANIFEST}")
            if digest_of_stream(file)[7:] != wanted:
                raise _damaged(path, f"{member.name} has another sha256 than {MANIFEST} says")
    if left:
        raise _damaged(path, f"{', '.join(sorted(left)[:3])} cannot be found in it")
    return manifest


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except OSError as error:
        raise UsageError(f"{path} cannot be read", why=error.strerror or str(error)) from error
    except tarfile.TarError as error:
        raise _damaged(path, str(error)) from error


def _files(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    for member in archive:
        file = archive.extractfile(member) if member.isfile() else None
        if file is None:
            raise tarfile.ReadError(f"{member.name!r} is no file")
        yield member, file


def _manifest(path: Path, archive: tarfile.TarFile) -> BundleIndex:
    first, file = next(_files(archive), (None, None))
    if first is None or file is None or first.name != MANIFEST:
        raise _damaged(path, f"it does not begin with {MANIFEST}")
    try:
        values = json.loads(file.read())
        found = values.pop("format", None)
        if found != FORMAT:
            raise UsageError(
                f"{path} is a bundle of format {found}, this is Stackyard with format {FORMAT}",
                hint=f"make it again with this state of the project: {_COMMAND}",
            )
        lists = {key: tuple(values[key]) for key in ("stacks", "packages")}
        manifest = BundleIndex(**{**values, **lists})
        wrong = [name for name in manifest.files if not _MEMBER.fullmatch(name)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, f"{MANIFEST}: {error}") from error
    if wrong:
        raise _damaged(path, f"{MANIFEST} names {wrong[0]!r}")
    return manifest


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is no bundle, or a damaged one", why=why, hint=_COMMAND)


def require_fit(path: Path, manifest: BundleIndex, image: ResolvedImage) -> None:
    """Check that a bundle fits an image as it is declared and locked now.

    Raises:
        UsageError: it does not; names every difference.
    """
    wrong = []
    if manifest.base != image.base.name:
        wrong.append(f"it is for base {manifest.base}")
    for lock, digest in lock_digests([image]).items():
        if lock not in manifest.locks:
            wrong.append(f"{lock} is not in it")
        elif manifest.locks[lock] != digest:
            wrong.append(f"{lock} has changed since")
    missing = sorted(set(packages([image])) - set(manifest.packages))
    if missing:
        wrong.append(f"it lacks the packages {' '.join(missing)}")
    if wrong:
        raise UsageError(
            f"{path} does not fit {image.stack.name} on {image.base.name}",
            why="\n".join(wrong),
            hint=f"make it again with this state of the project: {_COMMAND}",
        )


def write_tools(path: Path, out: Path) -> None:
    """Write the part of a bundle that build steps use as the root of a tools image, a tar."""
    with _opened(path) as archive, tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tools:
        for member, file in _files(archive):
            if _UV.fullmatch(member.name):
                data = _uv_binary(file.read())
                _add(tools, "uv", io.BytesIO(data), len(data))
            elif not member.name.startswith("tool/"):
                _add(tools, member.name, file, member.size)


def _uv_binary(wheel: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".data/scripts/uv")]
        return archive.read(name)
