"""Run a command and print its time, the most memory of all its processes and the most disk it held.

Memory is the sum of the processes' PSS, so what they share counts once; the disk's is what files
below FOLDER take.

    python3 watched.py FOLDER COMMAND...
"""

from __future__ import annotations

import json
import subprocess  # noqa: TID251  it runs in a container
import sys
import time
from pathlib import Path

EVERY = 0.1
"""Seconds between two looks."""


def memory_of(session: int) -> int:
    """Return the bytes of memory of all processes of a session."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may hold blanks; the session is the fourth field behind it.
            if int((path / "stat").read_text().rpartition(")")[2].split()[3]) != session:
                continue
            for line in (path / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except (OSError, IndexError):
            continue  # it ended meanwhile
    return total


def disk_of(folder: Path) -> int:
    """Return the bytes that the files below a folder take on the disk."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def main() -> int:
    """Run the command line."""
    folder, *words = sys.argv[1:]
    started = time.monotonic()
    memory = disk = 0
    with subprocess.Popen(words, start_new_session=True) as running:
        while running.poll() is None:
            memory = max(memory, memory_of(running.pid))
            disk = max(disk, disk_of(Path(folder)))
            time.sleep(EVERY)
    seconds = time.monotonic() - started
    disk = max(disk, disk_of(Path(folder)))
    print(json.dumps({"seconds": seconds, "memory": memory, "disk": disk}))
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
