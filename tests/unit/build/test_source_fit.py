"""Whether a tree fits: fixes by the program that applies them, requirements by the lock."""

import json

import pytest

from stackyard.build.catalog import resolve
from stackyard.build.source import fit
from stackyard.build.source.tree import Entry
from stackyard.cli.options.images import BuildRequest
from stackyard.cli.steps import source
from stackyard.definitions.spec import Replacement
from stackyard.system.errors import BuildError, UsageError
from tests.unit import samples
from tests.unit.build.test_source_fork import definitions, forked
from tests.unit.build.test_source_naming import ONE

TYPED = "invoke build toy --source ../alpha"


def rule(**changes):
    values = {"file": "alpha/a.py", "pattern": "^old$", "replacement": "new", "count": 1,
              "fixed": "^new$"}  # fmt: skip
    return Replacement(**{**values, **changes})


def fix(*rules, **changes):
    remedy = samples.remedy(replace=rules or (rule(),), **changes.pop("more", {}))
    return samples.fix(remedy=remedy, **changes)


def tree(text="first\nold\nlast\n", path="alpha/a.py", **more):
    return {path: Entry(data=text.encode()), **{k: Entry(data=v.encode()) for k, v in more.items()}}


def check(found, *fixes):
    return source.check_fixes(fixes or [fix()], "alpha", found, TYPED)


@pytest.fixture(autouse=True)
def processes(allow_processes):
    """The program of the build is run on the tree."""


@pytest.mark.parametrize(
    ("found", "there"),
    [
        (tree(), []),
        (tree("# moved\n\n\n\nmuch\nold\n"), []),
        (tree(path="src/alpha/a.py"), []),
        (tree("first\nnew\n"), ["alpha-old"]),
        (tree("old\n", path="elsewhere.py"), []),  # the build will say
    ],
)
def test_a_fix_applies_by_pattern_or_is_there_already(found, there):
    assert check(found) == there


@pytest.mark.parametrize("text", ["first\nodd\n", "old\nold\n", ""])
def test_a_fix_that_conflicts_is_refused_by_name_file_and_pattern(text):
    with pytest.raises(UsageError) as refused:
        check(tree(text))
    said = str(refused.value)
    assert "1 fix of this stack does not fit your alpha" in said
    assert "fix alpha-old" in said
    assert "alpha/a.py: pattern matched" in said
    assert "pattern:  ^old$" in said
    assert "repaired: ^new$" in said
    assert f"{TYPED} --despite alpha-old" in said


def test_every_conflict_is_told_at_once():
    other = fix(id="alpha-second")
    third = fix(id="other-package", package="beta")
    with pytest.raises(UsageError, match="2 fixes of this stack do not fit") as refused:
        check(tree("odd\n"), fix(), other, third)
    assert "--despite alpha-old --despite alpha-second" in refused.value.hint


def test_what_a_release_has_in_several_places_may_be_in_more_or_fewer():
    several = fix(rule(count=2))
    for text in ("old\n", "old\nold\n", "old\nold\nold\n"):
        assert check(tree(text), several) == []
    assert check(tree("new\n"), several) == ["alpha-old"]
    with pytest.raises(UsageError):
        check(tree("odd\n"), several)


def test_a_fix_of_the_sources_is_looked_at_from_the_top_of_the_tree():
    patched = fix(rule(file="setup.py"), more={"stage": "source"})
    found = {**tree(path="src/alpha/a.py"), "setup.py": Entry(data=b"old\n")}
    rules, root = fit.fix_rules([fix(), patched], "alpha", found)
    assert root == "src/"
    files = [r["file"] for f in json.loads(rules) for r in f["replace"]]
    assert files == ["setup.py", "src/alpha/a.py"]
    assert check(found, fix(), patched) == []


def test_a_module_that_a_fix_adds_must_not_be_there_as_another():
    adding = fix(more={"add": {"alpha/new.py": "x = 1\n"}})
    assert check(tree(), adding) == []
    assert check(tree("new\n", **{"alpha/new.py": "x = 1\n"}), adding) == ["alpha-old"]
    with pytest.raises(UsageError, match="does not fit") as refused:
        check(tree(**{"alpha/new.py": "mine"}), adding)
    assert "the package has a file of that name" in refused.value.why


