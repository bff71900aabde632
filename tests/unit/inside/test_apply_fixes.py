"""Applying recorded fixes in a build: exactly as often as recorded, or not at all."""

import json

import pytest

from stackyard.inside import apply_fixes
from stackyard.inside.apply_fixes import FixMismatch, apply_all, apply_one


def rule(**changes):
    values = {
        "file": "alpha/a.py", "pattern": "^old$", "replacement": "new", "count": 1,
        "fixed": "^new$",
    }  # fmt: skip
    return {**values, **changes}


def fix(*rules, name="alpha-old", stage="installed"):
    return {"id": name, "stage": stage, "replace": list(rules or [rule()])}


def answer(outcome, file="alpha/a.py", name="alpha-old"):
    return {"fix": name, "file": file, "outcome": outcome}


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha" / "a.py").write_text("first\nold\nlast\n")
    return tmp_path


def text(tree, name="a.py"):
    return (tree / "alpha" / name).read_text()


def adding(text="x = 1\n", name="alpha/new.py", **changes):
    return {**fix(**changes), "replace": [], "add": {name: text}}


def test_a_module_is_added_once(tree):
    assert apply_all([adding()], "installed", tree) == [answer("added", "alpha/new.py")]
    assert text(tree, "new.py") == "x = 1\n"
    said = apply_all([adding(), adding(name="alpha/new.py")], "installed", tree)
    assert [one["outcome"] for one in said] == ["there already"] * 2


@pytest.mark.parametrize(
    ("added", "said"),
    [
        (adding(name="alpha/a.py"), "the package has a file of that name"),
        (adding(name="beta/new.py"), "its package is not there"),
    ],
)
def test_what_cannot_be_added_stops_everything(tree, added, said):
    with pytest.raises(FixMismatch, match=said):
        apply_all([fix(), added], "installed", tree)
    assert "old" in text(tree)


@pytest.mark.parametrize(
    ("before", "changes", "after", "outcome"),
    [
        ("a\nold\n", {}, "a\nnew\n", "applied"),
        ("old\nold\n", {"count": 2}, "new\nnew\n", "applied"),
        ("x=1\n", {"pattern": r"x=(\d)", "replacement": r"y=\1", "fixed": "y="}, "y=1\n",
         "applied"),
        ("a\nnew\n", {}, "a\nnew\n", "already fixed upstream"),
        ("a\nold\n", {"replacement": "new\nold"}, "a\nnew\nold\n", "applied"),
        ("a\nnew\nold\n", {"replacement": "new\nold"}, "a\nnew\nold\n",
         "already fixed upstream"),
    ],
)  # fmt: skip
def test_a_pattern_is_replaced_or_was_repaired_already(before, changes, after, outcome):
    assert apply_one(before, rule(**changes)) == (after, outcome)


@pytest.mark.parametrize(
    ("before", "changes", "said"),
    [
        ("a\n", {}, "pattern matched 0 times, expected 1"),
        ("old\nold\n", {}, "pattern matched 2 times, expected 1"),
        ("old\n", {"count": 2}, "pattern matched 1 times, expected 2"),
        ("old\nnew\n", {"count": 2}, "pattern matched 1 times, expected 2"),
        ("old\n", {"fixed": "^other$"},
         "after the replacement its own `fixed` pattern does not match"),
    ],
)  # fmt: skip
def test_any_other_number_of_matches_is_a_mismatch(before, changes, said):
    with pytest.raises(FixMismatch) as caught:
        apply_one(before, rule(**changes))
    assert str(caught.value) == said


def test_applying_twice_changes_nothing_more(tree):
    assert apply_all([fix()], "installed", tree) == [answer("applied")]
    assert apply_all([fix()], "installed", tree) == [answer("already fixed upstream")]
    assert text(tree) == "first\nnew\nlast\n"


def test_only_fixes_of_the_asked_stage_are_applied(tree):
    assert apply_all([fix(stage="source")], "installed", tree) == []
    assert text(tree) == "first\nold\nlast\n"


