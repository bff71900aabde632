"""docs/reference: made from commands, schemas and failures, current, and whole."""

import re

import pytest

from stackyard.cli import help as cli_help
from stackyard.cli import reference, schemas
from stackyard.cli.program import collection
from stackyard.definitions.load import load_failures
from stackyard.definitions.project import ROOT
from stackyard.definitions.spec import Failure

MADE = reference.reference_files(ROOT)


@pytest.mark.parametrize("path", MADE)
def test_pages_are_as_declared(path):
    assert (ROOT / path).read_text(encoding="utf-8") == MADE[path], "scripts/reference --write"


def test_every_command_option_file_and_failure_has_its_place():
    commands, files, failures = MADE.values()
    for task in collection().tasks.values():
        page = cli_help.page_of(task)
        section = commands.split(f"### invoke {page.name}\n")[1].split("\n### ")[0]
        for typed, _ in page.options[:-1]:
            assert f"| `{typed}` |" in section
    for one in schemas.FILES.values():
        assert one.what and f"## `{one.pattern}`\n\n{one.what[0].upper()}" in files
    for name in load_failures(ROOT):
        assert f"\n## {name}\n" in failures and f"(#{name})" in failures


def test_patterns_and_names_in_brackets_are_text_and_not_markdown():
    failure = Failure(
        id="odd", title="a <b> failure", kind="cause", steps=("run",), any_of=("a|b", "`c`"),
        all_of=("d", "e"), cause="it *is*", remedy="type `x`", brings=(),
        threads=("https://a.example/1",),
    )  # fmt: skip
    page = reference.failures_page([failure])
    assert r"| `a\|b`, or `` `c` ``, or `d` and `e` | [a \<b\> failure](#odd) |" in page
    assert "it \\*is\\*" in page and "- <https://a.example/1>" in page


KEY = re.compile(r"^\| `(\w+)` \| (.*) \| (yes|) \| (.*) \|$", re.MULTILINE)


def test_keys_of_mappings_are_listed_below_the_key_that_holds_them():
    told = {"type": "integer", "description": "how many."}
    rank = {"properties": {"ranks": told, "plain": {"type": "string"}}, "required": ["ranks"]}
    schema = {"properties": {
        "smoke": {"properties": {"updates": told, "layouts": {"additionalProperties": rank}}},
        "list": {"items": {"properties": {"size": told}}},
    }}  # fmt: skip
    found = [(key, required) for key, _, required in reference._keys(schema)]
    assert found == [
        ("smoke", False), ("smoke.updates", False), ("smoke.layouts.NAME.ranks", True),
        ("list", False), ("list.size", False),
    ]  # fmt: skip


def test_kinds_are_said_in_words():
    schema = {"title": "x.yml", "required": ["a"], "properties": {
        "a": {"type": ["object", "null"]}, "b": {"enum": ["x", "y", None]},
        "c": {"type": "boolean", "description": "if a|b."},
        "d": {"type": ["string", "number", "null"]}, "e": {},
    }}  # fmt: skip
    made = {schemas.path_of(f"files/{name}"): schema for name in ("settings", *schemas.FILES)}
    rows = KEY.findall(reference.files_page(made))
    assert rows[:5] == [
        ("a", "mapping", "yes", ""), ("b", "`x` or `y`", "", ""),
        ("c", "yes or no", "", r"if a\|b"), ("d", "text, number", "", ""), ("e", "", "", ""),
    ]  # fmt: skip


def test_every_key_of_a_file_has_a_meaning():
    rows = KEY.findall(MADE["docs/reference/files.md"])
    assert len(rows) > 100 and [name for name, *_, meaning in rows if not meaning] == []
