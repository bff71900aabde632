"""The record files of a run, followed while it lasts: what every rank of every launch says.

Owns the conversation with `inside/follow.py` on the first node, and which launch a line is for.
It must not read the lines: `validate.record` does.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from stackyard.system.engine import Engine

OnLine = Callable[[str], None]


class Records:
    """The records of one run.

    Args:
        program: path of the follower on the first node.
        folder: where launches have folders with their records.
    """

    def __init__(self, engine: Engine, container: str, program: str, folder: str) -> None:
        self._takers: dict[str, OnLine] = {}
        self._numbers = itertools.count(1)
        self._caught_up: dict[str, threading.Event] = {}
        self._line = engine.converse(container, ["python3", program, folder], self._take)

    def take(self, launch: str, on_line: OnLine) -> None:
        """Have the lines of a launch from now on, from another thread."""
        self._takers[launch] = on_line

    def catch_up(self, seconds: float = 15.0) -> bool:
        """Wait until all that ranks have written by now was taken; False when nobody answers."""
        word = f"caught up {next(self._numbers)}"
        event = self._caught_up[word] = threading.Event()
        if not self._line.send(word):
            return False
        while not event.wait(0.1):
            seconds -= 0.1
            if seconds < 0 or self._line.over.is_set():
                return event.is_set()
        return True

    def close(self) -> None:
        """End the follower."""
        self._line.close()

    def _take(self, text: str) -> None:
        if text in self._caught_up:
            self._caught_up.pop(text).set()
            return
        launch, _, line = text.partition("/")
        taker = self._takers.get(launch)
        if taker:
            taker(line)
