"""What `invoke run --restarts` does after a failure; hosts, meshes and jobs are stand-ins."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stackyard.cli import command
from stackyard.cli.options.runs import RunRequest
from stackyard.cli.steps import run as steps
from stackyard.mesh.link import HostError
from stackyard.mesh.runs import Ended, Reached
from stackyard.mesh.standing import Standing
from tests.unit.machines import fleet, node, plan

PLAN = plan(node("study"), node("train"))
MESH = Standing(plan=PLAN, containers={"study": "1", "train": "2"})
LOST = Ended(job={"code": None, "reason": "node train is gone: x"}, lost_nodes=("train",))
DONE = Ended(job={"code": 0, "reason": ""})


def failed(update=17, reason="rank 1 (train) ended: ValueError: x", **more):
    return Ended(job={"code": 1, "reason": reason, "update": update, **more})


class Notes:
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)

    def say(self, run, text):
        pass


@pytest.fixture
def attempts(monkeypatch):
    """Run a job that ends like this, start by start; the last end, each start's hosts, notes."""

    def play(
        *ends, restarts=5, standing=None, shards=None, answers=True, save="/shared/x", silent=()
    ):
        terminal, started, left = Notes(), [], list(ends)
        link = SimpleNamespace(answers=lambda: answers)
        links = dict.fromkeys(("study", "train"), link)
        hosts = Reached(fleet=fleet("study", "train"), links=links, failed={})

        def one(project, hosts, mesh, example, wanted, asked, terminal, lost, own, *, stays):
            assert stays == (standing is not None)
            started.append([host.name for host in hosts.fleet.hosts if host.name not in lost])
            return left.pop(0)

        monkeypatch.setattr(steps, "_run", one)
        monkeypatch.setattr(steps, "_shards", lambda *_: shards)
        monkeypatch.setattr(steps.runs, "up", lambda *_, **__: (MESH, []))
        errors = {host: HostError(host, "no answer") for host in silent}
        monkeypatch.setattr(steps.runs, "down", lambda *_, **__: ([], errors))
        monkeypatch.setattr(steps.runs, "lost_nodes", lambda hosts, run, ended: ended.lost_nodes)
        wanted = RunRequest(stack="toy", restarts=restarts, save=save)
        asked = SimpleNamespace(run="toy", lease=60.0)
        ended, away = steps._attempts(None, hosts, standing, asked, None, wanted, terminal, None)
        assert away == set(silent)
        return ended, started, terminal.said

    return play


BOTH, ONE = ["study", "train"], ["study"]


def test_a_host_that_does_not_answer_is_told(attempts):
    """Its health is not asked for either: that takes until ssh gives up."""
    _, _, said = attempts(LOST, restarts=0, silent=("train",))
    assert said == ["train: its node ends by itself: train: no answer"]


def test_a_job_that_fails_is_started_again_as_often_as_was_said(attempts):
    ends = [failed(update) for update in (1, 2, 3)]
    ended, started, said = attempts(*ends, restarts=2)
    assert (ended, started) == (ends[-1], [BOTH] * 3)
    assert said == [f"it failed: starting again on study, train ({n} of 2 restarts)"
                    for n in (1, 2)]  # fmt: skip


def test_the_same_failure_at_the_same_update_ends_it(attempts):
    ended, started, said = attempts(failed(), failed())
    assert not ended.passed and started == [BOTH] * 2
    assert said[-1] == "not started again: it failed twice after update 17 for the same reason"


def test_a_job_that_was_stopped_is_not_started_again(attempts):
    assert attempts(failed(stopped=True))[1:] == ([BOTH], [])


@pytest.mark.parametrize("standing", [None, MESH])
def test_a_lost_node_is_left_out_where_any_number_of_ranks_can_go_on(attempts, standing):
    ended, started, said = attempts(LOST, DONE, standing=standing)
    assert ended.passed and started == [BOTH, ONE]
    assert said == ["train lost: starting again on study (1 of 5 restarts)"]


def test_a_sharded_checkpoint_goes_on_with_the_host_of_a_lost_node(attempts):
    ended, started, _ = attempts(LOST, DONE, shards=2)
    assert ended.passed and started == [BOTH, BOTH]


