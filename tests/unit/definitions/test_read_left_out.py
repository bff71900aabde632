"""What `left_out` of images/common.yml may say."""

import pytest

from stackyard.definitions.document import parse_document
from stackyard.definitions.read.left_out import path_problem, read_left_out
from stackyard.definitions.spec import LeftOut

GOOD = """\
left_out:
  - path: alpha/bin
    why: programs that nobody starts
    except: {alpha/bin/manager: alpha starts it}
  - {path: "**/tests", why: tests of packages}
"""


def look(*changes):
    text = GOOD
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    problems = []
    top = parse_document(text, file="f", problems=problems)
    value = read_left_out(top)
    top.done()
    return value, [f"{p.key}: {p.message}" for p in problems]


def test_entries_are_read_with_what_stays_and_why():
    kept = {"alpha/bin/manager": "alpha starts it"}
    assert look() == (
        (
            LeftOut(path="alpha/bin", why="programs that nobody starts", kept=kept),
            LeftOut(path="**/tests", why="tests of packages", kept={}),
        ),
        [],
    )


def test_without_the_key_everything_stays():
    problems = []
    assert read_left_out(parse_document("env: {}\n", file="f", problems=problems)) == ()
    assert problems == []


NAMES = "must be names between slashes, with * and ? inside a name, ** for any folders"
BELOW = "must be below the folder of the Python packages"
END = "must end in a name: wildcards alone would leave out everything below"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("path: alpha/bin", "path: /usr/bin", f"left_out[0].path: '/usr/bin': {BELOW}"),
        ("path: alpha/bin", "path: a/../../b", f"left_out[0].path: 'a/../../b': {BELOW}"),
        ("path: alpha/bin", "path: alpha/", f"left_out[0].path: 'alpha/': {NAMES}"),
        ("path: alpha/bin", "path: ''", f"left_out[0].path: '': {NAMES}"),
        ("path: alpha/bin", "path: 7", "left_out[0].path: must be text; YAML reads 7 as int:"
         " write '7'"),
        ("path: alpha/bin", "paht: alpha/bin", "left_out[0].path: required key is missing"),
        ("path: alpha/bin", "paht: alpha/bin",
         "left_out[0].paht: unknown key; did you mean 'path'?"),
        ("why: programs that nobody starts", "size: big",
         "left_out[0].why: required key is missing"),
        ("programs that nobody starts", "' '", "left_out[0].why: a reason must not be empty"),
        ("alpha starts it", "''", "left_out[0].except: a reason must not be empty"),
        ("alpha/bin/manager:", "/alpha:", f"left_out[0].except: '/alpha': {BELOW}"),
        ("{alpha/bin/manager: alpha starts it}", "[x]", "left_out[0].except: must be a mapping"),
        ("**/tests", "alpha/bin", "left_out: 'alpha/bin' is named 2 times"),
        ("path: alpha/bin", "path: '**/*'", f"left_out[0].path: '**/*': {END}"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_entry_is_said(old, new, said):
    assert said in look((old, new))[1]


def test_left_out_is_a_list():
    problems = []
    read_left_out(parse_document("left_out: {path: a}\n", file="f", problems=problems))
    assert [f"{p.key}: {p.message}" for p in problems] == ["left_out: must be a list"]


@pytest.mark.parametrize("path", ["a", "a/b.c", "**/tests", "a/**/b", "a/lib*.a", "a/b-1.0+x_?"])
def test_a_pattern_is_names_and_wildcards(path):
    assert path_problem(path) == ""


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("a//b", NAMES), ("./a", NAMES), ("a b", NAMES), ("$(id)", NAMES), ("a/[b]", NAMES),
        ("a**", NAMES), ("--root", NAMES), ("..", BELOW), ("**", END), ("a/**", END), ("a/*", END),
    ],
)  # fmt: skip
def test_a_pattern_that_is_none_or_names_everything_is_refused(path, said):
    assert path_problem(path) == said
