"""Print the lines of a growing folder of record files, each with its file's name, as they come.

Owns only the reading; ends when a stop file appears and everything has been printed.

    follow.py FOLDER STOP_FILE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def follow(folder: Path, stop: Path) -> None:
    """Print `NAME<tab>LINE` for every complete line below `folder`."""
    offsets: dict[Path, int] = {}
    while True:
        last_round = stop.exists()
        for path in sorted(folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(offsets.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    offsets[path] = offsets.get(path, 0) + len(line)
                    sys.stdout.write(f"{path.stem}\t{line.decode(errors='replace')}")
        sys.stdout.flush()
        if last_round:
            return
        time.sleep(0.05)


if __name__ == "__main__":
    follow(Path(sys.argv[1]), Path(sys.argv[2]))
