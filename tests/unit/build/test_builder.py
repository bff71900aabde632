"""What a build is made from: the caller's sources or a bundle, and what is refused at once."""

import dataclasses
import tarfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from stackyard.build import base_host, base_image, builder, catalog, host, mirrors
from stackyard.build import recipe as plan
from stackyard.cli.steps import images
from stackyard.definitions import lock
from stackyard.definitions.project import Project
from stackyard.definitions.spec import Fact
from stackyard.system import process
from stackyard.system.errors import EngineError, NothingToRunOn, StackyardError, UsageError
from stackyard.system.image import ImageInfo
from stackyard.system.stream import ToolLine
from tests.unit import samples
from tests.unit.build.test_bundle import locks, write_bundle
from tests.unit.standins import StandIns

BASE = "stackyard/base:far"


class Holding:
    """An engine that holds images by name."""

    def __init__(self, *names):
        self.names, self.imported, self.labels = set(names), [], {}

    def image(self, name):
        if name not in self.names:
            return None
        labels = self.labels.get(name, {})
        return ImageInfo(id=f"id of {name}", tags=(), labels=labels, env=(), size=1, layers=())

    def hold(self, words):
        """Hold what a build with these words has named."""
        said = [word for before, word in pairwise(words) if before == "--label"]
        name = words[words.index("-t") + 1]
        self.names.add(name)
        self.labels[name] = dict(word.split("=", 1) for word in said)

    def data_folder(self):
        return "/no/such/folder"

    def import_tar(self, path, reference, changes):
        with tarfile.open(path) as archive:
            self.imported.append((reference, set(archive.getnames()), changes))
        self.names.add(reference)


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


# It builds whatever it is asked to, and says by which id.
DOCKER = """#!/bin/sh
[ "$1" = --version ] && echo "Docker version 27.3.1, build x" && exit
[ "$1 $2" = "buildx version" ] && exit
cat > /dev/null
for word in "$@"; do
  echo "$word" >> {told}
  [ "$before" = --iidfile ] && echo sha256:made > "$word"
  before=$word
done
echo >> {told}
"""


