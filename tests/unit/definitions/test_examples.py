"""Trainings that come with a stack: the committed ones can be started, wrong ones are refused."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stackyard.definitions.examples import TEXT, Where, job_of
from stackyard.definitions.project import ROOT
from stackyard.definitions.read.example import read_example
from stackyard.mesh.jobs import select, start_request
from stackyard.system.errors import DefinitionError, UsageError
from tests.unit.definitions.test_fuzz_definitions import FEW, examples
from tests.unit.fuzzing import DOCUMENTS, broken_lines, broken_structure
from tests.unit.machines import node, plan

COMMITTED = sorted(ROOT.glob("images/*/examples/*.yml"))
IDS = [f"{path.parent.parent.name}/{path.stem}" for path in COMMITTED]
SAMPLE = """\
summary: a sample
launcher: accelerate
options: {zero_stage: "2"}
files: {/srv/demo: smoke}
values: {updates: "60", lr: "0.1"}
multiple: 2
prepare:
  - run: [python3, /srv/demo/prepare.py, --data, "{data}"]
program: [/srv/demo/train.py, "--data={data}", "--lr={lr}", "--dp={groups}", "--to={save}"]
devices:
  cuda: {args: ["--steps={updates}"]}
  cpu: {env: {OMP_NUM_THREADS: "1"}, values: {lr: "0.5"}}
