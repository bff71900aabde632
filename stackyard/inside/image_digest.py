"""Print a digest of the files of an image's Python packages, and facts about the node it is on.

Owns which files count: all below the folder of the packages but bytecode, which Python may write
later. Runs inside images: standard library only. It must not judge: the caller knows the image's own
digest and compares.

    image_digest.py                 one JSON line: {"digest": HASH, ...}
    image_digest.py FOLDER HASH     the same into FOLDER/HOST.json; fails where the digest is another
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def counted(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder but bytecode, in a fixed order."""
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (Path(above) / name for name in sorted(names) if not name.endswith(".pyc"))


def _hash(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def digest_of(folder: Path) -> str:
    """Return the digest of the paths and contents of a folder's files."""
    paths = list(counted(folder))
    whole = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for path, found in zip(paths, pool.map(_hash, paths), strict=True):
            whole.update(f"{path.relative_to(folder)}\0{found}\n".encode())
    return whole.hexdigest()


def facts() -> dict[str, str]:
    """Return the digest of this image, and what its node is."""
    return {
        "digest": digest_of(Path(sysconfig.get_paths()["purelib"])),
        "host": socket.gethostname(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME", ""),
        # Slurm's: the numbers of the GPUs that the job has on this node; unset where it has none.
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "cpus": str(os.cpu_count() or 0),
        "kernel": platform.release(),
        "architecture": platform.machine(),
    }


def main(words: list[str]) -> int:
    """Print the facts, or write them and compare."""
    found = facts()
    text = json.dumps(found)
    if not words:
        print(text)
        return 0
    folder, wanted = Path(words[0]), words[1]
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{found['host']}"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / f"{found['host']}.json")
    if found["digest"] == wanted:
        return 0
    print(f"{found['host']}: another image ({found['digest'][:12]}, not {wanted[:12]})")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
