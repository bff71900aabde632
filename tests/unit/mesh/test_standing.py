"""Runs on hosts: which are found, and what a start that fails leaves."""

from types import SimpleNamespace

import pytest

from stackyard.gpu.access import Access
from stackyard.mesh import standing
from stackyard.mesh.hosts import Host
from stackyard.mesh.link import HostError
from stackyard.mesh.nodes import NodeSettings
from stackyard.mesh.standing import PortTaken, Standing, connect
from stackyard.system.errors import EngineError, MeshError
from tests.unit.machines import NOW, fleet, gpu_facts, node, plan


@pytest.mark.parametrize(
    ("links", "why"),
    [({"a": None}, "its container is exited"), ({}, "host a does not answer")],
)
def test_a_run_without_its_first_node_is_told_with_what_to_do(links, why):
    run = Standing(plan=plan(), containers={}, states={"a": "exited"})
    with pytest.raises(MeshError, match="a, the first node of run demo, is gone") as caught:
        connect(links, run)
    assert caught.value.why == why
    assert "invoke down --name demo" in caught.value.hint


class Engine:
    """Takes containers, and removes those with a label; `log` is an error where they are gone."""

    def __init__(self, there=(), *, runs=False, log=""):
        self.there, self._runs, self._log = list(there), runs, log

    def running(self, container):
        return self._runs

    def container_log(self, container):
        if isinstance(self._log, Exception):
            raise self._log
        return self._log

    def start(self, labels):
        self.there.append(labels)
        return f"c{len(self.there)}"

    def put(self, container, folder, archive):
        pass

    def remove_run(self, label):
        key, _, value = label.partition("=")
        gone = [labels for labels in self.there if labels.get(key) == value]
        self.there = [labels for labels in self.there if labels not in gone]
        return [f"{len(gone)} containers"]


class Machine:
    """A host that says which ports something listens on there; None: it says nothing."""

    def __init__(self, there=(), ports=(), *, runs=False, log=""):
        self.engine = Engine(there, runs=runs, log=log)
        self._ports = ports

    def shell(self, script, *words):
        assert "/proc/net/tcp" in script
        if self._ports is None:
            raise HostError("h", "it does not answer")
        lines = [f"0100000A:{port:04X}" for port in self._ports]
        return "\n".join(["== listening", *lines, "== end", ""])


def test_a_start_that_fails_removes_its_own_containers_and_not_another_s_of_that_name(monkeypatch):
    wanted = plan()
    other = {standing.RUN_LABEL: wanted.run, standing.TOKEN_LABEL: "another's"}
    links = {node.host: Machine([other]) for node in wanted.nodes}

    def install(engine, container, node, material):
        if node == wanted.names[-1]:
            raise EngineError("the engine is full")

    monkeypatch.setattr(standing.time, "time", lambda: wanted.until - 3600)
    monkeypatch.setattr(standing, "_spec", lambda *given: given[-1])
    monkeypatch.setattr(standing.nodes, "install", install)
    with pytest.raises(MeshError, match=f"node {wanted.names[-1]} did not start"):
        standing.start(links, None, {}, wanted)
    assert [link.engine.there for link in links.values()] == [[other]] * len(links)


GONE = EngineError("reading the log of c1", why="No such container: c1")
TAKEN = "Address already in use: another program listens at port 2222 of"


class Talk:
    """A supervisor to which a node is lost."""

    def __init__(self):
        self.closed = False

    def wait_joined(self, names):
        raise MeshError("b cannot be logged in to from the first node: Host key verification")

    def close(self):
        self.closed = True


