"""Show help: all commands in groups, and one page a command.

Owns the layout of both, on the terminal and as data for the reference page. The groups are the
topics that declare commands; summaries and examples stand in docstrings. It must not know what a
command does.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from invoke.program import Program
from invoke.terminals import pty_size

from stackyard.cli.command import JSON, Command
from stackyard.cli.parser import OwnArgument

EXAMPLE = "Example:"
_program: Any = Program
_print_help, _print_task_help, _list_flat = (
    _program.print_help,
    _program.print_task_help,
    _program.list_flat,
)
_OPTIONS = (
    ("-h, --help [COMMAND]", "show this help, or the help of a command"),
    ("-l, --list", "list the commands"),
    ("-V, --version", "show the version"),
    ("--print-completion-script SHELL", "completion for bash, zsh or fish"),
)
_HELP = ("-h, --help", "show this help")
_MOST_WIDTH, _LEAST_WIDTH, _INDENT = 100, 40, "  "
Row = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Hold the help of one command.

    Attributes:
        summary: the first line of its docstring.
        details: the paragraphs between summary and examples.
        words: positional arguments, each with its help.
        options: options as they are typed, each with its help and default.
    """

    name: str
    group: str
    usage: str
    summary: str
    details: str
    words: Sequence[Row]
    options: Sequence[Row]
    examples: Sequence[str]


def page_of(command: Command, binary: str = "invoke") -> Page:
    """Return the help of a command."""
    given = [one for one in command.get_arguments() if isinstance(one, OwnArgument)]
    words = [one for one in given if one.positional]
    text, _, examples = (inspect.getdoc(command.function) or "").partition(EXAMPLE)
    summary, _, details = text.strip().partition("\n\n")
    return Page(
        name=command.name,
        group=command.group,
        usage=" ".join([binary, command.name, *map(_place, words), "[OPTIONS]", *_behind(command)]),
        summary=" ".join(summary.split()),
        details=details.strip(),
        words=[(_name(one).upper(), described(one)) for one in words],
        options=[
            *((_typed(one), described(one)) for one in given if not one.positional),
            ("--json", JSON),
            _HELP,
        ],
        examples=[
            line.strip().replace("invoke ", f"{binary} ", 1)
            for line in examples.splitlines()
            if line.strip()
        ],
    )


def described(argument: OwnArgument) -> str:
    """Return the help of an argument, with its default where that is a value."""
    usual = argument.usual if argument.positional else argument.default
    if not usual or isinstance(usual, bool):
        return str(argument.help)
    shown = f"{usual:g}" if isinstance(usual, float) else str(usual)
    return f"{argument.help} (default: {shown})"


def _name(argument: OwnArgument) -> str:
    return str(argument.names[0])


def _place(argument: OwnArgument) -> str:
    name = _name(argument).upper()
    return name if argument.usual is None else f"[{name}]"


def _behind(command: Command) -> list[str]:
    return ["[-- WORDS]"] if command.takes_words else []


def _typed(argument: OwnArgument) -> str:
    """Return an option as it is typed: `--base BASE`, `-f, --follow`, `--[no-]append-eod`."""
    if argument.kind is bool:
        long = f"--[no-]{_name(argument)}" if argument.default else f"--{_name(argument)}"
    else:
        long = f"--{_name(argument)} {argument.value_word}"
    return ", ".join([*(f"-{letter}" for letter in argument.names[1:]), long])


def command_text(page: Page, width: int) -> str:
    """Return the help of one command as lines for a terminal."""
    parts = [f"Usage: {page.usage}", _wrapped(page.summary, width)]
    parts += [_wrapped(page.details, width)] if page.details else []
    parts += [_columns(page.words, width)] if page.words else []
    parts += [f"Options:\n{_columns(page.options, width)}"]
    if page.examples:
        parts += [f"{EXAMPLE}\n" + "\n".join(_INDENT + line for line in page.examples)]
    return "\n\n".join(parts)


def groups_text(pages: Iterable[Page], width: int) -> str:
    """Return all commands in their groups, as lines for a terminal."""
    groups: dict[str, list[Row]] = {}
    for page in pages:
        groups.setdefault(page.group, []).append((page.name, page.summary.removesuffix(".")))
    longest = max(len(name) for rows in groups.values() for name, _ in rows)
    return "\n\n".join(
        f"{group.capitalize()}:\n{_columns(rows, width, longest)}" for group, rows in groups.items()
    )


def _columns(rows: Sequence[Row], width: int, column: int = 0) -> str:
    """Return rows in two columns; a long first cell has a line of its own."""
    column = column or min(max(len(first) for first, _ in rows), width // 3)
    indent = " " * (len(_INDENT) + column + 2)
    lines = []
    for first, second in rows:
        head = f"{_INDENT}{first:<{column}}  "
        if len(first) > column:
            lines.append(_INDENT + first)
            head = indent
        lines.append(
            textwrap.fill(second, width, initial_indent=head, subsequent_indent=indent,
                          break_on_hyphens=False, break_long_words=False)
        )  # fmt: skip
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False)


def _width() -> int:
    return int(min(max(pty_size()[0], _LEAST_WIDTH), _MOST_WIDTH))


def _pages(program: Any) -> list[Page]:
    """Return the pages of a program's commands; none where it has other tasks."""
    tasks = list(program.scoped_collection.tasks.values())
    if not all(isinstance(task, Command) for task in tasks):
        return []
    return [page_of(task, _binary(program)) for task in tasks]


def _binary(program: Any) -> str:
    """Return the name to type; invoke calls itself `inv[oke]`."""
    return "invoke" if program.binary.startswith("inv") else str(program.binary)


def _show_list(program: Any) -> None:
    pages = _pages(program)
    if not pages:
        _list_flat(program)
        return
    print(f"{groups_text(pages, _width())}\n\n`{_binary(program)} COMMAND -h` shows its options.")


def _show_all(program: Any) -> None:
    loaded = getattr(program, "scoped_collection", None) is not None
    pages = _pages(program) if loaded else []
    if not pages:
        _print_help(program)
        return
    usage = f"Usage: {_binary(program)} COMMAND [OPTIONS] [COMMAND [OPTIONS] ...]"
    width = _width()
    print(f"{usage}\n\n{groups_text(pages, width)}\n\nOptions:\n{_columns(_OPTIONS, width)}\n")
    print(f"`{_binary(program)} COMMAND -h` shows the options of a command, and an example.")


def _show_command(program: Any, name: str) -> None:
    task = program.collection[name]
    if isinstance(task, Command):
        print(command_text(page_of(task, _binary(program)), _width()))
    else:
        _print_task_help(program, name)


def install() -> None:
    """Replace invoke's own help (once, however often this is called)."""
    _program.print_help, _program.print_task_help = _show_all, _show_command
    _program.list_flat = _show_list