@pytest.fixture
def builds(monkeypatch, tmp_path, allow_processes):
    """The words of each build that a docker on PATH was asked for, beside a user's settings."""
    told, programs = tmp_path / "told", StandIns(tmp_path)
    programs.program("docker", DOCKER.format(told=told))
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://me:secret@index.example\n")
    for name, value in {
        "PATH": programs.path, "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "https_proxy": "http://proxy",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)

    def read():
        text = told.read_text() if told.exists() else ""
        return [one.splitlines() for one in text.split("\n\n") if one]

    return read


@pytest.fixture
def packed(project, tmp_path):
    """A bundle for an image of the project, with these changes to what it is locked to."""

    def make(**changed):
        found = dataclasses.replace(project.definitions, **changed)
        path = tmp_path / "far.tar"
        write_bundle(path, tmp_path / "content", builder.catalog.resolve(found, "toy", "far"))
        return path

    return make


def test_a_build_from_a_bundle_takes_its_tools_and_none_of_the_callers_settings(
    project, builds, packed
):
    engine, path = Holding(BASE, "sha256:made"), packed()
    found = make(project, engine, path)
    assert found.build("toy", "far").info.id == "id of sha256:made"
    path.unlink()  # it was read once, and what it holds is in the engine
    engine.hold(builds()[0])
    assert found.build("toy", "far").made is False
    assert found.build("toy", "far", again=True).made is True
    ((tools, names, _),) = engine.imported
    assert {"uv", "wheels/alpha-1.2.0-py3-none-any.whl"} <= names
    first, second = builds()
    for words in (first, second):
        assert words[words.index("-t") + 1] == "stackyard/toy:far"
        assert words[words.index("--network") + 1] == "none"
        args = [word for before, word in pairwise(words) if before == "--build-arg"]
        assert args == [f"BASE={BASE}", f"TOOLS={tools}"]
        assert not {"--secret", "--no-cache"} & set(words)


def test_a_base_whose_packages_are_unpacked_says_that_it_wants_a_bundle(project, builds):
    with pytest.raises(UsageError, match="toy on far is built from a bundle") as caught:
        make(project, Holding(BASE)).build("toy", "far")
    assert "invoke build toy --base far --offline FILE" in caught.value.hint
    assert "invoke bundle --base far" in caught.value.hint
    assert builds() == []


def test_a_bundle_that_does_not_fit_is_refused_before_anything_is_made(project, builds, packed):
    engine = Holding(BASE)
    other = {**project.definitions.locks, "images/toy/far.lock": samples.locked("alpha==9")}
    with pytest.raises(UsageError, match=r"far\.tar does not fit toy on far"):
        make(project, engine, packed(locks=other)).build("toy", "far")
    assert (engine.imported, builds()) == ([], [])


def test_a_base_of_packages_cannot_be_built_from_a_bundle(project):
    with pytest.raises(UsageError, match="images on cpu cannot be built from a bundle"):
        make(project, Holding(), Path("far.tar")).build("toy", "cpu")


def test_a_base_out_of_files_that_was_not_made_says_what_to_type(project, builds, packed):
    with pytest.raises(NothingToRunOn) as caught:
        make(project, Holding(), packed()).build("toy", "far")
    assert caught.value.hint == "invoke base far"


class Untouched:
    """An engine that nothing may be asked of."""


HELD = ImageInfo(id="id", tags=(), labels={}, env=(), size=1, layers=())
DISK = {"disk": Fact(value="13 GiB", source="a guess")}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (DISK, "3.5 GiB are free in /engine, 13 are needed: 9.5 GiB are missing"),
        ({}, "3.5 GiB are free in /engine, 12 are needed: 8.5 GiB are missing"),
    ],
)
def test_too_little_disk_is_said_before_a_base_is_made(project, monkeypatch, facts, said):
    definitions = dataclasses.replace(project.definitions, bases={"cpu": samples.base(facts=facts)})
    engine = Holding()
    monkeypatch.setattr(engine, "data_folder", lambda: "/engine")
    monkeypatch.setattr(host, "free_bytes", lambda _: 3.5 * 2**30)
    with pytest.raises(EngineError) as caught:
        make(dataclasses.replace(project, definitions=definitions), engine).build("toy", "cpu")
    assert caught.value.what == said
    assert engine.imported == []


@pytest.mark.parametrize(
    ("recipe", "there", "fresh", "needed"),
    [
        # The other stack's image is as it would be built now: the layers that all share are there.
        ("current", True, False, "4 are needed"),
        ("current", True, True, "13 are needed"),
        ("sha256:older", True, False, "13 are needed"),
        (None, True, False, "13 are needed"),
        ("current", False, False, "13 are needed"),
    ],
)
def test_only_an_image_as_it_would_be_built_now_spares_disk(
    project, monkeypatch, recipe, there, fresh, needed
):
    other = samples.stack(name="other")
    locks = {"images/other/cpu.lock": project.definitions.locks["images/toy/cpu.lock"]}
    bases = {"cpu": samples.base(facts=DISK)}
    definitions = dataclasses.replace(
        project.definitions, bases=bases, locks={**project.definitions.locks, **locks},
        stacks={**project.definitions.stacks, "other": other},
    )  # fmt: skip
    whole = dataclasses.replace(project, definitions=definitions)
    reference = base_image.base_reference(bases["cpu"], definitions.common)
    engine = Holding("stackyard/other:cpu", *([reference] if there else []))
    builds = builder.Builder(whole, engine, lambda *_: None, fresh=fresh)
    if recipe == "current":
        image = builder.catalog.resolve(definitions, "other", "cpu")
        recipe = builds._plan(image, reference, Holding(reference).image(reference)).recipe
    if recipe:
        engine.labels["stackyard/other:cpu"] = {plan.RECIPE_LABEL: recipe}
    monkeypatch.setattr(engine, "data_folder", lambda: "/engine")
    monkeypatch.setattr(host, "free_bytes", lambda _: 3.5 * 2**30)
    with pytest.raises(EngineError, match=needed):
        builds.build("toy", "cpu")


