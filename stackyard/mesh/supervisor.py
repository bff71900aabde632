"""Start the supervisor inside a mesh, send it requests, and read its events.

Owns the controller's end of the line, and the heartbeat for an attached training.
`inside/supervisor.py` ends a training without heartbeat; it needs no controller for that.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stackyard.mesh.node import PROGRAM_FOLDER
from stackyard.system.engine import Engine
from stackyard.system.errors import MeshError

PROGRAM = f"{PROGRAM_FOLDER}/supervisor.py"
BEAT_SECONDS = 1.0
ANSWER_SECONDS = 30.0
JOIN_SECONDS = 60.0
Event = dict[str, Any]
Processes = dict[str, list[dict[str, Any]]]


class Refused(MeshError):
    """Report that the supervisor refused a request, and why."""


def _lost(node: str, why: str, *, joined: bool) -> str:
    what = "is gone" if joined else "cannot be logged in to from the first node"
    return f"{node} {what}: {why}"


class Talk:
    """Hold a line to the supervisor of a run, and send it a heartbeat every second.

    Args:
        container: of node 1, on `engine`.
        on_lost: called once, from another thread, when a node is gone.

    Attributes:
        lost: which node is gone and why; empty while none is known to be.
        heard: when the supervisor was last heard (`time.monotonic`).
    """

    def __init__(
        self, engine: Engine, container: str, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        self._events: queue.Queue[Event] = queue.Queue()
        self._said = ""
        self._on_lost, self._silent_seconds, self._closing = on_lost, 0.0, False
        self.lost = ""
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
        if value.get("event") == "lost":
            self._lose(_lost(value["node"], value["why"], joined=value["joined"]))
        if value.get("event") != "beat":
            self._events.put(value)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            silent = time.monotonic() - self.heard
            if self._silent_seconds and silent > self._silent_seconds:
                self._lose(f"the first node is gone: nothing was heard for {silent:.0f} s")
            if self.over or not self._line.send('{"do": "beat"}'):
                break
        said = f": {self._said}" if self._said else ""
        self._lose(f"the first node is gone, and the run's supervisor with it{said}")

    def _lose(self, why: str) -> None:
        if not self.lost and not self._closing and not self._stop.is_set():
            self.lost = why
            self._on_lost()

    def expect(self, seconds: float) -> None:
        """Count node 1 as gone from now on when it is not heard for this long."""
        self.heard = time.monotonic()
        self._silent_seconds = seconds

    def send(self, do: str, **values: object) -> None:
        """Send the supervisor a request.

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
                raise Refused(str(found["why"]), hint=str(found.get("hint", "")))
        why = self._said or f"nothing was heard for {seconds:.0f} s"
        raise MeshError("the supervisor on node 1 does not answer", why=why)

    def events(self, seconds: float) -> Iterator[Event]:
        """Yield events as they come, until the line ends or nothing has come for `seconds`."""
        end = time.monotonic() + seconds
        while True:
            found = self.next(0.2)
            if found is None:
                if self.over or time.monotonic() > end:
                    return
                continue
            end = time.monotonic() + seconds
            yield found

    def next(self, seconds: float) -> Event | None:
        """Return the next event, or None if none comes in time."""
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def wait_joined(
        self,
        names: Sequence[str],
        seconds: float = JOIN_SECONDS,
        ended: Callable[[], str] = lambda: "",
    ) -> None:
        """Wait until the supervisor has logged in to every node.

        Args:
            ended: asked each second for the node whose container has ended; empty if none has.

        Raises:
            MeshError: a login failed or took too long; names the node and gives the reason.
        """
        end = time.monotonic() + seconds
        look = time.monotonic() + 1
        while time.monotonic() < end:
            if time.monotonic() > look:
                look = time.monotonic() + 1
                if node := ended():
                    raise MeshError(f"{node} is not running: its container has ended")
            try:
                state = self.ask("state", "state")
            except MeshError as error:
                raise MeshError(self.lost or error.what, why=error.why) from error
            if state["lost"]:
                node, why = next(iter(state["lost"].items()))
                raise MeshError(_lost(node, why, joined=node in state["joined"]))
            if set(state["joined"]) >= set(names):
                return
            time.sleep(0.05)
        late = sorted(set(names) - set(state["joined"]))
        raise MeshError(f"{', '.join(late)} did not join within {seconds:.0f} s")

    def processes(self, *, kill: bool = False) -> Processes:
        """Return the processes on each node that are not part of the node's own service.

        A node that is gone has none.

        Args:
            kill: SIGKILL them, until none is left.
        """
        found: Processes = self.ask("kill" if kill else "list", "processes")["nodes"]
        return found

    def rest(self) -> None:
        """Have the supervisor and the agents end without ending their nodes.

        An engine that removes a container while it ends was seen to miscount what is attached to
        the network, which then cannot be removed.
        """
        self._closing = True
        if self._line.send('{"do": "rest"}'):
            self._line.over.wait(3)

    @property
    def over(self) -> bool:
        """Return whether the line has ended."""
        return self._line.over.is_set()

    @property
    def said(self) -> str:
        """Return the last output that was no event; it shows why the program in the node failed."""
        return self._said

    def close(self) -> None:
        """Stop the heartbeat and end the connection to the supervisor."""
        self._stop.set()
        self._line.close()
        self._beats.join(timeout=5)


def supervise(
    engine: Engine,
    container: str,
    names: Sequence[str],
    seconds: float,
    owner: float,
    on_lost: Callable[[], None] = lambda: None,
) -> Talk:
    """Start the supervisor of a mesh on its first node, and attach to it.

    Args:
        names: of all nodes, the first one first.
        seconds: a node that is not heard for this long is lost.
        owner: seconds without an attached controller after which the mesh ends; 0: it stays.
    """
    words = f"exec python3 {PROGRAM} hold {seconds:g} {owner:g} {' '.join(names)}"
    script = f"{words} >> /var/log/stackyard-supervisor.log 2>&1"
    engine.detach(container, ["sh", "-c", script])
    talk = Talk(engine, container, on_lost)
    talk.send("attach")
    return talk
