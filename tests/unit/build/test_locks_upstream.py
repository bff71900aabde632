"""What is told of packages that moved upstream, and which fixes would not cover the newest."""

import contextlib
import json

import pytest

from stackyard.build.locks import outdated, resolve, upstream
from stackyard.build.mirrors import CallerSettings
from stackyard.cli.steps import lock
from stackyard.definitions.project import Project, load_project
from stackyard.system import cleanup
from stackyard.system.errors import CommandError, NothingToRunOn, UsageError
from tests.unit import samples
from tests.unit.lines import run

NOBODY = CallerSettings(secrets={}, wheel_folders=(), proxies={})
LOCKED = {"torch": "2.0.0+cpu", "alpha": "1.2.0", "beta": "3.0", "gamma": "0.5", "delta": "1"}


def rows(allowed=None, newest=None, **changes):
    written = upstream.direct(samples.stack(), samples.base())
    newest = {"torch": ("2.0.0", ""), "alpha": ("1.2.0", ""), "beta": ("3.0", "")} | (newest or {})
    found = upstream.rows(
        LOCKED, {**LOCKED, **(allowed or {})}, newest, written, [samples.fix(**changes)]
    )
    return {row.pop("name"): row for row in found}


def test_what_is_asked_for_by_name_is_told_with_where():
    found = {name: row["asked_in"] for name, row in rows().items()}
    assert found == {
        "alpha": "images/toy/stack.yml",
        "beta": "images/wheels/beta.yml",
        "torch": "images/bases/cpu.yml",
    }


def test_what_a_lock_would_move_is_told_too():
    found = rows(allowed={"gamma": "0.6"}, newest={"gamma": ("0.7", "2030-01-02")})["gamma"]
    assert (found["locked"], found["allowed"], found["newest"]) == ("0.5", "0.6", "0.7")
    assert (found["released"], found["behind"], found["asked_in"]) == ("2030-01-02", True, "")


@pytest.mark.parametrize(
    ("newest", "behind"), [("2.0.0", False), ("2.0.1", True), ("1.9", False), ("", False)]
)
def test_a_local_version_is_no_other_release(newest, behind):
    assert rows(newest={"torch": (newest, "")})["torch"]["behind"] is behind


@pytest.mark.parametrize(
    ("newest", "covers", "fixes"),
    [
        ("1.3.0", "==1.2.0", ["alpha-old"]),
        ("1.3.0", ">=1.2,<2", []),
        ("1.3.0", "==1.1.0", []),  # it does not apply now either
        ("1.2.0", "==1.2.0", []),
        ("", "==1.2.0", []),
    ],
)
def test_a_fix_that_would_not_cover_the_newest_is_named(newest, covers, fixes):
    found = rows(newest={"alpha": (newest, "")}, versions={"Alpha": covers})["alpha"]
    assert found["fixes_not_covering"] == fixes


def test_fixes_of_built_wheels_are_looked_at_too():
    wheel = samples.wheel(fixes=("beta-build",))
    fixes = {"alpha-old": samples.fix(), "beta-build": samples.fix(id="beta-build")}
    definitions = samples.definitions(wheels={"beta": wheel}, fixes=fixes)
    found = upstream.fixes_of(definitions, samples.stack())
    assert [fix.id for fix in found] == ["alpha-old", "beta-build"]


# The questions, and their answers


PYLOCK = """\
lock-version = "1.0"

[[packages]]
name = "alpha"
version = "1.3.0"
sdist = { url = "https://x/a.tar.gz", upload-time = 2030-03-02T10:00:00Z, size = 5 }
wheels = [{ url = "https://x/a.whl", upload-time = 2030-03-01T10:00:00Z, size = 5 }]

[[packages]]
name = "Beta.B"
version = "2"
index = "https://x/"
"""


def test_versions_and_days_are_read_from_uvs_answer():
    assert resolve._releases(PYLOCK) == {"alpha": ("1.3.0", "2030-03-01"), "beta-b": ("2", "")}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A project, and an index that has what `newest` says."""
    tree = samples.Tree(tmp_path)
    newest = {"alpha": ("1.2.0", "2030-01-01"), "beta": ("3.0", ""), "torch": ("2.0.0", "")}

    def answer(requirements, **given):
        pins = [word.split("==") for word in requirements]
        return tuple(resolve.Locked(name=n, version=v, hashes=()) for n, v in pins)

    monkeypatch.setattr(resolve, "compile_requirements", answer)
    monkeypatch.setattr(resolve, "find_newest", lambda names, base, caller: newest)
    monkeypatch.setattr(outdated.mirrors, "collect", lambda *a, **k: NOBODY)
    monkeypatch.setattr(lock, "load_project", lambda **named: load_project(tree.root, **named))
    monkeypatch.setattr(cleanup, "guarded", lambda warden: contextlib.nullcontext())
    return tree, newest


@pytest.mark.parametrize(("newest", "code"), [("1.2.0", 0), ("1.3.0", 1)])
def test_the_exit_code_says_whether_something_is_newer(asked, capsys, newest, code):
    tree, known = asked
    known["alpha"] = (newest, "2030-01-01")
    before = {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()}
    assert run(lock.outdated, "all", "", as_json=False) == code
    said = capsys.readouterr().out
    assert ("fix alpha-old does not cover alpha 1.3.0" in said) is bool(code)
    assert ("is the newest there is" in said) is not bool(code)
    assert {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()} == before
    assert run(lock.outdated, "toy", "cpu", as_json=True) == code
    (one,) = json.loads(capsys.readouterr().out)["stacks"]
    assert (one["stack"], one["base"]) == ("toy", "cpu")
    assert [row["name"] for row in one["packages"]] == ["alpha", "beta", "torch"]


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("error: Failed to fetch: `https://x/alpha/`\n  Caused by: dns error", NothingToRunOn),
        ("error: Failed to fetch: `https://x/alpha/`\n  Caused by: HTTP status client error"
         " (403 Forbidden) for url (https://x/alpha/)", CommandError),
        ("  x No solution found when resolving dependencies", CommandError),
    ],
)  # fmt: skip
def test_an_index_that_does_not_answer_is_said_as_such(asked, monkeypatch, why, kind):
    def fail(*_, **__):
        raise CommandError("uv pip compile: exit code 2", code=2, why=why)

    monkeypatch.setattr(resolve, "compile_requirements", fail)
    with pytest.raises(kind) as caught:
        outdated.outdated(load_project(asked[0].root), "toy", "cpu", lambda *_: None)
    assert why.strip() in caught.value.why
    if kind is NothingToRunOn:
        assert caught.value.what == "no package index answers"


def test_a_pulled_bases_packages_are_not_asked_for(tmp_path):
    project = Project(root=tmp_path, definitions=samples.definitions(), default_base="cpu")
    with pytest.raises(UsageError, match="gpu is pulled"):
        outdated.outdated(project, "toy", "gpu", lambda *_: None)
