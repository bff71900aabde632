"""Which stacks, base, GPUs and image a command means, from what was typed."""

import dataclasses
from types import SimpleNamespace

import pytest

from stackyard.build.choice import decide
from stackyard.definitions.project import Project, load_project
from stackyard.system import engine
from stackyard.system.errors import UsageError
from tests.unit import samples

PROJECT = load_project(locks_required=False)


@pytest.mark.parametrize(
    ("base", "gpus", "anywhere", "name", "device"),
    [
        ("", None, False, "cuda", "cuda"),
        ("", 0, False, "cpu", "cpu"),
        ("", 2, False, "cuda", "cuda"),
        ("cpu", None, False, "cpu", "cpu"),
        ("cuda12", 2, False, "cuda12", "cuda"),
        ("cuda", 0, True, "cuda", "cpu"),
        ("cuda12", 0, True, "cuda12", "cpu"),
    ],
)
def test_a_base_is_the_named_one_or_follows_from_the_gpus(base, gpus, anywhere, name, device):
    found = decide(PROJECT, "fairseq", base, gpus=gpus, cpu_ranks_anywhere=anywhere)
    assert (found.base.name, found.device, found.gpus) == (name, device, gpus)
    assert (found.stacks, found.tag) == (("fairseq",), f"stackyard/fairseq:{name}")


def test_the_projects_default_base_counts():
    project = dataclasses.replace(PROJECT, default_base="ngc")
    assert decide(project, "fairseq").base.name == "ngc"
    assert decide(project, "fairseq", gpus=0).base.name == "cpu"


def test_all_is_every_stack():
    assert decide(PROJECT, "all").stacks == tuple(sorted(PROJECT.definitions.stacks))


@pytest.mark.parametrize(
    ("stack", "base", "changes", "what", "why", "hint"),
    [
        ("fairsek", "", {}, "there is no stack 'fairsek'", "did you mean 'fairseq'?",
         "invoke list shows every stack"),
        ("fairseq", "cup", {}, "there is no base 'cup'", "did you mean 'cpu'?",
         "invoke list shows every base"),
        ("fairseq", "", {"gpus_for": "smoke"}, "say how many GPUs the smoke is to use",
         "--gpus is missing", "go --gpus 0 (CPU ranks), or --gpus 2"),
        ("fairseq", "cpu", {"gpus": 2}, "base 'cpu' is for cpu ranks, --gpus 2 asks for GPUs", "",
         "go --gpus 2 --base cuda"),
        ("fairseq", "cpu", {"gpus": 2, "cpu_ranks_anywhere": True},
         "base 'cpu' is for cpu ranks, --gpus 2 asks for GPUs", "", "go --gpus 2 --base cuda"),
        ("fairseq", "ngc", {"gpus": 0}, "base 'ngc' is for cuda ranks, --gpus 0 asks for CPU ranks",
         "", "go --gpus 0 --base cpu"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_to_type(stack, base, changes, what, why, hint):
    with pytest.raises(UsageError) as caught:
        decide(PROJECT, stack, base, typed="go", **changes)
    assert (caught.value.what, caught.value.why, caught.value.hint) == (what, why, hint)


class Held:
    """An engine that holds one image of a stack."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def image(self, reference):
        labels = {"stackyard.stack": "toy", "stackyard.base": "cpu"}
        return SimpleNamespace(labels=labels) if reference == "mine:1" else None


@pytest.fixture
def toy(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "Engine", Held)
    return Project(root=tmp_path, definitions=samples.definitions(), default_base="gpu")


def test_a_named_image_says_its_stack_and_base(toy):
    found = decide(toy, "all", image="mine:1", image_here=True, gpus=0)
    assert (found.stacks, found.base.name, found.tag) == (("toy",), "cpu", "mine:1")
    assert found.there.image.stack.name == "toy"


def test_an_image_elsewhere_is_taken_as_named(toy):
    found = decide(toy, "toy", "cpu", image="far:1")
    assert (found.tag, found.there) == ("far:1", None)


@pytest.mark.parametrize(
    ("stack", "base", "image", "said"),
    [
        ("all", "", "none:1", "the engine has no image 'none:1'"),
        ("toy", "gpu", "mine:1", "mine:1 is toy on cpu, not toy on gpu"),
    ],
)
def test_a_named_image_that_is_not_there_or_anothers_is_refused(toy, stack, base, image, said):
    with pytest.raises(UsageError, match=said):
        decide(toy, stack, base, image=image, image_here=True)
