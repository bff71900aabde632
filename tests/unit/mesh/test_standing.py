"""Runs on hosts: which are found, and what a start that fails leaves."""

from types import SimpleNamespace

import pytest

from stackyard.gpu.access import Access
from stackyard.mesh import standing
from stackyard.mesh.hosts import Host
from stackyard.mesh.nodes import NodeSettings
from stackyard.mesh.standing import Standing, connect
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
    """Takes containers, and removes those with a label."""

    def __init__(self, there=()):
        self.there = list(there)

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


def test_a_start_that_fails_removes_its_own_containers_and_not_another_s_of_that_name(monkeypatch):
    wanted = plan()
    other = {standing.RUN_LABEL: wanted.run, standing.TOKEN_LABEL: "another's"}
    links = {node.host: SimpleNamespace(engine=Engine([other])) for node in wanted.nodes}

    def install(engine, container, node, material):
        if node == wanted.names[-1]:
            raise EngineError("the engine is full")

    monkeypatch.setattr(standing.time, "time", lambda: wanted.until - 3600)
    monkeypatch.setattr(standing, "_spec", lambda *given: given[-1])
    monkeypatch.setattr(standing.nodes, "install", install)
    with pytest.raises(MeshError, match=f"node {wanted.names[-1]} did not start"):
        standing.start(links, None, {}, wanted)
    assert [link.engine.there for link in links.values()] == [[other]] * len(links)


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
