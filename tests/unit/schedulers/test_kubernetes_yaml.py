"""Manifests' text: every parser reads what was meant."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stackyard.schedulers.kubernetes_yaml import dump


@pytest.mark.parametrize(
    "value",
    ["1e3", "0o17", "0x1F", "1_000", "12:30:45", "yes", "Off", "n", "null", "~", "", " a", "a: b",
     "# no", "*a", "&a", "!t", "- a", "%a", "@a", "`a`", ".5", ".inf", "2026-01-01", "it's", "=",
     "<<", 'say "x"', "a\\b", "\t", "{a}", "[a]", "?", "a #b", "\x00", "é", "\u2028"],
)  # fmt: skip
def test_what_a_parser_could_take_for_something_else_is_quoted(value):
    text = dump({"key": value})
    assert text.startswith('key: "')
    assert text.endswith('"\n')
    assert yaml.safe_load(text) == {"key": value}


@pytest.mark.parametrize("value", ["/dev/shm", "train.py", "batch/v1", "JobSet", "nvidia.com/gpu"])
def test_plain_words_stand_as_they_are(value):
    assert dump({"key": value}) == f"key: {value}\n"


def test_a_script_stands_as_it_is_written():
    assert dump({"a.sh": 'one "$1"\n\n  two\n'}) == 'a.sh: |\n  one "$1"\n\n    two\n'


def test_keys_keep_their_order_and_lists_are_indented():
    assert dump({"b": 1, "a": [{"c": True}]}) == "b: 1\na:\n  - c: true\n"


def test_a_value_that_is_there_twice_is_written_twice():
    same = {"x": 1}
    assert dump({"a": same, "b": same}) == "a:\n  x: 1\nb:\n  x: 1\n"


def test_every_line_of_a_comment_is_one():
    assert dump({"a": 1}, comment="one\ntwo") == "# one\n# two\na: 1\n"


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\r", "\x0b", "\ufeff", " ", "\t"])
@pytest.mark.parametrize("text", ["a\n{}", "{}\na", "a{}\n", "\n{}\n"])
def test_text_of_several_lines_keeps_every_character(text, end):
    value = text.format(end)
    assert yaml.safe_load(dump({"key": value})) == {"key": value}


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=4))
def test_what_was_meant_is_read(values):
    assert yaml.safe_load(dump(values) or "{}") == values
