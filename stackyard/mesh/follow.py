"""Follow the record files that every rank of every launch writes during a run.

Owns the conversation with `inside/follow.py` on the first node, and which launch a line is for.
It must not interpret the lines: `validate.record` does.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from stackyard.system.engine import Engine

OnLine = Callable[[str], None]


class Records:
    """Follow the records of one run.

    Args:
        program: path of the follower on the first node.
        folder: holds a folder with records for each launch.
    """

    def __init__(self, engine: Engine, container: str, program: str, folder: str) -> None:
        self._takers: dict[str, OnLine] = {}
        self._numbers = itertools.count(1)
        self._caught_up: dict[str, threading.Event] = {}
        self._line = engine.converse(container, ["python3", program, folder], self._take)

    def take(self, launch: str, on_line: OnLine) -> None:
        """Call `on_line` with every line of a launch from now on, from another thread."""
        self._takers[launch] = on_line

    def catch_up(self, seconds: float = 15.0) -> bool:
        """Wait until all that ranks wrote before the call has arrived; False without an answer."""
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
