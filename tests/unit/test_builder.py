"""What a build is made from: the caller's sources or a bundle, and what is refused at once."""

from pathlib import Path

import pytest

from stackyard import build, builder, bundle, commands, foundation, hostbase, plan
from stackyard.errors import NothingToRunOn, UsageError
from stackyard.image import ImageInfo
from stackyard.project import Project
from tests.unit import samples
from tests.unit.test_bundle import locks

BASE = "stackyard/base:far"


class Holding:
    """An engine that holds images by name."""

    def __init__(self, *names):
        self.names = set(names)

    def image(self, name):
        if name not in self.names:
            return None
        return ImageInfo(id=f"id of {name}", tags=(), labels={}, env=(), size=1, layers=())


@pytest.fixture
def project(tmp_path):
    bases = {"cpu": samples.base(), "far": samples.carried()}
    found = samples.definitions(bases=bases, locks={**samples.locks(), **locks()})
    for path in (*plan.INSIDE, *found.locks):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("text")
    return Project(root=tmp_path, definitions=found, default_base="cpu")


def make(project, engine, offline=None):
    return builder.Builder(project, engine, lambda *_: None, offline)


@pytest.fixture
def fitting(project, monkeypatch):
    """A bundle that fits, the builds that were made with it, and how often it was read."""
    made, read = [], []
    image = builder.catalog.resolve(project.definitions, "toy", "far")
    found = samples.manifest(locks=bundle.lock_digests([image]), packages=bundle.packages([image]))

    def look(path):
        read.append(path)
        return found

    def built(plan, client, tools, caller, say, *, offline, fresh):
        assert not fresh
        made.append((plan.tag, tools, dict(caller.secrets), dict(caller.proxies), offline))
        return BASE

    monkeypatch.setattr(bundle, "read", look)
    monkeypatch.setattr(foundation, "ensure_bundle", lambda engine, path, found: f"tools of {path}")
    monkeypatch.setattr("stackyard.host.require_space", lambda engine: None)
    monkeypatch.setattr(build, "find_client", lambda path: None)
    monkeypatch.setattr(build, "build", built)
    monkeypatch.setenv("https_proxy", "http://proxy")
    return made, read


def test_a_build_from_a_bundle_takes_its_tools_and_none_of_the_callers_settings(project, fitting):
    made, read = fitting
    found = make(project, Holding(BASE), Path("far.tar"))
    found.build("toy", "far")
    found.build("toy", "far", again=True)
    assert made == [("stackyard/toy:far", "tools of far.tar", {}, {}, True)] * 2
    assert read == [Path("far.tar")]


def test_a_base_whose_packages_are_unpacked_says_that_it_wants_a_bundle(project, fitting):
    with pytest.raises(UsageError, match="toy on far is built from a bundle") as caught:
        make(project, Holding(BASE)).build("toy", "far")
    assert "invoke build toy --base far --offline FILE" in caught.value.hint
    assert "invoke bundle --base far" in caught.value.hint
    assert fitting[0] == []


def test_a_bundle_that_does_not_fit_is_refused_before_anything_is_made(
    project, fitting, monkeypatch
):
    monkeypatch.setattr(bundle, "read", lambda path: samples.manifest())
    with pytest.raises(UsageError, match=r"far\.tar does not fit toy on far"):
        make(project, Holding(BASE), Path("far.tar")).build("toy", "far")
    assert fitting[0] == []


def test_a_base_of_packages_cannot_be_built_from_a_bundle(project, fitting):
    with pytest.raises(UsageError, match="images on cpu cannot be built from a bundle"):
        make(project, Holding(), Path("far.tar")).build("toy", "cpu")
    assert fitting[1] == []


def test_a_base_out_of_files_that_was_not_made_says_what_to_type(project, fitting):
    with pytest.raises(NothingToRunOn) as caught:
        make(project, Holding(), Path("far.tar")).build("toy", "far")
    assert caught.value.hint == "invoke base far"


# invoke base, invoke bundle


def test_a_base_out_of_files_is_made_when_asked_for(project, monkeypatch):
    engine = Holding()

    def ensure(engine, base, find, say):
        engine.names.add(base.reference)
        return engine.image(base.reference)

    monkeypatch.setattr(hostbase, "ensure", ensure)
    made = commands.make_base(project, engine, "far", lambda *_: None)
    assert (made["reference"], made["image"], made["made"]) == (BASE, f"id of {BASE}", True)
    assert commands.make_base(project, engine, "far", lambda *_: None)["made"] is False


def test_an_unknown_base_is_named_with_the_nearest(project):
    with pytest.raises(UsageError, match="there is no base 'fat'") as caught:
        commands.make_base(project, Holding(), "fat", print)
    assert caught.value.why == "did you mean 'far'?"


@pytest.mark.parametrize(
    ("base", "changes", "what"),
    [
        ("cpu", {}, "images on cpu cannot be built from a bundle"),
        ("far", {"locks": {}}, "toy has no lock on far"),
        ("near", {}, "there is no base 'near'"),
    ],
)
def test_what_cannot_be_bundled_is_refused(project, tmp_path, base, changes, what):
    bases = {"cpu": samples.base(), "far": samples.carried()}
    found = samples.definitions(**{"bases": bases, "locks": locks(), **changes})
    other = Project(root=tmp_path, definitions=found, default_base="cpu")
    with pytest.raises(UsageError) as caught:
        commands.make_bundle(other, "all", base, tmp_path / "x.tar", print)
    assert caught.value.what == what


def test_a_bundle_for_no_folder_is_refused_before_anything_is_fetched(tmp_path):
    found = samples.definitions(bases={"far": samples.carried()}, locks=locks())
    other = Project(root=tmp_path, definitions=found, default_base="far")
    with pytest.raises(UsageError) as caught:
        commands.make_bundle(other, "all", "far", tmp_path / "no where" / "x.tar", print)
    assert caught.value.hint == f"mkdir -p '{tmp_path / 'no where'}'"
