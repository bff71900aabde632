"""The checks of a smoke on GPUs: each passes on what is good and fails on its own fault."""

import dataclasses
import math

import pytest

from stackyard.gpu import nccl
from stackyard.gpu.fused import Part
from stackyard.gpu.placement import ISOLATED, SHARED, place
from stackyard.validate import judge_gpu
from stackyard.validate.judge_gpu import GpuObservation
from tests.unit import samples
from tests.unit.gpu.test_placement import gpu, pair

MIB = 2**20
P2P = nccl.NcclLog(
    version="2.28.9+cuda13.0",
    transports={"0>1": ("P2P/IPC",), "1>0": ("P2P/IPC",)},
    channels=48,
    network="Socket",
    warnings=(),
)
SIZES = {str(MIB): 20.0, str(64 * MIB): 280.0, str(1024 * MIB): 330.0}


def measured(ratio=1.0, **changes):
    values = {
        "gpu": "NVIDIA H200",
        "torch": "2.13.0+cu130",
        "allreduce": {
            size: {"busbw_gb_s": rate * ratio, "microseconds": 1.0} for size, rate in SIZES.items()
        },
        "training": {"tokens_s": 420_000.0 * ratio, "slowest": 419_000.0, "fastest": 421_000.0},
        "copy_gb_s": 380.0,
    }
    return {**values, **changes}


def on_gpu(number, **changes):
    values = {
        "backend": "nccl",
        "device": "cuda:0",
        "gpu": f"GPU-{number:08x}",
        "memory": {"allocated": 10 * MIB, "reserved": 20 * MIB},
        "times": {step: 100.0 + step / 50 for step in range(1, 41)},
    }
    return samples.rank(number, 2, **{**values, **changes})


def trained(**changes):
    values = {"ranks": {0: on_gpu(0), 1: on_gpu(1)}, "nccl": P2P}
    return samples.training(**{**values, **changes})


def seen(**changes):
    values = {
        "placement": place(pair(), 2, name=SHARED, run="r"),
        "driver": "580.159.04",
        "measured": measured(),
        "bare": measured(torch="2.9.0+cu128"),
        "used_before": {"GPU-00000000": 600 * MIB, "GPU-00000001": 600 * MIB},
        "used_after": {"GPU-00000000": 600 * MIB, "GPU-00000001": 601 * MIB},
        "freed_seconds": 0.3,
    }
    return GpuObservation(**{**values, **changes})


def outcomes(observed, trainings, broken=""):
    found = judge_gpu.judge_gpu(observed, [("two", one) for one in trainings], broken)
    return {check.name: check for check in found}


def one(name, observed=None, trainings=None, broken=""):
    trainings = [trained()] if trainings is None else trainings
    return outcomes(observed or seen(), trainings, broken)[name]


def test_all_is_well():
    found = outcomes(seen(), [trained()])
    assert {name: check.outcome for name, check in found.items()} == dict.fromkeys(
        ["transport", "bandwidth", "throughput", "memory", "fused"], "passed"
    )
    assert found["bandwidth"].measured["ratio"] == 1.0
    assert found["throughput"].measured["updates_s"] == {"two": 50.0}


def test_a_gpu_that_could_not_be_read_afterwards_is_not_taken_for_freed():
    found = one("memory", seen(used_after={"GPU-00000000": 600 * MIB}))
    assert (found.outcome, found.why) == (
        "not run", "what GPU-00000001 held afterwards could not be read",
    )  # fmt: skip
    assert one("memory", seen(used_after={"GPU-00000000": 700 * MIB})).outcome == "failed"
    assert "could not be read" in one("memory", seen(used_after={})).why
    freed = judge_gpu.freed(seen(used_after={"GPU-00000000": 600 * MIB}), "")
    assert (freed.name, freed.outcome) == ("freed", "not run")
    assert judge_gpu.freed(seen(), "").outcome == "passed"


def test_a_measurement_that_is_not_a_number_fails():
    wrong = measured()
    wrong["training"] = {**wrong["training"], "last_loss": math.nan}
    assert "a loss of nan" in one("throughput", seen(measured=wrong)).why
    assert one("throughput", seen(measured=measured(math.nan))).outcome == "failed"
    assert one("bandwidth", seen(measured=measured(math.nan))).outcome == "failed"


def over(via, *warnings):
    pairs = {"0>1": (via,), "1>0": ("P2P/IPC", via)}
    return dataclasses.replace(P2P, transports=pairs, warnings=warnings)


@pytest.mark.parametrize("via", ["NET/Socket/0", "SHM/direct/direct", "NET/IB/0", "Carrier/Pigeon"])
def test_a_channel_that_is_slower_than_the_placement_allows_fails(via):
    found = one("transport", trainings=[trained(nccl=over(via, "no P2P"))])
    assert found.outcome == "failed"
    assert f"rank 0 to 1 goes over {via}; 'shared-ipc' allows P2P; NCCL: no P2P" in found.why


