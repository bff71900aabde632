"""Lock a base's Debian packages: fetch them into one folder, which apt reads as an archive.

Owns apt's commands with sources, lists and architecture of their own, and the folder's form: .deb
files and their index `Packages`, which names each with version and SHA-256. The engine holds the
folder as an image, from which build steps and releases take it. It must not decide which packages
are wanted: `build.base_image` does.
"""

from __future__ import annotations

import re
import shlex
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stackyard.build.recipe import PACKAGES_LABEL
from stackyard.system import cleanup, process
from stackyard.system.chunks import digest_of_file
from stackyard.system.engine import Engine
from stackyard.system.errors import CommandError, StackyardError

if TYPE_CHECKING:
    from stackyard.build.mirrors import CallerSettings

INDEX, RELEASE = "Packages", "Release"
_URI = re.compile(r"^'[^']*' ([^_\s]+)_([^_\s]+)_[^_\s]+\.deb ", re.MULTILINE)
_FIELD = re.compile(r"^(Package|Version|Architecture|Filename|Size|SHA256): (.*)$", re.MULTILINE)
_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~_-]*")
_CONTROL = (
    'for file in *.deb; do printf "Filename: ./%s\\n" "$file"; dpkg-deb --field "$file"; echo; done'
)
LONGEST_INDEX = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class LockedPackage:
    """Hold one package of an index."""

    name: str
    version: str
    architecture: str
    sha256: str
    size: int
    file: str


# apt


def apt_command(platform: str, folder: Path, *words: str) -> list[str]:
    """Return an apt-get command with its own sources, lists and architecture, not the host's."""
    architecture = platform.rpartition("/")[2]
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Dir::State::Lists": f"{folder}/apt/lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": f"{folder}/apt/cache",
        "Dir::Cache::pkgcache": "pkgcache.bin",  # Debian's container images turn both off:
        "Dir::Cache::srcpkgcache": "srcpkgcache.bin",  # each command would read all lists again
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": f"{folder}/sources",
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["apt-get", "-qq", *flags, *words]


