"""Renew a run's lease while this process lives, and read what the nodes report through it.

Owns the controller's end: the heartbeat and the nodes' reports. `inside/lease.py` ends a run whose
lease is not renewed; it needs no controller for that.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stackyard.system.engine import Engine
from stackyard.system.errors import MeshError

PROGRAM = "/usr/local/lib/stackyard/lease.py"
# The lease plus the removal of a run stays below 10 s.
BEAT_SECONDS = 0.5
SECONDS = 6.0
JOIN_SECONDS = 40.0
Processes = dict[str, list[dict[str, Any]]]


class Lease:
    """Hold the lease of one run, through its first node.

    Args:
        container: of the first node.
        others: the names of the other nodes.
        on_lost: called once, from another thread, when a node is gone.

    Attributes:
        lost: which node is gone and why; empty while none is.
        orphaned: which rank has lost its launcher; empty while none has.
        gone: the time (`time.monotonic`) of the report that a rank has ended, by node and PID.
    """

    def __init__(
        self, engine: Engine, container: str, others: Sequence[str], on_lost: Callable[[], None]
    ) -> None:
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._answers: dict[str, Processes] = {}
        self._numbers = itertools.count(1)
        self._joined = self._closing = False
        self._stop = threading.Event()
        self._said = ""
        self.lost = ""
        self.orphaned = ""
        self.gone: dict[tuple[str, int], float] = {}
        words = ["python3", PROGRAM, "hold", f"{SECONDS:g}", *others]
        self._line = engine.converse(container, words, self._take)
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def wait_joined(self) -> None:
        """Wait until every node has joined the lease.

        Raises:
            MeshError: a node did not join; names it and gives the reason.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._joined or self.lost, timeout=JOIN_SECONDS)
        if self.lost or not self._joined:
            raise MeshError(self.lost or f"not every node joined within {JOIN_SECONDS:.0f} s")

    def processes(self, *, kill: bool = False, seconds: float = 10.0) -> Processes:
        """Return the processes on each node that are not part of the node's own service.

        A node that is gone has none.

        Args:
            kill: SIGKILL them, until none is left.
        """
        number = str(next(self._numbers))
        if self._line.send(f"{'kill' if kill else 'list'} {number}"):
            with self._changed:
                self._changed.wait_for(
                    lambda: number in self._answers or bool(self.lost), timeout=seconds
                )
        return self._answers.pop(number, {})

    def close(self) -> None:
        """Release the lease before the nodes are removed, so that they do not end by themselves.

        An engine that removes a container while it ends was seen to miscount what is attached to
        the network, which then cannot be removed.
        """
        self._closing = True
        if self._line.send("rest"):
            self._line.over.wait(3)
        self._stop.set()
        self._line.close()
        self._beats.join(timeout=5)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            if self._line.over.is_set() or not self._line.send("beat"):
                break
        if not self._closing:
            said = f": {self._said}" if self._said else ""
            self._lose(f"the first node is gone, and the run's lease with it{said}")

    def _take(self, text: str) -> None:
        if text == "beat":
            return
        try:
            event: Mapping[str, Any] = json.loads(text)
        except ValueError:
            self._said = text.strip()[:200]
            return
        kind = event.get("event")
        if kind == "lost":
            what = "is gone" if event["joined"] else "cannot be logged in to from the first node"
            self._lose(f"{event['node']} {what}: {event['why']}")
        with self._changed:
            if kind == "joined":
                self._joined = True
            elif kind == "answer":
                self._answers[str(event["id"])] = dict(event["nodes"])
            elif kind == "gone":
                self.gone[str(event["node"]), int(event["pid"])] = time.monotonic()
            elif kind == "orphan" and not self.orphaned:
                self.orphaned = (
                    f"on {event['node']} the launcher of process {event['pid']} is gone, so that"
                    f" nothing would stop it: {event['command'][:100]}"
                )
            self._changed.notify_all()

    def _lose(self, why: str) -> None:
        with self._changed:
            if self.lost or self._closing:
                return
            self.lost = why
            self._changed.notify_all()
        self._on_lost()
