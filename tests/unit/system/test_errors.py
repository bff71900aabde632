"""An error says what, why and what to type, and has its exit code."""

import pytest

from stackyard.system import errors


@pytest.mark.parametrize(
    ("why", "hint", "text"),
    [
        ("", "", "it failed"),
        ("one\ntwo", "", "it failed\n  one\n  two"),
        ("", "type this", "it failed\nTo go on: type this"),
        ("one", "type this", "it failed\n  one\nTo go on: type this"),
    ],
)
def test_an_error_reads_what_why_and_what_to_do(why, hint, text):
    assert str(errors.StackyardError("it failed", why=why, hint=hint)) == text


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UsageError, 2),
        (errors.NothingToRunOn, 3),
        (errors.EngineError, 4),
        (errors.BuildError, 4),
        (errors.MeshError, 4),
    ],
)
def test_each_kind_has_its_exit_code(kind, code):
    assert kind("x").exit_code == code


def test_a_command_carries_its_own_exit_code():
    found = errors.CommandError("x", code=17)
    assert (found.code, found.exit_code) == (17, 4)


def test_problems_are_sorted_by_place_and_counted():
    made = [
        errors.Problem(file=file, line=line, key=key, message="m")
        for file, line, key in [("b", 1, ""), ("a", 10, "k"), ("a", 9, "k")]
    ]
    found = errors.DefinitionError(made)
    assert found.what == "3 problems in the definitions"
    assert found.why == "a:9: k: m\na:10: k: m\nb:1: m"


def test_a_problem_is_one_short_line_whatever_a_file_says():
    problem = errors.Problem(
        file="a\n.yml", line=1, key="\x1b[2J", message="b\r\udc80" + "c" * 9000
    )
    said = str(problem)
    assert said.startswith("a\\n.yml:1: \\x1b[2J: b\\r\\udc80ccc")
    assert said.isprintable() and said.endswith("c...") and len(said) < 600