def test_two_fixes_of_one_file_see_each_others_work(tree):
    second = rule(pattern="^new$", replacement="newer", fixed="^newer$")
    apply_all([fix(), fix(second, name="second")], "installed", tree)
    assert text(tree) == "first\nnewer\nlast\n"


def test_when_one_fix_does_not_fit_nothing_is_written_and_all_are_named(tree):
    (tree / "alpha" / "b.py").write_text("b\n")
    fixes = [
        fix(),
        fix(rule(file="alpha/b.py"), name="second"),
        fix(rule(file="gone.py"), name="third"),
    ]
    with pytest.raises(FixMismatch) as caught:
        apply_all(fixes, "installed", tree)
    assert caught.value.problems == [
        answer("pattern matched 0 times, expected 1", "alpha/b.py", "second"),
        answer("no such file", "gone.py", "third"),
    ]
    assert text(tree) == "first\nold\nlast\n"


def test_a_repaired_file_keeps_its_mode_and_leaves_no_other_file(tree):
    (tree / "alpha" / "a.py").chmod(0o755)
    apply_all([fix()], "installed", tree)
    assert (tree / "alpha" / "a.py").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (tree / "alpha").iterdir()] == ["a.py"]


def main(tree, fixes, *words):
    path = tree / "fixes.json"
    path.write_text(json.dumps(fixes))
    return apply_fixes.main([str(path), "--stage", "installed", "--root", str(tree), *words])


def test_the_command_says_what_it_did(tree, capsys):
    assert main(tree, [fix()]) == 0
    assert json.loads(capsys.readouterr().out) == answer("applied")


def test_the_command_is_silent_when_there_is_nothing_to_do(tree, capsys):
    assert main(tree, []) == 0
    assert apply_fixes.main(["/dev/null", "--stage", "installed", "--root", str(tree)]) == 0
    assert capsys.readouterr().out == ""


def test_of_a_stacks_fixes_those_are_applied_that_are_named(tree, capsys):
    unfit = {**fix(rule(count=2)), "id": "alpha-other"}
    assert main(tree, [unfit, fix()], "--only", "alpha-old") == 0
    assert json.loads(capsys.readouterr().out) == answer("applied")


def test_a_named_fix_that_the_file_lacks_fails_and_nothing_is_applied(tree, capsys):
    before = (tree / "alpha" / "a.py").read_text()
    assert main(tree, [fix()], "--only", "alpha-old", "alpha-new") == 1
    first, _, more = capsys.readouterr().err.partition("\n")
    assert json.loads(first) == answer("not in the file of fixes", "", "alpha-new")
    assert "images/fixes/" in more
    assert (tree / "alpha" / "a.py").read_text() == before


def test_the_command_fails_when_a_fix_does_not_fit(tree, capsys):
    assert main(tree, [fix(rule(count=2))]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err.splitlines()[0]) == answer("pattern matched 1 times, expected 2")
    assert "images/fixes/" in err


def test_the_metadata_of_a_users_own_tree_has_that_trees_version(tmp_path):
    (tmp_path / "alpha-9.9.dist-info").mkdir()
    (tmp_path / "alpha-9.9.dist-info" / "METADATA").write_text("old\n")
    asked = rule(file="alpha-1.2.0.dist-info/METADATA")
    with pytest.raises(FixMismatch, match="no such file"):
        apply_all([fix(asked)], "installed", tmp_path)
    apply_all([fix({**asked, "own": True})], "installed", tmp_path)
    assert (tmp_path / "alpha-9.9.dist-info" / "METADATA").read_text() == "new\n"


@pytest.mark.parametrize("found", [1, 2, 3])
def test_in_a_users_own_tree_a_repeated_pattern_may_be_found_more_often(found):
    asked = rule(count=2)
    if found != 2:
        with pytest.raises(FixMismatch):
            apply_one("old\n" * found, asked)
    text, outcome = apply_one("old\n" * found, {**asked, "own": True})
    assert (text, outcome) == ("new\n" * found, "applied")


def test_in_a_users_own_tree_a_single_pattern_is_still_found_once():
    with pytest.raises(FixMismatch, match="matched 2 times, expected 1"):
        apply_one("old\nold\n", rule(own=True))
