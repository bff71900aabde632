"""Send requests to the supervisor inside a mesh, and read its events.

Owns the controller's end of the line, and the heartbeat for an attached training.
`inside/supervisor.py` ends a training without heartbeat; it needs no controller for that.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from stackyard.system.engine import Engine
from stackyard.system.errors import MeshError

PROGRAM = "/srv/stackyard/supervisor.py"
BEAT_SECONDS = 1.0
ANSWER_SECONDS = 30.0
Event = dict[str, Any]


class Refused(MeshError):
    """Report that the supervisor refused a request, and why."""


class Talk:
    """Hold a line to the supervisor of a run, and send it a heartbeat every second.

    Args:
        container: of node 1, on `engine`.
    """

    def __init__(self, engine: Engine, container: str) -> None:
        self._events: queue.Queue[Event] = queue.Queue()
        self._said = ""
        self.heard = time.monotonic()
        self._line = engine.converse(container, ["python3", PROGRAM, "talk"], self._take)
        self._stop = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def _take(self, text: str) -> None:
        self.heard = time.monotonic()
        try:
            value = json.loads(text)
        except ValueError:
            self._said = text.strip()[:300]
            return
        if value.get("event") != "beat":
            self._events.put(value)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            if not self._line.send('{"do": "beat"}'):
                return

    def send(self, do: str, **values: object) -> None:
        """Send a request.

        Raises:
            MeshError: the line has ended.
        """
        if not self._line.send(json.dumps({"do": do, **values})):
            raise MeshError("the supervisor on node 1 does not answer", why=self._said)

    def ask(self, do: str, event: str, seconds: float = ANSWER_SECONDS, **values: object) -> Event:
        """Send a request and return the event that answers it; drop the events before it.

        Raises:
            Refused: the supervisor refused the request.
            MeshError: no answer came.
        """
        self.send(do, **values)
        for found in self.events(seconds):
            if found["event"] == event:
                return found
            if found["event"] == "refused":
                raise Refused(str(found["why"]))
        why = self._said or f"nothing was heard for {seconds:.0f} s"
        raise MeshError("the supervisor on node 1 does not answer", why=why)

    def events(self, seconds: float) -> Iterator[Event]:
        """Yield events as they come, until the line ends or nothing has come for `seconds`."""
        end = time.monotonic() + seconds
        while True:
            try:
                found = self._events.get(timeout=0.2)
            except queue.Empty:
                if self.over or time.monotonic() > end:
                    return
                continue
            end = time.monotonic() + seconds
            yield found

    @property
    def over(self) -> bool:
        """Return whether the line has ended."""
        return self._line.over.is_set()

    @property
    def said(self) -> str:
        """Return the last output that was no event; it shows why the program in the node failed."""
        return self._said

    def close(self) -> None:
        """End the line."""
        self._stop.set()
        self._line.close()
        self._beats.join(timeout=5)
