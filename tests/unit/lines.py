"""Command lines in a test's own process: typed whole, or the steps of one command."""

import sys

from invoke.program import Program

from stackyard.cli import command, parser
from stackyard.cli.program import collection


def run(steps, *given, as_json=False, **named):
    """Run the steps of a command as the command does; the exit code."""
    return command.run(lambda terminal: steps(terminal, *given, **named), as_json=as_json)


def type_line(monkeypatch, line):
    """Type a line behind `invoke`; the exit code."""
    words = ["invoke", *(line.split() if isinstance(line, str) else line)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(parser, "_LINE", {})
    try:
        Program(namespace=collection(), version="0").run(words)
    except SystemExit as leaving:
        return leaving.code or 0
    return 0
