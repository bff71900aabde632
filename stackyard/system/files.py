"""Files and folders that are there whole or not at all: a name of their own beside, then a rename.

Owns that nothing partial stays or takes a name, also after a SIGKILL (`system.cleanup`).
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
# Several may be written at the same time, in one folder and one thread.
_NUMBERS = itertools.count(1)


class NewFile:
    """A file that is being written; `keep` gives it its name."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path.open("wb")

    def keep(self, target: Path, *, durable: bool = False) -> None:
        """Give the file its name, on the same file system.

        Args:
            durable: its bytes are on the disk before its name is there.
        """
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())
        self.path.replace(target)


@contextlib.contextmanager
def new_file(folder: Path) -> Iterator[NewFile]:
    """Open a new file in a folder; unless it is kept, it is gone at the end."""
    path = folder / f"{PART}{os.getpid()}-{next(_NUMBERS)}"
    with undoing(PATH, str(path)):
        part = None
        try:
            part = NewFile(path)
            yield part
        finally:
            if part:
                part.file.close()
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
    """Make a folder beside `target`, its owner's alone, that takes its name at the end.

    Raises:
        OSError: nothing can be made there, or `target` is there and not empty.
    """
    with (
        tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as holder,
        undoing(PATH, holder),
    ):
        part = Path(holder) / target.name
        part.mkdir()
        yield part
        part.rename(target)
