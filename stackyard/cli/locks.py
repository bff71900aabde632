"""Declare the commands about locks: lock, outdated."""

from typing import Annotated

from stackyard.cli.answer import Answer
from stackyard.cli.command import command
from stackyard.cli.console import Terminal
from stackyard.cli.option import Base, Option, Stacks


@command
def lock(
    terminal: Terminal,
    stack: Stacks = "all",
    base: Base = "",
    check: Annotated[bool, Option("write nothing; exit code 1 when a lock would change")] = False,
) -> Answer:
    """Resolve versions over the network, write the locks (on every base that has some), say what
    changed."""
    from stackyard.cli.steps import lock as steps

    return steps.lock(terminal, stack, base, check=check)


@command
def outdated(terminal: Terminal, stack: Stacks = "all", base: Base = "") -> Answer:
    """Compare locks with newer upstream releases; exit code 1 when something is newer."""
    from stackyard.cli.steps import lock as steps

    return steps.outdated(terminal, stack, base)
