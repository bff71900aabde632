"""A mesh over hosts for one command: what it needs, what it is, and its removal."""

from types import SimpleNamespace

import pytest

from stackyard.mesh import spread
from stackyard.mesh.hosts import Folder, Host
from stackyard.mesh.nodes import NodeSettings
from stackyard.mesh.runs import Reached
from stackyard.mesh.spread import LEASE_SECONDS, Spread, require_shared
from stackyard.mesh.standing import Standing
from stackyard.system.errors import MeshError, UsageError
from tests.unit.machines import facts, fleet, node, plan, wanted

PLAN = plan(node("a", address="10.0.0.1", interface="eth0"),
            node("b", address="10.0.0.2", interface="eth1", port=2223))  # fmt: skip
RUN = Standing(plan=PLAN, containers={"a": "ca", "b": "cb"})


class Engine:
    def __init__(self, name):
        self.name, self.ran, self.killed = name, [], []

    def exec(self, container, words, *, seconds, **more):
        self.ran.append((container, list(words)))
        return SimpleNamespace(code=0, output="")

    def kill(self, container):
        self.killed.append(container)


class Talk:
    lost = ""

    def __init__(self, engine, container, on_lost):
        self.where, self.on_lost, self.did = (engine.name, container), on_lost, []

    def send(self, do, **_):
        self.did.append(do)

    def rest(self):
        self.did.append("rest")

    def close(self):
        self.did.append("close")


@pytest.fixture
def made(monkeypatch):
    links = {name: SimpleNamespace(engine=Engine(name)) for name in ("a", "b")}
    own = {"NCCL_IB_HCA": "mlx5_1", "GLOO_SOCKET_IFNAME": "its"}
    hosts = Reached(fleet=fleet("a", Host(name="b", ssh="b", env=own)), links=links, failed={})
    found = SimpleNamespace(facts={"a": facts("a", 1), "b": facts("b", 2)})
    removed = []

    def up(hosts, asked, say, *, owner, smoke):
        assert owner == LEASE_SECONDS
        assert smoke(PLAN, found).files == {"x.py": b"x"}
        return RUN, []

    def remove(links, run):
        removed.append(run)
        return [], {}

    monkeypatch.setattr(spread.runs, "up", up)
    monkeypatch.setattr(spread.standing, "remove", remove)
    monkeypatch.setattr(spread, "Talk", Talk)
    settings = NodeSettings(image="i", env={"GLOO_SOCKET_IFNAME": "mine"}, files={"x.py": b"x"},
                            probes={})  # fmt: skip
    said = []
    one = Spread(hosts=hosts, wanted=wanted("a", "b"), settings=settings, say=said.append)
    engines = {n: k.engine for n, k in links.items()}
    return SimpleNamespace(spread=one, removed=removed, engines=engines, said=said)


def test_commands_reach_each_node_by_its_own_engine(made):
    with made.spread.running() as mesh:
        mesh.exec("b", ["true"], seconds=5)
        assert made.engines["b"].ran == [("cb", ["true"])] and made.engines["a"].ran == []
        assert (mesh.talk.where, mesh.talk.did) == (("a", "ca"), ["attach"])
        assert [mesh.plan.port_of(name) for name in mesh.plan.nodes] == [2222, 2223]
        assert (mesh.lease, mesh.shared) == (LEASE_SECONDS, "/shared/stackyard-demo")


def test_nodes_have_the_interface_of_their_host_unless_all_are_told_another(made):
    with made.spread.running() as mesh:
        assert {name: own["NCCL_SOCKET_IFNAME"] for name, own in mesh.own.items()} == {
            "a": "=eth0", "b": "=eth1",
        }  # fmt: skip
        assert all("GLOO_SOCKET_IFNAME" not in own for own in mesh.own.values())


def test_nodes_have_the_variables_of_their_host_in_hosts_yml(made):
    with made.spread.running() as mesh:
        assert [own.get("NCCL_IB_HCA") for own in mesh.own.values()] == [None, "mlx5_1"]


@pytest.mark.parametrize("error", [None, MeshError("x"), KeyboardInterrupt()])
def test_everything_goes_however_it_ends(made, error):
    try:
        with made.spread.running() as mesh:
            if error:
                raise error
    except type(error):
        pass
    assert made.engines["a"].ran == [("ca", ["rm", "-rf", "/shared/stackyard-demo"])]
    assert mesh.talk.did == ["attach", "rest", "close"]
    assert made.removed == ["demo"]


def test_what_a_lost_node_leaves_on_the_shared_folder_is_named(made):
    made.spread.hosts.fleet.folders["/shared"] = Folder(source="/mnt/all", shared=True)
    with made.spread.running() as mesh:
        mesh.talk.lost = "b is gone"
    assert made.engines["a"].ran == []
    assert made.said[-1].endswith("on a host: sudo rm -r /mnt/all/stackyard-demo")


def test_when_one_node_is_lost_all_are_killed(made):
    with made.spread.running() as mesh:
        mesh.talk.on_lost()
    assert [engine.killed for engine in made.engines.values()] == [["ca"], ["cb"]]


@pytest.mark.parametrize(
    "folders", [{}, {"/data": Folder(source="/x", shared=True)}, {"/shared": Folder(source="/x")}]
)
def test_without_a_shared_folder_nothing_starts(folders):
    with pytest.raises(UsageError, match="has no folder /shared that the hosts share"):
        require_shared(fleet("a", "b", folders=folders))


def test_a_shared_folder_is_enough():
    require_shared(fleet("a", "b", folders={"/shared": Folder(source="/x", shared=True)}))
