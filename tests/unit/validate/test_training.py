"""One training, but for its engine: the exact command, and how its silence is noticed."""

from dataclasses import replace

from stackyard.validate import launches, training
from stackyard.validate.launches import fill
from stackyard.validate.training import materialize
from stackyard.validate.training_log import TrainingLog, TrainingPlan
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

    assert set(launches.placeholders(SMOKE, plan())) == set(PLACEHOLDERS)


def test_a_layout_is_launched_with_its_own_nodes_launcher_and_arguments():
    layout = samples.layout("two", 1, args=("--n={ranks}",), launcher="deepspeed")
    found = materialize(SMOKE, plan(layout=layout, nodes=("node1",)), 2222, 29501)
    assert found.argv[0] == "deepspeed"
    assert found.argv[-5:] == (
        "train.py", "--data=/shared/data", "--save=/shared/save", "--at=20", "--n=1",
    )  # fmt: skip
    assert found.files["/run/stackyard/launch/two/hostfile"] == "node1 slots=1\n"


def test_trainings_on_gpus_beside_each_other_have_addresses_of_their_own_for_nccls_ras():
    smoke = replace(SMOKE, device="cuda")
    plans = [plan(run="a"), plan(run="b"), plan(run="a", label="other")]
    assert len({training.launch_env(smoke, one)["NCCL_RAS_ADDR"] for one in plans}) == 3
    assert "NCCL_RAS_ADDR" not in training.launch_env(SMOKE, plan(run="a"))


def watch(*, kill_after=None, ranks=(), on_loss=None):
    found = TrainingLog(SMOKE, plan(kill_after=kill_after), on_loss)
    found.ranks.update({record.rank: record for record in ranks})
    return found


def running(number, **changes):
    return samples.rank(number, 2, ended=None, **changes)


def test_the_kill_waits_until_every_rank_has_saved_and_made_the_last_judged_update():
    def ready(*ranks):
        return watch(kill_after=40, ranks=ranks).due()

    there, before = samples.losses(1, 40), samples.losses(1, 39)
    here = {"params": {}, "saved": [20]}
    assert ready(running(0, losses=there, **here), running(1, losses=there, **here))
    assert not ready(running(0, losses=there, **here), running(1, losses=before, **here))
    assert not ready(running(0, losses=there, **here), running(1, losses=there, params={}))
    assert not ready(running(0, losses=there, **here))


def test_a_training_that_is_to_be_killed_would_go_on():
    assert launches.placeholders(SMOKE, plan())["updates"] == SMOKE.updates
    found = launches.placeholders(SMOKE, plan(kill_after=SMOKE.updates))
    assert found["updates"] == found["horizon"] == 10 * SMOKE.updates


def test_a_run_that_is_not_to_be_killed_is_not():
    assert not watch(ranks=[running(0, saved=[20]), running(1, saved=[20])]).due()


def test_losses_are_told_once_an_update_by_the_first_rank():
    told = []
    found = watch(on_loss=lambda *what: told.append(what))
    for rank in (0, 1):
        for step in (1, 2):
            event = f'{{"event": "step", "step": {step}, "loss": {step}.5}}'
            found.take({"rank": rank, "record": event})
    assert told == [("two", 1, 1.5), ("two", 2, 2.5)]


def test_other_events_of_an_update_do_not_tell_its_loss_again():
    told = []
    found = watch(on_loss=lambda *what: told.append(what))
    found.take({"rank": 0, "record": '{"event": "step", "step": 1, "loss": 1.5}'})
    found.take({"rank": 0, "record": '{"event": "saved", "step": 1}'})
    assert told == [("two", 1, 1.5)]


def test_what_ranks_said_last_is_shown_last_unless_nccl_warns():
    said, quiet = ["update 1", "KeyError: 0"], ["a:1:1 [0] NCCL INFO Connected all rings"]
    assert training.with_nccl(said, quiet) == [*quiet, *said]
    loud = [*quiet, "a:1:1 [0] x.cc:1 NCCL WARN no memory"]
    assert training.with_nccl(said, loud) == [*said, loud[1]]
    assert len(training.with_nccl(said, quiet * 500)) == 2 + training.NCCL_LINES
