"""Adapters of hosts: read from trees written after the kernel's ABI documents, and chosen."""

import subprocess

import pytest

from stackyard.gpu import doctor, infiniband
from stackyard.gpu.infiniband import Adapters, Gid, Port

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:a288:c2ff:fe3b:506a"


def mapped(address):
    """The GID that stands for an IPv4 address, as sysfs writes it."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


class Tree:
    """A host's /sys, /dev and /proc, as far as they speak of adapters."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def port(self, device, number, state, rate, layer, gids=()):
        at = f"sys/class/infiniband/{device}/ports/{number}"
        self.write(f"{at}/state", state)
        self.write(f"{at}/rate", rate)
        self.write(f"{at}/link_layer", layer)
        for index, (gid, kind, interface) in enumerate(gids):
            self.write(f"{at}/gids/{index}", gid)
            if gid != ZERO:  # the kernel gives no type of what is not set
                self.write(f"{at}/gid_attrs/types/{index}", kind)
                self.write(f"{at}/gid_attrs/ndevs/{index}", interface)

    def verbs(self, number, device):
        self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", device)
        self.write(f"dev/infiniband/uverbs{number}", "")

    def read(self):
        done = subprocess.run(
            ["sh", "-c", infiniband.SCRIPT], capture_output=True, text=True, check=True, timeout=20,
            env={"PATH": "/usr/bin:/bin", "STACKYARD_ROOT": str(self.root)},
        )  # fmt: skip
        assert done.stderr == ""
        return infiniband.parse(done.stdout.splitlines())


@pytest.fixture
def tree(tmp_path, allow_processes):
    return Tree(tmp_path)


ROCE = [(LOCAL, "IB/RoCE v1", "ens1"), (LOCAL, "RoCE v2", "ens1"),
        (mapped("10.0.0.1"), "IB/RoCE v1", "ens1"), (mapped("10.0.0.1"), "RoCE v2", "ens1"),
        (ZERO, "", "")]  # fmt: skip


def test_a_host_without_adapters_has_none(tree):
    assert tree.read() == Adapters()


def test_an_infiniband_host_is_read(tree):
    tree.port("mlx5_0", 1, "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand", [(LOCAL, "", "")])
    tree.port("mlx5_1", 1, "1: DOWN", "10 Gb/sec (4X SDR)", "InfiniBand")
    tree.verbs(0, "mlx5_0")
    tree.verbs(1, "mlx5_1")
    tree.write("dev/infiniband/rdma_cm", "")
    tree.write("sys/module/nvidia_peermem/version", "580")
    found = tree.read()
    assert [port.words() for port in found.ports] == [
        "mlx5_0:1 InfiniBand 400 Gbit/s active", "mlx5_1:1 InfiniBand 10 Gbit/s down",
    ]  # fmt: skip
    assert [node.rpartition("/")[2] for node in found.devices] == ["rdma_cm", "uverbs0"]
    assert found.direct == ("nvidia_peermem",)


def test_a_roce_host_is_read_with_its_gids(tree):
    tree.port("mlx5_2", 1, "4: ACTIVE", "100 Gb/sec (4X EDR)", "Ethernet", ROCE)
    tree.write("proc/driver/nvidia/version", "NVRM: NVIDIA UNIX Open Kernel Module for x86_64")
    (port,) = tree.read().ports
    assert [(gid.index, gid.kind, gid.ipv4) for gid in port.gids] == [
        (0, "IB/RoCE v1", ""), (1, "RoCE v2", ""),
        (2, "IB/RoCE v1", "10.0.0.1"), (3, "RoCE v2", "10.0.0.1"),
    ]  # fmt: skip
    assert tree.read().direct == ("dma-buf",)


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER", ""])
def test_containers_get_no_device_without_an_active_port(tree, state):
    tree.port("mlx5_0", 1, state, "400 Gb/sec (4X NDR)", "InfiniBand")
    tree.verbs(0, "mlx5_0")
    tree.write("dev/infiniband/rdma_cm", "")
    found = tree.read()
    assert (found.devices, len(found.nodes)) == ((), 2)


@pytest.mark.parametrize(
    "line", ["", "port|mlx5_0|x|4: ACTIVE|1 Gb/sec|InfiniBand", "gid|a|1|0|::1||", "port|a", "x|y"]
)
def test_what_is_no_answer_is_passed_over(line):
    assert infiniband.parse([line]) == Adapters()


# What a run uses


def port(device="mlx5_0", *, state="ACTIVE", rate=400.0, layer="InfiniBand", gids=()):
    return Port(device=device, number=1, state=state, rate=rate, layer=layer, gids=gids)


def roce(device, *addresses):
    gids = [Gid(index=n, address=f"::ffff:{at}", kind="RoCE v2") for n, at in enumerate(addresses)]
    return port(device, rate=100.0, layer="Ethernet", gids=tuple(gids))


