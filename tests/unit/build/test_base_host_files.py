"""Which files of a machine make a base: what is carried, what never is, and what is refused."""

import dataclasses

import pytest

from stackyard.build import base_host_files
from stackyard.build.base_host_files import (
    HostDistribution,
    Rules,
    closure,
    left_behind,
    require,
    stamp,
)
from stackyard.system.errors import StackyardError
from tests.unit import samples

SITE = "/opt/env/lib/python3.12/site-packages"


def distribution(name, version="1.0", requires=(), files=()):
    return HostDistribution(
        name=name, version=version, requires=tuple(requires), files=tuple(files)
    )


def found(**changes):
    values = {
        "version": "3.12.3",
        "prefixes": ("/opt/env",),
        "torch": "2.11.0+cu130",
        "why_no_torch": "",
        "cuda": "13.0",
        "environment": {"platform_system": "Linux", "python_version": "3.12"},
        "distributions": (
            distribution("torch", "2.11.0", ["sympy",
                                             'cuda-toolkit[nccl]; platform_system=="Linux"']),
            distribution("cuda_toolkit", "13.0", ['nvidia-nccl; extra == "nccl"',
                                                 'nvidia-npp; extra == "npp"']),
            distribution("nvidia-nccl"), distribution("nvidia-npp"), distribution("sympy"),
            distribution("numpy", "2.5.2"), distribution("jax"),
        ),
    }  # fmt: skip
    return base_host_files.Found(**{**values, **changes})


# Distributions


def test_what_the_roots_require_is_carried_with_markers_and_extras_evaluated():
    names, missing = closure(found(), ["torch"])
    assert names == {"torch", "sympy", "cuda-toolkit", "nvidia-nccl"}
    assert missing == []


def test_a_requirement_for_another_system_is_not_carried():
    other = found(environment={"platform_system": "Windows", "python_version": "3.12"})
    assert closure(other, ["torch"])[0] == {"torch", "sympy"}


def test_a_required_distribution_that_is_not_installed_is_named():
    bare = found(distributions=(distribution("torch", "2.11.0", ["sympy>1"]),))
    assert closure(bare, ["torch", "numpy"]) == ({"torch"}, ["numpy", "sympy"])


def test_requirements_in_a_circle_end():
    circle = found(
        distributions=(distribution("a", requires=["b"]), distribution("b", requires=["a"]))
    )
    assert closure(circle, ["a"])[0] == {"a", "b"}


def test_files_of_what_stays_behind_are_left_out_unless_a_carried_one_has_them_too():
    both = found(
        distributions=(
            distribution("torch", files=(f"{SITE}/torch/a.py", f"{SITE}/nvidia/__init__.py")),
            distribution("jax", files=(f"{SITE}/jax/a.py", f"{SITE}/nvidia/__init__.py")),
        )
    )
    assert left_behind(both, {"torch"}) == {f"{SITE}/jax/a.py"}


def test_of_two_of_one_name_the_first_on_the_path_is_carried():
    two = found(
        distributions=(
            distribution("torch", files=("/opt/a.py",)),
            distribution("Torch", files=("/usr/b.py",)),
        )
    )
    assert left_behind(two, {"torch"}) == {"/usr/b.py"}


# Paths


def rules(behind=(), **changes):
    return Rules(samples.carried(**changes).host, behind)


@pytest.mark.parametrize(
    "path",
    [
        "/root", "/home", "/tmp", "/run", "/var/log", "/etc/ssh", "/etc/shadow", "/etc/shadow-",
        "/etc/machine-id", "/etc/hostname", "/etc/resolv.conf", "/etc/apt", "/usr/local/nvidia",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.580.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "/etc/pip.conf", "/opt/env/pip.conf", "/usr/share/x/.netrc", "/opt/env/.ssh", "/usr/id_rsa",
        "/usr/share/ssh_host_rsa_key", "/usr/bin/nvidia-smi", "/etc/ssl/private",
    ],
)  # fmt: skip
def test_secrets_identity_logs_and_the_driver_are_never_carried(path):
    asked = rules(exclude=(), keep=("*",))
    assert not asked.takes(path)
    assert not asked.enters(path)
    assert asked.forbidden(path)
    assert asked.forbidden(f"{path}/below/it")


@pytest.mark.parametrize(
    "path",
    ["/usr/bin/g++", "/usr/lib/libcudart.so.13", "/usr/lib/libcuda.so", "/etc/ssl/certs/ca.pem",
     "/rooted", "/usr/lib/python3/pip.confuse", f"{SITE}/nvidia/libnvJitLink.so.13"],
)  # fmt: skip
def test_what_only_looks_like_them_is_carried(path):
    assert rules().takes(path)
    assert not rules().forbidden(path)


