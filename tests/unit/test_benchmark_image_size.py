"""The pure half of the benchmark of sizes: the other sides' Dockerfiles, and what is concluded."""

import re
from pathlib import Path

import pytest

from benchmarks import hand_build, image_size
from stackyard.build import recipe
from stackyard.definitions.project import load_project
from stackyard.system.errors import StackyardError

PROJECT = load_project()
STACKS = PROJECT.stacks("all")
BY_HAND = """\
# A comment
FROM base
SHELL ["/bin/bash", "-c"]
RUN --mount=type=secret,id=a,target=/a \\
    --mount=type=bind,source=b,target=/b \\
    cd /tmp \\
    && one --flag
RUN --mount=type=secret,id=a,target=/a \\
    two
# Another
COPY x /x
CMD ["x"]
"""


def test_all_run_steps_become_one_with_each_mount_once():
    assert image_size.one_run(BY_HAND).splitlines() == [
        "FROM base",
        'SHELL ["/bin/bash", "-c"]',
        "RUN --mount=type=secret,id=a,target=/a --mount=type=bind,source=b,target=/b"
        " ( cd /tmp && one --flag ) && ( two )",
        "COPY x /x",
        'CMD ["x"]',
    ]


@pytest.mark.parametrize("stack", STACKS)
def test_the_one_step_has_every_command_of_the_hand_written_file(stack):
    text = (hand_build.DOCKERFILES / f"{stack}.Dockerfile").read_text(encoding="utf-8")
    (run,) = [x for x in image_size.one_run(text).splitlines() if x.startswith("RUN ")]
    assert run.count(" ( ") == text.count("\nRUN ") > 2
    for line in text.splitlines():
        word = line.strip().removesuffix("\\").removeprefix("&& ").strip()
        if word.startswith(("pip ", "apt-get ", "rm ", "python3 ")):
            assert word in run


def test_the_recipe_takes_only_files_that_a_build_is_given():
    """HPCCM is in the benchmarks' own environment, so its recipe is read as text."""
    text = (Path(hand_build.__file__).parent / "hpccm_recipe.py").read_text(encoding="utf-8")
    names = re.findall(r"\{INSIDE\}/([^\"',]+)", text)
    assert "node.py" in names
    assert {f"stackyard/inside/{name}" for name in names} <= set(recipe.INSIDE)


def test_every_step_is_given_the_callers_settings():
    text = image_size.with_secrets("FROM a\nRUN one && \\\n    RUN two\nCOPY b c\nRUN three\n")
    lines = text.splitlines()
    assert lines[0] == "FROM a"
    assert lines[2] == "    RUN two"
    for number, command in ((1, "one && \\"), (4, "three")):
        assert lines[number].startswith("RUN --mount=type=secret,id=apt.sources,")
        assert lines[number].endswith(f"source=wheels,target=/tmp/wheels {command}")


@pytest.mark.parametrize("stack", STACKS)
def test_the_recipe_is_given_every_package_that_the_locks_name(stack):
    made = image_size.ingredients(PROJECT, stack)
    named = {pin for key in ("torch", "packages", "built", "built_without_torch")
             for pin in made[key]}  # fmt: skip
    for file in ("images/bases/cpu.lock", f"images/{stack}/cpu.lock"):
        text = (PROJECT.root / file).read_text(encoding="utf-8")
        assert set(hand_build.requirements(text).split()) <= named
    built = PROJECT.definitions.stacks[stack].builds
    assert {pin.split("==")[0] for pin in (*made["built"], *made["built_without_torch"])} == set(
        built
    )
    assert {*PROJECT.definitions.common.system, "g++", "python3-pip"} <= set(made["system"])


def run(side, size, stack="megatron"):
    return {"side": side, "stack": stack, "over_base": {"compressed": size, "unpacked": 2 * size}}


def runs(**sizes):
    found = {"stackyard": 80, "by hand": 100, "one RUN": 110, "HPCCM": 120}
    return [run(side, sizes.get(side[:3], size) * 10**6) for side, size in found.items()]


def verdicts(given):
    return {v.what: v for v in image_size.summarise(given, ["megatron"]).verdicts}


def test_ours_is_held_against_each_other_side_and_its_budget(monkeypatch):
    monkeypatch.setitem(image_size.BUDGETS, "megatron", 80.0)
    found = verdicts(runs())
    assert len(found) == 4
    assert all(verdict.met for verdict in found.values())
    assert found["bytes as pushed, against by hand, the worst stack"].value == 0.8


def test_one_megabyte_more_misses_the_budget_and_the_goal(monkeypatch):
    monkeypatch.setitem(image_size.BUDGETS, "megatron", 80.0)
    found = verdicts(runs(sta=81))
    assert [what for what, verdict in found.items() if not verdict.met] == [
        "megatron: MB as pushed, against its budget",
        "bytes as pushed, against by hand, the worst stack",
    ]


def test_the_worst_stack_decides():
    given = [*runs(), *[{**r, "stack": "fairseq"} for r in runs(sta=95)]]
    found = {v.what: v.value for v in image_size.summarise(given, ["megatron", "fairseq"]).verdicts}
    assert found["bytes as pushed, against by hand, the worst stack"] == 0.95


def test_a_side_that_was_not_measured_gives_no_ratio():
    with pytest.raises(ValueError):
        image_size.ratio(runs()[:2], "HPCCM", "megatron")


def test_every_stack_has_a_budget():
    assert set(image_size.BUDGETS) == set(STACKS)


def test_the_base_is_taken_off_both_sizes():
    weight = {"compressed": 30, "unpacked": 90, "layers": 4}
    base = {"compressed": 10, "unpacked": 20, "layers": 1}
    assert image_size.over(weight, base) == {"compressed": 20, "unpacked": 70}


def test_another_content_is_no_comparison():
    ours = {"python": {"torch": "2"}, "files": {}}
    image_size.require_same(ours, {"python": {"torch": "2", "wheel": "1"}, "files": {}}, "x")
    with pytest.raises(StackyardError, match="megatron, HPCCM lacks what Stackyard's image holds"):
        image_size.require_same(ours, {"python": {}, "files": {}}, "megatron, HPCCM")
