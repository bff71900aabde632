"""The committed Dockerfiles and fixes are exactly what the definitions and templates say."""

import pytest

from stackyard.build.catalog import resolve
from stackyard.build.dockerfile import render_files
from stackyard.cli.steps import images
from stackyard.definitions.project import ROOT, load_project

PROJECT = load_project(locks_required=False)
IMAGES = [
    (stack, base)
    for stack in sorted(PROJECT.definitions.stacks)
    for base in sorted(PROJECT.definitions.bases)
]
TYPE_THIS = "type: invoke render, and read the difference"


@pytest.mark.parametrize(("stack", "base"), IMAGES)
def test_committed_files_are_what_is_rendered(stack, base):
    for path, text in render_files(resolve(PROJECT.definitions, stack, base)).items():
        assert (ROOT / path).is_file(), f"{path} is missing; {TYPE_THIS}"
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} differs; {TYPE_THIS}"


def test_the_check_of_the_command_line_agrees():
    assert images.render_files(PROJECT, "all", check=True) == []


def test_no_rendered_file_is_left_over():
    wanted = {
        path
        for stack, base in IMAGES
        for path in render_files(resolve(PROJECT.definitions, stack, base))
    }
    there = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.Dockerfile", "*.fixes.json")
        for path in (ROOT / "images").rglob(pattern)
    }
    assert there - wanted == set()


def test_a_changed_a_missing_and_a_current_file_are_told_apart(tmp_path):
    files = render_files(resolve(PROJECT.definitions, *IMAGES[0]))
    missing, changed, *current = sorted(files)
    for path in (changed, *current):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(files[path])
    (tmp_path / changed).write_text("by hand\n")
    stack, base = IMAGES[0]
    only = images.Project(
        root=tmp_path,
        definitions=images.catalog.Definitions(
            **{
                **vars(PROJECT.definitions),
                "stacks": {stack: PROJECT.definitions.stacks[stack]},
                "bases": {base: PROJECT.definitions.bases[base]},
            }
        ),
        default_base=base,
    )
    assert images.render_files(only, "all", check=True) == [missing, changed]
    assert (tmp_path / changed).read_text() == "by hand\n"
    assert sorted(images.render_files(only, "all", check=False)) == [missing, changed]
    assert images.render_files(only, "all", check=True) == []
