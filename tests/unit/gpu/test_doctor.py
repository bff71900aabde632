"""What `invoke doctor` says of a machine, from values alone."""

import dataclasses

import pytest

from stackyard.definitions.load import load_definitions
from stackyard.definitions.project import ROOT
from stackyard.definitions.spec import Fact
from stackyard.gpu import access, doctor
from stackyard.gpu.doctor import Machine, examine
from stackyard.gpu.placement import GpuProcess
from stackyard.system.errors import NothingToRunOn
from tests.unit import samples
from tests.unit.gpu.test_access import DRIVER
from tests.unit.gpu.test_placement import gpu, host, pair

GIB = 2**30


def base(**facts):
    found = {name: Fact(value=value, source="a page") for name, value in facts.items()}
    return dataclasses.replace(samples.base(), name="near", device="cuda", facts=found)


def machine(**changes):
    values = {
        "engine": "20.10.24",
        "client": "/usr/bin/docker",
        "gpus": host(*pair()),
        "way": access.DEVICES,
        "driver": DRIVER,
        "shm_bytes": 8 * GIB,
        "free_bytes": 100 * GIB,
        "needed_bytes": 12 * GIB,
    }
    return Machine(**{**values, **changes})


def findings(bases=(), **changes):
    return {one.name: one for one in examine(machine(**changes), bases)}


def test_a_good_machine_is_good():
    found = findings([base(driver="580.65.06", architectures="sm_80 sm_90")])
    assert [one.name for one in found.values() if one.state != doctor.OK] == ["infiniband"]
    assert "18 links between each two" in found["nvlink"].what
    assert found["base near"].state == doctor.OK


@pytest.mark.parametrize(
    ("changes", "name", "state", "what"),
    [
        ({"engine": "", "no_engine": "no container engine answers"}, "engine", "wrong",
         "no container engine answers"),
        ({"free_bytes": 3 * GIB}, "disk", "wrong", "3 GiB are free"),
        ({"shm_bytes": 64 * 2**20}, "/dev/shm", "note", "0.1 GiB on the host"),
        ({"memlock": 65536}, "memlock", "note", "64 KiB on the host"),
        ({"gpus": None, "no_gpus": "there is no NVIDIA GPU"}, "gpus", "note",
         "there is no NVIDIA GPU"),
        ({"driver": dataclasses.replace(DRIVER, nodes=())}, "gpu access", "wrong",
         "/dev/nvidia0 is not there"),
        ({"gpus": host(pair()[0], gpu(1, processes=(GpuProcess(pid=9, bytes=GIB, command="x"),)))},
         "GPU 1", "wrong", "processes hold it: 9 (x, 1024 MiB)"),
        ({"gpus": host(gpu(0), gpu(1))}, "nvlink", "note", "peer access: no"),
        ({"settings": {"NCCL_P2P_DISABLE": "1"}}, "your settings", "note", "NCCL_P2P_DISABLE=1"),
    ],
)  # fmt: skip
def test_each_fault_is_found(changes, name, state, what):
    found = findings(**changes)[name]
    assert found.state == state
    assert what in found.what


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"driver": "590.44.01"}, "needs driver 590.44.01 or newer, this host has 580.159.04"),
        ({"cuda": "14.0"}, ""),
        ({"cuda": "13.1.0"}, ""),
        ({"architectures": "sm_70 sm_80 sm_100"}, "has no kernels for NVIDIA H200"),
        ({"architectures": "sm_70 sm_100"}, "has no kernels for NVIDIA H200"),
        ({}, ""),
    ],
)
def test_a_base_that_does_not_run_here_is_named(facts, why):
    found = findings([base(**facts)])["base near"]
    assert (found.state == doctor.WRONG) == bool(why)
    assert why in found.what
    if why:
        with pytest.raises(NothingToRunOn) as caught:
            doctor.require_fit(host().driver, pair(), base(**facts), [])
        assert why in caught.value.why
    else:
        doctor.require_fit(host().driver, pair(), base(**facts), [])


