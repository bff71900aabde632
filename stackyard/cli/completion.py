"""Complete a command line: commands, options, and the names of stacks and bases.

Owns the words that a shell offers; invoke's scripts for bash, zsh and fish ask for them, and filter
them by what is typed so far. invoke's own search parses the line, and an unfinished line is wrong
input.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import invoke.program
from invoke.collection import Collection
from invoke.exceptions import Exit
from invoke.parser.argument import Argument

from stackyard.cli.command import Command
from stackyard.cli.parser import HELP


def install() -> None:
    """Replace invoke's own search (once, however often this is called)."""
    module: Any = invoke.program
    module.complete = _complete


def _complete(core: Any, initial_context: Any, collection: Collection, **_: Any) -> None:
    """Print the words that may follow an unfinished line, one a line, as invoke's search does."""
    from stackyard.definitions.project import ROOT

    words = _split(core.remainder)[1:]
    commands = {n: t for n, t in collection.tasks.items() if isinstance(t, Command)}
    flags = [name for name in initial_context.flag_names() if name.startswith("--")]
    print("\n".join(candidates(words, commands, flags, ROOT)))
    raise Exit


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that is still open
        return line.split()


def candidates(
    words: Sequence[str], commands: Mapping[str, Command], flags: Sequence[str], root: Path
) -> list[str]:
    """Return the words that may stand at the end of an unfinished line.

    Args:
        words: the line behind the program's name; a shell does not say whether the last is whole.
        flags: the program's own options.
        root: the checkout whose stacks and bases are offered.
    """
    last = words[-1] if words else ""
    at = max((i for i, word in enumerate(words) if word in commands), default=None)
    if at is None:
        return list(flags) if last.startswith("-") else list(commands)
    arguments = commands[words[at]].get_arguments()
    options = {f"--{one.names[0]}": one for one in arguments}
    for word in dict.fromkeys([last, *words[-2:-1]]):
        if word in options and options[word].takes_value:
            return _names(options[word], root)
    if last.startswith("-"):
        inverse = [f"--no-{one.names[0]}" for one in arguments if one.default is True]
        return [*options, *inverse, *HELP]
    positional = [name for one in arguments if one.positional for name in _names(one, root)]
    return [*positional, *commands]


def _names(argument: Argument, root: Path) -> list[str]:
    """Return the names that an argument takes; none leaves the shell to offer files."""
    if argument.names[0] == "stack":
        return sorted(path.parent.name for path in (root / "images").glob("*/stack.yml"))
    of_base = argument.names[0] == "base" or (argument.names[0] == "name" and argument.positional)
    if of_base:
        return sorted(path.stem for path in (root / "images" / "bases").glob("*.yml"))
    return []
