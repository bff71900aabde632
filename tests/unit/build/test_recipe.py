"""A build as a value: what the recipe covers, and what it does not."""

import dataclasses

import pytest

from stackyard.build import recipe
from stackyard.build.catalog import resolve
from stackyard.definitions.project import ROOT
from stackyard.definitions.spec import LeftOut
from tests.unit import samples

DIGEST = "sha256:base"


def image(**changes):
    return resolve(samples.definitions(**changes), "toy", "cpu")


def made(found=None, *, digest=DIGEST, packages="", key="", change=None, **changes):
    found = found or image(**changes)
    files = {path: f"text of {path}" for path in (*recipe.INSIDE, *found.locks)}
    return recipe.make_plan(
        found,
        {**files, **(change or {})},
        base_image="base:1",
        content=recipe.BaseContent(digest=digest, packages=packages, key=key),
    )


def test_a_plan_names_its_image_its_dockerfile_and_its_base():
    found = made()
    assert (found.stack, found.base, found.tag) == ("toy", "cpu", "stackyard/toy:cpu")
    assert (found.dockerfile, found.base_image) == ("images/toy/cpu.Dockerfile", "base:1")


def test_the_context_holds_the_files_of_the_project_and_the_rendered_ones():
    assert sorted(made().context) == sorted(
        [
            *recipe.INSIDE,
            *samples.locks(),
            "images/toy/cpu.Dockerfile",
            "images/toy/fixes.json",
        ]
    )


def test_everything_a_build_takes_from_the_project_is_there():
    assert [path for path in recipe.INSIDE if not (ROOT / path).is_file()] == []


def test_every_file_that_a_dockerfile_mounts_is_in_the_context():
    found = made()
    text = found.context[found.dockerfile]
    named = {word.split("=")[1].split(",")[0] for line in text.splitlines()
             for word in line.split("type=bind,")[1:] if word.startswith("source=")}  # fmt: skip
    assert {"stackyard/inside/node.py", "images/toy/cpu.lock"} <= named
    assert sorted(named - set(found.context)) == []
    # A layer that COPY makes holds folders with the time of the build.
    assert "COPY" not in text


def test_the_labels_say_what_the_image_is():
    found = made()
    assert dict(found.labels) == {
        "org.opencontainers.image.title": "stackyard/toy",
        "org.opencontainers.image.version": samples.stack().packages["alpha"],
        "org.opencontainers.image.ref.name": "toy-cpu",
        "org.opencontainers.image.base.name": samples.base().reference,
        "org.opencontainers.image.base.digest": DIGEST,
        "stackyard.recipe": found.recipe,
        "stackyard.stack": "toy",
        "stackyard.base": "cpu",
        "stackyard.base.digest": DIGEST,
        "stackyard.fixes": "alpha-old",
    }


def test_the_same_definitions_give_the_same_recipe():
    assert made().recipe == made().recipe
    assert made().recipe.startswith("sha256:")


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "sha256:other"},
        {"packages": "stackyard/packages:other"},
        {"key": "other"},
        {"change": {"stackyard/inside/build.sh": "another"}},
        {"change": {"images/toy/cpu.lock": "another"}},
        # Only what the image says of itself: its version.
        {"stacks": {"toy": samples.stack(packages={"alpha": "1.2.1"})}},
        {"stacks": {"toy": samples.stack(env={"TOY": "2"})}},
        {"stacks": {"toy": samples.stack(imports=("alpha", "beta"))}},
        {"fixes": {"alpha-old": samples.fix(remedy=samples.remedy(env={"A": "1"}))}},
        {"wheels": {"beta": samples.wheel(env={"FLAG": "1"})}},
        {"change": {"stackyard/inside/leave_out.py": "another"}},
        {"common": samples.common(left_out=(LeftOut(path="a", why="w", kept={}),))},
        {"common": samples.common(left_out=(LeftOut(path="b", why="w", kept={}),))},
    ],
)
def test_what_decides_the_content_changes_the_recipe(changes):
    assert made(**changes).recipe != made().recipe


def test_the_version_of_the_installer_is_part_of_the_recipe(monkeypatch):
    before = made().recipe
    monkeypatch.setattr(recipe.dockerfile, "UV_VERSION", "0.0.0")
    monkeypatch.setattr(recipe.dockerfile, "TOOLS", recipe.dockerfile.TOOLS)
    assert made().recipe != before


@pytest.mark.parametrize(
    "changes",
    [
        {"stacks": {"toy": samples.stack(summary="another")}},
        {"stacks": {"toy": samples.stack(smoke=samples.smoke(updates=60))}},
        {"fixes": {"alpha-old": samples.fix(symptom="another", why="another")}},
    ],
)
def test_what_does_not_decide_the_content_leaves_the_recipe(changes):
    assert made(**changes).recipe == made().recipe


def test_the_name_of_the_base_image_is_no_part_of_the_recipe():
    found = image()
    files = dict.fromkeys((*recipe.INSIDE, *found.locks), "")
    one, other = (
        recipe.make_plan(found, files, base_image=name, content=recipe.BaseContent(digest=DIGEST))
        for name in ("a", "b")
    )
    assert one.recipe == other.recipe
    assert dataclasses.replace(one, base_image="b") == other