@pytest.mark.parametrize("more", [{"answers": False}, {"standing": MESH}])
def test_a_sharded_checkpoint_is_not_tried_on_fewer_ranks(attempts, more):
    ended, started, said = attempts(LOST, shards=2, **more)
    assert ended is LOST and started == [BOTH]
    assert said == ["not started again: its checkpoint is cut over 2 ranks, which need train, too"]


def test_without_its_first_node_a_mesh_that_is_up_runs_nothing(attempts):
    gone = Ended(job={"code": None, "reason": "x"}, lost_nodes=("study",))
    _, started, said = attempts(gone, standing=MESH)
    assert started == [BOTH] and said[0].startswith("not started again: study, the first node")


def test_a_node_that_is_lost_is_not_asked_what_carried_its_data(monkeypatch):
    """Its host may be cut off: what the others hold would wait until ssh gives up."""
    selection = SimpleNamespace(nodes=("study", "train"), slots={"study": (0,), "train": (0,)})
    job = SimpleNamespace(name="j", device="cuda", launcher="torchrun")
    asked_of = []

    def transport_of(hosts, mesh, names, name):
        asked_of.extend(names)
        return [], []

    monkeypatch.setattr(steps, "chosen", lambda *given: (job, selection))
    monkeypatch.setattr(steps.runs, "require_valid", lambda *given: None)
    talk = SimpleNamespace(send=lambda *given: None, close=lambda: None)
    monkeypatch.setattr(steps.standing, "connect", lambda *given: talk)
    monkeypatch.setattr(steps.mount, "lay", lambda *given: job)
    monkeypatch.setattr(steps.runs, "remarks", lambda *given: [])
    monkeypatch.setattr(steps.runs, "begin", lambda *given: None)
    monkeypatch.setattr(steps, "RunView", lambda *given, **more: nullcontext(SimpleNamespace(
        line=None, bar=None, note=None, step=None)))  # fmt: skip
    monkeypatch.setattr(steps, "Follower", lambda **given: SimpleNamespace(
        follow=lambda: LOST, talk=talk))  # fmt: skip
    monkeypatch.setattr(steps.runs, "transport_of", transport_of)
    terminal = SimpleNamespace(note=None, done=lambda *given: None)
    hosts = Reached(fleet=fleet("study", "train"), links={}, failed={})
    wanted, asked = RunRequest(stack="toy"), SimpleNamespace(run="toy", lease=60.0, mounts=())
    ended = steps._run(None, hosts, MESH, None, wanted, asked, terminal, (), None, stays=True)
    assert (ended, asked_of) == (replace(LOST, nodes=selection.nodes), ["study"])


UP = "the mesh is still up (invoke down removes it)"


@pytest.mark.parametrize(
    ("stays", "record", "said"),
    [
        (True, {"name": "j"}, f"the training has ended on all hosts; {UP}"),
        (True, None,
         f"nothing is heard of the training: if it runs, its lease ends it; {UP}"),
        (False, {"name": "j"}, "everything of this run has been removed"),
    ],
)  # fmt: skip
def test_ctrl_c_says_what_it_leaves(monkeypatch, capsys, stays, record, said):
    def interrupt(*given):
        raise KeyboardInterrupt

    talk = SimpleNamespace(send=lambda *given: None, close=lambda: None)
    job = SimpleNamespace(name="j"), SimpleNamespace(nodes=("study",))
    monkeypatch.setattr(steps, "chosen", lambda *given: job)
    monkeypatch.setattr(steps.runs, "require_valid", lambda *given: None)
    monkeypatch.setattr(steps.standing, "connect", lambda *given: talk)
    monkeypatch.setattr(steps.mount, "lay", interrupt)
    monkeypatch.setattr(steps.runs, "end_job", lambda *given: record)
    hosts = Reached(fleet=fleet("study", "train"), links={}, failed={})
    wanted = RunRequest(stack="toy")
    asked = SimpleNamespace(run="toy", lease=60.0, mounts=())

    def run(terminal):
        return steps._run(None, hosts, MESH, None, wanted, asked, terminal, (), None, stays=stays)

    assert command.run(run, as_json=False) == 130
    assert capsys.readouterr().err == f"interrupted: {said}\n"
