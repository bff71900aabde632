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


def test_an_empty_log_proves_nothing():
    found = nccl.read_log([])
    assert (found.transports, found.channels, found.version) == ({}, 0, "")
