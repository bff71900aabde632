"""Print a mark for every file of a folder, so that the folder can be compared between nodes.

Owns reading and hashing; it changes nothing.

    compare.py FOLDER [--content]    one JSON line: {"files": {path: mark}, "more": N}

A file's mark is its size and time of change, or with `--content` the SHA-256 of its content.
Symbolic links are marked by their targets. At most 50,000 files are listed; "more" counts the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

LIMIT = 50_000


def mark(path: Path, *, content: bool) -> str:
    """Return the mark of a file's present state."""
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    if not content:
        status = path.stat()
        return f"{status.st_size} {int(status.st_mtime)}"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def walk(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder, in order, without caches and repositories' own data."""
    for name, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in (".git", "__pycache__"))
        for file in sorted(files):
            yield Path(name) / file


def main() -> None:
    """Print the marks of the folder's files."""
    folder, content = Path(sys.argv[1]), "--content" in sys.argv[2:]
    found: dict[str, str] = {}
    more = 0
    for path in walk(folder):
        if len(found) >= LIMIT:
            more += 1
            continue
        try:
            found[str(path.relative_to(folder))] = mark(path, content=content)
        except OSError as error:
            found[str(path.relative_to(folder))] = f"unreadable: {error.strerror}"
    print(json.dumps({"files": found, "more": more}))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main()
