"""Where the nodes of a run over hosts go, and everything that keeps it from starting, at once."""

from __future__ import annotations

import dataclasses

import pytest

from stackyard.gpu.access import DriverFiles
from stackyard.gpu.infiniband import Adapters, Gid, Port
from stackyard.gpu.placement import MIB, GpuProcess
from stackyard.mesh.hosts import Folder, Host
from stackyard.mesh.node_plan import (
    free_port,
    make_plan,
    node_environment,
    parse_plan,
    require_name,
    usable_gpus,
    visible,
)
from stackyard.mesh.survey import FolderFacts
from stackyard.system.errors import UsageError
from tests.unit.gpu import test_doctor
from tests.unit.machines import (
    IMAGE,
    NOW,
    facts,
    fleet,
    gpu,
    gpu_facts,
    interface,
    node,
    plan,
    wanted,
)

OTHER = "sha256:" + "fedcba987654" * 5


def planned(hosts, found, asked=None):
    made, problems = make_plan(hosts, found, asked or wanted(*found), NOW)
    assert problems == []
    return made


def wrong(hosts, found, asked=None, *, warning=False):
    made, problems = make_plan(hosts, found, asked or wanted(*found), NOW)
    assert (made is not None) == warning
    assert {problem.warning for problem in problems} == {warning}
    return [f"{problem.host}: {problem.what}" for problem in problems]


def two(**second):
    return {"a": facts("a", 1), "b": facts("b", 2, **second)}


# What is planned


def test_every_host_gets_a_node_of_its_own_name():
    made = planned(fleet("a", "b"), two())
    assert [(n.name, n.host, n.address, n.port, n.interface, n.gpus) for n in made.nodes] == [
        ("a", "a", "10.0.0.1", 2222, "eth0", ()), ("b", "b", "10.0.0.2", 2222, "eth0", ()),
    ]  # fmt: skip
    assert (made.image, made.until, made.lease) == (IMAGE, NOW + 7 * 86400, 60.0)
    assert made.why == "all hosts are in 10.0.0.0/24, at least 1000 Mbit/s"


def test_a_host_with_several_nodes_gives_them_ports_in_a_row():
    made = planned(fleet(Host(name="a", ssh="a", nodes=3), "b"), two(ports=frozenset({2223})))
    assert [(n.name, n.port) for n in made.nodes] == [
        ("a-1", 2222), ("a-2", 2223), ("a-3", 2224), ("b", 2222),
    ]  # fmt: skip


def test_nodes_of_one_host_share_its_gpus_evenly():
    found = {"a": gpu_facts("a", 1, count=4)}
    asked = wanted("a", device="cuda", base="gpu")
    made = planned(fleet(Host(name="a", ssh="a", nodes=2)), found, asked)
    assert [n.gpus for n in made.nodes] == [(0, 1), (2, 3)]


def test_on_cpu_ranks_no_node_has_gpus():
    assert [n.gpus for n in planned(fleet("a"), {"a": gpu_facts()}).nodes] == [()]


def test_on_a_network_of_the_hosts_nodes_have_no_address_of_theirs():
    made = planned(fleet("a", "b"), two(), wanted("a", "b", network="lab-overlay"))
    assert {(n.address, n.interface) for n in made.nodes} == {("", "")}
    assert (made.network, made.why) == ("lab-overlay", "network lab-overlay")


@pytest.mark.parametrize(
    ("busy", "count", "port"),
    [((), 1, 2222), ((2222,), 1, 2223), ((2223,), 2, 2224), ((2222, 2224), 2, 2225)],
)
def test_ports_that_something_listens_on_are_passed_over(busy, count, port):
    assert free_port({"a": (facts(), 1), "b": (facts(ports=frozenset(busy)), count)}) == port


def test_a_port_is_free_on_all_hosts_or_not_taken():
    found = {n: (facts(ports=frozenset({2222 + i})), 1) for i, n in enumerate("abc")}
    assert free_port(found) == 2225


def test_hosts_without_any_free_port_are_refused():
    with pytest.raises(UsageError, match="no port from 2222 to 4221 is free on all hosts"):
        free_port({"a": (facts(ports=frozenset(range(2222, 5000))), 1)})


# What keeps it from starting


