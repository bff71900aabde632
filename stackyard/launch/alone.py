"""Write the command of one process without a launcher, the reference for parity."""

from __future__ import annotations

from stackyard.launch.request import Launch, LaunchRequest


def materialize(request: LaunchRequest) -> Launch:
    """Return the program as a user starts it on one machine; the layout has one node."""
    program = request.program
    interpreter = ("python3",) if program[0].endswith(".py") else ()
    return Launch(argv=(*interpreter, *program), env=dict(request.env))
