"""Make an invoke task of a typed function: its options, `--json`, signals, errors, exit codes.

Owns what all commands share. Exit codes: 0 passed, 1 a check failed, 2 wrong input, 3 nothing to
run on, 4 the engine or a build failed, 130 interrupted, 141 the reader of the output has gone. It
must not import modules that only some commands need: a build with nothing to do should not load
those of a smoke.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import io
import signal
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.tasks import Task

from stackyard.cli import parser
from stackyard.cli.answer import (
    READER_GONE,
    Answer,
    error_value,
    reader_gone,
    say_error,
    say_json,
)
from stackyard.cli.console import Terminal
from stackyard.cli.option import Option
from stackyard.system.errors import StackyardError, Terminated

JSON = "print the result as JSON, and nothing else, to standard output"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class _Declared:
    """Hold one parameter or field, as it was declared."""

    name: str
    option: Option
    kind: type
    default: Any

    def argument(self) -> Argument:
        """Return it as an argument for the parser."""
        name = self.name.strip("_").replace("_", "-")
        number = self.kind in (int, float)
        default = None if self.default is MISSING else self.default
        positional = self.option.positional
        return parser.OwnArgument(
            names=(name, self.option.short) if self.option.short else (name,),
            attr_name=self.name if self.name != name else None,
            kind=self.kind,
            # invoke's parser gives no word to a positional that has a default.
            default=[] if self.kind is list else None if positional else default,
            help=self.option.help,
            positional=positional,
            usual=default,
            least=self.option.least,
            value=self.option.value or ("N" if number else name.upper()),
        )


def _declared(name: str, kind: Any, default: Any) -> _Declared:
    """Return one parameter or field; its type is `Annotated[TYPE, Option(...)]`."""
    inner = kind.__origin__
    plain = typing.get_origin(inner) or inner
    if plain is types.UnionType:
        plain = next(one for one in typing.get_args(inner) if one is not types.NoneType)
    option = next(one for one in kind.__metadata__ if isinstance(one, Option))
    return _Declared(
        name=name, option=option, kind=list if plain is tuple else plain, default=default
    )  # fmt: skip


class Command(Task[Callable[..., Answer]]):
    """Run a typed function as a task.

    The function's first parameter is the terminal. Each other one is an option, or a frozen
    dataclass whose fields are options.
    """

    def __init__(self, function: Callable[..., Answer]) -> None:
        super().__init__(function, name=function.__name__.rstrip("_"), positional=())
        self.function = function
        # The topic that declares it is its group in help.
        self.group = function.__module__.rpartition(".")[2]

    @functools.cached_property
    def _options(self) -> tuple[list[_Declared], dict[str, Any]]:
        """Return every option, and the request class of each parameter that takes a request."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        requests = {p.name: p.annotation for p in parameters if is_dataclass(p.annotation)}
        plain = [
            _declared(p.name, p.annotation, MISSING if p.default is p.empty else p.default)
            for p in parameters
            if p.name not in requests
        ]
        given = [one for request in requests.values() for one in fields(request)]
        return [*plain, *(_declared(f.name, f.type, f.default) for f in given)], requests

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return its arguments for invoke's parser."""
        made = [one.argument() for one in self._options[0] if not one.option.words]
        return [*made, Argument(names=("json",), kind=bool, default=False, help=JSON)]

    @property
    def takes_words(self) -> bool:
        """Return whether it takes the words after `--`."""
        return any(one.option.words for one in self._options[0])

    def asked(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the typed values to the function's arguments."""
        options, requests = self._options
        given = {
            one.name: tuple(parser.remainder()) if one.option.words else typed[one.name]
            for one in options
        }
        given = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}
        for parameter, request in requests.items():
            names = [field.name for field in fields(request)]
            given[parameter] = request(**{name: given.pop(name) for name in names})
        return given

    def __call__(self, context: Context, *, json: bool = False, **typed: Any) -> Any:
        """Run it, and leave with its exit code unless that is 0."""
        given = self.asked(typed)
        code = run(
            lambda terminal: self.function(terminal, **given),
            as_json=json,
            verbose=bool(typed.get("verbose")),
        )
        if code:
            raise Exit(code=code)


def command(function: Callable[..., Answer]) -> Command:
    """Declare a command, with the name, help, options and types of the function."""
    return Command(function)


def run(function: Callable[[Terminal], Answer], *, as_json: bool, verbose: bool = False) -> int:
    """Run one command, print its errors and JSON, and return its exit code.

    SIGTERM and SIGHUP end a command as Ctrl-C does: by unwinding, so that everything of it is
    removed; further signals do not disturb the removal. After
    SIGTERM a training on hosts may save. A closed output pipe (`| head`) ends it the same way.
    """
    try:
        return _run(function, as_json=as_json, verbose=verbose)
    except BrokenPipeError:
        if not reader_gone():
            raise
        return READER_GONE


def _run(function: Callable[[Terminal], Answer], *, as_json: bool, verbose: bool) -> int:
    from stackyard.system import cleanup, process

    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A character that the terminal's encoding lacks must not end a training.
        sys.stdout.reconfigure(errors="backslashreplace")
    previous = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    terminal = Terminal(json=as_json, verbose=verbose)
    try:
        with cleanup.guarded(process.Warden), terminal:
            result, code = function(terminal)
    except StackyardError as error:
        say_error(error)
        result, code = error_value(error.what, error.why, error.hint), error.exit_code
        result["diagnoses"] = _recognised(error)
    except OSError as system:
        if isinstance(system, BrokenPipeError):
            raise
        failed = _of_system(system)
        say_error(failed)
        result, code = error_value(failed.what, failed.why, failed.hint), failed.exit_code
        result["diagnoses"] = []
    except KeyboardInterrupt:
        print(f"interrupted: {terminal.interrupted}", file=sys.stderr, flush=True)
        result, code = error_value("interrupted"), 130
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if as_json:
        say_json(result)
    return code


def _of_system(error: OSError) -> StackyardError:
    """Return an error of the system in the form of all others."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StackyardError(
        f"{error.filename or 'a file or connection'} cannot be used",
        why=error.strerror or str(error),
        hint="make room there, then the same command again" if full else "",
    )


def _recognised(error: StackyardError) -> list[dict[str, Any]]:
    """Print and return known failures of a build or the engine; other errors need none."""
    if error.exit_code != StackyardError.exit_code:
        return []
    from stackyard.cli.steps import diagnose
    from stackyard.definitions.project import ROOT

    said = [str(one) for one in (error, error.__cause__) if isinstance(one, StackyardError)]
    found: list[dict[str, Any]] = []
    with contextlib.suppress(StackyardError):
        found = diagnose.recognised(ROOT, "\n".join(said), error.step)["diagnoses"]
    diagnose.show(found, lambda text: print(text, file=sys.stderr, flush=True))
    return found


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    for other in _SIGNALS:
        signal.signal(other, _already)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _already(number: int, frame: types.FrameType | None) -> None:
    print("interrupted already: ending what this command began", file=sys.stderr, flush=True)
