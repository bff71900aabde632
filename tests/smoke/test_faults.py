"""Each check of a smoke, shown failing on a real training with one deliberate fault.

That a check fails on what it should is the fast tests' (`test_judge.py`); with the marker `repeat`
real trainings give what these make up, and one without a fault passes (in every run of the tests
that one is `test_one_node.py`'s). A rank that hangs or leaves a process is real always, and one
that dies in `test_kill_matrix.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest

from stackyard.mesh import nodes
from stackyard.validate import judge, training
from stackyard.validate.outcome import Observation
from stackyard.validate.training_log import TrainingPlan
from tests.shared import inside

PORTS = itertools.count(29700)
NODES = ("node1", "node2")


@pytest.fixture(scope="session")
def train(shared_mesh, example):
    """Run one layout of the example, with a fault; silence is bounded more closely here."""
    quick = dataclasses.replace(example, stall_seconds=8)

    def run(fault, layout="ddp-2", label="", kill_after=None, save="", args=(), on_loss=None):
        label = label or f"{layout}-{fault}-{next(PORTS)}"
        program = ("/srv/smoke/faults.py", fault, *example.program[1:], *args)
        declared = dataclasses.replace(quick, program=program)
        if fault == "absent":
            declared = dataclasses.replace(declared, start_seconds=20)
        plan = TrainingPlan(
            layout=example.layout(layout),
            nodes=NODES[: example.layout(layout).ranks],
            label=label,
            save=save or f"{nodes.SHARED}/checkpoints/{label}",
            kill_after=kill_after,
        )
        told = {} if on_loss is None else {"on_loss": on_loss}
        return training.train(shared_mesh, declared, plan, port=next(PORTS), **told)

    return run


@pytest.fixture(scope="session")
def reference(train):
    return train("none", "one-process")


@pytest.fixture(scope="session")
def good(train):
    return train("none")


def see(**values):
    return Observation(nodes=NODES, environment={}, **values)


@pytest.mark.repeat
def test_without_a_fault_every_training_check_passes(example, good, reference):
    seen = see(trainings={"one-process": reference, "ddp-2": good})
    for check in (judge.world_size, judge.loss_falls, judge.ranks_agree, judge.parity):
        result = check(example, seen)
        assert (result.outcome, result.why) == ("passed", ""), result
    assert judge.no_strays(example, seen).outcome == "passed"


@pytest.mark.repeat  # one is killed, and named in the same words, in test_kill_matrix.py
def test_a_rank_that_dies_is_named(example, train):
    result = judge.loss_falls(example, see(trainings={"ddp-2": train("die")}))
    assert result.outcome == "failed"
    assert "rank 1 (node2) stopped after update 12" in result.why
    assert "exit code" in result.why


def processes(running):
    """Processes of trainings on each node: their number, that of their parent, their words."""
    return {
        node: [
            (p.pid, p.ppid, p.args)  # asked for one by one, while they are there
            for p in inside(container).process.filter(user="root")
            if "faults.py" in p.args
        ]
        for node, container in running.containers.items()
    }


def test_a_rank_that_hangs_is_named_within_the_limit(example, train, shared_mesh):
    seen = {}

    def look(label, step, loss):
        if step == 12:  # rank 1 has stopped, rank 0 waits for it
            seen.update(processes(shared_mesh))

    started = time.monotonic()
    result = judge.loss_falls(example, see(trainings={"ddp-2": train("hang", on_loss=look)}))
    assert result.outcome == "failed"
    assert "no rank said anything for 8 s" in result.why
    assert "rank 1 (node2) at update 12" in result.why
    assert time.monotonic() - started < 60
    # While it hung, each node had a launcher and its rank; they are gone.
    for node in NODES:
        launchers = [pid for pid, _, words in seen[node] if "torchrun" in words]
        parents = [parent for _, parent, words in seen[node] if "torchrun" not in words]
        assert parents == launchers[-1:], seen[node]
    assert processes(shared_mesh) == {node: [] for node in NODES}


@pytest.mark.repeat
def test_a_loss_that_is_not_a_number_is_named(example, train):
    result = judge.loss_falls(example, see(trainings={"ddp-2": train("nan")}))
    assert result.outcome == "failed"
    assert "is not finite at update 13" in result.why


@pytest.mark.repeat
def test_a_rank_that_never_joins_is_named(example, train):
    result = judge.world_size(example, see(trainings={"ddp-2": train("absent")}))
    assert result.outcome == "failed"
    assert "rank 1 (node2) never joined" in result.why


@pytest.mark.repeat
def test_lone_jobs_are_not_taken_for_one_training(example, train):
    result = judge.world_size(example, see(trainings={"ddp-2": train("lone")}))
    assert result.outcome == "failed"
    assert "rank 0 sees a world of 1, not 2" in result.why


@pytest.mark.repeat
def test_parameters_that_drift_apart_are_seen(example, train):
    result = judge.ranks_agree(example, see(trainings={"ddp-2": train("drift")}))
    assert result.outcome == "failed"
    assert "parameters (all) differ after update 10" in result.why


@pytest.mark.repeat
def test_a_loss_that_does_not_fall_is_seen(example, train):
    flat = train("none", args=("--lr=0",))
    result = judge.loss_falls(example, see(trainings={"ddp-2": flat}))
    assert result.outcome == "failed"
    assert "the loss went from" in result.why


@pytest.mark.repeat
def test_another_start_is_no_parity(example, train, reference):
    other = train("none", args=("--seed=2",))
    result = judge.parity(example, see(trainings={"one-process": reference, "ddp-2": other}))
    assert result.outcome == "failed"
    assert "loss differs by" in result.why


@pytest.mark.repeat
@pytest.mark.parametrize(("fault", "outcome"), [("none", "passed"), ("forget", "failed")])
def test_a_resume_that_forgets_the_optimizer_is_not_equal(example, train, good, fault, outcome):
    save = f"{nodes.SHARED}/checkpoints/resume-{fault}"
    killed = train("none", save=save, kill_after=example.updates)
    resumed = train(fault, save=save)
    seen = see(trainings={"ddp-2": good}, killed=killed, resumed=resumed)
    result = judge.resume_equal(example, seen)
    assert result.outcome == outcome, result.why
    assert judge.no_strays(example, seen).outcome == "passed"


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.repeat) for name in ("stray", "stray-holding-output")],
)
def test_a_process_left_behind_is_named_and_then_removed(example, train, shared_mesh, fault):
    result = judge.no_strays(example, see(trainings={"ddp-2": train(fault)}))
    assert result.outcome == "failed"
    assert "node2 still runs" in result.why
    assert "sleep 300" in result.why
    assert inside(shared_mesh.containers["node2"]).process.filter(comm="sleep") == []