def test_everything_wrong_on_every_host_is_told_at_once():
    hosts = fleet(
        "a", "b", "c", "d", Host(name="e", ssh="e", interface="ib0"),
        folders={"/data": Folder(source="/srv/data"), "/cache": Folder(source="volume:x")},
    )  # fmt: skip
    data = {"/data": FolderFacts(path="/srv/data", free_bytes=2**40)}
    found = {
        "a": facts("a", 1, skew=-900.0, folders=data),
        "b": facts("b", 2, engine_free_bytes=0, folders=data),
        "c": facts("c", 3, folders={"/data": FolderFacts(path="")}),
        "d": facts("d", 4, folders=data),
        "e": facts("e", 5, folders=data),
    }
    images = {"a": IMAGE, "b": OTHER, "c": "", "d": IMAGE, "e": IMAGE}
    asked = wanted(images=images, taken={"d": "stack megatron"})
    assert wrong(hosts, found, asked) == [
        "c: it does not hold stackyard/fairseq:cpu",
        "b: its stackyard/fairseq:cpu is another image (fedcba987654, not 0123456789ab)",
        "a: its clock is 900 s behind this machine's",
        "b: its disk is full: 0 MiB are free where the engine keeps containers",
        "c: it has no folder /srv/data",
        "d: run 'demo' is on it already (stack megatron)",
        "e: it has no interface 'ib0' with an address; it has lo, eth0",
    ]


def test_every_problem_says_what_to_do():
    hosts = fleet("a", folders={"/data": Folder(source="/srv/data")})
    found = {"a": facts(skew=900.0, engine_free_bytes=1, folders={"/data": FolderFacts(path="")})}
    problems = make_plan(hosts, found, wanted(images={"a": ""}, taken={"a": "x"}), NOW)[1]
    assert len(problems) == 5
    assert all(problem.hint for problem in problems)


def test_a_host_that_did_not_answer_leaves_the_others_problems_and_no_plan():
    hosts = fleet("a", "b", "gone")
    assert make_plan(hosts, two(), wanted("a", "b"), NOW) == (None, [])
    made, problems = make_plan(hosts, two(skew=999.0), wanted("a", "b"), NOW)
    assert made is None
    assert [problem.host for problem in problems] == ["b"]


def test_an_engine_that_did_not_name_its_image_leaves_no_plan():
    assert make_plan(fleet("a", "b"), two(), wanted("a"), NOW) == (None, [])
    assert make_plan(fleet("a"), {"a": facts()}, wanted(), NOW) == (None, [])


@pytest.mark.parametrize(
    ("skew", "error", "said"),
    [(4.0, 0.0, None), (-4.0, 0.0, None), (20.0, 16.0, None), (239.0, 0.0, "ahead of"),
     (-60.0, 0.0, "behind")],
)  # fmt: skip
def test_a_clock_that_is_a_little_off_is_a_warning(skew, error, said):
    made, problems = make_plan(
        fleet("a"), {"a": facts(skew=skew, skew_error=error)}, wanted("a"), NOW
    )
    assert made is not None
    words = [problem.what for problem in problems if problem.warning]
    assert words == ([f"its clock is {abs(skew):.0f} s {said} this machine's"] if said else [])


def test_a_clock_outside_the_certificates_time_is_refused_less_what_asking_took():
    assert wrong(fleet("a"), {"a": facts(skew=250.0, skew_error=0.5)}) == [
        "a: its clock is 250 s ahead of this machine's"
    ]
    assert make_plan(fleet("a"), {"a": facts(skew=250, skew_error=30)}, wanted("a"), NOW)[0]


@pytest.mark.parametrize(
    ("free", "fits"), [(0, False), (2**30 - 1, False), (2**30, True), (None, True)]
)
def test_a_full_disk_is_refused_and_an_unknown_one_is_not(free, fits):
    made, _ = make_plan(fleet("a"), {"a": facts(engine_free_bytes=free)}, wanted("a"), NOW)
    assert (made is not None) == fits


def test_a_folder_with_little_space_is_a_warning():
    hosts = fleet("a", folders={"/data": Folder(source="/srv/data")})
    low = {"/data": FolderFacts(path="/srv/data", free_bytes=5 * MIB)}
    assert wrong(hosts, {"a": facts(folders=low)}, warning=True) == ["a: /srv/data has 5 MiB free"]
    unknown = {"/data": FolderFacts(path="/srv/data")}
    assert planned(hosts, {"a": facts(folders=unknown)})


def test_one_machine_under_two_names_is_refused():
    found = {"a": facts("a", 1), "b": facts("b", 1)}
    (said,) = wrong(fleet("a", "b"), found)
    assert said.startswith("b: it has the address of a (10.0.0.1): one machine under two names")


# GPUs


