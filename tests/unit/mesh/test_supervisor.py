"""The controller's end of a supervisor: what nodes are given, who has joined, who is lost."""

import ast
import json
import sys
import threading

import pytest

from stackyard.definitions.project import INSIDE
from stackyard.mesh import supervisor
from stackyard.mesh.node import PROGRAMS, program_files
from stackyard.system.errors import MeshError

NAMES = ("a", "b")


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
    found = program_files()
    assert set(found) == {f"srv/stackyard/{name}" for name in PROGRAMS}
    assert found["srv/stackyard/agent.py"] == (INSIDE / "agent.py").read_bytes()


class Talk(supervisor.Talk):
    """A supervisor that answers with one state after another."""

    def __init__(self, *states):
        self.states = list(states)

    def ask(self, do, event, seconds=0):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {"lost": {}, "joined": [], **state}


def test_a_mesh_stands_when_every_node_has_joined(monkeypatch):
    monkeypatch.setattr(supervisor.time, "sleep", lambda seconds: None)
    last = {"joined": ["b", "a"]}
    talk = Talk({}, {"joined": ["a"]}, last)
    talk.wait_joined(NAMES)
    assert talk.states == [last]


def test_a_node_that_cannot_be_logged_in_to_is_named_with_its_reason():
    said = "b cannot be logged in to from the first node: Permission denied"
    with pytest.raises(MeshError, match=said):
        Talk({"lost": {"b": "Permission denied"}}).wait_joined(NAMES)


def test_nodes_that_do_not_join_in_time_are_named(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(supervisor.time, "sleep", lambda seconds: None)
    with pytest.raises(MeshError, match="b did not join within 5 s"):
        Talk({"joined": ["a"]}).wait_joined(NAMES, 5)


def test_a_node_whose_container_ended_is_named_long_before_the_limit(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(supervisor.time, "sleep", lambda seconds: None)
    with pytest.raises(MeshError, match=r"^b is not running: its container has ended$"):
        Talk({"joined": ["a"]}).wait_joined(NAMES, 50, lambda: "b")
    assert next(now) < 10


class Line:
    """A conversation with node 1: what is sent is kept; it says what it is told to."""

    def __init__(self, on_line):
        self.say, self.sent, self.over = on_line, [], threading.Event()

    def send(self, text):
        self.sent.append(text)
        return not self.over.is_set()

    def close(self):
        self.over.set()


class Engine:
    """Opens one conversation."""

    def converse(self, container, words, on_line):
        self.line = Line(on_line)
        return self.line


@pytest.fixture
def talk(monkeypatch):
    """A talk with node 1 whose beats come fast, its line, and whether a loss was reported."""
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.02)
    engine, lost = Engine(), threading.Event()
    made = supervisor.Talk(engine, "container", lost.set)
    yield made, engine.line, lost
    made.close()


def test_a_node_that_the_supervisor_loses_is_named_at_once(talk):
    made, line, lost = talk
    line.say(json.dumps({"event": "lost", "node": "b", "why": "silent", "joined": True}))
    assert lost.is_set() and made.lost == "b is gone: silent"
    line.say(json.dumps({"event": "lost", "node": "c", "why": "silent", "joined": True}))
    assert made.lost == "b is gone: silent"


def test_a_first_node_whose_line_ends_is_lost_with_its_last_words(talk):
    made, line, lost = talk
    line.say("no supervisor answers in this node")
    line.over.set()
    assert lost.wait(5)
    assert made.lost.endswith("the run's supervisor with it: no supervisor answers in this node")


def test_a_first_node_that_is_frozen_is_lost_after_its_time(talk):
    made, line, lost = talk
    made.expect(0.3)
    line.say('{"event": "beat"}')
    assert not lost.wait(0.1)
    assert lost.wait(5)
    assert made.lost.startswith("the first node is gone: nothing was heard for ")


def test_the_end_of_a_run_is_no_loss(talk):
    made, line, lost = talk
    line.over.set()
    made.rest()
    made.close()
    assert not lost.is_set() and made.lost == ""
