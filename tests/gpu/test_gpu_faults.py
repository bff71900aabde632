"""Each check that only GPUs have, shown failing on two real GPUs with one deliberate fault."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess

import pytest

from stackyard.gpu import access, placement
from stackyard.system.errors import NothingToRunOn, UsageError
from stackyard.validate import gpu_run, measure


def transports(measured):
    return {
        via for training in measured.values() for pair in training["transports"].values()
        for via in pair
    }  # fmt: skip


def test_peer_access_that_is_switched_off_fails_transport_and_bandwidth(run, plan):
    found = run(plan(settings={"NCCL_P2P_DISABLE": "1"}))
    assert found["transport"].outcome == "failed"
    assert "goes over SHM" in found["transport"].why
    assert found["bandwidth"].outcome == "failed"
    assert found["loss_falls"].outcome == "passed"


def test_dockers_own_placement_goes_over_sockets_and_says_so(run, plan):
    made = plan(2, placement.ISOLATED)
    found = run(made)
    assert {via.split("/")[0] for via in transports(found["transport"].measured)} == {"NET"}
    assert found["bandwidth"].measured["busbw_gb_s"]["1 GiB"] < 20
    assert "about 1/100" in gpu_run.place(made, "x")[1][0]


def test_sockets_where_nvlink_was_promised_fail(run, plan):
    """Docker's own placement, held against what the recipe for several containers allows."""

    def promised(started):
        best = dataclasses.replace(started.placement, transport=placement.P2P)
        return dataclasses.replace(started, placement=best)

    assert (
        "goes over NET/Socket" in run(plan(2, placement.ISOLATED), change=promised)["transport"].why
    )


def own_gpu_only(started):
    """Each container on the host's network sees its own GPU only."""
    nodes = tuple(
        dataclasses.replace(node, visible=(started.placement.gpus[number],), takes=(0,), env={})
        for number, node in enumerate(started.placement.nodes)
    )
    changed = dataclasses.replace(started.placement, nodes=nodes)
    hardware = access.hardware(changed, started.plan.way, started.plan.driver, "", {})
    return dataclasses.replace(started, placement=changed, hardware=hardware)


def test_own_gpus_only_on_the_hosts_network_is_refused_and_does_fail(run, plan, monkeypatch):
    made = plan(2, placement.HOST_NETWORK)
    placed = own_gpu_only(gpu_run.start_run(made, "x", "")).placement
    with pytest.raises(UsageError, match="fails"):
        placement.require_sound(placed, placement.environment_of(placed))
    monkeypatch.setattr(measure, "SECONDS", 30)
    found = run(made, change=own_gpu_only)
    assert found["bandwidth"].outcome == "failed"
    assert found["loss_falls"].outcome == "failed"


def test_the_hosts_network_with_every_gpu_keeps_nvlink(run, plan):
    found = run(plan(2, placement.HOST_NETWORK))
    assert {name: check.why for name, check in found.items() if check.outcome != "passed"} == {}


def test_more_gpus_than_there_are_is_refused_before_anything_starts(engine):
    with pytest.raises(NothingToRunOn, match="16 GPUs are wanted"):
        gpu_run.make_plan(engine, 16, 1, "", "pytest")


def test_a_rank_without_a_gpu_of_its_own_is_named(run, plan):
    def one_gpu(started):
        first = started.placement.gpus[0]
        less = access.access(started.plan.way, (first,), started.plan.driver, "")
        hardware = tuple(
            dataclasses.replace(h, access=dataclasses.replace(less, env=h.access.env))
            for h in started.hardware
        )
        return dataclasses.replace(started, hardware=hardware)

    found = run(plan(), change=one_gpu)
    assert found["bandwidth"].outcome == "failed"
    assert found["loss_falls"].outcome == "failed"


def test_a_rank_that_never_joins_is_named(run, plan, example):
    found = run(plan(), fault="absent", declared=dataclasses.replace(example, start_seconds=15))
    assert "rank 1 (node1) did not join within 15 s" in found["loss_falls"].why
    assert "ddp-2: rank 1 (node1) never joined" in found["world_size"].why


def test_an_interface_that_does_not_exist_fails_in_bounded_time_and_is_named(run, plan):
    found = run(plan(2, settings={"NCCL_SOCKET_IFNAME": "ib7"}))
    assert found["bandwidth"].outcome == "failed"
    assert "no socket interface found" in found["bandwidth"].why


HOLD = (
    "import torch, time; x = torch.empty(2**31, dtype=torch.uint8, device='cuda:1');"
    " print('held', flush=True); time.sleep(300)"
)


@contextlib.contextmanager
def holding_memory():
    """A process on the bare host that holds 2 GiB of the second GPU."""
    python, why = measure.host_python(os.environ)
    assert python, why
    process = subprocess.Popen([python, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_gpu_that_somebody_holds_is_not_taken_and_not_freed(engine):
    with holding_memory() as holder:
        with pytest.raises(NothingToRunOn) as caught:
            gpu_run.make_plan(engine, 2, 1, "", "pytest")
        assert "GPU 1" in caught.value.why
        assert gpu_run.make_plan(engine, 1, 1, "", "pytest").chosen[0].index == 0
        assert holder.poll() is None


def test_memory_that_is_still_held_at_the_end_fails(run, plan, monkeypatch):
    """Somebody takes memory of a GPU of the run while it goes on: it is not free at the end."""
    freed = gpu_run.GpuRun.freed

    def late(self, seen):
        with holding_memory():
            return freed(self, seen)

    monkeypatch.setattr(gpu_run.GpuRun, "freed", late)
    assert "are still held on GPU-" in run(plan())["memory"].why