def test_a_pulled_base_that_is_here_needs_room_for_the_rest_only(tmp_path, monkeypatch):
    base = samples.pulled(facts=DISK)
    engine, project = Holding(base.reference), pulled_project(tmp_path)
    builds = make(project, engine)
    assert builds._needed_bytes(base) == 13 * 2**30 - 1
    assert builds._needed_bytes(samples.pulled(facts=DISK, reference="far/b:1")) == 13 * 2**30
    monkeypatch.setattr(engine, "image", lambda _: dataclasses.replace(HELD, size=12 * 2**30))
    assert builds._needed_bytes(base) == host.MORE_BYTES


# invoke base, invoke bundle


def test_a_base_out_of_files_is_made_when_asked_for(project, monkeypatch):
    engine = Holding()

    def ensure(engine, base, find, say):
        engine.names.add(base.reference)
        return engine.image(base.reference)

    monkeypatch.setattr(base_host, "ensure", ensure)
    made = images.make_base(project, engine, "far", lambda *_: None)
    assert (made["reference"], made["image"], made["made"]) == (BASE, f"id of {BASE}", True)
    assert images.make_base(project, engine, "far", lambda *_: None)["made"] is False


def test_a_base_that_cannot_be_made_is_tried_once_for_all_stacks(project, monkeypatch):
    tried = []

    def refuse(*given, **more):
        tried.append(given)
        raise StackyardError("mmdebstrap failed")

    monkeypatch.setattr(base_image, "ensure_base", refuse)
    monkeypatch.setattr(builder.Builder, "_ensure_tools", lambda *_: "tools")
    monkeypatch.setattr(builder.Builder, "_require_space", lambda *_: None)
    monkeypatch.setattr(builder.Builder, "_caller", lambda *_: None)
    builds, image = make(project, Holding()), catalog.resolve(project.definitions, "toy", "cpu")
    for _ in range(3):
        with pytest.raises(StackyardError, match="mmdebstrap failed"):
            builds._foundation(image)
    assert len(tried) == 1


def test_an_unknown_base_is_named_with_the_nearest(project):
    with pytest.raises(UsageError, match="there is no base 'fat'") as caught:
        images.make_base(project, Holding(), "fat", print)
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
        images.make_bundle(other, "all", base, tmp_path / "x.tar", print)
    assert caught.value.what == what


def test_a_bundle_for_no_folder_is_refused_before_anything_is_fetched(tmp_path):
    found = samples.definitions(bases={"far": samples.carried()}, locks=locks())
    other = Project(root=tmp_path, definitions=found, default_base="far")
    with pytest.raises(UsageError) as caught:
        images.make_bundle(other, "all", "far", tmp_path / "no where" / "x.tar", print)
    assert caught.value.hint == f"mkdir -p '{tmp_path / 'no where'}'"


def pulled_project(tmp_path, **locks):
    found = samples.definitions(bases={"gpu": samples.pulled(never_built="far away")}, locks=locks)
    return Project(root=tmp_path, definitions=found, default_base="gpu")