OLD = base(cuda="12.6", driver="525.60.13", architectures="sm_70 sm_80 sm_90")
NEW = base(cuda="13.0", driver="580.65.06", architectures="sm_75 sm_80 sm_90 sm_100")
BASES = [dataclasses.replace(OLD, name="old"), dataclasses.replace(NEW, name="new")]


@pytest.mark.parametrize(
    ("driver", "capability", "base", "why", "hint"),
    [
        ("550.54.15", (9, 0), "new", "it needs driver 580.65.06 or newer, this host has 550.54.15",
         "--base old runs here"),
        ("580.65.06", (7, 0), "new", "it has no kernels for NVIDIA H200 (sm_70): its torch has"
         " sm_75 sm_80 sm_90 sm_100", "--base old runs here"),
        ("550.54.15", (7, 0), "new", "it needs driver 580.65.06 or newer, this host has 550.54.15\n"
         "it has no kernels for NVIDIA H200 (sm_70): its torch has sm_75 sm_80 sm_90 sm_100",
         "--base old runs here"),
        ("590.1", (10, 3), "old", "it has no kernels for NVIDIA H200 (sm_103): its torch has"
         " sm_70 sm_80 sm_90", "--base new runs here"),
        ("470.1", (9, 0), "new", "it needs driver 580.65.06 or newer, this host has 470.1",
         "no base that can be built here fits: install a newer driver"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_error_that_names_a_base_that_does(
    driver, capability, base, why, hint
):
    chosen = next(one for one in BASES if one.name == base)
    with pytest.raises(NothingToRunOn, match=f"base '{base}' does not run on this machine") as said:
        doctor.require_fit(driver, [gpu(0, capability=capability)], chosen, BASES)
    assert said.value.why == why
    assert said.value.hint.startswith(hint)


def test_the_newest_of_the_bases_that_fit_is_advised():
    assert doctor.fitting("580.65.06", pair(), BASES) == ["new", "old"]
    assert doctor.fitting("525.60.13", pair(), BASES) == ["old"]
    never = [dataclasses.replace(one, bootstrap=None) for one in BASES]
    assert doctor.fitting("580.65.06", pair(), never) == []


OWN = tuple(load_definitions(ROOT).bases.values())
NONE = "no base that can be built here fits: install a newer driver, or take other GPUs"


@pytest.mark.parametrize(
    ("driver", "capability", "advice"),
    [
        ("580.65.06", (12, 0), "--base cuda runs here"),
        ("580.65.06", (7, 0), "--base cuda12 runs here"),
        ("570.86.10", (9, 0), "--base cuda12 runs here"),
        ("525.60.13", (5, 0), "--base cuda12 runs here"),
        ("570.86.10", (10, 0), NONE),
        ("570.86.10", (12, 0), NONE),
        ("520.61.05", (9, 0), NONE),
    ],
)
def test_the_base_that_docs_name_for_a_machine_is_the_one_that_is_advised(
    driver, capability, advice
):
    """The table in words of docs/howto/gpus.md."""
    assert doctor.advice(driver, [gpu(0, capability=capability)], OWN).startswith(advice)


def test_a_base_that_does_not_fit_is_wrong_only_where_no_other_does():
    found = findings(BASES, gpus=dataclasses.replace(host(*pair()), driver="550.54.15"))
    assert (found["base new"].state, found["base old"].state) == (doctor.NOTE, doctor.OK)
    found = findings(BASES, gpus=dataclasses.replace(host(*pair()), driver="470.1"))
    assert {found["base new"].state, found["base old"].state} == {doctor.WRONG}


def test_a_driver_below_cudas_own_floor_is_too_old():
    with pytest.raises(NothingToRunOn, match="does not run on this machine"):
        doctor.require_fit("550.54.15", pair(), base(cuda="13.0"), [])


@pytest.mark.parametrize(
    ("capability", "runs"), [((9, 0), True), ((9, 1), True), ((8, 9), False), ((10, 0), False)]
)
def test_binaries_run_on_later_minors_of_the_same_major(capability, runs):
    assert doctor.runs_on(capability, {(9, 0)}) is runs


def test_the_worst_finding_decides():
    assert doctor.worst(examine(machine(engine=""), [])) == doctor.WRONG
    assert doctor.worst(examine(machine(), [])) == doctor.NOTE
