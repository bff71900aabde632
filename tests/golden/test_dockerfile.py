"""The committed Dockerfiles and fixes are exactly what the definitions and templates say."""

import re
import shutil
from pathlib import Path

import pytest

from stackyard.build.catalog import resolve
from stackyard.build.dockerfile import render_files
from stackyard.build.locks.locking import stale_locks
from stackyard.cli.steps import images
from stackyard.definitions import lock
from stackyard.definitions.project import ROOT, load_project
from stackyard.definitions.references import wanted_locks

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
        for pattern in ("*.Dockerfile", "*fixes.json")
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


def lines_of(path):
    """A file's lines without comments: what a lock says of itself names its base."""
    return tuple(line for line in path.read_text().splitlines() if not line.startswith("#"))


def needless(paths):
    """Files that hold nothing, and those that hold what another one does."""
    by_content: dict[tuple[str, ...], list[Path]] = {}
    for path in paths:
        by_content.setdefault(lines_of(path), []).append(path)
    nothing = {(), ("[]",), ("{}",)}
    return sorted(
        path
        for content, same in by_content.items()
        for path in (same if content in nothing else same[1:])
    )


def test_no_committed_lock_and_no_file_of_wheels_and_fixes_is_empty_or_a_copy():
    assert needless(sorted((ROOT / "images").glob("*/*.lock"))) == []
    wheels = sorted((ROOT / "images/wheels").iterdir())
    assert len(wheels) <= 2 * len(PROJECT.definitions.wheels) + 1
    fixes = sorted((ROOT / "images").rglob("*fixes.json"))
    assert needless([*wheels, *fixes]) == []
    assert [path.parent for path in fixes] == sorted({path.parent for path in fixes})


def test_an_empty_file_and_a_copy_are_seen(tmp_path):
    texts = {"a": "# on cpu\nx==1\n", "b": "# on cuda\nx==1\n", "c": "x==2\n", "d": "[]\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert needless(sorted(tmp_path.iterdir())) == [tmp_path / "b", tmp_path / "d"]


@pytest.fixture
def copied(tmp_path):
    """A copy of the definitions, their locks and what is rendered of them."""
    shutil.copytree(ROOT / "images", tmp_path / "images")
    shutil.copy(ROOT / "stackyard.toml", tmp_path)
    return tmp_path


def locked_again(root, name, version):
    """Lock what is stale, as if an index offered that version and nothing else had moved."""
    found = load_project(root, locks_required=False)
    definitions = found.definitions
    wanted = {
        path: inputs
        for stack in definitions.stacks.values()
        for base in definitions.bases.values()
        for path, inputs in wanted_locks(definitions, stack, base).items()
    }
    locks = dict(definitions.locks)
    for path in stale_locks(found):
        text = locks[path].replace(lock.locked_inputs(locks[path]), wanted[path])
        locks[path] = re.sub(rf"^{name}==\S+", f"{name}=={version}", text, flags=re.MULTILINE)
    for path, text in lock.files(locks).items():
        (root / path).write_text(text)


def differing(root):
    """Files of the copy that differ from those of this project."""
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and path.read_bytes() != (ROOT / path.relative_to(root)).read_bytes()
    )


@pytest.mark.parametrize(
    ("file", "old", "name", "version", "others"),
    [
        (
            "images/wheels/antlr4-python3-runtime.yml", 'version: "4.9.3"',
            "antlr4-python3-runtime", "4.9.4",
            ["images/wheels/antlr4-python3-runtime.lock"],
        ),
        (
            "images/wheels/fairscale.yml", "wheel==0.48.0", "wheel", "0.48.1",
            ["images/wheels/fairscale.lock"],
        ),
        # A stack is locked for each base: what its packages require depends on the base's torch.
        # cuda and cuda12 need the same as cpu, and nvidia-host's torch has other requirements.
        (
            "images/fairseq/stack.yml", 'sentencepiece: "0.2.3"', "sentencepiece", "0.2.4",
            [f"images/fairseq/{base}.lock" for base in ("cpu", "nvidia-host")],
        ),
        # A fix of fairseq is for torch 2.6 and later. No other base, and no wheel, is touched.
        (
            "images/bases/cuda12.yml", "torch===2.7.1", "torch", "2.5.1",
            [
                "images/bases/cuda12.lock",
                *(f"images/{stack}/cpu.lock" for stack in ("accelerate", "fairseq", "megatron")),
                "images/fairseq/cuda12.Dockerfile",
            ],
        ),
    ],
)  # fmt: skip
def test_one_version_changed_is_one_definition_its_locks_and_the_dockerfiles_it_touches(
    copied, file, old, name, version, others
):
    text = (copied / file).read_text()
    assert text.count(old) == 1
    (copied / file).write_text(text.replace(old, re.sub(r"[\d.]+(?=\"?$)", version, old)))
    locked_again(copied, name, version)
    images.render_files(load_project(copied), "all", check=False)
    assert differing(copied) == sorted([file, *others])