class Registry(Holding):
    """An engine that can pull everything, and tells what it was asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def pull(self, reference, on_event=None):
        self.asked.append(reference)
        self.names.add(reference)
        return self.image(reference)


@pytest.mark.parametrize("offline", [None, Path("far.tar")])
@pytest.mark.parametrize(
    ("missing", "there"),
    [
        ("images/toy/gpu.lock and images/bases/gpu.lock", {}),
        ("images/bases/gpu.lock", {"images/toy/gpu.lock": samples.locked("alpha==1.2.0")}),
    ],
)
def test_a_base_without_a_lock_is_refused_before_anything_is_pulled(
    tmp_path, builds, missing, there, offline
):
    engine = Registry()
    with pytest.raises(UsageError) as caught:
        make(pulled_project(tmp_path, **there), engine, offline).build("toy", "gpu")
    assert caught.value.what == "toy has no lock on gpu"
    assert caught.value.why == f"not there: {missing}; far away"
    assert caught.value.hint == (
        "invoke lock toy --base gpu (pulls registry.example/torch:1, to read what it holds)"
    )
    assert (engine.asked, builds()) == ([], [])


def test_a_pulled_base_is_pulled_by_the_digest_of_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(mirrors, "collect", lambda *a, **k: None)
    digest = "sha256:" + "1" * 64
    text = lock.render_pulled(samples.pulled(), digest, {"torch": "2.1.0a0+nv"})
    project, engine = pulled_project(tmp_path, **{"images/bases/gpu.lock": text}), Registry()
    made = images.make_base(project, engine, "gpu", lambda *_: None)
    assert engine.asked == [made["reference"]] == [f"registry.example/torch@{digest}"]
    assert images.make_base(pulled_project(tmp_path), engine, "gpu", lambda *_: None)["made"]
    assert engine.asked[1:] == ["registry.example/torch:1"]


def test_a_base_is_not_pulled_where_there_is_no_room_for_it(tmp_path, monkeypatch):
    engine = Registry()
    monkeypatch.setattr(host, "free_bytes", lambda _: 3.5 * 2**30)
    with pytest.raises(EngineError, match=r"8\.5 GiB are missing"):
        images.make_base(pulled_project(tmp_path), engine, "gpu", lambda *_: None)
    assert engine.asked == []


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("[torch 1/1] RUN --mount=type=cache,target=/c uv pip install", "installing torch"),
        ("[image 2/3] RUN ldconfig", "finishing the image"),
        ("[wheel-deepspeed 1/1] RUN build", "building the wheel of deepspeed"),
        ("[internal] load metadata for docker.io/stackyard/base:cpu", ""),
        ("[base 1/1] FROM docker.io/stackyard/base:cpu", ""),
        ("[image 3/3] COPY --from=text / /", ""),
    ],
)
def test_steps_that_take_long_are_named_in_words(step, words):
    assert builder.step_words(step) == words


def test_a_step_that_stacks_share_is_named_once_and_buildkits_own_lines_are_a_tools(project):
    builds = make(project, None)
    first, again = (builds._step("[torch 1/1] RUN uv pip install") for _ in range(2))
    own = builds._step("[internal] load remote build context")
    assert first == "installing torch" and not isinstance(first, ToolLine)
    assert isinstance(again, ToolLine) and again == "[torch 1/1] RUN uv pip install"
    assert isinstance(own, ToolLine)
    assert len(builds._step("[a 1/1] RUN --mount=type=cache,target=/c " + "x" * 500)) == 100


class Pulling(Registry):
    """An engine whose pull goes on until its caller ends it."""

    def __init__(self):
        super().__init__()
        self.begun = threading.Event()

    def pull(self, reference, on_event=None):
        self.begun.set()
        for _ in range(1000):
            on_event()
            time.sleep(0.01)
        raise AssertionError("the pull was not ended")


def test_an_interrupted_pull_ends_and_nothing_is_built_after_it(tmp_path, builds):
    digest = "sha256:" + "1" * 64
    texts = {
        "images/bases/gpu.lock": lock.render_pulled(samples.pulled(), digest, {}),
        "images/toy/gpu.lock": samples.locked("alpha==1.2.0"),
    }
    engine = Pulling()
    with (
        pytest.raises(KeyboardInterrupt),
        make(pulled_project(tmp_path, **texts), engine).building(["toy"], "gpu") as jobs,
    ):
        assert engine.begun.wait(10)
        raise KeyboardInterrupt
    assert str(jobs[0].exception().__cause__) == "the build was interrupted"
    assert builds() == []


def test_an_interrupted_build_ends_each_command_that_it_still_starts(
    project, monkeypatch, allow_processes
):
    begun, ended = threading.Event(), []

    def build(self, stack, base, again=False):
        for _ in range(3):
            begun.set()
            ended.append(process.run(["sleep", "30"], check=False).code)

    monkeypatch.setattr(builder.Builder, "build", build)
    with pytest.raises(KeyboardInterrupt), make(project, Holding()).building(["toy"], "cpu"):
        assert begun.wait(10)
        raise KeyboardInterrupt
    assert ended == [-9, -9, -9]
