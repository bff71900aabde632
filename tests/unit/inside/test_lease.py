"""The lease inside a mesh, without a mesh: who counts as an orphan, and when a line is lost."""

import json
import os
import sys
import time

import pytest

from stackyard.inside import strays

sys.modules.setdefault("strays", strays)
from stackyard.inside import lease  # noqa: E402  (it imports its neighbour by its own name)


@pytest.fixture
def node(monkeypatch):
    """A made-up node: its training processes, by PID: parent, and whether RANK is set.

    None in its place is a process that is ending: it shows no environment any more.
    """
    processes = {}
    monkeypatch.setattr(
        lease.strays, "strays", lambda: [{"pid": pid, "command": "x"} for pid in processes]
    )
    monkeypatch.setattr(lease.strays, "parent", lambda pid: processes.get(pid, (0, False))[0])
    environments = {False: [b"HOME=/root"], True: [b"HOME=/root", b"RANK=0"], None: []}
    monkeypatch.setattr(
        lease, "_environment", lambda pid: environments[processes.get(pid, (0, None))[1]]
    )
    return processes


AGENT, RANK, HELPER = 10, 11, 12


def seen(keeper, kind="orphan"):
    return [event["pid"] for event in keeper.look() if event["event"] == kind]


def test_a_rank_whose_launcher_is_gone_is_an_orphan_at_the_second_look(node):
    keeper = lease.Keeper()
    node.update({AGENT: (1, False), RANK: (AGENT, True)})
    assert keeper.look() == []
    del node[AGENT]
    node[RANK] = (1, True)
    assert seen(keeper) == []
    assert seen(keeper) == [RANK]


def test_a_rank_that_ends_with_its_launcher_is_none(node):
    keeper = lease.Keeper()
    node.update({AGENT: (1, False), RANK: (AGENT, True)})
    keeper.look()
    del node[AGENT]
    node[RANK] = (1, True)
    keeper.look()
    node.clear()
    assert seen(keeper) == []


def test_a_rank_that_has_ended_is_told_once(node):
    keeper = lease.Keeper()
    node.update({AGENT: (1, False), RANK: (AGENT, True), HELPER: (RANK, True)})
    keeper.look()
    del node[RANK], node[HELPER]
    assert seen(keeper, "gone") == [RANK]
    assert keeper.look() == []


def test_what_a_rank_started_is_no_orphan_when_the_rank_has_ended(node):
    keeper = lease.Keeper()
    node.update({AGENT: (1, False), RANK: (AGENT, True), HELPER: (RANK, True)})
    keeper.look()
    del node[RANK]
    node[HELPER] = (1, True)
    assert [seen(keeper) for _ in range(3)] == [[], [], []]


def test_what_a_rank_started_as_it_ended_is_no_rank(node):
    keeper = lease.Keeper()
    node.update({AGENT: (1, False), RANK: (AGENT, None), HELPER: (RANK, True)})
    keeper.look()
    del node[RANK]
    node[HELPER] = (1, True)
    assert [keeper.look() for _ in range(3)] == [[], [], []]


def test_a_process_that_no_launcher_started_is_no_orphan(node):
    keeper = lease.Keeper()
    node.update({AGENT: (1, False), HELPER: (AGENT, False)})
    keeper.look()
    node[HELPER] = (1, False)
    assert [seen(keeper) for _ in range(3)] == [[], [], []]


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_lines_come_whole(pipe):
    source, target = pipe
    line = lease.Line("node2", source, target)
    os.write(target, b"beat\nlis")
    assert line.read() == ["beat"]
    os.write(target, b"t 1\n")
    assert line.read() == ["list 1"]


def test_a_closed_line_is_lost_at_once_and_says_what_was_said_last(pipe):
    source, target = pipe
    line = lease.Line("node2", source, target)
    assert line.lost(60) == ""
    os.close(target)
    assert line.read() == []
    assert line.lost(60) == "its end of the line was closed"
    line.said = "Permission denied (publickey)."
    assert line.lost(60) == "Permission denied (publickey)."


def test_a_silent_line_is_lost_after_its_time(pipe, monkeypatch):
    line = lease.Line("node2", *pipe)
    monkeypatch.setattr(lease.time, "monotonic", lambda: line.heard + 6.1)
    assert line.lost(6) == "nothing was heard for 6 s"
    assert line.lost(7) == ""


def test_writing_to_nobody_closes_the_line(pipe):
    source, target = pipe
    os.close(source)
    line = lease.Line("node2", source, target)
    line.write("beat")
    assert line.closed


@pytest.fixture
def node_one(monkeypatch, node):
    """A holder with two nodes whose lines are recorded, and what it tells the controller."""

    class Recorded:
        def __init__(self, name):
            self.name, self.sent, self.closed, self.why = name, [], False, ""
            self.allowed = []

        def write(self, text):
            self.sent.append(text)

        def lost(self, seconds):
            self.allowed.append(seconds)
            return self.why

    monkeypatch.setattr(lease, "connect", lambda name, seconds: Recorded(name))
    monkeypatch.setattr(lease, "Line", lambda *_: Recorded("controller"))
    monkeypatch.setattr(lease.strays, "kill", lambda: [{"pid": 5, "command": "left"}])
    return lease.Holder(6.0, ["node2", "node3"])


def told(holder):
    return [json.loads(text) for text in holder._controller.sent if text != "beat"]


def join(holder):
    for line in holder._nodes.values():
        holder._take(line, "beat")


def test_it_says_once_that_every_node_has_joined(node_one):
    node_one._take(node_one._nodes["node2"], "beat")
    assert told(node_one) == []
    join(node_one)
    join(node_one)
    assert told(node_one) == [{"event": "joined", "nodes": ["node2", "node3"]}]


