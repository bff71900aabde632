"""Read a command line with invoke's parser, and refuse wrong input with a hint.

Owns the changes to that parser (invoke 3.0.3). A positional may be optional: it takes its default
as soon as the next word is a task's name or a flag that is not the task's, or the line ends. `-h`
is help wherever it stands. Wrong input is a UsageError, printed once, with exit code 2.
"""

from __future__ import annotations

import sys
from typing import Any

from invoke.exceptions import Exit, ParseError
from invoke.parser import parser as invoke_parser
from invoke.parser.argument import Argument
from invoke.program import Program

from stackyard.cli.answer import (
    READER_GONE,
    error_value,
    reader_gone,
    say_error,
    say_json,
    typed_json,
)
from stackyard.system.errors import UsageError, gpus_missing, shown

_LINE: dict[str, dict[str, Any]] = {}
_machine: Any = invoke_parser.ParseMachine
_handle, _complete, _flag = (
    _machine.handle,
    _machine.complete_context,
    _machine.complete_flag,
)
_program: Any = Program
_parse_tasks, _cleanup = _program.parse_tasks, _program.parse_cleanup
HELP = ("--help", "-h")
COUNTED = ("smoke", "bench")  # commands that begin on no number of GPUs unless it was typed
_NUMBERS = {int: "a whole number", float: "a number"}


class OwnArgument(Argument):
    """Add default positionals and smallest numbers to invoke's arguments.

    Attributes:
        usual: the default of a positional; None where it must be given.
        least: the smallest number allowed.
        value_word: the word that stands for its value in help.
    """

    def __init__(
        self, *, usual: Any = None, least: float | None = None, value: str = "", **named: Any
    ) -> None:
        super().__init__(**named)
        self.usual, self.least, self.value_word = usual, least, value


def on_this_line(task: str, argument: str) -> Any:
    """Return an argument of another task of the same command line; None without that task.

    `invoke build smoke --gpus 0` builds what that smoke will run.
    """
    return _LINE.get(task, {}).get(argument)


