"""What every command has: options of a typed function, `--json`, errors, signals, exit codes."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest
from invoke.collection import Collection
from invoke.program import Program

from stackyard.cli import answer, command, parser
from stackyard.cli.option import Option
from stackyard.definitions.project import ROOT
from stackyard.system.errors import (
    BuildError,
    NothingToRunOn,
    RegistryError,
    StackyardError,
    Terminated,
    UsageError,
)


@dataclass(frozen=True, kw_only=True)
class Made:
    """A request with an option of every kind."""

    what: Annotated[str, Option("a name", positional=True)] = "all"
    count: Annotated[int | None, Option("a number")] = None
    share: Annotated[float, Option("a part")] = 0.5
    keep: Annotated[bool, Option("keep it")] = True
    per_node: Annotated[int, Option("on each")] = 1
    set_: Annotated[tuple[str, ...], Option("values", short="s")] = ()
    words: Annotated[tuple[str, ...], Option("a command", words=True)] = ()


@pytest.fixture
def typed(monkeypatch):
    """Type a line of two commands: what each was asked, and the exit code."""
    asked = []

    @command.command
    def make(terminal, made: Made):
        """Make it."""
        asked.append(made)
        return {}, made.count or 0

    @command.command
    def look(terminal, at: Annotated[str, Option("a place", positional=True)]):
        """Look at it."""
        asked.append(at)
        return {"at": at}, 0

    def type_(line):
        asked.clear()
        parser.install()
        words = ["invoke", *line.split()]
        monkeypatch.setattr(sys, "argv", words)
        monkeypatch.setattr(parser, "_LINE", {})
        try:
            Program(namespace=Collection(make, look), version="0").run(words)
        except SystemExit as leaving:
            return list(asked), leaving.code or 0
        return list(asked), 0

    return type_


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("make", [Made()]),
        ("make x", [Made(what="x")]),
        ("make --what x", [Made(what="x")]),
        ("make --share 2 --per-node=3 x", [Made(what="x", share=2.0, per_node=3)]),
        ("make --no-keep --set a -s b", [Made(keep=False, set_=("a", "b"))]),
        ("make look here", [Made(), "here"]),
        ("look make", ["make"]),
        ("make x -- a -b --json", [Made(what="x", words=("a", "-b", "--json"))]),
    ],
)
def test_options_are_the_fields_of_the_request(typed, line, asked):
    assert typed(line) == (asked, 0)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 130])
def test_an_exit_code_is_the_commands_and_the_next_command_is_not_begun(typed, code):
    assert typed(f"make --count {code} look here") == ([Made(count=code)], code)


def test_every_command_has_json_with_its_help(typed, capsys):
    assert typed("look here --json") == (["here"], 0)
    assert json.loads(capsys.readouterr().out) == {"at": "here"}
    assert typed("look -h") == ([], 0)
    assert command.JSON[:40] in capsys.readouterr().out


# What stackyard.cli does with a command's result


@pytest.mark.parametrize("as_json", [False, True])
def test_a_result_is_printed_as_json_only_where_asked_for(capsys, as_json):
    assert command.run(lambda terminal: ({"ü": 1}, 0), as_json=as_json) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ('{\n "ü": 1\n}\n' if as_json else "", "")


ERRORS = [
    (UsageError("no such stack", why="w", hint="h"), 2),
    (NothingToRunOn("no GPU"), 3),
    (BuildError("not built"), 4),
]


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_an_error_is_said_once_on_standard_error(capsys, error, code):
    def fails(terminal):
        raise error

    assert command.run(fails, as_json=False) == code
    assert capsys.readouterr() == ("", f"error: {error}\n")


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_an_error_is_json_where_json_was_asked_for(capsys, error, code):
    def fails(terminal):
        raise error

    assert command.run(fails, as_json=True) == code
    wanted = {"what": error.what, "why": error.why, "hint": error.hint}
    assert json.loads(capsys.readouterr().out) == {"error": wanted, "diagnoses": []}


FULL = BuildError("not built", why="cp: error writing 'x': No space left on device")


def test_a_known_failure_of_a_build_is_said_after_its_error(capsys):
    assert fails_with(FULL, as_json=False) == 4
    out, err = capsys.readouterr()
    assert (out, err.startswith(f"error: {FULL}\nrecognised: a disk is full [disk-full]\n")) == (
        "",
        True,
    )
    assert fails_with(FULL, as_json=True) == 4
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["diagnoses"]] == ["disk-full"]


@pytest.mark.parametrize(
    ("error", "recognised"), [(BuildError, True), (StackyardError, True), (RegistryError, False)]
)
def test_a_failure_is_recognised_where_it_can_occur_only(error, recognised, capsys):
    """A registry that cannot be reached says the same as a package index, and is none."""
    why = "HTTPConnectionPool(host='x', port=5000): Failed to establish a new connection"
    assert fails_with(error("it failed", why=why), as_json=False) == 4
    assert ("[index-unreachable]" in capsys.readouterr().err) == recognised


def test_what_an_error_came_from_is_looked_at_too(capsys):
    error = BuildError("not built")
    error.__cause__ = FULL
    assert fails_with(error, as_json=False) == 4
    assert "[disk-full]" in capsys.readouterr().err


def test_an_error_of_what_was_typed_is_no_known_failure(capsys):
    assert fails_with(UsageError("No space left on device"), as_json=False) == 2
    assert "recognised" not in capsys.readouterr().err


def fails_with(error, *, as_json):
    def fails(terminal):
        raise error

    return command.run(fails, as_json=as_json)


def test_ctrl_c_is_130_and_says_so(capsys):
    def fails(terminal):
        raise KeyboardInterrupt

    assert command.run(fails, as_json=False) == 130
    assert capsys.readouterr().err == "interrupted: everything of this run has been removed\n"


def test_sigterm_unwinds_as_ctrl_c_does_and_the_old_way_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    unwound = []

    def fails(terminal):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            unwound.append(True)

    assert command.run(fails, as_json=False) == 130
    assert unwound == [True]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("number", "kind"),
    [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt),
     (signal.SIGHUP, KeyboardInterrupt)],
)  # fmt: skip
def test_a_command_can_tell_sigterm_from_ctrl_c(number, kind):
    seen = []

    def fails(terminal):
        try:
            signal.raise_signal(number)
        except BaseException as error:
            seen.append(type(error))
            raise

    assert command.run(fails, as_json=False) == 130
    assert seen == [kind]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_ends_a_command_without_a_traceback(stream, allow_processes):
    program = (
        "import sys; from stackyard.cli import command\n"
        f"def say(_): [print('x' * 999, file=sys.{stream}, flush=True) for _ in range(9999)]\n"
        "sys.exit(command.run(say, as_json=False))"
    )
    words = [sys.executable, "-c", program]
    both = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdout=both, stderr=both) as child:
        getattr(child, stream).readline()
        getattr(child, stream).close()
        other = child.stderr if stream == "stdout" else child.stdout
        assert other.read() == b""
    assert child.returncode == answer.READER_GONE == 141


def test_another_broken_pipe_is_not_taken_for_the_readers(capsys):
    def fails(terminal):
        raise BrokenPipeError("a child's")

    with pytest.raises(BrokenPipeError, match="a child's"):
        command.run(fails, as_json=False)


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (FileNotFoundError(2, "No such file or directory", "/nope"), "/nope", ""),
        (OSError(28, "No space left on device", "/a"), "/a", "make room there"),
    ],
)
def test_an_error_of_the_system_is_one_sentence(error, what, hint, capsys):
    def fail(terminal):
        raise error

    assert command.run(fail, as_json=True) == StackyardError.exit_code
    out, err = capsys.readouterr()
    said = json.loads(out)["error"]
    assert said["what"] == f"{what} cannot be used" and said["why"] == error.strerror
    assert said["hint"].startswith(hint) and err.startswith(f"error: {what} cannot be used")
