"""An image with users' own source in it: what changes in the plan, and only that."""

import dataclasses

import pytest

from stackyard.build import recipe
from stackyard.build.catalog import resolve
from stackyard.build.source import fork, tree
from stackyard.build.source.fork import Fork, buildable, own_names, require_tag
from stackyard.build.source.tree import Entry
from stackyard.definitions import lock
from stackyard.system.errors import UsageError
from tests.unit import samples
from tests.unit.build.test_source_naming import ONE

TREE = {"setup.py": Entry(data=b"setup(name='alpha')"), "alpha/a.py": Entry(data=b"old\n")}


def definitions(**changes):
    alpha = samples.wheel(package="alpha", version="1.2.0")
    inputs = lock.wheel_inputs(alpha)
    pins = lock.parse_lock(samples.locked("alpha==1.2.0", "setuptools==80.0.0"))
    text = lock.render_lock(pins, inputs=inputs, command="invoke lock")
    values = {
        "wheels": {"beta": samples.wheel(), "alpha": alpha},
        "locks": {**samples.locks(), "images/wheels/alpha.lock": text},
    }
    return samples.definitions(**{**values, **changes})


def forked(*sources, found=None, **changes):
    found = found or definitions()
    archives = {s.package: tree.pack(TREE) for s in sources or (ONE,)}
    return Fork(sources=sources or (ONE,), definitions=found, archives=archives, **changes)


def made(own, *, locked="alpha==1.2.0 gamma==0.5"):
    image = own.image(resolve(own.definitions, "toy", "cpu"))
    files = {path: f"text of {path}" for path in (*recipe.INSIDE, *image.locks)}
    files["images/toy/cpu.lock"] = samples.locked(*locked.split())
    files = own.files(image, files)
    return own.plan(
        recipe.make_plan(
            image, files, base_image="base:1", content=recipe.BaseContent(digest="sha256:base")
        )
    )


def test_the_source_takes_the_place_of_the_locked_wheel():
    found = made(forked())
    assert "alpha==" not in found.context["images/toy/cpu.lock"]
    assert "gamma==0.5" in found.context["images/toy/cpu.lock"]
    assert list(found.blobs) == ["sources/alpha.tar.gz"]
    text = found.context["images/toy/cpu.Dockerfile"]
    assert "--mount=type=bind,source=sources/alpha.tar.gz,target=/mnt/own.tar.gz" in text
    assert "source=images/wheels/alpha.lock,target=/mnt/wheel.lock" in text
    assert "some_of /mnt/wheel.lock setuptools > /mnt/build.lock" in text
    (step,) = [step for step in text.split("\nRUN ") if "/mnt/own.tar.gz" in step]
    assert "make_wheel /mnt/own.tar.gz /build" in step
    assert not [word for word in ("type=secret", "type=cache", "from=tools") if word in step]
    assert "require_wheel alpha /wheels" in text
    assert "assert_met alpha ''" in text
    assert "source=images/wheels/beta.lock" in text  # the other wheel is built as ever


def test_a_package_that_is_built_anyway_is_built_from_the_source():
    found = made(forked(dataclasses.replace(ONE, package="beta")))
    text = found.context["images/toy/cpu.Dockerfile"]
    assert "source=sources/beta.tar.gz" in text
    assert "/mnt/sdist.lock" not in text


def test_an_image_has_its_own_tag_and_says_what_it_is_of():
    found = made(forked())
    assert found.tag == "stackyard/toy:cpu-src-0123456789ab"
    assert found.labels["stackyard.stack"] == "toy"
    assert found.labels["org.opencontainers.image.version"] == "src-0123456789ab"
    assert found.labels[recipe.RECIPE_LABEL] == found.recipe
    assert fork.fork_of(definitions(), found.labels).sources == (ONE,)
    dirty = dataclasses.replace(ONE, dirty=True)
    assert made(forked(dirty)).tag == "stackyard/toy:cpu-src-0123456789ab-dirty"
    assert made(forked(tag="mine:1")).tag == "mine:1"


def test_the_recipe_is_of_the_very_content():
    recipes = {
        made(own).recipe
        for own in (
            forked(),
            forked(dataclasses.replace(ONE, digest="sha256:" + "d" * 64)),
            forked(dataclasses.replace(ONE, dirty=True)),
            forked(despite=("alpha-old",)),
            forked(dataclasses.replace(ONE, package="beta")),
        )
    }
    assert len(recipes) == 5
    assert made(forked()).recipe == made(forked(tag="mine:1")).recipe


