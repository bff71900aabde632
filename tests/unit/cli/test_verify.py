"""`invoke verify`: what is said of a release, and of its image built again."""

import json

import pytest

from stackyard.cli.options.releases import VerifyRequest
from stackyard.cli.steps import verify
from stackyard.definitions.project import Project
from stackyard.release import rebuild
from stackyard.release.rebuild import Rebuilt
from stackyard.scan.difference import Difference
from stackyard.system.errors import ReleaseError
from tests.schemas.published import refused
from tests.unit import samples
from tests.unit.lines import run
from tests.unit.release.test_rebuild import Engine, Site
from tests.unit.release.test_recipe_record import RECORD
from tests.unit.releases import NAME, WHO, make_key

pytestmark = pytest.mark.usefixtures("allow_processes")
FOUND = Difference(path="/usr/bin/tini", what=("content", "mode"), package="tini 1 (Debian)")


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Run the command on a released image; the exit code, its JSON or what people read."""
    site = Site(tmp_path, monkeypatch).release()
    project = Project(root=tmp_path, definitions=samples.definitions(), default_base="cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verify, "load_project", lambda: project)
    monkeypatch.setattr(verify, "open_registry", lambda *_: site.registry)
    monkeypatch.setattr(verify, "find_client", lambda path: None)
    monkeypatch.setattr(Engine, "__enter__", lambda self: self, raising=False)
    monkeypatch.setattr(Engine, "__exit__", lambda *_: None, raising=False)
    monkeypatch.setattr(verify, "Engine", Engine)

    def typed(*found, as_json=True, error=None, **given):
        def rebuilt(registry, verified, means, say):
            if error:
                raise error
            assert verified.release.name == NAME
            return Rebuilt(record=RECORD, differences=found, files=1234, packages=2,
                           packages_from="release")  # fmt: skip

        monkeypatch.setattr(rebuild, "rebuild", rebuilt)
        code = run(verify.verify, VerifyRequest(release=NAME, **given), as_json=as_json)
        out, err = capsys.readouterr()
        if not as_json:
            return code, out, err
        value = json.loads(out)
        assert refused(f"answers/{'error' if 'error' in value else 'verify'}", value) == []
        return code, value, err

    typed.site = site
    return typed


def test_a_release_is_verified_and_nothing_is_built(typed):
    code, told, _ = typed(error=AssertionError())
    assert (code, told["release"], told["signer"], told["rebuilt"]) == (0, NAME, WHO, None)
    code, out, _ = typed(as_json=False)
    assert code == 0 and out.splitlines()[0] == f"{NAME}: signed by {WHO}"


def test_a_release_that_nobody_accepted_signed_is_not_built(typed):
    make_key(typed.site.folder, "other")
    (typed.site.folder / "allowed_signers").write_text("")
    code, told, _ = typed(error=AssertionError(), rebuild=True)
    assert code == 1 and "cannot be believed" in told["error"]["what"]


def test_a_rebuild_without_a_difference_passes(typed):
    code, told, _ = typed(rebuild=True)
    assert (code, told["rebuilt"]["outcome"], told["rebuilt"]["differences"]) == (0, "passed", [])
    assert told["rebuilt"]["built_by"] == RECORD.built_by
    code, out, _ = typed(as_json=False, rebuild=True)
    assert out.splitlines()[-1] == (
        f"{NAME}: built again from scratch, no file differs"
        " (1,234 files, from 2 Debian packages carried by the release)"
    )


def test_differences_are_named_with_who_built_what_and_what_to_type(typed):
    code, told, _ = typed(FOUND, rebuild=True)
    assert (code, told["rebuilt"]["outcome"]) == (1, "failed")
    assert told["rebuilt"]["differences"] == [
        {"path": "/usr/bin/tini", "what": ["content", "mode"], "package": "tini 1 (Debian)"}
    ]
    _, out, _ = typed(FOUND, as_json=False, rebuild=True)
    assert "tini 1 (Debian): 1 of 1 differences\n  /usr/bin/tini: content, mode\n" in out
    assert "bases are made in another way by this Stackyard" in out
    assert out.rstrip().endswith("to build as it did: git checkout 0123456789abcdef")


def test_what_stops_a_rebuild_is_one_error(typed):
    code, told, _ = typed(error=ReleaseError("carries no recipe", hint="again"), rebuild=True)
    assert (code, told["error"]["hint"]) == (1, "again")