"""


def read(text):
    return read_example(text, "images/toy/examples/demo.yml", "toy", "demo")


def load(path):
    stack = path.parent.parent.name
    file = str(path.relative_to(ROOT))
    return read_example(path.read_text(encoding="utf-8"), file, stack, path.stem)


def where(device="cpu", nodes=2, per_node=2):
    return Where(name="demo-1", base="b", image="sha256:0", nodes=nodes, per_node=per_node,
                 device=device, folder="/job", save="/job/checkpoints")  # fmt: skip


def looped(program="/srv/demo/plain.py", **more):
    return changed(plain={"what": "a plain loop", "program": program, **more})


def problems(text):
    with pytest.raises(DefinitionError) as caught:
        read(text)
    start = "images/toy/examples/demo.yml:"
    return [str(problem).removeprefix(start) for problem in caught.value.problems]


def changed(**changes):
    value = {**yaml.safe_load(SAMPLE), **changes}
    return yaml.safe_dump({key: v for key, v in value.items() if v is not None}, width=1000)


# Those that are committed


def test_every_stack_has_examples():
    stacks = {path.parent.name for path in ROOT.glob("images/*/stack.yml")}
    assert {path.parent.parent.name for path in COMMITTED} == stacks


@pytest.mark.parametrize(
    ("path", "device"),
    [pytest.param(path, device, id=f"{name}-{device}")
     for path, name in zip(COMMITTED, IDS, strict=True) for device in load(path).devices],
)  # fmt: skip
def test_a_committed_example_is_started_by_its_launcher(path, device):
    example = load(path)
    gpus = tuple(range(4)) if device == "cuda" else ()
    mesh = plan(node("a", gpus=gpus), node("b", gpus=gpus))
    job = job_of(example, where(device, per_node=4), {})
    value, _ = start_request(mesh, job, select(mesh, 4), 29500, 60.0)
    assert len(value["steps"]) == 1 + len(example.prepare)
    assert value["shown"]["ranks"] == 8
    assert not any("{" in word for words in (job.program, *job.prepare) for word in words)


@pytest.mark.parametrize("path", COMMITTED, ids=IDS)
def test_the_files_of_a_committed_example_are_there(path):
    example = load(path)
    stack = ROOT / "images" / example.stack
    for place, folder in example.files.items():
        assert (stack / folder).is_dir()
        loop = (example.plain.program,) if example.plain else ()
        for words in (example.program, loop, *(step.run for step in example.prepare)):
            for word in words:
                if word.startswith(f"{place}/"):
                    assert (stack / folder / word.removeprefix(f"{place}/")).is_file(), word
    assert example.summary and set(example.devices) <= {"cpu", "cuda"}


# How one becomes a job


def test_an_example_is_filled_for_its_place():
    job = job_of(read(SAMPLE), where(), {"/srv/demo/train.py": b"x"})
    assert job.program == (
        "/srv/demo/train.py", "--data=/job/data", "--lr=0.5", "--dp=2", "--to=/job/checkpoints",
    )  # fmt: skip
    assert job.prepare == (("python3", "/srv/demo/prepare.py", "--data", "/job/data"),)
    assert (job.env, job.folder, job.launcher, job.options) == (
        {"OMP_NUM_THREADS": "1"}, "/srv/demo", "accelerate", {"zero_stage": "2"},
    )  # fmt: skip
    assert job.files == {"/srv/demo/train.py": b"x"}


def test_a_size_adds_its_arguments():
    job = job_of(read(SAMPLE), where("cuda"), {}, {"updates": "7"})
    assert job.program[-1:] == ("--steps=7",)
    assert "--lr=0.1" in job.program


def test_what_the_user_sets_goes_over_what_a_size_sets():
    assert "--lr=2{3}" in job_of(read(SAMPLE), where(), {}, {"lr": "2{3}"}).program


def test_what_is_given_by_its_place_is_filled():
    names = ["text", "ranks", "nodes", "per_node", "record", "tensorboard"]
    example = read(changed(program=[f"{{{name}}}" for name in names]))
    job = job_of(example, where(nodes=3, per_node=2), {})
    assert job.program == (
        TEXT, "6", "3", "2", "/job/record", "/job/checkpoints/tensorboard",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "more", "updates"),
    [
        ({}, (), 60),
        ({"updates": "7"}, ("--clip=1",), 7),
        ({"updates": "many"}, (), None),
        ({}, ("--steps=9",), None),
        ({}, ("--steps", "9"), None),
    ],
)
def test_how_many_updates_a_job_makes_is_known_unless_the_user_may_have_changed_it(
    given, more, updates
):
    assert job_of(read(SAMPLE), where("cuda"), {}, given, more).updates == updates


def test_every_example_writes_event_files_below_its_checkpoints():
    for path in COMMITTED:
        found = job_of(load(path), where(nodes=4, per_node=4), {})
        assert any("=/job/checkpoints/tensorboard" in word for word in found.program), path
        assert found.updates, path


@pytest.mark.parametrize(
    ("place", "given", "said"),
    [
        (where(nodes=1, per_node=3), {}, "demo needs a multiple of 2 ranks, not 3"),
        (where(), {"updtes": "1"}, "demo has no value 'updtes'"),
        (where(), {"data": "/x"}, "demo has no value 'data'"),
    ],
)
def test_what_an_example_does_not_take_is_refused_with_a_hint(place, given, said):
    with pytest.raises(UsageError) as caught:
        job_of(read(SAMPLE), place, {}, given)
    assert said in caught.value.what
    assert caught.value.hint


def test_a_device_without_a_size_is_refused_with_those_that_have_one():
    example = read(changed(devices={"cuda": {}}))
    with pytest.raises(UsageError, match="demo has no size for cpu ranks, only for cuda"):
        job_of(example, where("cpu"), {})


# Wrong ones


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (changed(program=["{dta}"]), "program: unknown {dta}; did you mean 'data'?"),
        (looped("/srv/x/p.py"), "plain: '/srv/x/p.py' must lie in a folder of files"),
        (looped(costs={"x": {"what": "w"}}), "plain.costs.x: must change args, options or values"),
        (looped(costs={"X": {"what": "w", "args": ["a"]}}), "plain.costs.X: 'X' cannot be the"),
        (looped(costs={"x": {"what": "w", "values": {"l": "1"}}}), "plain: unknown 'l'"),
        (looped(costs={"x": {"what": "w", "args": ["{l}"]}}), "plain: unknown {l}"),
        (looped(costs={"x": {"what": "w", "options": {"zero_stage": "9"}}}),
         "plain: option zero_stage"),
        (changed(program=["{}"]), "program: unknown {}"),
        (changed(program=["{0}"]), "program: unknown {0}"),
        (changed(program=["{lr"]), "program: '{lr': expected '}'"),
        (changed(program=["lr}"]), "program: 'lr}': Single '}'"),
        (changed(program=["{lr.real}"]), "program: unknown {lr.real}"),
        (changed(program=["{lr!r}"]), "program: '{lr!r}': a placeholder is {lr} and nothing more"),
        (changed(program=["{lr:>9999}"]), "program: '{lr:>9999}': a placeholder is {lr}"),
        (changed(program=["{lr:{lr}}"]), "program: '{lr:{lr}}': a placeholder is {lr}"),
        (changed(program=[]), "program: must name a program"),
        (changed(program=None), "program: required key is missing"),
        (changed(prepare=[{"run": ["{dta}"]}]), "prepare: unknown {dta}"),
        (changed(prepare=[{"run": []}]), "prepare[0].run: must name a command"),
        (changed(prepare=[{}]), "prepare[0].run: required key is missing"),
        (changed(prepare=[{"ruin": ["a"]}]), "prepare[0].ruin: unknown key"),
        (changed(launcher="mpirun"), "launcher: unknown value 'mpirun'"),
        (changed(launcher="torchrun"), "options: there is no option 'zero_stage'"),
        (changed(options={"zero_stage": "9"}), "options: option zero_stage must be 0 to 3"),
        (changed(devices={"tpu": {}}), "devices.tpu: a device is cpu or cuda"),
        (changed(devices={}), "devices: names no device"),
        (changed(devices=None), "devices: required key is missing"),
        (changed(devices={"cpu": {"args": ["{x}"]}}), "devices.cpu.args: unknown {x}"),
        (changed(devices={"cpu": {"values": {"x": "1"}}}), "devices.cpu.values: unknown 'x'"),
        (changed(devices={"cpu": {"arg": []}}), "devices.cpu.arg: unknown key"),
        (changed(devices={"cpu": {"env": {"A-B": "1"}}}), "devices.cpu.env.A-B: must be the name"),
        (changed(multiple=0), "multiple: must be at least 1"),
        (changed(values={"data": "/x"}), "values: data is set by Stackyard"),
        (changed(values={"a-b": "1"}), "values: 'a-b' cannot be a placeholder's name"),
        (changed(files={"srv/demo": "smoke"}), "files: 'srv/demo' must be an absolute path"),
        (changed(files={"/srv/demo": "../x"}), "files: '../x' must be a folder of the stack"),
        (changed(sumary="x"), "sumary: unknown key; did you mean 'summary'?"),
    ],
)  # fmt: skip
def test_a_wrong_example_is_refused_with_its_key(text, said):
    assert any(problem.partition(": ")[2].startswith(said) for problem in problems(text)), problems(
        text
    )


def test_every_problem_is_told_at_once_with_its_line():
    text = SAMPLE.replace("accelerate", "mpirun").replace("{groups}", "{group}")
    text = text.replace("cuda:", "gpu:").replace("multiple: 2", "multiple: two")
    assert [problem.partition(":")[0] for problem in problems(text)] == ["2", "6", "6", "9", "11"]


def test_braces_that_are_written_twice_stay_and_fill_nothing():
    example = read(changed(program=["{{lr}}={lr}"]))
    assert job_of(example, where("cuda"), {}).program[0] == "{lr}=0.1"


# Anything else


def answered(text):
    """Every text is read and filled, or refused with its file and a line that it has."""
    try:
        example = read(text)
    except DefinitionError as error:
        for problem in error.problems:
            assert problem.file == "images/toy/examples/demo.yml" and problem.message
            assert 1 <= problem.line <= len(text.splitlines()) + 1
            assert str(problem).isprintable()
        assert error.problems
        return
    for device in example.devices:
        ranks = where(device, nodes=1, per_node=example.multiple)
        assert job_of(example, ranks, {}).program


@examples(FEW)
@given(st.one_of(st.text(max_size=200), st.sampled_from(DOCUMENTS)))
def test_any_text_is_filled_or_refused_with_its_place(text):
    answered(text)


@examples(FEW)
@given(broken_lines(SAMPLE))
def test_a_broken_example_is_filled_or_refused_with_its_place(text):
    answered(text)


@examples(FEW)
@given(broken_structure(yaml.safe_load(SAMPLE)))
def test_an_example_may_hold_any_values(text):
    answered(text)