def adapters(*ports, verbs=True):
    """A host with these ports, and a verbs device for each adapter."""
    names = {f"uverbs{n}": one.device for n, one in enumerate(ports)} if verbs else {}
    nodes = tuple(f"/dev/infiniband/{name}" for name in names)
    return Adapters(ports=ports, verbs=names, nodes=nodes)


def choose(*hosts, subnets=("10.0.0.0/24",)):
    held = {f"h{n}": adapters(*ports) for n, ports in enumerate(hosts)}
    return infiniband.choose(held, dict.fromkeys(held, subnets))


def test_the_fastest_infiniband_ports_are_named_on_each_host():
    slow = port("mlx5_9", rate=100.0)
    found = choose([port("mlx5_0"), port("mlx5_1"), slow], [port("mlx5_4"), port("mlx5_5")])
    assert found.settings("h0") == {"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}
    assert found.settings("h1")["NCCL_IB_HCA"] == "=mlx5_4:1,mlx5_5:1"


def test_roce_ports_that_lead_elsewhere_are_left_out():
    found = choose(
        [roce("a", "10.9.0.1"), roce("b", "192.0.2.1", "10.0.0.1")], [roce("c", "10.0.0.2")]
    )
    assert found.settings("h0") == {
        "NCCL_NET": "IB", "NCCL_IB_HCA": "=b:1", "NCCL_IB_GID_INDEX": "1",
    }  # fmt: skip
    assert found.settings("h1")["NCCL_IB_GID_INDEX"] == "0"


def test_a_gid_index_that_differs_by_port_is_left_to_nccl():
    found = choose([roce("a", "10.0.0.1"), roce("b", "192.0.2.1", "10.0.0.3")],
                   [roce("c", "10.0.0.2")])  # fmt: skip
    assert "NCCL_IB_GID_INDEX" not in found.settings("h0")
    assert found.settings("h0")["NCCL_IB_HCA"] == "=a:1,b:1"


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ([[port()]], "nothing leaves the host"),
        ([[port()], []], "no usable InfiniBand or RoCE port on h1: TCP sockets"),
        ([[port()], [port(state="DOWN")]], "no usable InfiniBand or RoCE port on h1: TCP sockets"),
        ([[roce("a", "10.0.0.1")], [roce("b", "10.9.0.2")]],
         "no RoCE v2 port of h1 has an address in a subnet of all hosts: TCP"),
        ([[port()], [roce("b", "10.0.0.2")]],
         "no RoCE v2 port of h0 has an address in a subnet of all hosts: TCP"),
    ],
)  # fmt: skip
def test_where_hosts_have_nothing_in_common_nccl_is_told_nothing(hosts, why):
    found = choose(*hosts)
    assert (found.why, found.settings("h0")) == (why, {})


def test_a_port_without_a_verbs_device_is_not_used():
    """NCCL would fail where it is told to use InfiniBand and containers get no device."""
    held = {"a": adapters(port()), "b": adapters(port(), verbs=False)}
    found = infiniband.choose(held, {})
    assert (found.why, found.settings("a")) == (
        "no usable InfiniBand or RoCE port on b: TCP sockets", {},
    )  # fmt: skip


def test_hosts_with_both_use_infiniband():
    both = [port(), roce("b", "10.0.0.1")]
    assert choose(both, both).settings("h0")["NCCL_IB_HCA"] == "=mlx5_0:1"


# What doctor says


def said(found):
    return {one.name: (one.state, one.what, one.hint) for one in doctor.adapters(found)}


def test_doctor_names_ports_gids_and_how_gpu_memory_is_registered():
    found = Adapters(ports=(roce("mlx5_0", "10.0.0.1"),), verbs={"uverbs0": "mlx5_0"},
                     nodes=("/dev/infiniband/uverbs0",), direct=("dma-buf",))  # fmt: skip
    shown = said(found)
    assert shown["gpudirect"] == (doctor.OK, "dma-buf", "")
    assert shown["infiniband"][:2] == (
        doctor.OK,
        "mlx5_0:1 RoCE 100 Gbit/s active, GID 0 10.0.0.1 RoCE v2; 1 device nodes go to containers",
    )


@pytest.mark.parametrize(
    ("found", "name", "state", "hint"),
    [
        (Adapters(), "infiniband", doctor.NOTE, ""),
        (Adapters(ports=(port(state="INIT"),)), "infiniband", doctor.NOTE, "subnet manager"),
        (Adapters(ports=(port(),)), "gpudirect", doctor.NOTE, "modprobe nvidia_peermem"),
        (Adapters(ports=(port(),)), "infiniband", doctor.WRONG, ""),
    ],
)
def test_doctor_says_what_is_missing(found, name, state, hint):
    shown = said(found)[name]
    assert shown[0] == state and hint in shown[2]
