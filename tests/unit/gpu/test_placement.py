"""Which GPUs a run takes, how they go into containers, and which ways are refused."""

import dataclasses

import pytest

from stackyard.gpu import placement
from stackyard.gpu.placement import (
    HOST_NETWORK,
    ISOLATED,
    SHARED,
    TOGETHER,
    Gpu,
    GpuHost,
    GpuProcess,
    choose_gpus,
    place,
    require_sound,
)
from stackyard.system.errors import NothingToRunOn, UsageError

GIB = 2**30


def gpu(index, *, links=None, peers=None, **changes):
    values = {
        "index": index,
        "minor": index,
        "uuid": f"GPU-{index:08x}",
        "name": "NVIDIA H200",
        "capability": (9, 0),
        "memory_bytes": 140 * GIB,
        "free_bytes": 140 * GIB,
        "nvlinks": links or {},
        "peers": frozenset(links or ()) if peers is None else frozenset(peers),
    }
    return Gpu(**{**values, **changes})


def host(*gpus):
    return GpuHost(driver="580.159.04", cuda="13.0", gpus=gpus)


def pair():
    return (gpu(0, links={1: 18}), gpu(1, links={0: 18}))


def chosen(found, wanted, allowed=None):
    return [one.index for one in choose_gpus(host(*found), wanted, allowed)]


@pytest.mark.parametrize("allowed", [["1", "-1", "0"], ["1", "99", "0"], ["1", "", "0"]])
def test_no_gpu_counts_after_a_word_that_names_none(allowed):
    assert chosen(pair(), 1, allowed) == [1]
    with pytest.raises(NothingToRunOn):
        chosen(pair(), 2, allowed)


def test_free_gpus_are_taken_in_order():
    assert chosen(pair(), 1) == [0]
    assert chosen(pair(), 2) == [0, 1]


