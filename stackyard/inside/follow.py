"""Print the lines of a run's record files as they come, each with its launch and its file's name.

Owns only the reading. It looks at every file twenty times a second. A line on its standard input is
printed again after everything that was written before it; at the end of its input it exits.

    follow.py FOLDER     prints LAUNCH/NAME<tab>LINE for FOLDER/LAUNCH/record/NAME.jsonl
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

PAUSE_SECONDS = 0.05


class Follower:
    """Print what is new in a run's record files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def look(self) -> None:
        """Print every complete line that has not been printed yet."""
        for path in sorted(self._folder.glob("*/record/*.jsonl")):
            done = self._offsets.get(path, 0)
            if path.stat().st_size == done:
                continue
            name = f"{path.parent.parent.name}/{path.stem}"
            with path.open("rb") as file:
                file.seek(done)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    done += len(line)
                    sys.stdout.write(f"{name}\t{line.decode(errors='replace')}")
            self._offsets[path] = done
        sys.stdout.flush()


def follow(folder: Path, source: int) -> None:
    """Print new lines until the input from descriptor `source` ends."""
    follower = Follower(folder)
    while True:
        follower.look()
        if not select.select([source], [], [], PAUSE_SECONDS)[0]:
            continue
        asked = os.read(source, 4096)
        follower.look()
        if not asked:
            return
        sys.stdout.write(asked.decode(errors="replace"))
        sys.stdout.flush()


if __name__ == "__main__":
    follow(Path(sys.argv[1]), 0)
