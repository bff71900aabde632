"""GPUs of a run over hosts: their placement and what they hold, by what hosts tell."""

from types import SimpleNamespace

from stackyard.gpu.placement import MIB
from stackyard.validate.gpu_hosts import HostGpus, placement_of, used_bytes
from tests.unit.machines import gpu_facts, node, plan

TWO = plan(node("a", gpus=(1,)), node("b", gpus=(0,)), why="10.0.0.0/24")
FACTS = {"a": gpu_facts("a", 1), "b": gpu_facts("b", 2)}


def test_each_node_takes_its_hosts_gpus_and_the_network_is_between_them():
    found = placement_of(TWO, FACTS, "NCCL uses sockets")
    assert [gpu.index for gpu in found.gpus] == [1, 0]
    assert [one.takes for one in found.nodes] == [(0,), (0,)]
    assert (found.name, found.transport) == ("hosts", "NET")
    assert found.why == "10.0.0.0/24; NCCL uses sockets"


def test_nodes_of_one_host_see_the_gpus_of_each_other():
    one = plan(node("a-1", "a", gpus=(0,)), node("a-2", "a", gpus=(1,)))
    found = placement_of(one, FACTS, "x")
    assert [node.takes for node in found.nodes] == [(0,), (1,)]
    assert [len(node.visible) for node in found.nodes] == [2, 2]
    assert found.transport == "P2P"


def test_layouts_take_gpus_of_the_first_nodes():
    spread = SimpleNamespace(plan=TWO, facts=FACTS, fabric=SimpleNamespace(why="x"))
    found = HostGpus(spread=spread)
    assert (found.takes(2, 1), found.takes(1, 1)) == (((0,), (0,)), ((0,),))
    seen = found.observed()
    assert seen.no_bare and seen.driver == "580.159.04"


def test_memory_in_use_is_what_hosts_tell():
    placement = placement_of(TWO, FACTS, "x")
    assert set(used_bytes(placement, FACTS).values()) == {0}
    held = gpu_facts("a", 1)
    gpus = tuple(
        SimpleNamespace(uuid=g.uuid, memory_bytes=g.memory_bytes, free_bytes=g.free_bytes - 9 * MIB)
        for g in held.gpus
    )
    found = used_bytes(placement, {"a": SimpleNamespace(gpus=gpus)})
    assert found == {"GPU-1": 9 * MIB, "GPU-0": 9 * MIB}