def test_a_module_beside_the_packages_says_nothing_of_a_tree():
    adding = fix(rule(file="beta/b.py"), more={"add": {"beside.py": "b = 1\n"}})
    rules, _ = fit.fix_rules([adding], "alpha", tree())
    assert json.loads(rules) == []
    both = fix(more={"add": {"beside.py": "b = 1\n", "alpha/new.py": "x = 1\n"}})
    rules, _ = fit.fix_rules([both], "alpha", tree())
    assert [list(rule["add"]) for rule in json.loads(rules)] == [["alpha/new.py"]]


def image():
    own = forked()
    return own.image(resolve(own.definitions, "toy", "cpu"))


def needing(*wanted):
    text = f"setup(name='alpha', install_requires={list(wanted)!r})"
    return {"setup.py": Entry(data=text.encode())}


@pytest.mark.parametrize(
    "wanted",
    ["gamma", "gamma>=0.1", "torch>=2", "numpy<3", "odd; python_version < '3.8'", "Gamma",
     "odd; extra == 'x'", "not a requirement"],
)  # fmt: skip
def test_a_requirement_that_is_met_or_that_only_a_build_knows(wanted):
    fit.require_met(ONE, needing(wanted), image())


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("odd>=1", "odd>=1: not there"), ("numpy>=9", "numpy>=9: 2.1.0 is there"),
     ("odd; python_version >= '3.8'", "not there")],
)  # fmt: skip
def test_a_requirement_that_is_not_met_is_named_with_what_to_do(wanted, said):
    with pytest.raises(UsageError, match="does not hold") as refused:
        fit.require_met(ONE, needing("gamma", wanted), image())
    assert said in refused.value.why
    assert "gamma" not in refused.value.why
    assert "invoke lock toy --base cpu" in refused.value.hint


def test_what_fixes_bring_in_another_version_is_not_asked_for():
    own = forked(found=definitions(
        fixes={"alpha-old": fix(more={"override": ("numpy==2.1.0",), "exclude": ("odd",)})}
    ))  # fmt: skip
    found = own.image(resolve(own.definitions, "toy", "cpu"))
    fit.require_met(ONE, needing("numpy<1", "odd>=3"), found)


def said(fix, file, outcome, *more):
    return "\n".join([json.dumps({"fix": fix, "file": file, "outcome": outcome}), *more])


def explained(why):
    prepared = source.Prepared(fork=forked(), image=image())
    given = BuildRequest(stack="toy", base="cpu", source=("../alpha",))
    return source.explained(BuildError("it failed", why=why), prepared, given)


def test_what_a_build_refuses_is_told_in_the_same_words():
    found = explained(
        said("alpha-old", "alpha/a.py", "pattern matched 0 times, expected 1", "more")
    )
    assert "does not fit your alpha" in str(found)
    assert "invoke build toy --base cpu --source ../alpha --despite alpha-old" in str(found)
    lines = "own source: ...\nThe package `alpha` requires `odd>=1`, but it's not installed"
    found = explained(lines)
    assert isinstance(found, UsageError)
    assert "odd>=1: it's not installed" in found.why
    assert str(explained("gcc: error")) == "it failed\n  gcc: error"


def test_a_fix_that_a_tree_has_in_part_is_not_said_to_be_there():
    there = "already fixed upstream"
    lines = [
        said("alpha-old", "alpha/a.py", "applied"), said("alpha-old", "alpha/a.py", there),
        said("alpha-more", "a.py", there), said("alpha-more", "a.py", there),
    ]  # fmt: skip
    assert fit.there_already(fit.answers("\n".join(lines))) == ["alpha-more"]


def test_lines_that_are_no_answers_are_passed_over():
    lines = ['{"fix": "cut', '{"fix": "a"}', "fix alpha-old: a.py: applied", "", '{"event": 1}']
    assert fit.answers("\n".join(lines)) == {}


def test_of_several_patterns_in_a_file_the_one_that_does_not_fit_is_among_those_shown():
    second = rule(pattern="^other$", replacement="another", fixed="^another$")
    with pytest.raises(UsageError) as refused:
        check(tree("old\n"), fix(rule(), second))
    assert "^other$" in refused.value.why
    assert "^another$" in refused.value.why