def prepare(folder: Path, sources: bytes) -> None:
    """Write into a folder all that `apt_command` reads there."""
    for name in ("sources", "apt/lists/partial", "apt/cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    # apt reads the form from the name: one line an entry, or paragraphs.
    form = "list" if sources.lstrip().startswith(b"deb ") else "sources"
    (folder / "sources" / f"caller.{form}").write_bytes(sources)


def sources_of(suite: str, caller: CallerSettings) -> bytes:
    """Return the caller's apt sources; mmdebstrap's own for the suite if there are none.

    Raises:
        StackyardError: mmdebstrap does not know the suite.
    """
    if own := caller.secrets.get("apt.sources"):
        return own
    with cleanup.folder("apt") as folder:
        out = folder / "default.list"
        process.run(
            [
                "mmdebstrap", "--quiet", "--mode=root", "--variant=custom", "--format=null",
                "--skip=update,cleanup,download,extract,essential,install",
                f'--setup-hook=cat "$1/etc/apt/sources.list" > {shlex.quote(str(out))}',
                suite, "/dev/null",
            ],
            timeout=60,
        )  # fmt: skip
        return out.read_bytes()


def collect(
    out: Path, *, platform: str, install: Sequence[str], download: Sequence[str], sources: bytes
) -> str:
    """Fetch the newest packages into a new folder, and write its index; return its digest.

    The folder holds what a base needs at least, whatever `install` names with all that it needs,
    and of `download` the packages alone.

    Raises:
        StackyardError: apt cannot find or fetch a package.
    """
    with cleanup.folder("apt") as folder:
        prepare(folder, sources)
        process.run(apt_command(platform, folder, "update"), timeout=300)
        # With nothing installed, an upgrade is what is essential, and apt: as mmdebstrap asks.
        asked = (("dist-upgrade",), ("install", *install))
        uris = [
            process.run(apt_command(platform, folder, "--print-uris", *words), timeout=300).output
            for words in asked
        ]
        found = [pair for text in uris for pair in _URI.findall(text)]
        names = {f"{name}={version.replace('%3a', ':')}" for name, version in found}
        _download(platform, folder, sorted({*names, *download}), out)
    return write_index(out)


def fetch_locked(out: Path, index: str, *, platform: str, sources: bytes) -> str:
    """Fetch exactly the packages of an index from package sources; return the index's digest.

    Raises:
        StackyardError: they do not have all of them any more, or have other files.
    """
    wanted = read_index(index)
    with cleanup.folder("apt") as folder:
        prepare(folder, sources)
        process.run(apt_command(platform, folder, "update"), timeout=300)
        try:
            pins = [f"{one.name}={one.version}" for one in wanted]
            _download(platform, folder, pins, out)
        except CommandError as error:
            raise StackyardError(
                f"the package sources do not have all {len(wanted)} locked packages",
                why=error.why,
                hint="STACKYARD_APT_SOURCES=FILE names others, such as an archive of old versions"
                " (snapshot.debian.org)",
            ) from error
    there = {digest_of_file(path)[7:] for path in out.glob("*.deb")}
    other = [f"{one.name} {one.version}" for one in wanted if one.sha256 not in there]
    if other:
        raise StackyardError(
            f"the package sources have other files of {len(other)} locked packages",
            why=", ".join(other[:12]),
            hint="tell the people who run them: one version must have one content",
        )
    return write_index(out)


def _download(platform: str, folder: Path, names: Sequence[str], out: Path) -> None:
    (fetched := folder / "fetched").mkdir()
    process.run(apt_command(platform, folder, "download", *names), cwd=fetched, timeout=1200)
    out.mkdir(parents=True)
    for path in sorted(fetched.glob("*.deb")):
        # No epoch: apt would read its escaped colon as a part of the address.
        path.rename(out / re.sub(r"_[0-9]+%3a", "_", path.name))


# The folder


def write_index(folder: Path) -> str:
    """Write the index of a folder's packages, as apt reads it; return its digest."""
    said = process.run(["sh", "-ec", _CONTROL], cwd=folder, env={"LC_ALL": "C"}, timeout=120)
    stanzas = []
    for stanza in said.output.rstrip("\n").split("\n\n"):
        path = folder / dict(_FIELD.findall(stanza))["Filename"]
        digest, size = digest_of_file(path)[7:], path.stat().st_size
        stanzas.append(f"{stanza.strip()}\nSize: {size}\nSHA256: {digest}\n")
    index = folder / INDEX
    index.write_text("\n".join(stanzas), encoding="utf-8")
    found = digest_of_file(index)
    text = f"Label: Stackyard\nSHA256:\n {found[7:]} {index.stat().st_size} {INDEX}\n"
    (folder / RELEASE).write_text(text, encoding="utf-8")
    return found


def read_index(text: str) -> tuple[LockedPackage, ...]:
    """Read an index.

    Raises:
        StackyardError: a package lacks its version or hash.
    """
    found = []
    for stanza in text.strip().split("\n\n"):
        fields = dict(_FIELD.findall(stanza))
        try:
            found.append(LockedPackage(
                name=fields["Package"], version=fields["Version"], sha256=fields["SHA256"],
                architecture=fields["Architecture"], size=int(fields["Size"]),
                file=fields["Filename"].removeprefix("./"),
            ))  # fmt: skip
        except (KeyError, ValueError) as error:
            raise StackyardError("an index of packages cannot be read", why=repr(error)) from error
    return tuple(found)


def source_line(folder: Path) -> str:
    """Return the line by which mmdebstrap's apt takes packages from a folder alone."""
    return f"deb [trusted=yes] copy:{folder} ./"


def unpack(stream: IO[bytes], out: Path) -> str:
    """Unpack a folder from a tar that may be anybody's; return the digest of its index.

    Raises:
        StackyardError: it is damaged, or holds anything but a folder of packages.
    """
    out.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member, file in _flat(archive):
                with (out / member.name).open("wb") as target:
                    while chunk := file.read(2**20):
                        target.write(chunk)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise StackyardError("the packages cannot be unpacked", why=str(error)) from error
    index = out / INDEX
    if not index.is_file():
        raise StackyardError(f"the packages have no index ({INDEX})")
    _require_listed(out, index.read_text(encoding="utf-8"))
    return digest_of_file(index)


def _flat(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    for member in archive:
        file = archive.extractfile(member) if member.isreg() else None
        if file is None or not _MEMBER.fullmatch(member.name):
            raise tarfile.ReadError(f"{member.name!r} is no file of a package")
        yield member, file


def _require_listed(folder: Path, index: str) -> None:
    """Check that a folder holds the packages of its index, each with its hash."""
    listed = {one.file: one.sha256 for one in read_index(index)}
    there = {path.name: digest_of_file(path)[7:] for path in folder.glob("*.deb")}
    wrong = sorted(dict(listed.items() ^ there.items()))
    if wrong:
        raise StackyardError("the packages are not those of their index", why=", ".join(wrong[:12]))


def index_of(stream: IO[bytes]) -> str:
    """Read a folder's index from its tar; empty where the tar has none."""
    text = ""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name == INDEX else None
            if file is not None:
                text = file.read(LONGEST_INDEX).decode("utf-8", errors="replace")
    return text


# The image


def reference(digest: str) -> str:
    """Return the name under which the engine holds the packages of an index."""
    return f"stackyard/packages:{digest.removeprefix('sha256:')[:12]}"


def packages_of(labels: Mapping[str, str]) -> str:
    """Return the name of the image with a base's packages; empty for a base without a label."""
    return reference(labels[PACKAGES_LABEL]) if labels.get(PACKAGES_LABEL) else ""


def hold(engine: Engine, folder: Path, name: str) -> None:
    """Have the engine hold a folder of packages as an image."""
    with cleanup.folder("packages") as place:
        path = place / "packages.tar"
        with tarfile.open(path, "w") as archive:
            for file in sorted(folder.iterdir()):
                archive.add(file, file.name, filter=_plain)
        engine.import_tar(path, name, [])


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode, member.mtime = 0o644, 0
    return member


def count(packages: Iterable[LockedPackage]) -> str:
    """Return the number of packages and their size, for people."""
    sizes = [one.size for one in packages]
    return f"{len(sizes)} packages, {sum(sizes) / 1e6:.0f} MB"
