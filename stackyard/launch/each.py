"""Run one command once on every node, to look at machines or to prepare data.

There are no ranks and no rendezvous.
"""

from __future__ import annotations

from stackyard.launch.everywhere import everywhere
from stackyard.launch.request import Launch, LaunchRequest


def materialize(request: LaunchRequest) -> Launch:
    """Return the command for node 1; a lone node needs no ssh."""
    program = request.program
    words = [*(["python3"] if program[0].endswith(".py") else []), *program]
    if len(request.nodes) == 1:
        return Launch(argv=tuple(words), env=dict(request.env))
    return everywhere(request, words, [])
