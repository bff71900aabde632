"""Lock what two commands on one machine must not make at the same time.

Owns the locks between processes, by flock on files of the user's cache folder. The kernel releases
them when a process ends, however it ends. The files are empty, and they stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def folder() -> Path:
    """Return the folder of this user's locks."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(cache) / "stackyard" / "locks"


@contextlib.contextmanager
def exclusive(name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock `name`; call `waiting` before waiting for another process that holds it.

    Raises:
        OSError: the cache folder cannot be written.
    """
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
