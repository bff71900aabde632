"""Several launches at the same time in one mesh, but for its supervisor."""

from types import SimpleNamespace

import pytest

from stackyard.mesh.supervisor import Refused
from stackyard.validate import training
from stackyard.validate.training import Start
from stackyard.validate.training_log import TrainingPlan
from tests.unit import samples

SMOKE = samples.smoke(program=("train.py",))
LABELS = ("a", "b")
LIMIT = SMOKE.start_seconds + 10 * SMOKE.stall_seconds
END = '{"event": "end", "step": 40}'


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """A machine whose CPUs nothing else uses."""
    monkeypatch.setattr(training.host, "patience", lambda: 1.0)


class Node:
    """A mesh of one node whose supervisor ends launches when it is told to, or asked."""

    def __init__(self, ends, left=()):
        self.plan = SimpleNamespace(port_of=lambda node: 2222, nodes=("node1",), run="r")
        self.containers, self.lost, self.head = {"node1": "container"}, "", "node1"
        self.shared, self.lease, self.asks = "/shared", 6.0, False
        self.talk = self
        self._ends, self._left = ends, list(left)
        self._events = []
        self.asked, self.ended, self.requests = [], [], {}

    def send(self, do, *, name="", job="", reason="", **values):
        self.asked.append((do, name or job))
        if do == "start":
            self.requests[name] = values
            if self._ends.get(name) is not None:
                self._end(name, self._ends[name], "")
        elif do == "stop":
            self._end(job, None, reason)

    def port(self, usual):
        return usual

    def _end(self, label, code, reason):
        said = [{"rank": None, "text": f"{label} says goodbye"}]
        if code == 0:
            said.append({"rank": 0, "record": END})
        self.ended.append(label)
        value = {"name": label, "code": code, "reason": reason, "left": {"node1": self._left}}
        self._events += [
            {"event": "log", "job": label, "lines": said}, {"event": "ended", "job": value},
        ]  # fmt: skip

    def next(self, seconds):
        return self._events.pop(0) if self._events else None


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


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(training, "BESIDE_SECONDS", 0.0)


def test_launches_that_end_well_are_not_stopped():
    node = Node({"a": 0, "b": 0})
    found = train(node)
    assert [(one.code, one.stopped, one.failed) for one in found] == [(0, "", False)] * 2
    assert [do for do, _ in node.asked] == ["start", "follow"] * 2
    assert [one.tail for one in found] == ["a says goodbye", "b says goodbye"]
    assert [one.ranks[0].ended for one in found] == [40, 40]


def test_the_supervisor_is_told_where_ranks_are_and_how_long_they_may_be_silent():
    node = Node({"a": 0, "b": 0})
    train(node)
    value = node.requests["a"]
    assert (value["placed"], value["nodes"]) == (["node1"], ["node1"])
    assert (value["join_seconds"], value["silent_seconds"]) == (
        SMOKE.start_seconds, SMOKE.stall_seconds,
    )  # fmt: skip
    assert value["env"] == {
        "STACKYARD_JOB": "a", "STACKYARD_LOGS": "/var/lib/stackyard/jobs/a/ranks",
    }  # fmt: skip


def test_ranks_may_take_longer_to_join_on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(training.host, "patience", lambda: 2.5)
    node = Node({"a": 0, "b": 0})
    train(node)
    assert node.requests["a"]["join_seconds"] == 2.5 * SMOKE.start_seconds
    assert node.requests["a"]["silent_seconds"] == SMOKE.stall_seconds


def test_when_one_fails_the_other_is_stopped_and_says_for_whom():
    one, other = train(Node({"a": 1}))
    assert (one.code, one.stopped) == (1, "")
    assert other.code is None
    assert other.stopped == "stopped, as a beside it failed"


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


def test_one_that_does_not_end_in_time_is_stopped(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    node = Node({})
    monkeypatch.setattr(node, "next", lambda seconds, old=node.next: later(now) or old(seconds))

    def later(now):
        now[0] += 100.0

    assert {one.stopped for one in train(node)} == {f"it did not end within {LIMIT} s"}


def test_what_is_left_behind_stands_with_its_launch():
    stray = {"pid": 7, "command": "sleep"}
    node = Node({"a": 0, "b": 0}, left=[stray])
    assert [one.strays for one in train(node)] == [{"node1": [stray]}] * 2


def test_a_launch_that_the_supervisor_refuses_is_an_error():
    node = Node({"a": 0})
    node._events = [{"event": "refused", "why": "node1: silent"}]
    with pytest.raises(Refused, match="node1: silent"):
        train(node)
