"""Several launches at the same time in one mesh, but for its engine."""

import re
import threading
from types import SimpleNamespace

import pytest

from stackyard.validate import training
from stackyard.validate.training import Start
from stackyard.validate.watchdog import TrainingPlan
from tests.unit import samples

SMOKE = samples.smoke(program=("train.py",))
LABELS = ("a", "b")


class Node:
    """A mesh of one node in which launchers end when they are told to, or killed."""

    def __init__(self, ends, left=()):
        self.plan = SimpleNamespace(port=2222, nodes=("node1",))
        self.first = "container"
        self.engine = self.records = self.lease = self
        self.lost = self.orphaned = ""
        self.gone = {}
        self._ends, self._left = ends, list(left)
        self._killed = threading.Event()
        self.asked = []  # whether processes were killed, and which launchers had ended by then
        self.ended = []

    def exec(self, container, argv, *, on_line, **_):
        label = re.search(r"/launch/(\S+) ", argv[2])[1]
        code = self._ends.get(label)
        if code is None:
            self._killed.wait()
            code = 137
        on_line(f"{label} says goodbye")
        self.ended.append(label)
        return SimpleNamespace(code=code)

    def take(self, label, on_line):
        on_line('rank0\t{"event": "end", "step": 40}' if self._ends.get(label) == 0 else "-")

    def catch_up(self):
        return True

    def strays(self, *, kill=False):
        self.asked.append((kill, sorted(self.ended)))
        if kill:
            self._killed.set()
        return {"node1": list(self._left)}


def train(node):
    layout = samples.layout("one", 1, launcher="alone")
    starts = [
        Start(
            smoke=SMOKE,
            plan=TrainingPlan(layout=layout, label=label, save=f"/save/{label}", nodes=("node1",)),
            port=29500 + number,
        )
        for number, label in enumerate(LABELS)
    ]
    return training.train_all(node, starts)


def test_what_is_left_is_looked_for_once_all_have_ended_and_nothing_is_killed():
    node = Node({"a": 0, "b": 0})
    found = train(node)
    assert [(one.code, one.stopped, one.failed) for one in found] == [(0, "", False)] * 2
    assert node.asked == [(False, ["a", "b"])]
    assert [one.tail for one in found] == ["a says goodbye", "b says goodbye"]


def test_when_one_fails_the_other_is_stopped_and_says_for_whom(monkeypatch):
    monkeypatch.setattr(training, "DEATH_SECONDS", 0.0)
    node = Node({"a": 1})
    one, other = train(node)
    assert (one.code, one.stopped) == (1, "")
    assert other.code is None
    assert other.stopped == "stopped, as a beside it failed"
    assert node.asked[0] == (True, ["a"])


def test_one_that_ends_well_although_another_fails_is_a_success():
    one, other = train(Node({"a": 0, "b": 1}))
    assert not one.failed
    assert other.failed


def test_all_that_fail_at_once_have_their_own_end():
    one, other = train(Node({"a": 2, "b": 3}))
    assert [(one.code, one.stopped), (other.code, other.stopped)] == [(2, ""), (3, "")]


def test_a_lost_node_stops_all_of_them():
    node = Node({})
    node.lost = "node1 is gone"
    assert [one.stopped for one in train(node)] == ["node1 is gone"] * 2
    assert node.asked[0] == (True, [])


def test_what_is_left_behind_stands_with_each_and_is_killed(monkeypatch):
    monkeypatch.setattr(training, "GRACE_SECONDS", 0.0)
    stray = {"pid": 7, "command": "sleep"}
    node = Node({"a": 0, "b": 0}, left=[stray])
    assert [one.strays for one in train(node)] == [{"node1": [stray]}] * 2
    assert node.asked[-1] == (True, ["a", "b"])


@pytest.mark.parametrize("ends", [{"a": 1}, {"a": 0, "b": 1}])
def test_neighbours_that_are_stopped_are_not_what_a_training_left_behind(monkeypatch, ends):
    monkeypatch.setattr(training, "DEATH_SECONDS", 0.2)
    node = Node(ends)
    monkeypatch.setattr(
        node,
        "strays",
        lambda *, kill=False, old=node.strays: (
            {"node1": [{"pid": 9, "command": "a neighbour"}]} if old(kill=kill) and kill
            else {"node1": []}
        ),
    )  # fmt: skip
    assert [one.strays for one in train(node)] == [{"node1": []}] * 2
