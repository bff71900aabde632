"""Committed reports are of what this tree builds: evidence of another recipe is no evidence."""

import fnmatch
import json
import re

import pytest

from stackyard.build import base_image, catalog, recipe
from stackyard.definitions.project import ROOT, load_project

REPORTS = ROOT / "docs" / "reports"
# Hardware reached this in images of older recipes: what counts there is the GPU, torch and NCCL.
BASELINES = "baselines"


def stale(report):
    """What is wrong with the image of a report; empty where this tree builds it."""
    image = report["image"]
    if report.get("kind") == "certify" and "recipe" not in image:
        # Older ones hold the image's id alone: what that is, another report says.
        others = [one for one in committed().values() if one["kind"] != "certify"]
        same = [stale(one) for one in others if one["image"]["id"] == image["id"]]
        return min(same, default="is of an image that no report describes")
    if "base" not in image:
        return "does not name its base's digests"
    project = load_project()
    found = catalog.resolve(project.definitions, report["stack"], report["base"])
    labels = {
        recipe.BASE_LABEL: image["base"]["digest"],
        recipe.PACKAGES_LABEL: image["base"]["packages"],
    }
    files = recipe.context_files(project.root, found)
    made = recipe.make_plan(
        found, files, base_image="", content=base_image.content_by(found.base, found.common, labels)
    )
    return "" if made.recipe == image["recipe"] else f"is of recipe {image['recipe']}"


def committed():
    """The reports of images, by path below docs/reports."""
    found = {
        str(path.relative_to(REPORTS)): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(REPORTS.rglob("*.json"))
        if path.relative_to(REPORTS).parts[0] != BASELINES
    }
    return {path: value for path, value in found.items() if "image" in value}


@pytest.mark.parametrize("path", sorted(committed()))
def test_a_committed_report_is_of_todays_recipe(path):
    assert stale(committed()[path]) == "", f"{path}: measure it again, or remove it"


def test_baselines_are_read_from_their_reports_with_the_torch_and_nccl_of_images():
    found = load_project().definitions.baselines
    lock = (ROOT / "images" / "bases" / "cuda.lock").read_text(encoding="utf-8")
    for path in sorted((REPORTS / BASELINES).rglob("*.json")):
        baseline = found[path.parent.name]
        place = path.relative_to(ROOT).as_posix()
        named = [pattern for one in baseline.measures for pattern in one.source]
        assert any(fnmatch.fnmatch(place, pattern) for pattern in named), path
        measured = json.loads(path.read_text(encoding="utf-8"))["gpus"]["measured"]
        assert measured["gpu"] in baseline.gpus
        for package, version in (
            ("torch", measured["torch"].partition("+")[0]), ("nvidia-nccl-cu13", measured["nccl"])
        ):  # fmt: skip
            assert re.search(rf"^{package}===?{re.escape(version)}\b", lock, re.MULTILINE), path


def test_a_report_of_another_recipe_is_found():
    project = load_project()
    found = catalog.resolve(project.definitions, "fairseq", "cpu")
    content = recipe.BaseContent(
        digest="sha256:a", packages=base_image.packages.reference("sha256:b"),
        key=base_image.base_key(found.base, found.common),
    )  # fmt: skip
    files = recipe.context_files(project.root, found)
    made = recipe.make_plan(found, files, base_image="", content=content).recipe
    base = {"digest": "sha256:a", "packages": "sha256:b"}
    good = {"stack": "fairseq", "base": "cpu", "image": {"recipe": made, "base": base}}
    assert stale(good) == ""
    other = {"digest": "sha256:c", "packages": "sha256:b"}
    for image in ({"recipe": made}, {"recipe": "x", "base": base}, {"recipe": made, "base": other}):
        assert stale({**good, "image": image}) != "", image
