"""What a new lock changes, as values and in words."""

import pytest

from stackyard.build.locks.change import (
    change_lines,
    change_value,
    compare_locks,
    direction,
    subject_of,
)
from stackyard.definitions.lock import Locked, render_lock

A, B, C = ("sha256:" + letter * 64 for letter in "abc")
MADE, REMADE = "sha256:" + "1" * 64, "sha256:" + "2" * 64
PATH = "images/toy/cpu.lock"


def text(*pins, inputs=MADE):
    entries = []
    for pin in pins:
        name, version, *hashes = pin if isinstance(pin, tuple) else (*pin.split("=="), A)
        entries.append(Locked(name=name, version=version, hashes=tuple(hashes)))
    return render_lock(entries, inputs=inputs, command="invoke lock")


def lines(old, new, path=PATH):
    return change_lines([compare_locks(path, old, new)])


def test_packages_that_came_went_and_moved_are_told_apart():
    old = text("alpha==1.9", "beta==2.0", "gone==1")
    new = text("alpha==1.10", "beta==1.9", "new==3")
    assert lines(old, new) == [
        "toy on cpu: 1 added, 1 removed, 1 up, 1 down",
        "  added    new 3",
        "  removed  gone 1",
        "  up       alpha 1.9 -> 1.10",
        "  down     beta 2.0 -> 1.9",
    ]


def test_the_same_version_with_a_hash_less_is_a_warning():
    old, new = text(("alpha", "1", A, B)), text(("alpha", "1", A, C))
    assert lines(old, new)[1:] == [
        "  WARNING  alpha 1: 1 hash gone, 1 new: files of a release were uploaded again"
    ]
    assert lines(old, text(("alpha", "1", A)))[1:] == [
        "  WARNING  alpha 1: 1 hash gone: files of a release were taken"
    ]


def test_more_files_of_a_version_are_no_warning():
    found = lines(text(("alpha", "1", A)), text(("alpha", "1", A, B, C)))
    assert found == [
        "toy on cpu: 1 with other files",
        "  files    alpha 1: 2 files more of the same version",
    ]


def test_nothing_changed_is_one_line_a_base():
    same = [
        compare_locks(path, text("alpha==1"), text("alpha==1"))
        for path in ("images/bases/cpu.lock", PATH, "images/wheels/b.lock", "images/toy/far.lock")
    ]
    assert change_lines(same) == [
        "nothing changed on cpu: the torch layer, toy",
        "nothing changed: 1 wheel",
        "nothing changed on far: toy",
    ]


def test_a_wheel_is_locked_for_all_bases():
    said = lines(text("b==1"), text("b==2"), "images/wheels/b.lock")
    assert said == ["the wheel of b: 1 up", "  up       b 1 -> 2"]


def test_the_same_packages_from_other_declarations_are_said():
    change = compare_locks(PATH, text("alpha==1"), text("alpha==1", inputs=REMADE))
    assert change.nothing
    assert change.redeclared
    assert change_lines([change]) == ["toy on cpu: the same packages, from changed definitions"]


def test_a_first_lock_names_what_it_holds():
    assert lines(None, text("alpha==1", "beta==2"))[:2] == [
        "toy on cpu: locked for the first time, 2 packages",
        "  added    alpha 1",
    ]
    assert not compare_locks(PATH, None, text()).nothing


@pytest.mark.parametrize(
    ("old", "new", "way"),
    [("1.9", "1.10", "up"), ("2.0", "2.0rc1", "down"), ("1.0", "1.0.0", "to"),
     ("1+cpu", "1+cu13", "up"), ("odd", "1", "to")],
)  # fmt: skip
def test_which_way_a_version_went(old, new, way):
    assert direction(old, new) == way


@pytest.mark.parametrize(
    ("path", "subject"),
    [
        ("images/bases/cpu.lock", ("the torch layer", "cpu")),
        ("images/toy/ngc-25-01.lock", ("toy", "ngc-25-01")),
        ("images/wheels/a-b.lock", ("the wheel of a-b", "")),
    ],
)
def test_a_locks_path_says_what_it_is_of(path, subject):
    assert subject_of(path) == subject


def test_a_change_is_plain_data():
    old = text("alpha==1", ("beta", "1", A), "gone==1")
    value = change_value(compare_locks(PATH, old, text("alpha==2", ("beta", "1", B), "new==1")))
    assert value == {
        "lock": PATH, "of": "toy", "base": "cpu", "first": False, "redeclared": False,
        "added": {"new": "1"}, "removed": {"gone": "1"},
        "moved": [{"name": "alpha", "from": "1", "to": "2", "way": "up"}],
        "rehashed": [{"name": "beta", "version": "1", "gone": [A], "new": [B]}],
    }  # fmt: skip
