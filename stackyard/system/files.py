"""Write files and folders whole or not at all, under a temporary name that is then renamed.

Owns the removal of partial files, also after SIGKILL (`system.cleanup`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stackyard.system.cleanup import PATH, undoing

PART = ".part-"
# One thread may write several files in one folder at the same time.
_NUMBERS = itertools.count(1)


class NewFile:
    """Hold a file under a temporary name while it is written; `keep` gives it its final name."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path.open("wb")

    def keep(self, target: Path, *, durable: bool = False) -> None:
        """Rename the file to `target`, on the same file system.

        Args:
            durable: write its bytes to the disk before the rename.
        """
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())
        self.path.replace(target)


@contextlib.contextmanager
def new_file(folder: Path) -> Iterator[NewFile]:
    """Open a new file in a folder, and remove it at the end unless it was kept."""
    path = folder / f"{PART}{os.getpid()}-{next(_NUMBERS)}"
    with undoing(PATH, str(path)):
        part = None
        try:
            part = NewFile(path)
            yield part
        finally:
            try:
                if part:
                    part.file.close()  # on a full disk it fails with what is still buffered
            finally:
                path.unlink(missing_ok=True)


def replace_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file whole or not at all."""
    with new_file(path.parent) as part:
        part.file.writelines(chunks)
        part.keep(path)


def replace_texts(root: Path, texts: Mapping[str, str]) -> list[str]:
    """Write files by path below `root`, each whole; return the paths that changed."""
    changed = []
    for path, text in texts.items():
        target = root / path
        if target.is_file() and target.read_text(encoding="utf-8") == text:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, [text.encode()])
        changed.append(path)
    return changed


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Make a private folder beside `target`, and rename it to `target` at the end.

    Raises:
        OSError: the folder cannot be made, or `target` exists and is not empty.
    """
    with (
        tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as holder,
        undoing(PATH, holder),
    ):
        part = Path(holder) / target.name
        part.mkdir()
        yield part
        part.rename(target)
