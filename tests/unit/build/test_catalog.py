"""A stack on a base, everything decided, and where each value came from."""

import pytest

from stackyard.build.catalog import Setting, choose, facts, resolve
from stackyard.definitions.spec import Fact
from stackyard.system.errors import UsageError
from tests.unit import samples


def image(base="cpu", **changes):
    return resolve(samples.definitions(**changes), "toy", base)


def test_packages_come_from_the_lock_and_from_what_is_built_here():
    assert dict(image().packages) == {
        "alpha": Setting(value="1.2.0", source="images/toy/cpu.lock"),
        "gamma": Setting(value="0.5", source="images/toy/cpu.lock"),
        "beta": Setting(value="3.0", source="images/wheels/beta.yml"),
    }


def test_cudnn_and_nccl_are_facts_of_the_lock_unless_the_base_states_them():
    locks = samples.locks() | {
        "images/bases/cpu.lock": samples.locked("nvidia-nccl-cu13==2.29.7",
                                                "nvidia-cudnn-cu13==9.20.0.48", "nvidia-cu==1")
    }  # fmt: skip
    stated = samples.base(facts={"nccl": Fact(value="2.0", source="a page")})
    found = {
        base: facts(resolve(samples.definitions(locks=locks, bases={"cpu": base_}), "toy", "cpu"))
        for base, base_ in (("silent", samples.base()), ("stated", stated))
    }
    assert found["silent"] == {
        "nccl": Setting(value="2.29.7", source="images/bases/cpu.lock"),
        "cudnn": Setting(value="9.20.0.48", source="images/bases/cpu.lock"),
    }
    assert found["stated"]["nccl"] == Setting(value="2.0", source="a page")


def test_without_a_lock_packages_are_what_the_stack_pins():
    found = image("gpu")
    assert found.locked is False
    assert dict(found.packages) == {
        "alpha": Setting(value="1.2.0", source="images/toy/stack.yml"),
        "beta": Setting(value="3.0", source="images/wheels/beta.yml"),
    }


def test_what_the_base_provides_is_named_as_pip_compares_names():
    provided = image("gpu").provided
    assert dict(provided) == {"torch": Setting(value="2.1.0a0+nv", source="release notes")}
    assert image().provided["numpy"] == Setting(value="2.1.0", source="images/bases/cpu.lock")


def test_system_packages_that_a_base_has_are_not_installed_again():
    found = resolve(samples.definitions(bases={"far": samples.carried()}), "toy", "far")
    assert (found.system, found.build_system) == (("tini", "rsync"), ())
    assert image("gpu").system == ("openssh-server", "tini", "rsync")
    assert image("gpu").build_system == ("g++",)


def test_only_the_locks_of_this_image_are_its_own():
    others = {"images/other/cpu.lock": "", "images/bases/far.lock": ""}
    found = image(locks={**samples.locks(), **others})
    assert sorted(found.locks) == sorted(samples.locks())
    assert found.locked is True


def test_the_environment_has_the_origin_of_the_last_word():
    fix = samples.fix(remedy=samples.remedy(env={"COLOUR": "fix"}))
    found = image(fixes={"alpha-old": fix})
    assert list(found.env.items()) == [
        ("COLOUR", Setting(value="fix", source="images/fixes/alpha-old.yml")),
        ("LANG", Setting(value="C.UTF-8", source="images/common.yml")),
        ("OMP_NUM_THREADS", Setting(value="1", source="images/bases/cpu.yml")),
        ("TOY", Setting(value="1", source="images/toy/stack.yml")),
    ]


@pytest.mark.parametrize("says", range(1, 5))
def test_of_the_environments_words_the_nearest_to_the_stack_holds(says):
    """Common, base, stack, fix: the last of those that say something."""
    common, base, stack, fix = ({"COLOUR": f"{n}"} if n < says else {} for n in range(4))
    found = image(
        common=samples.common(env=common), bases={"cpu": samples.base(env=base)},
        stacks={"toy": samples.stack(env=stack)},
        fixes={"alpha-old": samples.fix(remedy=samples.remedy(env=fix))},
    )  # fmt: skip
    assert found.env["COLOUR"].value == str(says - 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"versions": {"alpha": ">2"}}, "alpha 1.2.0 is not >2"),
        ({"versions": {"delta": ">2"}}, "delta is not installed"),
        ({"devices": ("cuda",)}, "only for cuda"),
        ({"python": ">=3.12"}, "Python 3.11 is not >=3.12"),
    ],
)
def test_a_fix_that_does_not_apply_is_left_out_with_its_reason(changes, reason):
    fix = samples.fix(remedy=samples.remedy(env={"LEFT": "out"}), **changes)
    found = image(fixes={"alpha-old": fix})
    assert (found.fixes, dict(found.left_out)) == ((), {"alpha-old": reason})
    assert "LEFT" not in found.env


@pytest.mark.parametrize("package", ["gamma", "numpy", "torch", "Beta"])
def test_a_fix_may_be_for_anything_that_is_installed(package):
    assert image(fixes={"alpha-old": samples.fix(versions={package: ">0"})}).left_out == {}


def test_a_made_base_holds_the_common_system_packages_already():
    assert image().system == ("rsync",)
    assert image("gpu").system == ("openssh-server", "tini", "rsync")


def test_a_system_package_of_the_bootstrap_is_not_installed_again():
    stack = samples.stack(system=("python3", "rsync"))
    assert image(stacks={"toy": stack}).system == ("rsync",)


def test_fixes_of_a_build_apply_to_it_with_their_environment():
    build = samples.fix(id="beta-build", versions={"beta": "==3.0"}, devices=("cpu",),
                        remedy=samples.remedy(build_env={"FLAG": "1"}))  # fmt: skip
    wheel = samples.wheel(fixes=("beta-build",), env={"OWN": "2", "FLAG": "0"})
    changes = {
        "fixes": {"alpha-old": samples.fix(), "beta-build": build},
        "wheels": {"beta": wheel},
    }
    (found,) = image(**changes).wheels
    assert (found.fixes, dict(found.env)) == ((build,), {"FLAG": "1", "OWN": "2"})
    (other,) = image("gpu", **changes).wheels
    assert (other.fixes, dict(other.env)) == ((), {"FLAG": "0", "OWN": "2"})


@pytest.mark.parametrize(
    ("stack", "base", "what", "why"),
    [
        ("tpy", "cpu", "there is no stack 'tpy'", "did you mean 'toy'?"),
        ("toy", "cqu", "there is no base 'cqu'", "did you mean 'cpu'?"),
    ],
)
def test_what_does_not_exist_is_said_with_the_nearest(stack, base, what, why):
    with pytest.raises(UsageError) as caught:
        resolve(samples.definitions(), stack, base)
    assert (caught.value.what, caught.value.why) == (what, why)
    assert caught.value.hint.startswith("invoke list shows every ")
    assert caught.value.exit_code == 2


def test_a_known_name_is_chosen():
    assert choose("stack", "toy", {"toy": 1}) == "toy"