def supervised(monkeypatch, wanted, answer, machines):
    """Start the supervisor of nodes that are there; return why they do not come up."""

    def supervise(*_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(standing, "ENDING_SECONDS", 0)
    monkeypatch.setattr(standing.time, "sleep", lambda _: None)
    monkeypatch.setattr(standing, "supervise", supervise)
    run = Standing(plan=wanted, containers={"a": "c1", "b": "c2"})
    with pytest.raises(MeshError) as caught:
        standing._supervise(machines, run, 0.0)
    return caught.value


def test_a_port_is_taken_where_a_node_is_gone_and_something_listens_there(monkeypatch):
    """An engine removes a node that ends, with the log in which its sshd says why."""
    talk = Talk()
    machines = {"a": Machine(runs=True, log="listening"), "b": Machine(ports=[22, 2222], log=GONE)}
    error = supervised(monkeypatch, plan(), talk, machines)
    assert isinstance(error, PortTaken) and talk.closed
    assert error.what.startswith("b cannot be logged in to")
    assert error.why == f"a: listening\nb: {TAKEN} b"


def test_a_port_is_taken_where_the_first_node_is_gone_before_its_supervisor_starts(monkeypatch):
    refused = EngineError("starting sh in c1", why="No such container: c1")
    machines = {"a": Machine(ports=[2222], log=GONE), "b": Machine(runs=True)}
    error = supervised(monkeypatch, plan(), refused, machines)
    assert isinstance(error, PortTaken)
    assert error.why == f"No such container: c1\na: {TAKEN} a"


def test_a_port_is_taken_where_a_log_that_is_there_says_so(monkeypatch):
    log = "error: Bind to port 2222 on 10.0.0.2 failed: Address already in use."
    machines = {"a": Machine(runs=True), "b": Machine(log=log)}
    refused = EngineError("starting sh in c1", why="No such container: c1")
    assert isinstance(supervised(monkeypatch, plan(), refused, machines), PortTaken)


@pytest.mark.parametrize(
    ("network", "machine"),
    [
        ("host", Machine(ports=[22, 2223], log=GONE)),  # it ended for another reason
        ("host", Machine(ports=[2222], runs=True)),  # its own sshd listens
        ("host", Machine(ports=None, log=GONE)),
        ("overlay", Machine(ports=[2222], log=GONE)),  # its ports are not its host's
    ],
)
def test_nodes_that_fail_for_another_reason_are_told_with_it(monkeypatch, network, machine):
    refused = EngineError("starting sh in c1", why="no space left", hint="docker system df")
    machines = {"a": Machine(runs=True), "b": machine}
    error = supervised(monkeypatch, plan(network=network), refused, machines)
    assert type(error) is MeshError
    assert (error.what, error.hint) == ("starting sh in c1", "docker system df")
    assert error.why.splitlines()[0] == "no space left" and "in use" not in error.why


def test_a_port_is_taken_where_a_node_ends_while_its_keys_arrive(monkeypatch):
    """Its sshd starts as soon as they are there, before the command that brings them has ended."""

    def install(engine, container, node, material):
        if node == "b":
            raise MeshError("b did not take its keys (exit code 137)", hint="build it anew")

    monkeypatch.setattr(standing.time, "time", lambda: NOW)
    monkeypatch.setattr(standing, "_spec", lambda *given: given[-1])
    monkeypatch.setattr(standing.nodes, "install", install)
    machines = {"a": Machine(runs=True), "b": Machine(ports=[2222])}
    with pytest.raises(PortTaken, match="node b did not start") as caught:
        standing.start(machines, None, {}, plan())
    assert caught.value.why == f"b did not take its keys (exit code 137)\n{TAKEN} b"
    assert caught.value.hint == "build it anew"
    assert [machine.engine.there for machine in machines.values()] == [[], []]


def test_nodes_of_a_smoke_get_the_variables_of_their_host_less_those_that_it_sets(monkeypatch):
    given = {}

    def spec(plan, node, fleet, facts, engine, env, labels):
        given[node.name] = env
        return labels

    monkeypatch.setattr(standing.time, "time", lambda: NOW)
    monkeypatch.setattr(standing, "_spec", spec)
    monkeypatch.setattr(standing.nodes, "install", lambda *_: None)
    monkeypatch.setattr(standing, "_supervise", lambda *_: None)
    wanted = plan()
    links = {node.host: SimpleNamespace(engine=Engine()) for node in wanted.nodes}
    named = fleet(
        Host(name="a", ssh="a", env={"NCCL_IB_HCA": "mlx5_1", "PYTHONPATH": "/mine"}), "b"
    )
    smoke = NodeSettings(image="i", env={"PYTHONPATH": "/smoke"}, files={}, probes={})
    standing.start(links, named, {}, wanted, smoke=smoke)
    assert given == {"a": {"NCCL_IB_HCA": "mlx5_1", "PYTHONPATH": "/smoke"},
                     "b": {"PYTHONPATH": "/smoke"}}  # fmt: skip
    # A job in a mesh that stays gets them by itself.
    standing.start(links, named, {}, wanted)
    assert given == {"a": {}, "b": {}}


@pytest.mark.parametrize(
    ("nodes", "ipc"),
    [
        ((node("a", "h", gpus=(0,)), node("b", "h", gpus=(1,))), "host"),
        ((node("a", "h", gpus=(0, 1)), node("b", "other", gpus=(0,))), "private"),
        ((node("a", "h"), node("b", "h")), "private"),
    ],
)
def test_gpu_nodes_of_one_host_share_its_ipc(nodes, ipc, monkeypatch):
    """NCCL's shared memory between containers needs that; nobody else is let into it."""
    monkeypatch.setattr(standing, "access_of", lambda *given: Access(how="none"))
    known = {"h": gpu_facts("h"), "other": gpu_facts("other", 2)}
    spec = standing._spec(plan(*nodes), nodes[0], fleet("h", "other"), known, None, {}, {})
    assert spec.ipc == ipc


def test_the_removal_goes_on_where_the_first_node_is_paused(monkeypatch):
    """An engine starts nothing in a paused container, so nothing can be announced there."""

    def converse(*_):
        raise EngineError("starting python3 in c1", why="Container c1 is paused")

    engine = SimpleNamespace(converse=converse)
    links = {node.host: SimpleNamespace(engine=engine) for node in plan().nodes}
    standing.give_up(links, Standing(plan=plan(), containers={"a": "c1", "b": "c2"}))