def cuda(hosts, found, **more):
    return make_plan(hosts, found, wanted(*found, device="cuda", **more), NOW)


def on_gpus(gpus="all", nodes=1, **changes):
    hosts = fleet(Host(name="a", ssh="a", gpus=gpus, nodes=nodes))
    made, problems = cuda(hosts, {"a": gpu_facts("a", **changes)})
    return made and [n.gpus for n in made.nodes], [p.what for p in problems]


HELD = gpu(1, processes=(GpuProcess(pid=7, bytes=MIB, command="python"),))


def test_all_gpus_of_a_host_are_taken_and_one_without_any_is_refused():
    assert on_gpus(count=2) == ([(0, 1)], [])
    assert on_gpus(count=0) == (None, ["none of its GPUs can be used"])


def test_a_gpu_that_is_held_is_passed_over_where_none_is_named():
    hosts = fleet(Host(name="a", ssh="a"))
    made, problems = cuda(hosts, {"a": gpu_facts("a", gpus=(gpu(0), HELD))})
    assert made.nodes[0].gpus == (0,)
    assert [(p.what, p.warning) for p in problems] == [
        ("GPU 1: processes hold it: 7 (python, 1 MiB)", True)
    ]


def test_every_named_gpu_that_cannot_be_used_is_told():
    hosts = fleet(Host(name="a", ssh="a", gpus="0,1,7"))
    made, problems = cuda(hosts, {"a": gpu_facts("a", gpus=(gpu(0, mig=True), HELD))})
    assert made is None
    assert [p.what for p in problems if not p.warning] == [
        "GPU 0: it is split by MIG, and NCCL does not join slices",
        "GPU 1: processes hold it: 7 (python, 1 MiB)",
        "GPU 7: there is none: it has 2",
    ]


def test_named_gpus_are_the_only_ones():
    assert on_gpus(gpus="1,3", count=4) == ([(1, 3)], [])


@pytest.mark.parametrize(
    ("gpus", "count", "nodes", "said"),
    [
        ("all", 3, 2, "3 GPUs cannot be spread over 2 nodes evenly"),
        ("0", 2, 2, "1 GPUs cannot be spread over 2 nodes evenly"),
        ("none", 2, 1, "it is to use no GPUs (gpus: none)"),
    ],
)
def test_gpus_that_do_not_fit_are_refused(gpus, count, nodes, said):
    assert on_gpus(gpus=gpus, count=count, nodes=nodes) == (None, [said])


def test_a_host_without_a_driver_is_refused():
    made, problems = cuda(fleet("a"), {"a": facts()})
    assert made is None
    assert [p.what for p in problems] == ["no NVIDIA driver is loaded on it"]


def test_a_host_whose_driver_or_gpus_do_not_fit_the_base_is_refused():
    old = gpu_facts(driver=DriverFiles(version="550.54.15", nodes=(), libraries={}))
    new, fits = test_doctor.NEW, test_doctor.OLD
    bases = {"new": dataclasses.replace(new, name="new"), "old": fits}
    hosts = fleet(Host(name="a", ssh="a", gpus="all"))
    made, (problem,) = cuda(hosts, {"a": old}, base="new", bases=bases)
    assert made is None
    assert problem.what == ("base new needs driver 580.65.06 or newer, this host has 550.54.15")
    assert problem.hint.startswith("--base ")
    assert cuda(hosts, {"a": old}, base="old", bases=bases)[0]


def test_gpus_of_all_hosts_are_told_at_once():
    found = {"a": facts("a", 1), "b": gpu_facts("b", 2, count=0)}
    assert [p.host for p in cuda(fleet("a", "b"), found)[1]] == ["a", "b"]


def test_no_gpus_are_asked_of_a_host_that_is_to_use_none():
    assert usable_gpus(Host(name="a", ssh="a", gpus="none"), gpu_facts()) == ([], {})


# What nodes are told


def test_a_node_is_told_its_interface():
    made = plan(node("a", interface="ib0"))
    assert node_environment(made, {"a": facts()}, made.nodes[0]) == {
        "GLOO_SOCKET_IFNAME": "ib0", "TP_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "=ib0",
    }  # fmt: skip


def test_a_container_numbers_the_gpus_that_it_sees_from_0():
    alone = plan(node("a", gpus=(2, 5)), node("b", gpus=(1,)))
    assert [visible(alone, n) for n in alone.nodes] == [(0, 1), (0,)]
    beside = plan(node("a-1", "a", gpus=(2, 5)), node("a-2", "a", gpus=(6, 7)))
    assert [visible(beside, n) for n in beside.nodes] == [(0, 1), (2, 3)]