def test_dockers_own_way_may_use_sockets():
    isolated = seen(placement=place(pair(), 2, name=ISOLATED, run="r"))
    assert one("transport", isolated, [trained(nccl=over("NET/Socket/0"))]).outcome == "passed"


@pytest.mark.parametrize("name", ["bandwidth", "throughput"])
def test_dockers_own_way_is_measured_and_not_held_against_nvlink(name):
    slow = measured(0.01)
    isolated = seen(placement=place(pair(), 2, name=ISOLATED, run="r"), measured=slow)
    found = one(name, isolated)
    assert found.outcome == "passed" and "ratio" not in found.measured
    shared = one(name, seen(measured=slow))
    assert shared.outcome == "failed" and shared.measured["ratio"] == 0.01


def test_shared_memory_passes_only_where_there_is_no_peer_access():
    without = seen(placement=place((gpu(0), gpu(1)), 1, run="r"))
    shm = over("SHM/direct/direct")
    assert one("transport", without, [trained(nccl=shm)]).outcome == "passed"
    assert one("transport", without, [trained(nccl=over("NET/Socket/0"))]).outcome == "failed"


@pytest.mark.parametrize("log", [None, dataclasses.replace(P2P, transports={}, channels=0)])
def test_a_log_without_channels_proves_nothing(log):
    found = one("transport", trainings=[trained(nccl=log)])
    assert "names no channel" in found.why


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        ({"gpu": "GPU-00000000"}, "ranks share a GPU"),
        ({"gpu": "GPU-000000ff"}, "rank 1 computes on GPU-000000ff, not asked for"),
        ({"gpu": ""}, "rank 1 computes on no GPU, not asked for"),
        ({"backend": "gloo"}, "rank 1 talks gloo, not nccl"),
    ],
)
def test_ranks_compute_on_gpus_of_their_own_that_were_asked_for(rank, why):
    found = one("transport", trainings=[trained(ranks={0: on_gpu(0), 1: on_gpu(1, **rank)})])
    assert why in found.why


def test_a_run_of_one_rank_proves_no_transport():
    assert one("transport", trainings=[samples.training("one", 1)]).outcome == "not run"


@pytest.mark.parametrize(("ratio", "outcome"), [(0.951, "passed"), (0.949, "failed")])
def test_bandwidth_is_held_against_the_bare_host(ratio, outcome):
    found = one("bandwidth", seen(measured=measured(ratio)))
    assert (found.outcome, found.measured["ratio"]) == (outcome, ratio)


WITHOUT = {"bare": {}, "no_bare": "no torch"}


@pytest.mark.parametrize("name", ["bandwidth", "throughput"])
def test_without_a_bare_host_nothing_passes_and_the_figures_stay(name):
    """However fast a plain copy between the GPUs is, or however slow."""
    for copy in (None, 1.0, 1000.0):
        found = one(name, seen(**WITHOUT, measured=measured(copy_gb_s=copy)))
        assert (found.outcome, found.why) == (
            "not run",
            "there is nothing to compare with: no torch",
        )
        assert "ratio" not in found.measured
    assert found.measured.get("copy_gb_s", 1000.0) == 1000.0
    assert found.measured.get("gpt2_small_tokens_s", 420_000.0) == 420_000.0


@pytest.mark.parametrize(
    ("name", "lacks"), [("bandwidth", "allreduce"), ("throughput", "training")]
)
def test_a_bare_host_that_measured_only_the_other_figure_is_no_reference(name, lacks):
    bare = {key: value for key, value in measured().items() if key != lacks}
    found = one(name, seen(bare=bare))
    assert (found.outcome, found.why) == (
        "not run",
        "there is nothing to compare with: the bare host measured nothing",
    )


@pytest.mark.parametrize("name", ["bandwidth", "throughput"])
def test_both_torch_versions_are_named(name):
    told = {"image": "2.13.0+cu130", "bare_host": "2.9.0+cu128"}
    assert one(name).measured["torch"] == told
    assert one(name, seen(**WITHOUT)).measured["torch"] == {**told, "bare_host": None}


@pytest.mark.parametrize("name", ["bandwidth", "throughput"])
def test_measuring_that_failed_fails(name):
    found = one(name, seen(measured={}, failed="measuring the GPUs did not end within 240 s"))
    assert (found.outcome, found.why) == ("failed", "measuring the GPUs did not end within 240 s")