def test_an_answer_is_given_when_every_node_has_answered(node_one):
    node_one._take(node_one._controller, "kill 7")
    for number, line in enumerate(node_one._nodes.values()):
        assert told(node_one) == []
        assert line.sent == ["kill 7"]
        node_one._take(line, json.dumps({"answer": "7", "found": [{"pid": number}]}))
    (answer,) = told(node_one)
    assert answer["id"] == "7"
    assert answer["nodes"] == {
        os.uname().nodename: [{"pid": 5, "command": "left"}],
        "node2": [{"pid": 0}], "node3": [{"pid": 1}],
    }  # fmt: skip


def test_a_node_that_is_lost_is_told_once_and_ends_the_training_everywhere(node_one):
    join(node_one)
    node_one._nodes["node3"].why = "nothing was heard for 6 s"
    assert node_one._tick()
    assert node_one._tick()
    lost = [event for event in told(node_one) if event["event"] == "lost"]
    assert lost == [{"event": "lost", "node": "node3", "why": "nothing was heard for 6 s",
                     "joined": True}]  # fmt: skip
    assert node_one._nodes["node2"].sent.count("kill -") == 1


def test_a_node_that_has_not_joined_yet_may_be_silent_for_longer(node_one):
    """Its sshd is to start and it is to be logged in to."""
    two, three = node_one._nodes.values()
    node_one._take(two, "beat")
    node_one._tick()
    assert two.allowed == [6.0]
    assert three.allowed[0] > 6.0


def test_an_orphan_on_one_node_ends_the_training_on_all(node_one):
    orphan = {"event": "orphan", "pid": 11, "command": "train.py"}
    node_one._take(node_one._nodes["node2"], json.dumps(orphan))
    assert told(node_one) == [{"node": "node2", **orphan}]
    assert [line.sent for line in node_one._nodes.values()] == [["kill -"], ["kill -"]]


def test_a_rank_that_is_gone_is_told_and_nothing_more(node_one):
    node_one._take(node_one._nodes["node3"], json.dumps({"event": "gone", "pid": 11}))
    assert told(node_one) == [{"event": "gone", "node": "node3", "pid": 11}]
    assert [line.sent for line in node_one._nodes.values()] == [[], []]


def test_a_lease_that_is_not_renewed_ends(node_one):
    assert node_one._tick()
    node_one._controller.why = "nothing was heard for 6 s"
    assert not node_one._tick()


def test_a_lease_that_is_given_up_ends_nothing(node_one, monkeypatch):
    monkeypatch.setattr(lease, "end_node", lambda: pytest.fail("ended"))
    monkeypatch.setattr(lease, "wait_listening", lambda node: None)
    monkeypatch.setattr(lease, "run", lambda lines, tick, take: take(node_one._controller, "rest"))
    node_one.hold()
    assert [line.sent for line in node_one._nodes.values()] == [["rest"], ["rest"]]
    assert not node_one._tick()


def test_a_lease_that_is_lost_ends_the_node(node_one, monkeypatch):
    ended = []
    monkeypatch.setattr(lease, "end_node", lambda: ended.append(True))
    monkeypatch.setattr(lease, "wait_listening", lambda node: None)
    monkeypatch.setattr(lease, "run", lambda lines, tick, take: None)
    node_one.hold()
    assert ended == [True]


@pytest.fixture
def kept(monkeypatch, node_one):
    """The part of a node that holds no lease: what is said to it, then what it did."""
    line, ended = node_one._controller, []
    monkeypatch.setattr(lease, "Line", lambda *_: line)
    monkeypatch.setattr(lease, "end_node", lambda: ended.append(True))

    def keep(*says, why=""):
        line.why = why
        went_on = []

        def run(lines, tick, take):
            for text in says:
                take(line, text)
            went_on.append(tick())

        monkeypatch.setattr(lease, "run", run)
        lease.keep(6.0)
        return went_on == [True], bool(ended), line.sent

    return keep


def test_a_node_goes_on_while_the_holder_is_heard(kept):
    assert kept("beat")[::2] == (True, ["beat"])


def test_a_node_whose_holder_is_not_heard_ends_itself(kept):
    assert kept("beat", why="nothing was heard for 6 s")[:2] == (False, True)


def test_a_node_that_is_about_to_be_removed_only_stops(kept):
    assert kept("rest")[:2] == (False, False)


def test_a_node_answers_what_it_is_asked_with_the_number_of_the_question(kept):
    answer, _ = kept("kill 7")[2]
    assert json.loads(answer) == {"answer": "7", "found": [{"pid": 5, "command": "left"}]}


def test_a_beat_is_passed_on_and_answered(node_one):
    node_one._tick()
    assert node_one._controller.sent == ["beat"]
    assert all(line.sent == ["beat"] for line in node_one._nodes.values())


def test_lines_are_passed_on_until_the_tick_says_no(pipe):
    source, target = pipe
    line, taken = lease.Line("x", source, target), []
    os.write(target, b"one\ntwo\n")
    started = time.monotonic()
    lease.run([line], lambda: len(taken) < 2, lambda _, text: taken.append(text))
    assert taken == ["one", "two"]
    assert time.monotonic() - started < 5


def test_where_there_is_no_node_nothing_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(strays, "PID_FILE", tmp_path / "none")
    monkeypatch.setattr(strays.os, "kill", lambda *_: pytest.fail("killed"))
    with pytest.raises(SystemExit, match="no node of a mesh"):
        strays.kill()
