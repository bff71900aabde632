"""What carried a run's data, and where hosts offer more: two H200's real logs, and made-up ones."""

from pathlib import Path

import pytest

from stackyard.gpu import nccl
from stackyard.gpu.infiniband import Port
from stackyard.gpu.transport import Offer, paths, warnings, words
from tests.unit.gpu.test_nccl import INFINIBAND

LOGS = Path(__file__).parent.parent / "logs"
NOTHING = Offer()


def real(name):
    return nccl.read_log((LOGS / name).read_text(encoding="utf-8").splitlines())


def made(*vias, host="study", more=""):
    lines = [f"{host}:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {via}" for via in vias]
    return [*lines, *more.splitlines()]


def said(log, offer=NOTHING):
    return [words(path.value()) for path in paths(log, offer)]


def port(device="mlx5_0", rate=400.0, **changes):
    values = {"device": device, "number": 1, "state": "ACTIVE", "rate": rate,
              "layer": "InfiniBand", **changes}  # fmt: skip
    return Port(**values)


def test_real_logs_name_what_was_used():
    assert said(real("healthy.nccl.log")) == ["peer-to-peer in vm"]
    assert said(real("nccl-over-sockets.two.log")) == ["sockets (eth0) in vm"]
    assert warnings(real("healthy.nccl.log"), NOTHING) == []


def test_sockets_inside_a_host_are_less_than_it_offers():
    (found,) = warnings(real("nccl-over-sockets.two.log"), NOTHING)
    assert found == ("NCCL used sockets between the GPUs of vm: unset NCCL_P2P_DISABLE,"
                     " NCCL_SHM_DISABLE")  # fmt: skip


@pytest.mark.parametrize(
    ("join", "kind"), [("NVL", "NVLink"), ("NVB", "NVLink"), ("PHB", "PCIe peer-to-peer")]
)
def test_how_gpus_are_joined_follows_from_the_graph(join, kind):
    graph = f"study:9:9 [0] NCCL INFO Pattern 4, crossNic 0, bw 1/1, type {join}/PIX, sameChannels"
    assert said(nccl.read_log(made("P2P/IPC", more=graph))) == [f"{kind} in study"]


BOTH = [*INFINIBAND.splitlines(), *INFINIBAND.replace("study:", "train:").splitlines()]


def test_infiniband_is_named_with_device_and_rate_between_hosts():
    log = nccl.read_log(BOTH)
    assert said(log)[:2] == ["NVLink in study", "NVLink in train"]
    through = "mlx5_0:1, 400 Gbit/s; mlx5_1:1"
    assert said(log)[2:] == [f"InfiniBand ({through}) between study, train"]
    # A rate that the log lacks is the host's own word.
    offer = Offer(ports={"study": (port("mlx5_1", 200.0), port()), "train": (port("mlx5_1", 200),)})
    assert "mlx5_1:1, 200 Gbit/s" in said(log, offer)[2]
    assert warnings(log, NOTHING) == []


def test_roce_is_not_called_infiniband():
    text = "study:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.5<0>"
    assert said(nccl.read_log(made("NET/IB/0", more=text))) == ["RoCE (mlx5_1:1) in study"]


def sockets(more=""):
    lines = []
    for host in ("study", "train"):
        own = f"{host}:9:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0>\n"
        lines += made("NET/Socket/0", host=host, more=own + more.replace("HOST", host))
    return nccl.read_log(lines)


def test_sockets_are_named_with_their_interface_and_are_fine_where_there_is_nothing_else():
    assert said(sockets()) == ["sockets (eth0) between study, train"]
    assert warnings(sockets(), NOTHING) == []
    # One host's port alone leads nowhere.
    assert warnings(sockets(), Offer(ports={"study": (port(),)})) == []


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ("", "invoke doctor --hosts shows its ports"),
        ("HOST:9:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
         "unset NCCL_IB_DISABLE"),
        ("HOST:9:9 [0] net_ib.cc:9 NCCL WARN no memory can be locked",
         "NCCL says: no memory can be locked"),
    ],
)  # fmt: skip
def test_sockets_between_hosts_with_infiniband_are_warned_of_with_the_remedy(more, remedy):
    offer = Offer(ports={"study": (port(),), "train": (port(),)})
    (found,) = warnings(sockets(more), offer)
    assert found.startswith("NCCL used sockets (eth0) between study, train, which have study mlx5")
    assert found.endswith(f": {remedy}")


def test_ports_that_were_left_unused_are_named():
    offer = Offer(
        ports={host: (port(), port("mlx5_1"), port("mlx5_2")) for host in ("study", "train")}
    )
    found = warnings(nccl.read_log(BOTH), offer)
    assert [text.partition(":")[0] for text in found] == [
        f"NCCL left ports of {host} unused" for host in ("study", "train")
    ]
    assert all("mlx5_2:1" in text and "mlx5_0:1" not in text for text in found)


@pytest.mark.parametrize(
    ("more", "offer", "warned"),
    [
        ("", NOTHING, False),  # GPUs that cannot do better
        ("", Offer(nvlinks=frozenset({"study"})), True),
        ("study:9:9 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1", NOTHING, True),
    ],
)
def test_shared_memory_is_warned_of_where_gpus_could_do_better(more, offer, warned):
    log = nccl.read_log(made("SHM/direct/direct", more=more))
    assert said(log) == ["shared memory in study"]
    assert bool(warnings(log, offer)) == warned


def test_a_lone_rank_uses_nothing():
    assert (said(nccl.read_log([])), warnings(nccl.read_log([]), NOTHING)) == ([], [])
