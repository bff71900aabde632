"""Files of known failures: every problem at once, with file, line and key."""

import pytest

from stackyard.definitions.load import load_definitions, load_failures
from stackyard.definitions.project import ROOT
from stackyard.system.errors import DefinitionError
from tests.unit import samples

GOOD = """\
id: disk-full
title: a disk is full
kind: cause
steps: [build, run]
any_of: ['No space left']
cause: something was written
remedy: remove something
brings: [peer-died]
threads: [https://forge.example/1]
"""
PEER = """\
id: peer-died
title: another rank went away
kind: consequence
steps: [run]
all_of: ['closed by peer', 'rank']
cause: it ended
remedy: look there
"""


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "images" / "failures"
    found.mkdir(parents=True)
    (found / "disk-full.yml").write_text(GOOD)
    (found / "peer-died.yml").write_text(PEER)
    return found


def problems(folder):
    with pytest.raises(DefinitionError) as caught:
        load_failures(folder.parent.parent)
    return [str(problem) for problem in caught.value.problems]


def change(folder, old, new, name="disk-full"):
    path = folder / f"{name}.yml"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))


def test_good_files_load(folder):
    found = load_failures(folder.parent.parent)
    assert list(found) == ["disk-full", "peer-died"]
    assert (found["disk-full"].any_of, found["disk-full"].all_of) == (("No space left",), ())
    assert found["disk-full"].brings == ("peer-died",)
    assert found["peer-died"].all_of == ("closed by peer", "rank")
    assert found["peer-died"].threads == ()


def test_a_project_without_failures_has_none(tmp_path):
    assert load_failures(tmp_path) == {}


def test_the_failures_of_this_project_load_and_each_says_what_to_do():
    found = load_failures(ROOT)
    assert len(found) >= 20
    assert all(one.cause and one.remedy and one.title for one in found.values())


PLACE = "images/failures/disk-full.yml"
WRONG = [
    ("kind: cause", "kind: casue", f"{PLACE}:3: kind: unknown value 'casue'; did you mean"
     " 'cause'?"),
    ("[build, run]", "[biuld]", f"{PLACE}:4: steps: unknown step 'biuld'; did you mean 'build'?"),
    ("[build, run]", "[]", f"{PLACE}:4: steps: recognised nowhere: give some of build, run,"
     " registry"),
    ("id: disk-full", "id: disk-ful", f"{PLACE}:1: id: must be 'disk-full', like its file, not"
     " 'disk-ful'"),
    ("'No space left'", "'[a'", f"{PLACE}:5: any_of: not a regular expression: '[a':"
     " unterminated character set at position 0"),
    ("'No space left'", "'x*'", f"{PLACE}:5: any_of: found in every line: 'x*'"),
    ("any_of: ['No space left']", "any_of: []", f"{PLACE}:5: any_of: recognises nothing: give"
     " any_of or all_of"),
    ("[peer-died]", "[peer-dyed]", f"{PLACE}:8: brings: unknown failure 'peer-dyed'; did you mean"
     " 'peer-died'?"),
    ("https://forge", "forge", f"{PLACE}:9: threads: not an address: 'forge.example/1'"),
    ("title: a disk", "titel: a disk", f"{PLACE}:2: titel: unknown key; did you mean 'title'?"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), WRONG)
def test_what_is_wrong_is_named_with_its_place(folder, old, new, said):
    change(folder, old, new)
    assert said in problems(folder)


@pytest.mark.parametrize("key", ["title", "kind", "steps", "cause", "remedy"])
def test_a_missing_key_is_named(folder, key):
    lines = [line for line in GOOD.splitlines() if not line.startswith(f"{key}:")]
    (folder / "disk-full.yml").write_text("\n".join(lines) + "\n")
    assert problems(folder) == [f"{PLACE}:1: {key}: required key is missing"]


def test_problems_of_all_files_come_at_once(folder):
    change(folder, "cause: something was written", "cause: 3")
    change(folder, "all_of: ['closed by peer', 'rank']", "all_of: ['(']", "peer-died")
    assert [line.split(": ")[0] for line in problems(folder)] == [
        "images/failures/disk-full.yml:6",
        "images/failures/peer-died.yml:5",
    ]


def test_a_failure_that_brings_itself_is_refused(folder):
    change(folder, "[peer-died]", "[disk-full]")
    assert problems(folder)[0].startswith(f"{PLACE}:8: brings: unknown failure 'disk-full'")


def test_failures_that_bring_each_other_are_refused(folder):
    change(folder, "remedy: look there", "remedy: look there\nbrings: [disk-full]", "peer-died")
    (said,) = problems(folder)
    assert "brings: is circular: " in said
    assert "disk-full" in said and "peer-died" in said


def test_definitions_hold_the_failures():
    assert load_definitions(ROOT, locks_required=False).failures == load_failures(ROOT)


def test_a_wrong_failure_is_named_with_the_problems_of_other_definitions(tmp_path):
    tree = samples.Tree(tmp_path)
    tree.write("images/failures/disk-full.yml", GOOD.replace("kind: cause", "kind: casue"))
    tree.change("images/toy/stack.yml", "imports: [alpha]", "import: [alpha]")
    said = [line.partition(": ")[0] for line in tree.problems()]
    assert said == [f"{PLACE}:3", f"{PLACE}:8", "images/toy/stack.yml:8"]
