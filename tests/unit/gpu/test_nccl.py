"""NCCL's own log, read: real logs from two H200 (tests/unit/logs), and what they prove."""

from pathlib import Path

import pytest

from stackyard.gpu import nccl

LOGS = Path(__file__).parent.parent / "logs"


def read(name):
    return nccl.read_log((LOGS / name).read_text(encoding="utf-8").splitlines())


def test_a_healthy_log_names_every_channel():
    found = read("healthy.nccl.log")
    assert found.transports == {"0>1": ("P2P/CUMEM",), "1>0": ("P2P/CUMEM",)}
    assert found.channels >= 4
    assert found.version.startswith("2.28.9")
    assert found.warnings == ()


def test_sockets_show():
    found = read("nccl-over-sockets.two.log")
    kinds = {nccl.kind(via) for pair in found.transports.values() for via in pair}
    assert kinds == {"NET"}


@pytest.mark.parametrize(
    ("line", "pair", "via"),
    [
        ("n1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "0>1", "P2P/IPC"),
        ("n1:9:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "0>1",
         "SHM/direct/direct"),
        ("n1:9:9 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [send] via NET/IB/0", "1>0", "NET/IB/0"),
        ("n1:9:9 [0] NCCL INFO Channel 01/0 : 1[b000] -> 0[c000] [receive] via NET/Socket/0",
         "1>0", "NET/Socket/0"),
    ],
)  # fmt: skip
def test_every_form_of_a_channel_is_read(line, pair, via):
    assert nccl.read_log([line]).transports == {pair: (via,)}


def test_every_transport_that_two_ranks_take_is_seen():
    """One channel over sockets beside others over NVLink is what is to be found."""
    line = "n1:9:9 [0] NCCL INFO Channel {:02}/0 : 0[0] -> 1[1] via {}"
    taken = ["P2P/IPC", "NET/Socket/0", "P2P/IPC"]
    found = nccl.read_log([line.format(number, via) for number, via in enumerate(taken)])
    assert found.transports == {"0>1": ("NET/Socket/0", "P2P/IPC")}
    assert found.channels == 3


def test_a_warning_is_kept_once_and_without_its_rank():
    lines = [f"n1:9:{n} [{n}] misc/socket.cc:58 NCCL WARN no interface ib7" for n in (0, 1)]
    assert nccl.read_log(lines).warnings == ("no interface ib7",)


def test_the_network_is_the_one_that_is_taken_not_one_that_was_looked_for():
    """NCCL says `NET/IB : Using [RO]` also where it finds no device."""
    assert read("healthy.nccl.log").network == "Socket"
    assert (
        nccl.read_log(["a:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>"]).network
        == "Socket"
    )


def test_what_every_host_uses_is_known():
    found = read("nccl-over-sockets.two.log")
    assert found.taken == {"vm": ("NET/Socket/0",)}
    assert [(a.host, a.kind, a.name) for a in found.adapters] == [("vm", "Socket", "eth0")]
    assert found.settings["NCCL_P2P_DISABLE"] == found.settings["NCCL_IB_DISABLE"] == "1"


# Written after NCCL's source (net_ib.cc, graph/search.cc, 2.28): no adapter was at hand.
INFINIBAND = """\
study:9:9 [0] NCCL INFO NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 context=0x7f ar=0
study:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.5<0>
study:9:9 [0] NCCL INFO Using network IB
study:9:9 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 8, bw 40.0/40.0, type NVL/PIX
study:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
study:9:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
"""


def test_adapters_have_their_speed_and_layer_and_gpus_their_joins():
    found = nccl.read_log(INFINIBAND.splitlines())
    assert [(a.kind, a.words()) for a in found.adapters] == [
        ("InfiniBand", "mlx5_0:1, 400 Gbit/s"), ("RoCE", "mlx5_1:1"),
    ]  # fmt: skip
    assert (found.network, found.joins) == ("IB", {"study": ("NVL",)})
    assert found.taken == {"study": ("NET/IB/0/GDRDMA", "P2P/CUMEM")}


def test_an_empty_log_proves_nothing():
    found = nccl.read_log([])
    assert (found.transports, found.channels, found.version) == ({}, 0, "")
