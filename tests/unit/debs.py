"""Small Debian packages, as files that dpkg reads, and archives of them that apt reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

NO_FILES: Mapping[str, str] = {}


def deb(
    folder: Path, name: str, version: str = "1", files: Mapping[str, str] = NO_FILES, **fields: str
) -> Path:
    """Write a package; keywords are fields of its control file, `_` for a hyphen."""
    given = {"Package": name, "Version": version, "Architecture": "amd64",
             "Maintainer": "nobody <nobody@example.org>", "Description": f"the {name}\n of tests",
             **{key.replace("_", "-"): text for key, text in fields.items()}}  # fmt: skip
    control = "".join(f"{key}: {text}\n" for key, text in given.items())
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar({"control": control}),
        "data.tar.gz": _tar(files),
    }
    text = b"!<arch>\n"
    for part, data in parts.items():
        text += f"{part:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        text += data + b"\n" * (len(data) % 2)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}_{version.rpartition(':')[2]}_{given['Architecture']}.deb"
    path.write_bytes(text)
    return path


def _tar(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(made.getvalue(), mtime=0)


def source(folder: Path) -> bytes:
    """Return the apt source of a folder of packages that has an index."""
    return f"Types: deb\nURIs: file:{folder}\nSuites: ./\nTrusted: yes\n".encode()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
