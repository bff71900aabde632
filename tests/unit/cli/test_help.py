"""Help: commands in groups, and a page a command with values, defaults and an example."""

import re
import shlex
from typing import Annotated

import pytest
from invoke.collection import Collection

from stackyard.cli import help as cli_help
from stackyard.cli.command import command
from stackyard.cli.option import Option
from stackyard.cli.program import TOPICS, collection
from tests.unit.lines import type_line

COMMANDS = collection().tasks
PAGES = {name: cli_help.page_of(task) for name, task in COMMANDS.items()}


@command
def make(
    terminal,
    what: Annotated[str, Option("a name", positional=True)],
    where: Annotated[str, Option("a place", positional=True)] = "here",
    share: Annotated[float, Option("a part", "PARTS")] = 0.5,
    per_node: Annotated[int, Option("on each")] = 1,
    values: Annotated[tuple[str, ...], Option("several times", "NAME=VALUE")] = (),
    keep: Annotated[bool, Option("keep it")] = True,
    follow: Annotated[bool, Option("go on", short="f")] = False,
    words: Annotated[tuple[str, ...], Option("a command", words=True)] = (),
):
    """Make it; does
    nothing else.

    It is made once.

    Example:
        invoke make a --share 1
        invoke make b -- invoke c
    """


TEXT = """\
Usage: stackyard make WHAT [WHERE] [OPTIONS] [-- WORDS]

Make it; does nothing else.

It is made once.

  WHAT   a name
  WHERE  a place (default: here)

Options:
  --share PARTS       a part (default: 0.5)
  --per-node N        on each (default: 1)
  --values NAME=VALUE
                      several times
  --[no-]keep         keep it
  -f, --follow        go on
  --json              print the result as JSON, and
                      nothing else, to standard output
  -h, --help          show this help

Example:
  stackyard make a --share 1
  stackyard make b -- invoke c"""


def test_a_page_shows_words_values_defaults_and_examples():
    page = cli_help.page_of(make, "stackyard")
    assert cli_help.command_text(page, 54) == TEXT


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_summary_and_an_example_that_can_be_typed(name, monkeypatch):
    page = PAGES[name]
    assert page.summary.endswith(".") and "\n" not in page.summary
    assert page.examples
    given = []
    for example in page.examples:
        program, *words = shlex.split(example)
        assert (program, words[0]) == ("invoke", name)
        monkeypatch.setattr(COMMANDS[name], "function", recorder(COMMANDS[name], given))
        assert type_line(monkeypatch, words) == 0
        monkeypatch.undo()
    assert len(given) == len(page.examples)


def recorder(task, given):
    assert task.get_arguments()  # its options are known before its function goes

    def called(terminal, **asked):
        given.append(asked)
        return {}, 0

    return called


def test_the_groups_are_the_topics_in_their_order():
    text = cli_help.groups_text(PAGES.values(), 100)
    assert re.findall(r"^(\w+):$", text, flags=re.MULTILINE) == [
        topic.__name__.rpartition(".")[2].capitalize() for topic in TOPICS
    ]
    assert re.findall(r"^  (\w+)  ", text, flags=re.MULTILINE) == list(COMMANDS)
    proof = text.split("Proof:\n")[1].split("\n\n")[0]
    assert proof.startswith("  smoke     Train for real in a mesh")


@pytest.mark.parametrize("width", [40, 80, 100])
def test_help_is_as_wide_as_the_terminal(width):
    texts = [cli_help.groups_text(PAGES.values(), width)]
    texts += [cli_help.command_text(page, width) for page in PAGES.values()]
    for line in "\n".join(texts).splitlines():
        # Single words, options, usage and examples are not broken.
        whole = len(line.split()) == 1 or line.lstrip().startswith(("-", "Usage: ", "invoke "))
        assert len(line) <= width or whole


def test_one_option_has_one_word_for_its_value_everywhere():
    values = {}
    for task in COMMANDS.values():
        for argument in task.get_arguments():
            if argument.takes_value and argument.names[0] != "json":
                values.setdefault((argument.names[0], argument.kind), set()).add(
                    argument.value_word
                )
    several = {name: sorted(words) for name, words in values.items() if len(words) > 1}
    # A bundle is a file or a folder; files go to a folder, releases to a repository.
    assert several == {("out", str): ["FOLDER", "PATH"], ("to", str): ["FOLDER", "REPOSITORY"]}


@pytest.mark.parametrize("line", ["--list", "", "--help"])
def test_a_program_shows_the_groups(line, monkeypatch, capsys):
    assert type_line(monkeypatch, line) == 0
    out = capsys.readouterr().out
    assert "\nProof:\n" in out and "`invoke COMMAND -h`" in out
    assert ("--print-completion-script" in out) == (line != "--list")


def test_tasks_of_other_programs_keep_invokes_own_help(capsys):
    from invoke.program import Program
    from invoke.tasks import task

    @task
    def foreign(context):
        """Do something else."""

    cli_help.install()
    for words in (["--list"], ["foreign", "--help"], ["--help"]):
        with pytest.raises(SystemExit):
            Program(namespace=Collection(foreign)).run(["inv", *words])
    out = capsys.readouterr().out
    assert "Subcommands:" in out and "Docstring:" in out and "Core options:" in out
