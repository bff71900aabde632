"""A release built again from what lies beside it: compared whole, and nothing of it is left."""

import gzip
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from stackyard.build import packages
from stackyard.build.buildkit import Client
from stackyard.build.mirrors import CallerSettings
from stackyard.build.source.naming import SOURCES_LABEL, Source, sources_text
from stackyard.release import rebuild, verify
from stackyard.release.rebuild import Means
from stackyard.release.recipe_record import INDEX, PACKAGES, RECIPE, record_text
from stackyard.release.spool import Spool
from stackyard.scan import oci
from stackyard.system import signing
from stackyard.system.errors import (
    BuildError,
    EngineError,
    RegistryError,
    ReleaseError,
    StackyardError,
    UsageError,
)
from tests.unit.debs import deb
from tests.unit.layers import tar
from tests.unit.release.test_recipe_record import RECORD
from tests.unit.releases import NAME, Held, accept, image, make_key, reply, state

pytestmark = pytest.mark.usefixtures("allow_processes")
ONE = image("one", "same")
CALLER = CallerSettings(
    secrets={"apt.sources": b"newer", "uv.toml": b"index"}, wheel_folders=(), proxies={}
)


def archived(found):
    """An image as an engine saves it."""
    layers = [gzip.decompress(data) for data in found.layers.values()]
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    listed = json.dumps([{"Config": "config.json", "Layers": names}])
    return tar(*zip(names, layers, strict=True), ("config.json", found.config),
               ("manifest.json", listed))  # fmt: skip


class Engine:
    """An engine whose every build makes the same image.

    Attributes:
        built: what builds make; `named` has the names of images that are there.
    """

    def __init__(self):
        self.built, self.named, self.removed = ONE, set(), []

    def data_folder(self):
        return "/no/such/folder"

    def saved(self, name):
        assert name == "sha256:built"
        return iter([archived(self.built)])

    def remove_image(self, name):
        self.removed.append(name)
        self.named.discard(name)


class Site:
    """A registry with a release and all that it needs, and a machine that builds it again."""

    def __init__(self, folder, monkeypatch):
        self.held, self.folder, self.engine, self.said = Held(), folder, Engine(), []
        self.key = make_key(folder)
        self.signers, self.registry = accept(folder, self.key), self.held.open(monkeypatch)
        self.bases, self.builds = [], []
        made = folder / "made"
        deb(made, "tini")
        packages.write_index(made)
        self.index = (made / packages.INDEX).read_bytes()
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path in sorted(made.iterdir()):
                archive.add(path, path.name)
        self.packages = gzip.compress(buffer.getvalue(), mtime=0)
        monkeypatch.setattr(rebuild.base_image, "require_mmdebstrap", lambda what: None)
        monkeypatch.setattr(rebuild.base_image, "make_base", self.make_base)
        monkeypatch.setattr(rebuild.base_image, "ensure_tools", lambda *_: "tools:1")
        monkeypatch.setattr(rebuild.buildkit, "build", self.build)

    def make_base(self, engine, recipe, locked, reference, say, held):
        files = sorted(path.name for path in Path(locked).iterdir())
        self.bases.append((recipe, files, reference, held))
        engine.named |= {reference, held}

    def build(self, plan, client, tools, caller, on_step, *, fresh):
        self.builds.append((plan, tools, caller, fresh))
        self.engine.named.add(plan.tag)
        return "sha256:built"

    def release(self, *without, record=RECORD, of=ONE, **changes):
        """Put a release into the registry, with what others need to build it."""
        digest = self.held.put(of, NAME)
        beside = {RECIPE: ("recipe.json", record_text(record)), INDEX: ("Packages", self.index),
                  PACKAGES: ("packages.tar.gz", self.packages)}  # fmt: skip
        blobs = []
        for kind, (title, data) in beside.items():
            if kind not in without:
                blobs.append(oci.described(kind, data, title))
                self.held.blobs[blobs[-1].digest] = data
        text = state(of, artifacts=blobs, **changes)
        self.held.sign(digest, text, signing.sign(text, self.key))
        return self

    def rebuild(self):
        found = verify.verify_release(self.registry, NAME, self.signers)
        means = Means(
            engine=self.engine, client=Client(path="docker", buildx=True),
            caller_of=lambda distribution: CALLER, store=Spool(self.folder / "cache"),
        )  # fmt: skip
        return rebuild.rebuild(self.registry, found, means, self.said.append)


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def test_a_release_is_built_from_what_it_carries_and_from_nothing_else(site):
    done = site.release().rebuild()
    assert (done.differences, done.files, done.packages, done.packages_from) == (
        (), 2, 1, "release",
    )  # fmt: skip
    ((recipe, files, base, held),) = site.bases
    assert recipe == RECORD.base and files == ["Packages", "Release", "tini_1_amd64.deb"]
    ((plan, tools, caller, fresh),) = site.builds
    assert (plan.base_image, plan.packages, tools, fresh) == (base, held, "tools:1", True)
    assert plan.context == RECORD.context
    # No package source is there to be asked by mistake.
    assert dict(caller.secrets) == {"uv.toml": b"index"}


def test_everything_that_was_made_is_gone_the_image_before_what_it_stands_on(site):
    site.release().rebuild()
    assert site.engine.named == set()
    assert [name.rpartition("-")[2] for name in site.engine.removed] == [
        "image", "base", "packages",
    ]  # fmt: skip


