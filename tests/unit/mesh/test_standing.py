"""What is put into nodes: every program, with all that it imports by its own name."""

import ast
import io
import sys
import tarfile
from types import SimpleNamespace

import pytest

from stackyard.definitions.project import INSIDE
from stackyard.mesh import standing
from stackyard.mesh.standing import PROGRAMS, Standing, connect, programs, wait_joined
from stackyard.system.errors import EngineError, MeshError
from tests.unit.machines import plan


def imports(source):
    for found in ast.walk(ast.parse(source)):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            yield found.module


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_imports_lies_beside_it(name):
    needed = set(imports((INSIDE / name).read_text())) - set(sys.stdlib_module_names)
    assert {f"{module}.py" for module in needed if "." not in module} <= set(PROGRAMS)


def test_programs_come_to_a_folder_of_their_own_as_they_are():
    with tarfile.open(fileobj=io.BytesIO(programs())) as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}
    assert set(found) == {f"srv/stackyard/{name}" for name in (*PROGRAMS, "site/sitecustomize.py")}
    assert found["srv/stackyard/agent.py"] == (INSIDE / "agent.py").read_bytes()


class Talk:
    """A supervisor that answers with one state after another."""

    def __init__(self, *states):
        self.states = list(states)

    def ask(self, do, event):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {"lost": {}, "joined": [], **state}


def test_a_mesh_stands_when_every_node_has_joined(monkeypatch):
    monkeypatch.setattr(standing.time, "sleep", lambda seconds: None)
    last = {"joined": ["b", "a"]}
    talk = Talk({}, {"joined": ["a"]}, last)
    wait_joined(talk, plan())
    assert talk.states == [last]


def test_a_node_that_cannot_be_logged_in_to_is_named_with_its_reason():
    with pytest.raises(MeshError, match="node b cannot be logged in to from a") as caught:
        wait_joined(Talk({"lost": {"b": "Permission denied"}}), plan())
    assert caught.value.why == "Permission denied"


def test_nodes_that_do_not_join_in_time_are_named(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(standing.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(standing.time, "sleep", lambda seconds: None)
    with pytest.raises(MeshError, match="b did not join within 5 s"):
        wait_joined(Talk({"joined": ["a"]}), plan(), 5)


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