def test_the_recipe_follows_from_the_labels_alone():
    """So that a publication can see whether an image is of these definitions."""
    found = made(forked(despite=("alpha-old",)))
    again = fork.fork_of(definitions(), found.labels)
    assert again.archives == {}
    assert made(again).recipe == found.recipe
    assert fork.fork_of(definitions(), {"stackyard.stack": "toy"}) is None


def test_without_a_source_nothing_of_it_is_in_a_build():
    image = resolve(definitions(), "toy", "cpu")
    files = dict.fromkeys((*recipe.INSIDE, *image.locks), "")
    found = recipe.make_plan(
        image, files, base_image="base:1", content=recipe.BaseContent(digest="sha256:base")
    )
    assert found.blobs == {}
    text = found.context["images/toy/cpu.Dockerfile"]
    assert not [word for word in ("own.tar.gz", "require_wheel", "assert_met") if word in text]
    assert '"own"' not in found.context["images/toy/fixes.json"]


def test_fixes_of_the_source_are_told_apart():
    assert '"own": true' in made(forked()).context["images/toy/fixes.json"]


def test_a_fix_is_left_out_with_all_that_it_does():
    loud = samples.fix(remedy=samples.remedy(env={"ALPHA": "1"}))
    found = definitions(fixes={"alpha-old": loud})
    assert "ALPHA" in forked(found=found).image(resolve(found, "toy", "cpu")).env
    image = forked(found=found, despite=("alpha-old",)).image(resolve(found, "toy", "cpu"))
    assert image.fixes == ()
    assert image.left_out["alpha-old"] == "left out by --despite"
    assert "ALPHA" not in image.env
    with pytest.raises(UsageError, match="has no fix 'alpha-odd'"):
        forked(despite=("alpha-odd",)).image(resolve(definitions(), "toy", "cpu"))


def test_a_version_is_told_to_a_build_that_asks_git():
    own = forked(dataclasses.replace(ONE, version="1.2.0+gabc"))
    text = made(own).context["images/toy/cpu.Dockerfile"]
    assert "export SETUPTOOLS_SCM_PRETEND_VERSION=1.2.0+gabc" in text


def test_what_a_build_needs_must_be_locked():
    found = definitions(locks=samples.locks())
    with pytest.raises(UsageError, match="building alpha from source has no lock"):
        made(forked(found=found))
    stale = samples.locked("setuptools==80.0.0")
    found = definitions(locks={**samples.locks(), "images/wheels/alpha.lock": stale})
    with pytest.raises(UsageError, match="has no lock") as refused:
        made(forked(found=found))
    assert "is of another definition" in refused.value.why


def test_what_can_be_built_from_source_is_what_has_a_build():
    assert buildable(definitions(), "toy") == ["alpha", "beta"]
    assert buildable(samples.definitions(), "toy") == ["beta"]


def test_every_name_that_a_build_gives_is_taken():
    found = definitions()
    assert "stackyard/toy:cpu" in own_names(found)
    assert {base.reference for base in found.bases.values()} <= own_names(found)


def test_a_tag_is_never_the_stacks_own():
    assert require_tag("", "toy", "cpu") == ""
    assert require_tag("try1", "toy", "cpu") == "stackyard/toy:try1"
    assert require_tag("registry.example/me/toy:1", "toy", "cpu") == "registry.example/me/toy:1"
    for tag in ("stackyard/toy:cpu", "cpu", "docker.io/stackyard/toy:cpu"):
        with pytest.raises(UsageError, match="is the stack's own image"):
            require_tag(tag, "toy", "cpu")
    others = ("stackyard/toy:ngc", "stackyard/other:cpu", "stackyard/base:cpu")
    for tag in (*others, "ngc", "index.docker.io/stackyard/other:cpu"):
        with pytest.raises(UsageError, match="is an image of stackyard's own"):
            require_tag(tag, "toy", "cpu", others)
    for tag in ("A B", "x:y:z", "-x"):
        with pytest.raises(UsageError, match="is not a valid name"):
            require_tag(tag, "toy", "cpu")
