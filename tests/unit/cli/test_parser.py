"""An optional positional argument, in invoke's own parser."""

import pytest
from invoke.parser import Argument, Parser, ParserContext

from stackyard.cli import parser


@pytest.fixture(autouse=True)
def own_table(monkeypatch):
    """The line of this test alone."""
    monkeypatch.setattr(parser, "_LINE", {})
    parser.install()


def context(name, usual=None):
    arguments = [
        parser.OwnArgument(names=("what",), positional=True, usual=usual),
        Argument(names=("base", "b"), kind=str, default=""),
        Argument(names=("gpus",), kind=int),
        Argument(names=("again",), kind=bool, default=False),
    ]
    return ParserContext(name=name, args=arguments)


def parsed(*words):
    """What each task on the line was given, as (name, positional)."""
    help_flag = ParserContext(args=[Argument(names=("help", "h"), optional=True)])
    made = Parser(initial=help_flag, contexts=[context("make", "all"), context("other")])
    return list(made.parse_argv(list(words)))


def given(*words):
    return [(c.name, c.args["what"].value) for c in parsed(*words)[1:]]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("make", [("make", "all")]),
        ("make toy", [("make", "toy")]),
        ("make toy --base cpu", [("make", "toy")]),
        ("make --base cpu", [("make", "all")]),
        ("make --base cpu toy", [("make", "toy")]),
        ("make --base=cpu toy", [("make", "toy")]),
        ("make -b cpu toy", [("make", "toy")]),
        ("make --again", [("make", "all")]),
        ("make --again toy", [("make", "toy")]),
        ("make other x", [("make", "all"), ("other", "x")]),
        ("make toy other x", [("make", "toy"), ("other", "x")]),
        ("make --base cpu other x", [("make", "all"), ("other", "x")]),
        ("other x make", [("other", "x"), ("make", "all")]),
        ("other x make toy", [("other", "x"), ("make", "toy")]),
        ("other make", [("other", "make")]),
    ],
)
def test_a_positional_may_be_left_out(line, found):
    assert given(*line.split()) == found


def test_a_value_of_a_flag_is_no_end_of_the_positionals():
    (_, made) = parsed("make", "--base", "other", "toy")
    assert (made.args["base"].value, made.args["what"].value) == ("other", "toy")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_task_is_not_eaten_as_its_positional(flag):
    first, made = parsed("make", flag)
    assert first.args["help"].value == "make"
    assert made.args["what"].value not in ("--help", "-h")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_also_given_for_a_positional_that_is_required(flag):
    first, _ = parsed("other", flag)
    assert first.args["help"].value == "other"


def test_other_tasks_of_the_line_can_be_asked_for():
    parsed("make", "toy", "other", "x", "--gpus", "0")
    assert parser.on_this_line("other", "gpus") == 0
    assert parser.on_this_line("other", "base") == ""
    assert parser.on_this_line("make", "what") == "toy"
    assert parser.on_this_line("third", "gpus") is None
    assert parser.on_this_line("make", "nothing") is None


def test_installing_twice_changes_nothing():
    parser.install()
    parser.install()
    assert given("make") == [("make", "all")]