def test_nodes_of_one_host_are_told_apart_by_what_they_see():
    made = plan(node("a-1", "a", gpus=(2, 5)), node("a-2", "a", gpus=(6, 7)))
    found = node_environment(made, {"a": gpu_facts()}, made.nodes[1])
    assert found["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert found["NCCL_HOSTID"] == "stackyard-demo-a"
    lone = plan(node("a", gpus=(2, 5)))
    assert "CUDA_VISIBLE_DEVICES" not in node_environment(lone, {"a": gpu_facts()}, lone.nodes[0])


ACTIVE = Adapters(
    ports=(Port(device="mlx5_0", number=1, state="ACTIVE", rate=400.0, layer="InfiniBand"),),
    verbs={"uverbs0": "mlx5_0"}, nodes=("/dev/infiniband/uverbs0",),
)  # fmt: skip
IN_SUBNET = Gid(index=3, address="::ffff:10.0.0.1", kind="RoCE v2")
ROCE = dataclasses.replace(
    ACTIVE, ports=(dataclasses.replace(ACTIVE.ports[0], layer="Ethernet", gids=(IN_SUBNET,)),)
)  # fmt: skip


@pytest.mark.parametrize(
    ("b", "hosts", "over"),
    [(ACTIVE, "ab", "=mlx5_0:1"), (Adapters(), "ab", None), (ACTIVE, "aa", None)],
)
def test_nodes_are_told_the_adapters_that_all_hosts_have(b, hosts, over):
    made = plan(*(node(f"n{i}", host, gpus=(i,)) for i, host in enumerate(hosts)))
    found = {"a": gpu_facts("a", infiniband=ACTIVE), "b": gpu_facts("b", 2, infiniband=b)}
    for one in made.nodes:
        assert node_environment(made, found, one).get("NCCL_IB_HCA") == over


@pytest.mark.parametrize(("network", "over"), [("host", "=mlx5_0:1"), ("overlay", None)])
def test_roce_is_used_on_the_hosts_network_alone(network, over):
    made = plan(*(node(one, gpus=(0,)) for one in "ab"), network=network)
    found = {one: gpu_facts(one, n, infiniband=ROCE) for n, one in enumerate("ab", 1)}
    assert node_environment(made, found, made.nodes[0]).get("NCCL_IB_HCA") == over


def test_nodes_log_in_to_each_other_by_address_and_port():
    made = plan(node("a", address="10.0.0.1"), node("b", address="10.0.0.2", port=2300))
    mesh = made.mesh(NOW)
    assert mesh.addresses == {"a": "10.0.0.1", "b": "10.0.0.2"}
    assert (mesh.port_of("a"), mesh.port_of("b"), mesh.seconds) == (2222, 2300, 3600)


# Names and labels


def test_a_plan_is_the_same_after_its_label():
    made = plan(node("a", address="10.0.0.1", gpus=(0, 3)), node("b-1", "b", port=2223))
    assert parse_plan(made.text()) == made


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", "null", "{}", '{"format": 1}', '{"format": 0, "nodes": []}',
     '{"format": 1, "nodes": [1]}', '{"format": 1, "nodes": [{"name": "a"}]}',
     plan().text().replace('"format": 1', '"format": 2'),
     plan().text().replace('"lease"', '"rent"')],
)  # fmt: skip
def test_a_label_of_something_else_is_no_plan(text):
    assert parse_plan(text) is None


@pytest.mark.parametrize("name", ["a", "my-run-2", "a" * 40])
def test_a_runs_name_may_be_part_of_a_host_name(name):
    assert require_name(name) == name


@pytest.mark.parametrize("name", ["", "My-Run", "-a", "a-", "a_b", "a b", "a" * 41, "a\n", "a/b"])
def test_other_names_are_refused_with_what_to_type(name):
    with pytest.raises(UsageError, match="cannot be a run's name") as caught:
        require_name(name)
    assert "--name" in caught.value.hint


def test_nodes_are_found_by_name_in_rank_order():
    made = plan()
    assert made.names == ("a", "b")
    assert made.node("b") is made.nodes[1]


def test_a_warning_does_not_change_the_plan():
    calm = planned(fleet("a"), {"a": facts(interfaces=(interface(),))})
    late, _ = make_plan(fleet("a"), {"a": facts(interfaces=(interface(),), skew=60.0)},
                        wanted("a"), NOW)  # fmt: skip
    assert dataclasses.replace(late) == calm
