"""Rounds of a certification at a supervisor that is a stand-in: requests, ends, lost nodes."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from stackyard.mesh.hosts import Host
from stackyard.mesh.node import nccl_words
from stackyard.mesh.runs import Reached
from stackyard.mesh.standing import Standing
from stackyard.mesh.supervisor import Refused
from stackyard.system.errors import MeshError
from stackyard.validate.certify import play
from stackyard.validate.certify.group import Members, members_of
from stackyard.validate.certify.play import Yard
from tests.unit.machines import fleet, node, plan
from tests.unit.mesh.test_runs import Engine
from tests.unit.validate.certifying import entry, steps

END = {"code": 0, "reason": "", "hang": ""}


class Talk:
    """Answers each start with the events that a test gives, and keeps what was asked."""

    def __init__(self, answer):
        self.asked, self.events, self._answer, self.refused = [], [], answer, set()
        self.over, self.heard, self.lost = False, time.monotonic(), ""

    def send(self, do, **values):
        self.asked.append((do, values))
        if do == "start":
            found = self._answer(values["name"], values, self)
            self.refused |= {values["name"]} if "refused" in str(found) else set()
            self.events += found
        elif do == "follow" and values["job"] in self.refused:
            self.events.append({"event": "refused", "why": f"there is no job {values['job']}"})

    def next(self, seconds):
        return self.events.pop(0) if self.events else None

    def started(self):
        return [values for do, values in self.asked if do == "start"]


def good(name, values, talk):
    lines = [{"rank": 0, "text": "hello", "node": "a"}]
    for rank in range(len(values["placed"])):
        lines += [*steps(rank), entry(rank, "end", step=6)]
    return [{"event": "started", "job": {"name": name}},
            {"event": "log", "job": name, "lines": lines, "next": 9},
            {"event": "ended", "job": {"name": name, **END}}]  # fmt: skip


@pytest.fixture
def yard(tmp_path):
    def make(answer=good, device="cpu", env=None, gpus=(), own=None):
        nodes = [node(name, address=f"10.0.0.{number}", gpus=gpus)
                 for number, name in enumerate("abc", 1)]  # fmt: skip
        machines = [Host(name=n.name, ssh=n.name, env=(env or {}).get(n.name, {})) for n in nodes]
        engine = Engine({})
        links = {host.name: SimpleNamespace(host=host, engine=engine) for host in machines}
        mesh = Standing(
            plan=plan(*nodes), containers={n.name: f"container-{n.name}" for n in nodes}
        )
        found = Yard(
            hosts=Reached(fleet=fleet(*machines), links=links, failed={}), mesh=mesh,
            talk=Talk(answer), device=device, updates=6, lease=60.0, hang_seconds=30.0,
            taken=frozenset({20001}), own=own or {},
        )  # fmt: skip
        found.prepare()
        return found, engine

    return make


def one(*names, **more):
    return Members(gpus=dict.fromkeys(names, (0,)), **more)


def test_every_node_gets_the_program_and_the_variables_of_its_host(yard):
    _, engine = yard(env={"b": {"NCCL_IB_HCA": "mlx5_0"}})
    assert set(engine.given) == {"container-a", "container-b", "container-c"}
    for name, given in engine.given.items():
        assert b"fingerprint.py" in given[play.PROGRAM]
        own = b"export NCCL_IB_HCA=mlx5_0\n" if name == "container-b" else b""
        assert given[play.SETTINGS] == own


def test_groups_of_a_round_start_together_each_with_its_own_port(yard):
    there, _ = yard()
    runs = there.train([one("a", "b"), one("c")])
    assert [[p.name for p in run.places] for run in runs] == [["a:0", "b:0"], ["c:0"]]
    assert all((run.code, run.missing, run.reason, run.hang) == (0, (), "", "") for run in runs)
    first, second = there.talk.started()
    assert [do for do, _ in there.talk.asked[:4]] == ["start"] * 2 + ["follow"] * 2
    assert (first["nodes"], first["placed"], first["beside"]) == (["a", "b"], ["a", "b"], True)
    assert (first["hang_seconds"], first["lease"]) == (30.0, 60.0)
    lines = [" ".join(values["steps"][0]["argv"]) for values in (first, second)]
    # A lone node that is not the first is started from there, too; ports in use are left out.
    assert "-w a,b " in lines[0] and "tcp://a:20000" in lines[0]
    assert "-w c " in lines[1] and "tcp://c:20002" in lines[1]
    assert "STACKYARD_LOGS=" in lines[0] and "--alone" not in lines[0]


def test_ranks_alone_are_told_so(yard):
    there, _ = yard()
    there.train([one("a", alone=True)])
    assert "--alone" in " ".join(there.talk.started()[0]["steps"][0]["argv"])


def test_the_users_variables_go_before_those_of_the_command_line(yard):
    there, engine = yard(env={"b": {"PYTHONPATH": "/shared/mine"}})
    there.train([one("a", "b")])
    assert "PYTHONPATH=" not in " ".join(there.talk.started()[0]["steps"][0]["argv"])
    site = b"export PYTHONPATH=/srv/stackyard/rank_site"
    given = {name: files[play.SETTINGS] for name, files in engine.given.items()}
    assert all(text.startswith(site) for text in given.values())
    assert [name for name, text in given.items() if b":/shared/mine" in text] == ["container-b"]


def test_the_callers_variables_reach_every_node_and_go_before_those_of_hosts_yml(yard):
    own = {"NCCL_P2P_DISABLE": "1"}
    _, engine = yard(env={"b": {"NCCL_P2P_DISABLE": "0", "A": "b"}}, own=own)
    for name, files in engine.given.items():
        assert b"export NCCL_P2P_DISABLE=1\n" in files[play.SETTINGS], name


class Spoken(Engine):
    """Nodes whose ranks wrote a log of NCCL."""

    def exec(self, container, words, **more):
        if words != nccl_words("certify-0"):
            return super().exec(container, words, **more)
        name = container.removeprefix("container-")
        line = f"{name}:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"
        return SimpleNamespace(code=0, output=line)


def test_what_nccl_used_is_read_of_every_group_that_talks_by_it(yard, monkeypatch):
    monkeypatch.setattr("tests.unit.validate.test_certify_play.Engine", Spoken)
    there, _ = yard(device="cuda", gpus=(0, 1))
    (run,) = there.train([members_of(frozenset({"a", "b"}), there.slots)])
    assert run.nccl.taken == {"a": ("P2P/IPC",), "b": ("P2P/IPC",)}
    (started,) = there.talk.started()
    words = " ".join(started["steps"][0]["argv"])
    assert "NCCL_DEBUG=INFO" in words and "NCCL_RAS_ADDR=127." in words
    (alone,) = there.train([one("c", alone=True)])
    assert alone.nccl is None
    assert "NCCL_DEBUG" not in " ".join(there.talk.started()[1]["steps"][0]["argv"])


def test_the_users_word_on_nccls_log_stays(yard, monkeypatch):
    monkeypatch.setattr("tests.unit.validate.test_certify_play.Engine", Spoken)
    there, _ = yard(device="cuda", gpus=(0, 1), own={"NCCL_DEBUG": "WARN"})
    there.train([members_of(frozenset({"a"}), there.slots)])
    words = " ".join(there.talk.started()[0]["steps"][0]["argv"])
    assert "NCCL_DEBUG=" not in words and "NCCL_DEBUG_SUBSYS" not in words


def test_gpus_of_a_group_are_numbered_as_the_container_does(yard):
    there, _ = yard(device="cuda", gpus=(4, 6, 7))
    assert there.slots == dict.fromkeys("abc", (4, 6, 7))
    there.train([members_of(frozenset({"a:6", "a:7"}), there.slots)])
    (started,) = there.talk.started()
    words = " ".join(started["steps"][0]["argv"])
    assert "CUDA_VISIBLE_DEVICES=1,2" in words and "STACKYARD_DEVICE=cuda" in words
    assert started["placed"] == ["a", "a"]


def test_hosts_with_fewer_gpus_decide_how_many_ranks_each_has():
    places = Members(gpus={"a": (0, 1, 2), "b": (0, 1)}).places
    assert [place.name for place in places] == ["a:0", "a:1", "b:0", "b:1"]


def test_a_hang_is_stopped_when_its_ranks_have_answered(yard):
    def hung(name, values, talk):
        return [{"event": "hang", "job": name, "what": "rank 1 (b) never came", "ranks": [],
                 "late": [1]},
                {"event": "ended", "job": {"name": name, "code": None, "reason": play.STOPPED,
                                           "hang": "rank 1 (b) never came"}}]  # fmt: skip

    there, _ = yard(hung)
    (run,) = there.train([one("a", "b")])
    assert ("stop", {"job": "certify-0", "reason": play.STOPPED}) in there.talk.asked
    assert (run.hang, run.reason) == ("rank 1 (b) never came", "")
    assert [place.name for place in run.late] == ["b:0"]
    assert [place.name for place in run.missing] == ["a:0", "b:0"]


def test_a_group_disturbed_by_the_loss_of_another_is_trained_again(yard):
    def lost(name, values, talk):
        if "c" not in values["nodes"] and len(talk.started()) > 2:
            return good(name, values, talk)
        reason = {"reason": "node c is gone: nothing was heard for 60 s", "code": None}
        found = [{"event": "ended", "job": {"name": name, **END, **reason}}]
        if "c" in values["nodes"]:
            found.insert(0, {"event": "lost", "node": "c", "why": "nothing was heard for 60 s"})
        return found

    there, _ = yard(lost)
    first, second = there.train([one("a", "b"), one("c")])
    assert (first.code, first.reason) == (0, "")
    assert second.reason.startswith("node c is gone")
    # Nobody asks a lost node again.
    before = len(there.talk.started())
    (again,) = there.train([one("b", "c")])
    assert again.reason == "node c is gone: nothing was heard for 60 s"
    assert len(there.talk.started()) == before


WHY = "nothing was heard for 60 s"


def losing(*names):
    """A supervisor that loses nodes, and then is asked to start something there."""

    def answer(name, values, talk):
        gone = [node for node in names if node in values["nodes"]]
        if not gone:
            return good(name, values, talk)
        lost = [{"event": "lost", "node": node, "why": WHY} for node in gone]
        return [*lost, {"event": "refused", "why": f"{gone[0]}: {WHY}"}]

    return answer


def test_a_node_lost_between_two_rounds_is_not_asked_in_the_next(yard):
    there, _ = yard(losing("c"))
    there.train([one("a", "b")])
    there.talk.events += [{"event": "bar", "job": "certify-0"},
                          {"event": "lost", "node": "c", "why": WHY}]  # fmt: skip
    first, second = there.train([one("a", "b"), one("c")])
    assert (first.code, first.reason) == (0, "")
    assert (second.code, second.reason) == (None, f"node c is gone: {WHY}")
    assert [values["nodes"] for values in there.talk.started()] == [["a", "b"]] * 2


def test_a_group_whose_node_is_lost_while_it_is_asked_for_is_told_as_lost(yard):
    there, _ = yard(losing("b", "c"))
    runs = there.train([one("b"), one("a"), one("c")])
    assert [run.code for run in runs] == [None, 0, None]
    assert [run.reason for run in runs] == [f"node b is gone: {WHY}", "", f"node c is gone: {WHY}"]
    assert [place.name for place in runs[0].missing] == ["b:0"]
    # Nothing of that waits for the next round.
    (again,) = there.train([one("a")])
    assert (again.code, again.reason) == (0, "")


def test_nothing_is_read_of_nccl_where_nothing_was_started(yard):
    there, _ = yard(losing("b"), device="cuda", gpus=(0, 1))
    (run,) = there.train([members_of(frozenset({"a", "b"}), there.slots)])
    assert (run.reason, run.nccl) == (f"node b is gone: {WHY}", None)


def test_a_supervisor_that_refuses_or_falls_silent_ends_the_certification(yard):
    there, _ = yard(lambda *_: [{"event": "refused", "why": "job x is running here"}])
    with pytest.raises(Refused):
        there.train([one("a")])
    there, _ = yard(lambda *_: [])
    there.talk.over = True
    with pytest.raises(MeshError, match="the first node does not answer"):
        there.train([one("a")])


def test_the_last_lines_of_a_group_are_kept(yard):
    there, _ = yard()
    (run,) = there.train([one("a")])
    assert run.tail == "hello"