def test_patterns_from_the_root_are_whole_paths_and_others_are_last_names():
    asked = rules(exclude=("/usr/share/doc", "/usr/local/cuda*/doc", "*nsight*"))
    assert not asked.enters("/usr/share/doc")
    assert not asked.enters("/usr/local/cuda-13.0/doc")
    assert not asked.enters("/opt/nsight-compute")
    assert asked.enters("/usr/share/docs")
    assert asked.enters("/opt/nsight/x")  # its folder was not entered: nobody asks


def test_what_is_to_be_kept_stays_in_spite_of_an_exclusion_but_not_of_the_never():
    asked = rules(exclude=("*.a",), keep=("libgcc.a", "pip.conf"))
    assert asked.takes("/usr/lib/libgcc.a")
    assert not asked.takes("/usr/lib/libcublas_static.a")
    assert not asked.takes("/etc/pip.conf")


def test_bytecode_stays_behind_with_its_module():
    asked = rules(behind=(f"{SITE}/jax/a.py",))
    assert not asked.takes(f"{SITE}/jax/a.py")
    assert not asked.takes(f"{SITE}/jax/__pycache__/a.cpython-312.pyc")
    assert asked.takes(f"{SITE}/jax/__pycache__/b.cpython-312.pyc")
    assert asked.takes(f"{SITE}/jax/__pycache__/a.txt")


def test_of_the_search_path_the_carried_folders_stay_in_order():
    path = "/opt/env/bin:/root/.local/bin:/usr/local/nvidia/bin:/usr/bin:/opt/gcc/bin:/bin:/usr/bin"
    kept = base_host_files.search_path(path, ["/opt/env"])
    assert kept == "/opt/env/bin:/usr/local/nvidia/bin:/usr/bin:/bin"


# What is refused


@pytest.mark.parametrize(
    ("have", "declared", "fits"),
    [
        ("2.11.0", "2.11.0", True),
        ("2.11.0+cu130", "2.11.0", True),
        ("2.5.2", "2", True),
        ("2.5.2", "", True),
        ("2.11.0", "2.11.0+cu130", False),
        ("2.11.1", "2.11.0", False),
        ("21.0", "2", False),
    ],
)
def test_a_declared_version_may_say_less_than_there_is(have, declared, fits):
    assert base_host_files.version_fits(have, declared) is fits


def test_a_python_as_declared_gives_what_is_carried():
    assert require(samples.carried(), found()) == {
        "torch", "sympy", "cuda-toolkit", "nvidia-nccl", "numpy",
    }  # fmt: skip


def without(name):
    return tuple(one for one in found().distributions if one.name != name)


@pytest.mark.parametrize(
    ("there", "what", "why"),
    [
        (found(torch="", why_no_torch="ModuleNotFoundError: No module named 'torch'"),
         "has no torch that can be imported", "No module named 'torch'"),
        (found(version="3.11.7"), "is 3.11.7; far is declared for 3.12", "locked"),
        (found(prefixes=("/root/env",)), "lies in /root/env", "never copied"),
        (found(distributions=without("numpy")), "is not what images/bases/far.yml declares",
         "numpy is declared or required, but not installed"),
        (found(distributions=(*without("torch"), distribution("torch", "2.10.0"))),
         "is not what images/bases/far.yml declares", "torch 2.11.0 is declared, 2.10.0 is"),
    ],
)  # fmt: skip
def test_a_python_that_is_not_as_declared_is_refused(there, what, why):
    with pytest.raises(StackyardError) as caught:
        require(samples.carried(), there)
    assert what in caught.value.what
    assert why in caught.value.why
    assert caught.value.hint


# When it is the same


def address(declared=None, there=None, path="/usr/bin"):
    there = there or found()
    return stamp(declared or samples.carried(), there, {"torch", "numpy"}, path)


@pytest.mark.parametrize(
    "other",
    [
        {"declared": samples.carried(exclude=())},
        {"declared": samples.carried(env={"A": "2"})},
        {"there": found(version="3.12.4")},
        {"there": found(torch="2.11.1")},
        {"there": found(cuda="13.1")},
        {"there": found(prefixes=("/opt/other",))},
        {"there": found(distributions=(*without("numpy"), distribution("numpy", "3")))},
        {"path": "/bin"},
    ],
)
def test_what_a_host_base_is_made_of_decides_its_address(other):
    assert address(**other) != address()


def test_what_stays_behind_and_words_do_not_decide_its_address():
    there = found(distributions=without("jax"))
    assert address(there=there) == address()
    assert address(declared=dataclasses.replace(samples.carried(), summary="another")) == address()
