"""One training, but for its engine: the exact command, and how its silence is noticed."""

import pytest

from stackyard.validate import training
from stackyard.validate.training import fill, materialize
from stackyard.validate.watchdog import TrainingPlan, Watch
from tests.unit import samples

SMOKE = samples.smoke(program=("train.py", "--data={data}", "--save={save}", "--at={save_at}"))


def plan(name="two", **changes):
    values = {"layout": SMOKE.layout(name), "label": name, "save": "/shared/save"}
    values["nodes"] = samples.NODES[: values["layout"].ranks]
    return TrainingPlan(**{**values, **changes})


def test_placeholders_are_filled_in_every_word():
    assert fill(("{a}", "x{a}{b}", "{{a}}"), {"a": 1, "b": "2"}) == ("1", "x12", "{a}")


def test_every_placeholder_that_a_definition_may_use_has_a_value():
    from stackyard.definitions.read.smoke import PLACEHOLDERS

    assert set(training.placeholders(SMOKE, plan())) == set(PLACEHOLDERS)


def test_a_layout_is_launched_with_its_own_nodes_launcher_and_arguments():
    layout = samples.layout("two", 1, args=("--n={ranks}",), launcher="deepspeed")
    found = materialize(SMOKE, plan(layout=layout, nodes=("node1",)), 2222, 29501)
    assert found.argv[0] == "deepspeed"
    assert found.argv[-5:] == (
        "train.py", "--data=/shared/data", "--save=/shared/save", "--at=20", "--n=1",
    )  # fmt: skip
    assert found.files["/run/stackyard/launch/two/hostfile"] == "node1 slots=1\n"


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when told to."""
    now = [1000.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    return now


def watch(*, kill_after=None, ranks=(), on_loss=None):
    found = Watch(SMOKE, plan(kill_after=kill_after), on_loss)
    found.ranks.update({record.rank: record for record in ranks})
    return found


def running(number, **changes):
    return samples.rank(number, 2, ended=None, **changes)


def test_a_rank_that_does_not_join_is_named_with_its_node(clock):
    found = watch(ranks=[running(0)])
    clock[0] += 90
    assert found.silence() == ""
    clock[0] += 1
    assert found.silence() == "rank 1 (node2) did not join within 90 s"


def test_silence_names_every_rank_the_one_behind_first(clock):
    one, other = running(0, params={}), running(1, losses=samples.losses(1, 7), params={})
    found = watch(ranks=[one, other])
    clock[0] += 60
    assert found.silence() == ""
    clock[0] += 1
    assert found.silence() == (
        "no rank said anything for 60 s: rank 1 (node2) at update 7, rank 0 (node1) at update 40"
    )


def test_every_record_breaks_the_silence(clock):
    found = watch(ranks=[running(0), running(1)])
    clock[0] += 59
    found.take("record", 'rank0\t{"event": "step", "step": 41, "loss": 1.0}')
    clock[0] += 59
    assert found.silence() == ""
    found.take("said", "a launcher that only talks")
    clock[0] += 2
    assert found.silence() != ""


def test_the_kill_waits_until_every_rank_has_saved_and_made_the_last_judged_update(clock):
    def ready(*ranks):
        return watch(kill_after=40, ranks=ranks).due()

    there, before = samples.losses(1, 40), samples.losses(1, 39)
    here = {"params": {}, "saved": [20]}
    assert ready(running(0, losses=there, **here), running(1, losses=there, **here))
    assert not ready(running(0, losses=there, **here), running(1, losses=before, **here))
    assert not ready(running(0, losses=there, **here), running(1, losses=there, params={}))
    assert not ready(running(0, losses=there, **here))


def test_a_training_that_is_to_be_killed_would_go_on():
    assert training.placeholders(SMOKE, plan())["updates"] == SMOKE.updates
    found = training.placeholders(SMOKE, plan(kill_after=SMOKE.updates))
    assert found["updates"] == found["horizon"] == 10 * SMOKE.updates


def test_a_run_that_is_not_to_be_killed_is_not(clock):
    assert not watch(ranks=[running(0, saved=[20]), running(1, saved=[20])]).due()


def test_a_rank_that_died_is_named_once_it_has_had_its_say(clock):
    found = watch(ranks=[running(0, pid=7, host="node1"), running(1, pid=7, host="node2")])
    gone = {("node2", 7): clock[0]}
    clock[0] += 1
    assert found.died(gone) == ""
    clock[0] += 2
    assert found.died(gone) == f"rank 1 (node2) died after update {found.ranks[1].last}"
    assert found.died({}) == ""


def test_of_several_dead_ranks_the_first_is_named(clock):
    found = watch(ranks=[running(0, pid=7, host="node1"), running(1, pid=8, host="node2")])
    clock[0] += 10
    gone = {("node1", 7): clock[0] - 4, ("node2", 8): clock[0] - 5}
    assert found.died(gone).startswith("rank 1 (node2) died")


def test_a_rank_that_said_that_it_is_through_has_not_died(clock):
    found = watch(ranks=[samples.rank(0, 2, pid=7, host="node1", ended=40)])
    clock[0] += 10
    assert found.died({("node1", 7): clock[0] - 5}) == ""


def test_losses_are_told_once_an_update_by_the_first_rank(clock):
    told = []
    found = watch(on_loss=lambda *what: told.append(what))
    for rank in (0, 1):
        for step in (1, 2):
            event = f'{{"event": "step", "step": {step}, "loss": {step}.5}}'
            found.take("record", f"rank{rank}\t{event}")
    assert told == [("two", 1, 1.5), ("two", 2, 2.5)]


def test_other_events_of_an_update_do_not_tell_its_loss_again(clock):
    told = []
    found = watch(on_loss=lambda *what: told.append(what))
    found.take("record", 'rank0\t{"event": "step", "step": 1, "loss": 1.5}')
    found.take("record", 'rank0\t{"event": "saved", "step": 1}')
    assert told == [("two", 1, 1.5)]


def test_ranks_that_are_gone_are_named_by_their_process():
    alive = {"node1": [{"pid": 100, "command": "x"}], "node2": [{"pid": 999, "command": "x"}]}
    ranks = {0: running(0), 1: running(1)}
    said = training._who_is_gone(alive, ranks)
    assert said == ["rank 1 (node2) is gone since update 40"]


def test_ranks_that_ended_are_not_missed():
    assert training._who_is_gone({}, {0: samples.rank(0, 1)}) == []
