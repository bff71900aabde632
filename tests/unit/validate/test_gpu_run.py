"""A run on GPUs, but for the GPUs: what it takes, and how it waits for memory to be free."""

import pytest

from stackyard.gpu import access
from stackyard.gpu.placement import ISOLATED, SHARED
from stackyard.system.errors import UsageError
from stackyard.validate import gpu_run, launches
from stackyard.validate.gpu_run import GpuPlan, GpuRun
from tests.unit.gpu.test_access import DRIVER
from tests.unit.gpu.test_placement import host, pair

MIB = 2**20


def plan(**changes):
    values = {
        "host": host(*pair()),
        "chosen": pair(),
        "nodes": 2,
        "name": "",
        "way": access.DEVICES,
        "driver": DRIVER,
        "settings": {},
    }
    return GpuPlan(**{**values, **changes})


def run(*, used=None, **changes):
    made = plan(**changes)
    placed, _ = gpu_run.place(made, "r")
    before = {gpu.uuid: 600 * MIB for gpu in placed.gpus}
    return GpuRun(plan=made, placement=placed, hardware=(), before=before, used=used)


@pytest.mark.parametrize(
    ("nodes", "ranks", "takes"),
    [(1, 1, ((0,),)), (1, 2, ((0, 1),)), (2, 1, ((0,),)), (2, 2, ((0,), (1,)))],
)
def test_a_layouts_ranks_take_gpus_in_order(nodes, ranks, takes):
    names = tuple(f"node{n + 1}" for n in range(nodes))
    used, per_node = launches.spread(ranks, names)
    assert run(nodes=nodes).takes(len(used), per_node) == takes


def test_isolated_nodes_each_take_the_only_gpu_they_see():
    assert run(name=ISOLATED).takes(2, 1) == ((0,), (0,))


def test_what_is_slow_is_told_with_the_placement():
    _, warnings = gpu_run.place(plan(name=ISOLATED), "r")
    assert len(warnings) == 1
    _, warnings = gpu_run.place(plan(settings={"NCCL_P2P_DISABLE": "1"}), "r")
    assert warnings == ("NCCL_P2P_DISABLE=1 keeps NCCL off NVLink",)


def test_settings_that_break_a_placement_are_refused_before_anything_starts():
    with pytest.raises(UsageError, match="with these settings fails"):
        gpu_run.place(plan(name=SHARED, settings={"NCCL_CUMEM_ENABLE": "1"}), "r")


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(gpu_run.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(gpu_run.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    return now


def test_memory_is_waited_for_until_it_is_free(clock):
    def used(gpus):
        held = 500 if clock[0] < 1.0 else 0
        return {gpu.uuid: (600 + held) * MIB for gpu in gpus}

    seen = run(used=used).freed(None)
    assert 1.0 <= seen.freed_seconds < 1.5
    assert set(seen.used_after.values()) == {600 * MIB}


def test_memory_that_stays_held_is_not_waited_for_for_ever(clock):
    seen = run(used=lambda gpus: {gpu.uuid: 900 * MIB for gpu in gpus}).freed(None)
    assert 10.0 < seen.freed_seconds < 11.0
    assert set(seen.used_after.values()) == {900 * MIB}


def test_a_measurement_that_failed_is_an_observation(monkeypatch):
    from stackyard.system.errors import EngineError

    def fail(*_):
        raise EngineError("measuring the GPUs failed", why="no interface ib7")

    monkeypatch.setattr(gpu_run.measure, "in_mesh", fail)
    seen = run().measured(None, None, 29500)
    assert seen.failed == "measuring the GPUs failed; no interface ib7"
    assert seen.measured == {}


def test_a_run_names_its_placement_and_its_own_host_id():
    ids = {gpu_run.place(plan(), name)[0].env["NCCL_HOSTID"] for name in ("a", "b")}
    assert ids == {"stackyard-a", "stackyard-b"}