@pytest.mark.parametrize("name", ["bandwidth", "throughput"])
def test_measuring_that_was_not_reached_is_not_run(name):
    found = one(name, seen(measured={}), broken="node2 is gone")
    assert (found.outcome, found.why) == ("not run", "node2 is gone")


@pytest.mark.parametrize(("ratio", "outcome"), [(0.981, "passed"), (0.979, "failed")])
def test_two_containers_train_as_fast_as_the_bare_host(ratio, outcome):
    assert one("throughput", seen(measured=measured(ratio))).outcome == outcome


@pytest.mark.parametrize(("ratio", "outcome"), [(0.991, "passed"), (0.989, "failed")])
def test_one_container_trains_as_fast_as_the_bare_host(ratio, outcome):
    together = seen(placement=place(pair(), 1, run="r"), measured=measured(ratio))
    assert one("throughput", together).outcome == outcome


def test_a_trainings_first_updates_do_not_count_in_its_speed():
    """They compile, allocate and wait for each other."""
    times = {step: 100.0 + (30 * step if step < 10 else 270 + (step - 10) / 50)
             for step in range(1, 41)}  # fmt: skip
    found = one("throughput", trainings=[trained(ranks={0: on_gpu(0, times=times)})])
    assert found.measured["updates_s"] == {"two": 50.0}


@pytest.mark.parametrize(("left", "why"), [(60, ""), (70, "70 MiB are still held on GPU-00000001")])
def test_memory_that_is_still_held_fails_beyond_what_a_driver_may_keep(left, why):
    held = {"GPU-00000000": 600 * MIB, "GPU-00000001": (600 + left) * MIB}
    found = one("memory", seen(used_after=held))
    assert (found.outcome, found.why) == ("failed" if why else "passed", why)


def test_a_rank_that_ended_without_telling_its_peak_fails():
    found = one("memory", trainings=[trained(ranks={0: on_gpu(0), 1: on_gpu(1, memory={})})])
    assert found.why == "two: rank 1 told no peak"


def test_memory_that_nobody_looked_at_is_not_judged():
    assert one("memory", seen(used_after={}), broken="node2 is gone").outcome == "not run"


RAN, OFF, IDLE = Part(state="ran"), Part(state="off"), Part(state="not asked")
FELL = Part(state="fell back", why="RuntimeError: Failed to find C compiler")
UNUSED = Part(state="unused", why="batches are padded")
PARTLY = Part(state="partly", why="batches are padded")


def with_parts(first, second):
    return trained(ranks={0: on_gpu(0, fused=first), 1: on_gpu(1, fused=second)})


def test_fused_parts_that_ran_or_are_off_or_have_nothing_to_do_are_told():
    found = judge_gpu.fused([("two", with_parts({"a": RAN}, {"a": OFF, "b": IDLE}))], "")
    assert found.outcome == "passed"
    assert found.measured == {
        "two": {"rank 0": {"a": "ran"}, "rank 1": {"a": "off", "b": "not asked"}}
    }


@pytest.mark.parametrize(
    ("first", "second", "parts", "said"),
    [
        ({"a": RAN}, {"a": FELL}, (),
         "two: rank 1: the fused part 'a' fell back to the package's own code: RuntimeError:"
         " Failed to find C compiler"),
        ({"a": UNUSED}, {"a": RAN}, (),
         "two: rank 0: the fused part 'a' did not run: batches are padded"),
        ({"a": RAN}, {"a": IDLE}, ("a",),
         "two: rank 1: the fused part 'a' did not run: nothing asked for it"),
        ({"a": RAN}, {}, ("a",),
         "two: rank 1: the fused part 'a' did not run: nothing asked for it"),
        ({"a": RAN}, {"a": PARTLY}, (),
         "two: rank 1: the fused part 'a' ran in part only: batches are padded"),
    ],
)  # fmt: skip
def test_a_fused_part_that_is_lost_fails_with_its_rank_and_reason(first, second, parts, said):
    found = judge_gpu.fused([("two", with_parts(first, second))], "", {"two": parts})
    assert (found.outcome, found.why) == ("failed", said)


def test_a_part_that_must_run_may_be_off_or_be_required_of_another_layout():
    trainings = [("two, resumed", with_parts({"a": OFF}, {"a": RAN}))]
    assert judge_gpu.fused(trainings, "", {"two": ("a",), "one": ("b",)}).why == ""


def test_where_nothing_was_trained_nothing_is_said_of_fused_parts():
    found = judge_gpu.fused([], "the node is gone")
    assert (found.outcome, found.why) == ("not run", "the node is gone")


def test_a_smoke_says_which_parts_must_run():
    found = judge_gpu.judge_gpu(seen(), [("two", trained())], "", {"two": ("a",)})[-1]
    assert (found.name, found.outcome) == ("fused", "failed")
