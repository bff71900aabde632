"""Hear the nodes of a mesh for its supervisor, over one line to the agent of each.

Owns which nodes have joined or are lost, and questions to all nodes. `supervisor.py` owns what
other messages of nodes mean, and what follows from them.
"""

from __future__ import annotations

import json
import selectors
from collections.abc import Callable, Iterable

import line  # type: ignore[import-not-found]  # it lies beside this file

Value = dict[str, object]
Answers = dict[str, list[object]]


class Members:
    """Hold the lines to all nodes.

    Args:
        seconds: a node that is not heard for this long is lost.
        take: called with the name of a node and each value that it sends.
        gone: called once with each node that is lost, and why.

    Attributes:
        lost: nodes that are gone, and why.
    """

    def __init__(
        self,
        seconds: float,
        selector: selectors.BaseSelector,
        take: Callable[[str, Value], None],
        gone: Callable[[str, str], None],
    ) -> None:
        self._seconds, self._selector = seconds, selector
        self._take, self._gone = take, gone
        self._lines: dict[str, line.Line] = {}
        self._wanted: dict[str, tuple[Answers, Callable[[Answers], None]]] = {}
        self._number = 0
        self.joined: set[str] = set()
        self.lost: dict[str, str] = {}

    def add(self, node: str, end: line.Line) -> None:
        """Hear a node from now on."""
        self._lines[node] = end
        self._selector.register(end.source, selectors.EVENT_READ, lambda: self._hear(node))

    def __contains__(self, node: object) -> bool:
        return node in self._lines

    @property
    def living(self) -> set[str]:
        """Return the nodes that are not lost."""
        return set(self._lines) - set(self.lost)

    def tell(self, text: str, nodes: Iterable[str]) -> None:
        """Send a line to nodes."""
        for node in nodes:
            self._lines[node].write(text)

    def ask(self, command: str, job: str, then: Callable[[Answers], None]) -> None:
        """Ask all nodes; pass their answers on when every node that is not lost has answered.

        Args:
            command: `list`, `kill`, `term` or `stacks`.
            job: only the processes of this job; empty: all.
        """
        self._number += 1
        number = str(self._number)
        self._wanted[number] = ({}, then)
        self.tell(f"{command} {number} {job}".rstrip(), self.living)
        self._complete(number)

    def beat(self) -> None:
        """Send a beat to every node, and notice nodes that are not heard any more."""
        for node in self._lines:
            if node not in self.lost:
                self._lines[node].write("beat")
                self._see(node)

    def _hear(self, node: str) -> None:
        end = self._lines[node]
        for text in end.read():
            if text == "beat":
                self.joined.add(node)
                continue
            try:
                value = json.loads(text)
            except ValueError:
                end.said = text.strip()[:200]  # ssh's message when it fails
                continue
            if not isinstance(value, dict):
                end.said = text.strip()[:200]
            elif "answer" in value:
                self._answered(node, value)
            else:
                self._take(node, value)
        if end.closed:
            self._selector.unregister(end.source)
            self._see(node)

    def _answered(self, node: str, value: Value) -> None:
        number = str(value["answer"])
        if number in self._wanted:
            self._wanted[number][0][node] = list(value["found"])  # type: ignore[call-overload]
            self._complete(number)

    def _complete(self, number: str) -> None:
        if number in self._wanted and set(self._wanted[number][0]) >= self.living:
            answers, then = self._wanted.pop(number)
            then(answers)

    def _see(self, node: str) -> None:
        """Mark a node that is gone as lost."""
        if node in self.lost:
            return
        joined = node in self.joined
        why = self._lines[node].lost(self._seconds if joined else line.JOIN_SECONDS)
        if why:
            self.lost[node] = why
            for number in list(self._wanted):
                self._complete(number)
            self._gone(node, why)