def test_those_with_the_most_nvlinks_between_them_are_taken():
    found = (gpu(0, links={3: 2}), gpu(1, links={2: 4}), gpu(2, links={1: 4}), gpu(3, links={0: 2}))
    assert chosen(found, 2) == [1, 2]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"processes": (GpuProcess(pid=7, bytes=2 * GIB, command="python train.py"),)},
         "processes hold it: 7 (python train.py, 2048 MiB)"),
        ({"compute_mode": "exclusive process"}, "its compute mode is exclusive process"),
        ({"mig": True}, "it is split by MIG"),
        ({"free_bytes": 138 * GIB}, "2048 MiB of it are in use, by processes not visible"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_not_free_is_left_alone_and_the_reason_is_said(changes, why):
    one, other = pair()
    busy = dataclasses.replace(one, **changes)
    assert chosen((busy, other), 1) == [1]
    with pytest.raises(NothingToRunOn) as caught:
        choose_gpus(host(busy, other), 2, None)
    assert caught.value.what == "2 GPUs are wanted, 1 of 2 can be used"
    assert f"GPU 0 (NVIDIA H200): {why}" in caught.value.why
    assert "--gpus 1" in caught.value.hint


def test_a_little_memory_of_the_drivers_own_does_not_make_a_gpu_busy():
    assert placement.why_not_usable(gpu(0, free_bytes=140 * GIB - 700 * 2**20)) == ""


def test_gpus_that_the_caller_may_not_use_are_not_touched():
    assert chosen(pair(), 1, ["1"]) == [1]
    assert chosen(pair(), 1, ["GPU-00000001"]) == [1]
    with pytest.raises(NothingToRunOn, match="2 GPUs are wanted, 1 of 2"):
        choose_gpus(host(*pair()), 2, ["1"])
    with pytest.raises(NothingToRunOn, match="1 GPUs are wanted, 0 of 2"):
        choose_gpus(host(*pair()), 1, [""])


def test_a_gpu_is_named_by_its_whole_number():
    many = tuple(gpu(index) for index in range(13))
    assert chosen(many, 1, ["12"]) == [12]
    with pytest.raises(NothingToRunOn, match="2 GPUs are wanted, 1 of 13"):
        choose_gpus(host(*many), 2, ["12"])


def test_one_container_sees_all_gpus_and_keeps_its_ipc_to_itself():
    found = place(pair(), 1, run="r")
    assert (found.name, found.network, found.transport) == (TOGETHER, "bridge", "P2P")
    (node,) = found.nodes
    assert (node.takes, node.ipc, dict(node.env)) == ((0, 1), "private", {})
    assert "18 links" in found.why


def test_several_containers_see_every_gpu_and_share_the_first_ones_ipc():
    found = place(pair(), 2, run="r")
    assert (found.name, found.network, found.transport) == (SHARED, "bridge", "P2P")
    assert [node.ipc for node in found.nodes] == ["shareable", "first"]
    assert [node.takes for node in found.nodes] == [(0,), (1,)]
    assert [node.env["CUDA_VISIBLE_DEVICES"] for node in found.nodes] == ["0", "1"]
    assert all(len(node.visible) == 2 for node in found.nodes)
    assert found.env["NCCL_CUMEM_ENABLE"] == "0"
    assert found.env["NCCL_HOSTID"] == "stackyard-r"
    assert [one.index for one in found.gpus] == [0, 1]


def test_runs_beside_each_other_have_host_ids_of_their_own():
    ids = {place(pair(), 2, run=run).env["NCCL_HOSTID"] for run in ("a", "b")}
    assert len(ids) == 2


def test_on_the_hosts_network_nccl_may_use_cumem():
    found = place(pair(), 2, name=HOST_NETWORK, run="r")
    assert [node.ipc for node in found.nodes] == ["host", "host"]
    assert "NCCL_CUMEM_ENABLE" not in found.env
    assert placement.environment_of(found)["NCCL_SOCKET_IFNAME"] == "lo"
    assert placement.environment_of(place(pair(), 2, run="r"))["NCCL_SOCKET_IFNAME"] == "eth0"


def test_dockers_own_way_is_there_to_be_measured_and_says_what_it_costs():
    found = place(pair(), 2, name=ISOLATED, run="r")
    assert [[one.index for one in node.visible] for node in found.nodes] == [[0], [1]]
    assert found.transport == "NET"
    assert "1/100 of NVLink's bandwidth" in found.warnings[0]
    assert "NCCL_NET" not in found.env
    assert place(pair(), 2, name=ISOLATED, infiniband=True, run="r").env["NCCL_NET"] == "IB"


def test_without_peer_access_shared_memory_is_the_best_there_is():
    found = place((gpu(0), gpu(1)), 1, run="r")
    assert found.transport == "SHM"
    assert "host memory" in found.why


@pytest.mark.parametrize(
    ("nodes", "name", "what"),
    [
        (3, "", "2 GPUs cannot be spread over 3 nodes evenly"),
        (0, "", "2 GPUs cannot be spread over 0 nodes evenly"),
        (2, "near", "there is no placement 'near'"),
        (2, TOGETHER, "placement 'together' does not fit 2 nodes"),
        (1, SHARED, "placement 'shared-ipc' does not fit 1 node"),
    ],
)
def test_what_cannot_be_placed_is_said(nodes, name, what):
    with pytest.raises(UsageError) as caught:
        place(pair(), nodes, name=name, run="r")
    assert caught.value.what == what


def sound(name, nodes=2, change=lambda placed: placed, **env):
    placed = change(place(pair(), nodes, name=name, run="r"))
    return require_sound(placed, {**placement.environment_of(placed), **env})


@pytest.mark.parametrize(("name", "nodes"), [(TOGETHER, 1), (SHARED, 2), (HOST_NETWORK, 2)])
def test_what_is_generated_is_sound(name, nodes):
    assert sound(name, nodes) == ()


def own_gpu_only(placed):
    nodes = tuple(
        dataclasses.replace(node, visible=(placed.gpus[number],), takes=(0,))
        for number, node in enumerate(placed.nodes)
    )
    return dataclasses.replace(placed, nodes=nodes)


def private_ipc(placed):
    nodes = tuple(dataclasses.replace(node, ipc="private") for node in placed.nodes)
    return dataclasses.replace(placed, nodes=nodes)


@pytest.mark.parametrize(
    ("name", "change", "env", "why"),
    [
        (HOST_NETWORK, own_gpu_only, {}, "each sees its own GPU only"),
        (SHARED, own_gpu_only, {}, "each sees its own GPU only"),
        (SHARED, lambda placed: placed, {"NCCL_CUMEM_ENABLE": "1"}, "abstract sockets"),
    ],
)
def test_what_was_seen_to_fail_is_refused_with_the_reason(name, change, env, why):
    with pytest.raises(UsageError) as caught:
        sound(name, change=change, **env)
    assert why in caught.value.why
    assert "--placement shared-ipc" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "env"),
    [(private_ipc, {}), (own_gpu_only, {"NCCL_HOSTID": ""}), (lambda p: p, {"NCCL_HOSTID": ""})],
)
def test_what_falls_to_sockets_is_warned_about(change, env):
    (said,) = sound(SHARED, change=change, **env)
    assert said.startswith("NCCL falls back to sockets")


def test_switches_that_cost_bandwidth_are_named():
    assert sound(TOGETHER, 1, NCCL_P2P_DISABLE="1") == ("NCCL_P2P_DISABLE=1 keeps NCCL off NVLink",)
    assert sound(TOGETHER, 1, NCCL_P2P_DISABLE="0") == ()
