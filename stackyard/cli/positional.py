"""An optional positional argument for invoke's tasks: `invoke build`, `invoke build fairseq`.

invoke (3.0.3) has no such thing: a positional is required, and it swallows the next task's name
or `--help`. Owns one change to its parser: a task's open optional positionals take their default
as soon as the next word is a task's name or a flag that is not theirs, or the line ends.
Everything else is invoke's.
"""

from __future__ import annotations

import sys
from typing import Any

from invoke.parser import parser as invoke_parser

_DEFAULTS: dict[tuple[str, str], str] = {}
_LINE: dict[str, dict[str, Any]] = {}
_machine: Any = invoke_parser.ParseMachine
_handle, _complete = _machine.handle, _machine.complete_context


def default(task: str, argument: str, value: str) -> None:
    """Make a task's positional `argument` optional, with `value` when it is not given."""
    _DEFAULTS[task, argument] = value


def _fill(machine: Any) -> None:
    context = machine.context
    if context is None or context.name is None:
        return
    for argument in context.missing_positional_args:
        value = _DEFAULTS.get((context.name, argument.name))
        if value is not None:
            argument.value = value


def _ends_positionals(machine: Any, token: str) -> bool:
    context = machine.context
    if context is None or machine.waiting_for_flag_value:
        return False
    own = token in context.flags or token in context.inverse_flags
    return not own and (token.startswith("-") or token in machine.contexts)


def _patched_handle(machine: Any, token: str) -> None:
    if token in ("--help", "-h") and machine.context is not None:
        for argument in machine.context.missing_positional_args:
            argument.value = ""  # help is asked for, the task will not run
    if _ends_positionals(machine, token):
        _fill(machine)
    _handle(machine, token)


def _patched_complete(machine: Any) -> None:
    _fill(machine)
    _complete(machine)
    if machine.context is not None and machine.context.name is not None:
        _LINE[machine.context.name] = {a.name: a.value for a in machine.context.args.values()}


def on_this_line(task: str, argument: str) -> Any:
    """What another task of the same command line was given; None when it is not on the line.

    `invoke build smoke --gpus 0` builds what that smoke will run.
    """
    return _LINE.get(task, {}).get(argument)


def remainder() -> list[str]:
    """The words behind `--` on this command line; invoke's own joins them to one."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def install() -> None:
    """Change the parser (once, however often this is called)."""
    _machine.handle, _machine.complete_context = _patched_handle, _patched_complete