def remainder() -> list[str]:
    """Return the words after `--` on this command line; invoke itself joins them into one."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def install() -> None:
    """Change the parser (once, however often this is called)."""
    _machine.handle, _machine.complete_context = _patched_handle, _patched_complete
    _machine.complete_flag = _patched_flag
    _program.parse_tasks, _program.parse_cleanup = _patched_tasks, _patched_cleanup


def refused(what: str, *, why: str = "", hint: str = "") -> Exit:
    """Print why a line cannot be read; return the exception that exits with code 2."""
    error = UsageError(what, why=why, hint=hint)
    say_error(error)
    if typed_json(sys.argv):
        say_json({**error_value(what, why, hint), "diagnoses": []})
    return Exit(code=error.exit_code)


def _own(machine: Any) -> Any:
    """Return the task whose words are being read; None before the first."""
    context = machine.context
    return context if context is not None and context.name is not None else None


def _patched_handle(machine: Any, token: str) -> None:
    task = _own(machine)
    if machine.ignore_unknown or task is None:
        if not machine.ignore_unknown and token not in machine.contexts:
            _refuse_first(machine, token)
        _handle(machine, token)
        return
    if token in HELP and not machine.waiting_for_flag_value:
        for argument in task.missing_positional_args:
            argument.value = ""  # never used: with help the task does not run
    if _is_the_programs(machine, token):
        raise _unknown(machine, task, token)
    if _ends_positionals(machine, token):
        _fill(task)
    if machine.waiting_for_flag_value and (token in HELP or token.startswith("--")):
        _patched_flag(machine)  # a missing value, as at the end of the line
    _refuse_twice(task, token)
    try:
        _handle(machine, token)
    except ParseError:
        raise _unknown(machine, task, token) from None
    except ValueError:
        flag = machine.flag
        kind = _NUMBERS.get(flag.kind, "another value")
        what = f"--{flag.names[0]} takes {kind}, not {shown(token)!r}"
        raise refused(what, why=flag.help or "", hint=f"invoke {task.name} -h") from None


def _patched_complete(machine: Any) -> None:
    task = _own(machine)
    if task is not None:
        _fill(task)
        missing = [argument.names[0] for argument in task.missing_positional_args]
        if missing:
            what = f"{task.name} needs {' and '.join(name.upper() for name in missing)}"
            told = {a.names[0]: a.help for a in task.positional_args}
            why = "\n".join(f"{name.upper()}: {told[name]}" for name in missing)
            words = " ".join(name.upper() for name in told)
            raise refused(what, why=why, hint=f"invoke {task.name} {words}")
        for argument in task.args.values():
            _require_least(task, argument)
    _complete(machine)
    if task is not None:
        _LINE[task.name] = {argument.name: argument.value for argument in task.args.values()}


def _patched_flag(machine: Any) -> None:
    flag, task = machine.flag, _own(machine)
    if flag and task is not None and not flag.optional and flag.takes_value:
        lacks = flag.raw_value is None or (flag.kind is list and not machine.flag_got_value)
        if lacks:
            hint = f"invoke {task.name} -h"
            raise refused(f"--{flag.names[0]} needs a value", why=flag.help or "", hint=hint)
    _flag(machine)


def _patched_tasks(program: Any) -> None:
    _LINE.clear()
    _parse_tasks(program)
    names = [context.name for context in program.tasks]
    for task in () if program.args.help.value else program.tasks[1:]:
        # Found out only when the commands before it have built for minutes.
        if task.name in COUNTED and task.args["gpus"].value is None:
            error = gpus_missing(task.name, f"invoke ... {task.name}")
            raise refused(error.what, why=error.why, hint=error.hint)
    for word in remainder():
        # Bytes that are no text come as surrogates, which no record and no log can hold.
        if any("\ud800" <= one <= "\udfff" for one in word):
            raise refused(f"{shown(word)} is not UTF-8", hint="give the file another name")
    takes = [getattr(program.collection[name], "takes_words", True) for name in names]
    if names and remainder() and not any(takes) and not program.args.help.value:
        words = " ".join(remainder())
        what = f"{names[-1]} takes no words behind --: {shown(words)}"
        raise refused(what, hint=f"invoke {names[-1]} -h")


def _patched_cleanup(program: Any) -> None:
    asked = program.args.help.value
    if isinstance(asked, str) and asked not in program.parser.contexts:
        raise _no_command(asked, program.parser.contexts)
    try:
        _cleanup(program)
    except BrokenPipeError:  # `invoke --list | head`
        if not reader_gone():
            raise
        raise Exit(code=READER_GONE) from None


def _fill(task: Any) -> None:
    for argument in task.missing_positional_args:
        usual = getattr(argument, "usual", None)
        if usual is not None:
            argument.value = usual


def _ends_positionals(machine: Any, token: str) -> bool:
    task = _own(machine)
    if task is None or machine.waiting_for_flag_value:
        return False
    own = token in task.flags or token in task.inverse_flags
    return not own and ((token.startswith("-") and token != "-") or token in machine.contexts)


def _is_the_programs(machine: Any, token: str) -> bool:
    """Return whether a token is an option of invoke, which behind a command would do nothing.

    `--dry` is one: `invoke prune --dry` would prune.
    """
    own = token in machine.context.flags or token in machine.context.inverse_flags
    known = machine.initial and token in machine.initial.flags
    return bool(known) and not own and token not in HELP and not machine.waiting_for_flag_value


def _refuse_first(machine: Any, token: str) -> None:
    """Check that a line begins with a command, or with options of invoke."""
    core = machine.context or machine.initial
    if machine.waiting_for_flag_value or (core and token in core.flags):
        return
    if not token.startswith("-"):
        raise _no_command(token, machine.contexts)
    having = sorted(name for name, task in machine.contexts.items() if token in task.flags)
    hint = f"invoke {having[0]} {token} ..." if having else "invoke -h shows what there is"
    why = f"options stand behind their command: {', '.join(having)}" if having else ""
    raise refused(f"there is no option {shown(token)} before a command", why=why, hint=hint)


def _refuse_twice(task: Any, token: str) -> None:
    flag = task.flags.get(token)
    if flag is not None and flag.takes_value and flag.kind is not list and flag.raw_value:
        what = f"--{flag.names[0]} is given twice"
        raise refused(what, why=f"first as {shown(str(flag.raw_value))!r}", hint="name it once")


def _require_least(task: Any, argument: Any) -> None:
    least = getattr(argument, "least", None)
    if least is None or argument.raw_value is None or argument.value >= least:
        return
    what = f"--{argument.names[0]} takes {_NUMBERS[argument.kind]}, {least} or more"
    hint = f"invoke {task.name} -h"
    raise refused(f"{what}, not {argument.value:g}", why=argument.help or "", hint=hint)


def _no_command(word: str, contexts: Any) -> Exit:
    from stackyard.definitions.document import nearest

    why = nearest(word, contexts)
    hint = "invoke --list shows every command"
    return refused(f"there is no command {shown(word)!r}", why=why, hint=hint)


def _unknown(machine: Any, task: Any, token: str) -> Exit:
    """Refuse an option that a task lacks, or a word too many."""
    from stackyard.definitions.document import nearest

    hint = f"invoke {task.name} -h shows its options"
    flags = [*task.flags, *task.inverse_flags]
    if token.startswith("-") and token != "-":
        begins = [name for name in flags if name.startswith(f"-{token}")]
        short = f"options are written out: {', '.join(begins)}" if begins else ""
        why = (short if len(token) == 2 else "") or nearest(token, flags)
        if task.name == "run":
            words = f"invoke run STACK -- PROGRAM {shown(token)} ..."
            hint = f"options of the program follow --: {words}"
        return refused(f"{task.name} has no option {shown(token)}", why=why, hint=hint)
    close = nearest(token, machine.contexts)
    why = "" if close.startswith("known") else f"as a command: {close}"
    words = " ".join(argument.names[0].upper() for argument in task.positional_args)
    takes = f"{task.name} takes {words or 'no words'}"
    if task.name == "run":
        stack = " ".join(str(argument.value or words) for argument in task.positional_args)
        hint = f"the program and its words follow --: invoke run {stack} -- {shown(token)}"
    return refused(f"{takes}: {shown(token)!r} is one word too many", why=why, hint=hint)
