"""One at a time: what two commands on one machine must not make at the same moment.

Owns locks between processes. They are the kernel's (flock), on files of the user's cache folder: a
process that dies, however that comes, holds none. The files themselves stay; they are empty.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def folder() -> Path:
    """Where this user's locks are."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(cache) / "stackyard" / "locks"


@contextlib.contextmanager
def exclusive(name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock `name`; `waiting` is called when somebody else holds it.

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