def test_a_difference_is_named_and_only_layers_that_differ_are_fetched(site):
    site.release()
    site.engine.built = image("one", "other")
    done = site.rebuild()
    assert [(one.path, one.what) for one in done.differences] == [("/file1", ("content",))]
    first, second = ONE.layers
    assert not any(first in asked for asked in site.held.asked if asked.startswith("GET"))
    assert any(second in asked for asked in site.held.asked if asked.startswith("GET"))


def test_a_setting_of_the_configuration_is_compared(site):
    site.release()
    config = json.dumps({**json.loads(ONE.config), "config": {"Env": ["LD_PRELOAD=x"]}}).encode()
    site.engine.built = replace(ONE, config=config)
    assert [str(one) for one in site.rebuild().differences] == ["configuration Env: content"]


def test_damaged_copies_in_the_cache_are_fetched_anew(site):
    site.release()
    site.engine.built = image("other", "other")
    before = site.rebuild()
    for path in (site.folder / "cache").glob("sha256-*"):
        path.write_bytes(bytes(path.stat().st_size))
    assert site.rebuild().differences == before.differences


# What a release may lack


def test_packages_that_the_registry_has_lost_come_from_the_package_sources(site, monkeypatch):
    site.release()
    del site.held.blobs[oci.digest_of(site.packages)]
    asked = []

    def fetch(out, index, **given):
        asked.append((index, given["sources"]))
        out.mkdir()
        (out / packages.INDEX).write_text(index)

    monkeypatch.setattr(packages, "fetch_locked", fetch)
    done = site.rebuild()
    assert (done.packages_from, done.differences) == ("archive", ())
    assert asked == [(site.index.decode(), b"newer")]
    assert any("asking the package sources" in text for text in site.said)


def test_packages_that_are_nowhere_are_one_error_and_nothing_is_built(site, monkeypatch):
    def fetch(out, index, **given):
        raise StackyardError("the package sources do not have all 1 locked packages")

    monkeypatch.setattr(packages, "fetch_locked", fetch)
    with pytest.raises(StackyardError, match="do not have all 1"):
        site.release(PACKAGES).rebuild()
    assert (site.builds, site.engine.named) == ([], set())


def test_a_registry_that_does_not_answer_is_not_one_that_lost_the_packages(site):
    digest = oci.digest_of(site.packages)
    site.release()
    site.held.before = lambda request: reply(503) if digest in request.url else None
    with pytest.raises(RegistryError):
        site.rebuild()
    assert not any("package sources" in text for text in site.said)


@pytest.mark.parametrize(
    ("kind", "says"),
    [(RECIPE, "carries no recipe"), (INDEX, "does not say which Debian packages")],
)
def test_a_release_without_recipe_or_index_is_refused(site, kind, says):
    with pytest.raises(ReleaseError, match=says) as caught:
        site.release(kind).rebuild()
    assert "publish" in caught.value.hint
    assert site.builds == []


def test_users_own_source_is_not_carried(site):
    source = Source(
        package="toy", origin="", revision="", commit="c" * 40, dirty=False,
        digest="sha256:" + "0" * 64, submodules=(), version="", files=1,
    )  # fmt: skip
    site.release(labels={SOURCES_LABEL: sources_text([source])})
    with pytest.raises(UsageError, match="users' own source") as caught:
        site.rebuild()
    assert "--source" in caught.value.hint


def test_packages_of_another_index_are_refused(site):
    site.index += b"\nPackage: more\nVersion: 1\nArchitecture: all\nSize: 1\nSHA256: 0\n"
    with pytest.raises(ReleaseError, match="carries other Debian packages than it names"):
        site.release().rebuild()
    assert site.builds == []


@pytest.mark.parametrize("kind", ["recipe", "index", "packages"])
def test_what_a_hostile_registry_has_put_in_the_place_of_a_file_is_not_built(site, kind):
    site.release()
    data = {"recipe": record_text(RECORD), "index": site.index, "packages": site.packages}[kind]
    site.held.blobs[oci.digest_of(data)] = data[:-1] + b"x"
    with pytest.raises((RegistryError, ReleaseError), match="is not what"):
        site.rebuild()
    assert (site.builds, site.bases, site.engine.named) == ([], [], set())


def test_a_recipe_of_another_stack_is_refused(site):
    with pytest.raises(ReleaseError, match="carries the recipe of other on cpu"):
        site.release(record=replace(RECORD, stack="other")).rebuild()


# What may be missing here


def test_too_little_disk_is_said_before_anything_is_fetched(site, monkeypatch):
    site.release()
    monkeypatch.setattr(rebuild.host, "free_bytes", lambda folder: 2**30)
    before = len(site.held.asked)
    with pytest.raises(EngineError, match="are missing"):
        site.rebuild()
    digest = oci.digest_of(site.packages)
    assert not any(digest in asked for asked in site.held.asked[before:])


def test_a_step_that_fails_says_which_release_and_leaves_nothing(site, monkeypatch):
    def fail(plan, *_, **__):
        raise BuildError(f"{plan.tag} could not be built: [4/5] RUN x", why="no index", hint="x")

    monkeypatch.setattr(rebuild.buildkit, "build", fail)
    with pytest.raises(BuildError) as caught:
        site.release().rebuild()
    assert caught.value.what == f"{NAME} cannot be built again: [4/5] RUN x"
    assert caught.value.hint.endswith(f"invoke verify --rebuild {NAME}")
    assert site.engine.named == set()
