"""The seven checks of a smoke: each passes on good data and fails in every way it can."""

import dataclasses
import json
import math

import pytest

from stackyard.definitions import lock
from stackyard.definitions.project import ROOT
from stackyard.validate import judge
from stackyard.validate.checks import FAILED, NOT_RUN, PASSED, Check
from stackyard.validate.checks import verdict as verdict_of
from stackyard.validate.outcome import Observation
from tests.unit import samples

SMOKE = samples.smoke()
CHECKS = {
    "mesh": judge.mesh,
    "world_size": judge.world_size,
    "loss_falls": judge.loss_falls,
    "ranks_agree": judge.ranks_agree,
    "parity": judge.parity,
    "resume_equal": judge.resume_equal,
    "no_strays": judge.no_strays,
}


def failing(name, why, **changes):
    """See that one check fails on a changed observation, for exactly this reason."""
    found = CHECKS[name](SMOKE, samples.observation(**changes))
    assert (found.name, found.outcome, found.why) == (name, FAILED, why)
    return found


def trained(**changes):
    """The two layouts, with the training of two nodes changed."""
    two = dataclasses.replace(samples.training(), **changes)
    return {"one": samples.training("one", 1), "two": two}


def one_rank_changed(number, **changes):
    return trained(ranks=samples.changed(samples.training(), number, **changes).ranks)


# All of them


def test_a_good_smoke_passes_every_check_in_a_fixed_order():
    found = judge.judge(SMOKE, samples.observation())
    assert [(c.name, c.outcome, c.why) for c in found] == [(n, PASSED, "") for n in CHECKS]
    assert verdict_of(found) == PASSED


def test_a_mesh_that_never_stood_fails_and_leaves_the_rest_not_run():
    seen = Observation(nodes=samples.NODES, environment={}, broken="node2 did not start")
    found = judge.judge(SMOKE, seen)
    assert [(c.name, c.outcome, c.why, c.measured) for c in found] == [
        (name, FAILED if name == "mesh" else NOT_RUN, "node2 did not start", None)
        for name in CHECKS
    ]


def test_logins_where_there_are_none_are_no_check_and_the_rest_decides():
    seen = samples.observation(no_logins="no sshd", reach={}, refusals={}, sessions={}, pairs=())
    found = judge.judge(SMOKE, seen)
    assert [check.name for check in found] == [name for name in CHECKS if name != "mesh"]
    assert verdict_of(found) == PASSED
    assert judge.not_applicable(seen) == {"mesh": "no sshd"}
    assert judge.not_applicable(samples.observation()) == {}


def test_a_smoke_that_broke_before_training_fails_where_it_was():
    seen = samples.observation(trainings={}, killed=None, resumed=None, broken="no data")
    found = {check.name: check for check in judge.judge(SMOKE, seen)}
    assert found["mesh"].outcome == "passed"
    assert found["loss_falls"].outcome == FAILED
    assert found["loss_falls"].why.endswith("was not trained: no data")
    assert found["world_size"].outcome == NOT_RUN


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mesh", "no login was tried"),
        ("world_size", "nothing was trained"),
        ("loss_falls", "nothing was trained"),
        ("ranks_agree", "nothing was trained"),
        ("parity", "one or its peers did not train"),
        ("resume_equal", "two was not resumed"),
        ("no_strays", "nothing was trained"),
    ],
)
def test_a_check_without_anything_to_look_at_is_not_run(name, why):
    found = CHECKS[name](SMOKE, Observation(nodes=samples.NODES, environment={}))
    assert (found.outcome, found.why) == (NOT_RUN, why)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], NOT_RUN),
        ([PASSED, PASSED], PASSED),
        ([PASSED, NOT_RUN], NOT_RUN),
        ([NOT_RUN, FAILED, PASSED], FAILED),
    ],
)
def test_the_verdict_is_the_worst_outcome(outcomes, verdict):
    checks = [Check(name="x", outcome=o, measured=None, expected=None) for o in outcomes]
    assert verdict_of(checks) == verdict


def test_several_reasons_of_one_check_are_all_said():
    why = "two: rank 0 sees a world of 1, not 2; two: rank 1 sees a world of 1, not 2"
    ranks = {n: samples.rank(n, 1) for n in range(2)}
    failing("world_size", why, trainings=trained(ranks=ranks))


# mesh


def reach(source, target, **answer):
    good = samples.observation().reach
    return {**good, source: {**good[source], target: answer}}


def refused(**changes):
    return {**samples.refusals(), **changes}


def test_mesh_says_who_logged_in_where_and_who_was_refused():
    found = judge.mesh(SMOKE, samples.observation())
    logins = ["node1>node1", "node1>node2", "node2>node1", "node2>node2"]
    assert found.measured["logins"] == found.expected["logins"] == logins
    assert found.measured["refused"] == found.expected["refused"]
    assert len(found.measured["refused"]) == 6
    assert found.measured["said"]["impostor"] == "Host key verification failed."


def test_mesh_fails_when_one_pair_cannot_log_in():
    changed = reach("node1", "node2", code=255, says="Connection refused", host="")
    found = failing("mesh", "node1 cannot log in to node2: Connection refused", reach=changed)
    assert "node1>node2" not in found.measured["logins"]


def test_mesh_fails_when_a_pair_was_never_tried():
    good = samples.observation().reach
    why = "node2 cannot log in to node1: was not tried; node2 cannot log in to node2: was not tried"
    failing("mesh", why, reach={"node1": good["node1"]})


def test_mesh_fails_when_another_host_answers():
    changed = reach("node2", "node1", code=0, says="", host="node2")
    failing("mesh", "node2 cannot log in to node1: node2", reach=changed)


def test_mesh_fails_when_a_login_sees_another_environment():
    sessions = samples.observation().sessions
    pair = ("node1", "node2")
    other = {**sessions, pair: {**sessions[pair], "NCCL_DEBUG": "INFO"}}
    found = failing("mesh", "NCCL_DEBUG is 'INFO' in a login from node1 to node2", sessions=other)
    assert found.measured["same_environment"] is False


def test_mesh_fails_when_a_login_lacks_a_variable():
    sessions = samples.observation().sessions
    lacking = {name: v for name, v in sessions["node2", "node1"].items() if name != "PATH"}
    why = "PATH is None in a login from node2 to node1"
    failing("mesh", why, sessions={**sessions, ("node2", "node1"): lacking})


@pytest.mark.parametrize(("has", "outcome"), [("1", PASSED), ("0", FAILED), (None, FAILED)])
def test_mesh_fails_when_a_login_does_not_see_its_own_nodes_settings(has, outcome):
    own = {node: {"GPUS": str(number)} for number, node in enumerate(samples.NODES)}
    good = samples.observation().sessions
    sessions = {(a, b): {**session, **own[b]} for (a, b), session in good.items()}
    sessions["node1", "node2"] = {**good["node1", "node2"], **({"GPUS": has} if has else {})}
    found = judge.mesh(SMOKE, samples.observation(own=own, sessions=sessions))
    why = f"GPUS is {has!r} in a login from node1 to node2"
    assert (found.outcome, found.why) == (outcome, why if outcome == FAILED else "")


def test_mesh_fails_when_a_login_did_not_tell_its_environment():
    sessions = dict(samples.observation().sessions)
    del sessions["node1", "node2"]
    found = failing("mesh", "no login from node1 to node2 told its environment", sessions=sessions)
    assert found.measured["same_environment"] is False


@pytest.mark.parametrize(
    "name", ["password", "foreign_key", "other_run", "impostor", "impostor_by_config", "unnamed"]
)
def test_mesh_fails_when_a_stranger_is_let_in(name):
    let_in = refused(**{name: {"code": 0, "says": ""}})
    found = failing("mesh", f"{name}: the login was let in", refusals=let_in)
    assert name not in found.measured["refused"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("password", "Permission denied (publickey)"),
        ("foreign_key", "Permission denied (publickey)"),
        ("other_run", "Permission denied (publickey)"),
        ("impostor", "Host key verification failed"),
        ("impostor_by_config", "Host key verification failed"),
        ("unnamed", "Host key verification failed"),
    ],
)
def test_mesh_fails_when_a_refusal_has_another_reason(name, reason):
    answer = {"code": 255, "says": "Connection timed out"}
    why = f"{name}: failed, but not with {reason!r}: Connection timed out"
    failing("mesh", why, refusals=refused(**{name: answer}))


def test_mesh_fails_when_a_refusal_has_the_words_but_another_exit_code():
    answer = {"code": 1, "says": "Permission denied (publickey)"}
    why = "password: failed, but not with 'Permission denied (publickey)': " + answer["says"]
    failing("mesh", why, refusals=refused(password=answer))


def test_mesh_fails_when_a_refusal_was_not_tried():
    tried = samples.refusals()
    del tried["unnamed"]
    why = "unnamed: failed, but not with 'Host key verification failed': was not tried"
    failing("mesh", why, refusals=tried)


@pytest.mark.parametrize("name", ["control", "impostor_control"])
def test_mesh_fails_when_a_control_fails(name):
    why = f"{name} should have worked, so the refusals prove nothing: No route to host"
    answer = {"code": 255, "says": "No route to host"}
    failing("mesh", why, refusals=refused(**{name: answer}))


def test_mesh_fails_when_a_control_was_not_tried():
    tried = samples.refusals()
    del tried["control"]
    why = "control should have worked, so the refusals prove nothing: was not tried"
    failing("mesh", why, refusals=tried)


def test_mesh_is_not_run_when_only_the_refusals_are_missing():
    found = judge.mesh(SMOKE, samples.observation(refusals={}))
    assert (found.outcome, found.why) == (NOT_RUN, "no login was tried")


# world_size


def test_world_size_is_measured_by_the_ranks_themselves():
    found = judge.world_size(SMOKE, samples.observation())
    assert found.expected == {"one": 1, "two": 2}
    assert found.measured["two"] == {"rank 0": 2, "rank 1": 2}
    assert set(found.measured) == {"one", "two", "two, killed", "two, resumed"}


def test_world_size_fails_when_the_jobs_are_lone():
    # Both take themselves for rank 0: the record of one overwrites the other's.
    ranks = {0: samples.rank(0, 1, host="node2")}
    why = "two: rank 1 (node2) never joined; two: rank 0 sees a world of 1, not 2"
    failing("world_size", why, trainings=trained(ranks=ranks))


def test_world_size_names_a_missing_rank_with_its_node():
    ranks = {1: samples.rank(1, 2)}
    failing("world_size", "two: rank 0 (node1) never joined", trainings=trained(ranks=ranks))


def test_world_size_fails_when_all_ranks_ran_on_one_host():
    changed = one_rank_changed(1, host="node1")
    failing("world_size", "two: all ranks ran on node1", trainings=changed)


def test_world_size_fails_when_a_rank_sees_more_than_were_wanted():
    ranks = {n: samples.rank(n, 3) for n in range(3)}
    why = "; ".join(f"two: rank {n} sees a world of 3, not 2" for n in range(3))
    failing("world_size", why, trainings=trained(ranks=ranks))


def test_world_size_looks_at_the_resumed_run_too():
    resumed = samples.changed(samples.resumed(), 0, world_size=1)
    failing("world_size", "two, resumed: rank 0 sees a world of 1, not 2", resumed=resumed)


# loss_falls


def test_loss_falls_measures_first_last_and_ratio():
    found = judge.loss_falls(SMOKE, samples.observation())
    assert found.measured["two"] == {
        "updates": 40, "first": 2.95, "last": 1.0, "last/first": 0.339,
    }  # fmt: skip
    assert found.expected == {"updates": {"at_least": 40}, "last/first": {"at_most": 0.7}}


def test_loss_falls_names_the_rank_and_update_of_a_nan():
    bad = {**samples.losses(), 7: math.nan, 9: math.nan}
    why = "two: the loss of rank 1 (node2) is not finite at update 7"
    failing("loss_falls", why, trainings=one_rank_changed(1, losses=bad))


def test_loss_falls_names_the_rank_whose_loss_was_not_finite_first():
    two = samples.changed(samples.training(), 0, losses={**samples.losses(), 9: math.inf})
    two = samples.changed(two, 1, losses={**samples.losses(), 8: -math.inf})
    why = "two: the loss of rank 1 (node2) is not finite at update 8"
    failing("loss_falls", why, trainings=trained(ranks=two.ranks))


def test_loss_falls_measures_a_nan_at_the_end_as_the_number_it_is():
    bad = {**samples.losses(), 40: math.nan}
    why = "two: the loss of rank 0 (node1) is not finite at update 40"
    found = failing("loss_falls", why, trainings=one_rank_changed(0, losses=bad))
    figures = found.measured["two"]
    assert (figures["updates"], figures["first"]) == (40, 2.95)
    assert math.isnan(figures["last"]) and math.isnan(figures["last/first"])


def test_loss_falls_fails_on_too_few_updates():
    two = samples.training()
    for number in range(2):
        two = samples.changed(two, number, losses=samples.losses(1, 39))
    failing("loss_falls", "two: 39 updates", trainings=trained(ranks=two.ranks))


def test_loss_falls_fails_when_no_rank_recorded_a_loss():
    ranks = {n: samples.rank(n, 2, losses={}) for n in range(2)}
    found = failing("loss_falls", "two: 0 updates", trainings=trained(ranks=ranks))
    assert math.isnan(found.measured["two"]["first"])


@pytest.mark.parametrize("last", [3.0, 2.11])
def test_loss_falls_fails_when_the_loss_does_not_fall_enough(last):
    flat = dict.fromkeys(range(1, 40), 3.0) | {40: last}
    ranks = {n: samples.rank(n, 2, losses=flat) for n in range(2)}
    why = f"two: the loss went from 3.0000 to {last:.4f} only"
    failing("loss_falls", why, trainings=trained(ranks=ranks))


def test_loss_falls_passes_at_the_ratio_itself():
    falling = dict.fromkeys(range(1, 40), 10.0) | {40: 7.0}
    ranks = {n: samples.rank(n, 2, losses=falling) for n in range(2)}
    seen = samples.observation(trainings=trained(ranks=ranks))
    assert judge.loss_falls(SMOKE, seen).outcome == PASSED


def test_loss_falls_names_a_rank_that_died():
    changed = one_rank_changed(1, ended=None)
    failing("loss_falls", "two: rank 1 (node2) stopped after update 40", trainings=changed)


def test_loss_falls_names_a_rank_that_ended_early():
    changed = one_rank_changed(0, ended=39)
    failing("loss_falls", "two: rank 0 (node1) ended at update 39", trainings=changed)


@pytest.mark.parametrize(("last", "outcome"), [(39, FAILED), (40, PASSED), (47, PASSED)])
def test_a_training_that_is_to_be_killed_must_have_made_every_judged_update(last, outcome):
    own = {"losses": samples.losses(1, 47), "params": {}, "ended": None}
    ranks = {n: samples.rank(n, 2, **own) for n in range(2)}
    two = samples.killed(ranks=ranks)
    two = samples.changed(two, 1, losses=samples.losses(1, last))
    seen = samples.observation(trainings={"one": samples.training("one", 1), "two": two})
    found = judge.loss_falls(SMOKE, seen)
    said = "two: rank 1 (node2) was killed after update 39 already"
    assert (found.outcome, found.why) == (outcome, said if outcome == FAILED else "")


def test_loss_falls_gives_the_launchers_exit_code():
    why = "two: the launcher ended with exit code 17"
    failing("loss_falls", why, trainings=trained(code=17))


def test_loss_falls_says_why_the_controller_stopped_a_run_instead_of_its_exit_code():
    silent = "no rank said anything for 60 s: rank 1 (node2) at update 12"
    changed = trained(code=137, stopped=silent)
    failing("loss_falls", f"two: {silent}", trainings=changed)


# ranks_agree


def test_ranks_agree_counts_what_it_compared():
    found = judge.ranks_agree(SMOKE, samples.observation())
    last = {"rank 0": "b" * 12, "rank 1": "b" * 12}
    assert found.measured == {"two": {"compared": 2, "last": last}}


def test_ranks_agree_names_ranks_and_update_of_the_first_difference():
    changed = one_rank_changed(1, params={(20, "all"): "c" * 64, (40, "all"): "d" * 64})
    why = "two: parameters (all) differ after update 20: rank 0 aaaaaaaaaaaa, rank 1 cccccccccccc"
    failing("ranks_agree", why, trainings=changed)


def test_ranks_agree_compares_only_ranks_of_the_same_group():
    two = samples.changed(samples.training(), 0, params={(40, "all"): "a", (40, "left"): "b"})
    two = samples.changed(two, 1, params={(40, "all"): "a", (40, "right"): "c"})
    found = judge.ranks_agree(SMOKE, samples.observation(trainings=trained(ranks=two.ranks)))
    assert (found.outcome, found.measured["two"]["compared"]) == (PASSED, 1)


@pytest.mark.parametrize("params", [{}, {(40, "right"): "c"}])
def test_ranks_agree_fails_when_there_is_nothing_to_compare(params):
    why = "no two ranks recorded the same group of parameters"
    failing("ranks_agree", why, trainings=one_rank_changed(1, params=params))


def test_ranks_agree_is_not_run_when_the_smoke_broke_before_two_ranks_trained():
    one = {"one": samples.training("one", 1)}
    seen = samples.observation(trainings=one, killed=None, resumed=None, broken="node2 is gone")
    found = judge.ranks_agree(SMOKE, seen)
    assert (found.outcome, found.why) == (NOT_RUN, "node2 is gone")


# parity


def with_losses(changes):
    changed = samples.losses() | changes
    return one_rank_changed(0, losses={k: v for k, v in changed.items() if v is not None})


def test_parity_measures_the_largest_difference_and_where_it_is():
    seen = samples.observation(trainings=with_losses({3: samples.losses()[3] + 0.0005}))
    found = judge.parity(SMOKE, seen)
    assert found.outcome == PASSED
    assert found.measured["two"]["at_update"] == 3
    assert found.measured["two"]["largest_difference"] == pytest.approx(0.0005)
    assert found.measured["two"] | {"largest_difference": 0} == {
        "against": "one", "updates": 40, "largest_difference": 0, "at_update": 3,
    }  # fmt: skip


# A layout of half precision has a tolerance of its own, above or below the smoke's.
@pytest.mark.parametrize(("own", "limit"), [(None, 0.001), (0.02, 0.02), (0.0004, 0.0004)])
@pytest.mark.parametrize("share", [0.9, -0.9, 1.1, -1.1])
def test_losses_may_differ_by_the_tolerance_of_their_layout_and_no_more(own, limit, share):
    gap = share * limit
    layouts = (samples.layout("one", 1), samples.layout("two", 2, tolerance=own))
    smoke = samples.smoke(tolerance=0.001, layouts=layouts)
    moved = {33: samples.losses()[33] + gap, 34: samples.losses()[34] + gap / 2}
    other = samples.observation(trainings=with_losses(moved))
    again = samples.observation(resumed=resumed(losses=samples.losses(21) | moved))
    for found in (judge.parity(smoke, other), judge.resume_equal(smoke, again)):
        said = f"loss differs by {limit * 1.1:.3g} at update 33"
        assert found.outcome == (PASSED if abs(share) < 1 else FAILED)
        assert found.why.removeprefix("two: ") == ("" if abs(share) < 1 else said)


def test_parity_and_resume_pass_at_the_tolerance_itself():
    smoke = samples.smoke(tolerance=0.5)
    two = samples.training(
        ranks=one_rank_changed(0, losses=samples.losses() | {20: 2.5})["two"].ranks
    )
    seen = samples.observation(
        trainings={"one": samples.training("one", 1), "two": two},
        resumed=resumed(losses=samples.losses(21) | {40: 1.5}),
    )
    for check in (judge.parity, judge.resume_equal):
        found = check(smoke, seen)
        figures = found.measured.get("two", found.measured)
        assert (found.outcome, figures["largest_difference"]) == (PASSED, 0.5)


def test_parity_fails_when_updates_are_missing():
    changed = with_losses({40: None, 39: None})
    failing("parity", "two: only 38 updates to compare with one", trainings=changed)


def test_parity_takes_a_nan_for_an_infinite_difference():
    changed = with_losses({5: math.nan})
    found = failing("parity", "two: loss differs by inf at update 5", trainings=changed)
    assert found.measured["two"]["largest_difference"] == math.inf


def test_parity_fails_when_both_are_nan():
    one = samples.changed(samples.training("one", 1), 0, losses=samples.losses() | {5: math.nan})
    changed = {**with_losses({5: math.nan}), "one": one}
    failing("parity", "two: loss differs by inf at update 5", trainings=changed)


def test_parity_fails_when_nothing_is_common():
    changed = trained(ranks={n: samples.rank(n, 2, losses={}) for n in range(2)})
    failing("parity", "two: only 0 updates to compare with one", trainings=changed)


def test_parity_is_not_run_when_the_reference_did_not_train():
    found = judge.parity(SMOKE, samples.observation(trainings={"two": samples.training()}))
    assert (found.outcome, found.why) == (NOT_RUN, "one or its peers did not train")


# resume_equal


def test_resume_equal_measures_where_it_was_killed_and_resumed():
    found = judge.resume_equal(SMOKE, samples.observation())
    assert found.measured == {
        "layout": "two", "killed_after": 23, "resumed_from": 20, "updates": 20,
        "largest_difference": 0.0, "at_update": 21,
    }  # fmt: skip


def test_resume_equal_fails_when_the_run_was_not_killed():
    ended = samples.training()
    why = "the run that was to be killed was not: it ended before"
    failing("resume_equal", why, killed=ended)


def test_resume_equal_says_what_ended_the_run_that_was_to_be_killed():
    why = (
        "the run that was to be killed was not: the launcher ended with exit code 1;"
        " rank 0 (node1) stopped after update 23; rank 1 (node2) stopped after update 23"
    )
    failing("resume_equal", why, killed=samples.killed(killed=False, code=1))


def resumed(**changes):
    found = samples.resumed()
    for number in range(2):
        found = samples.changed(found, number, **changes)
    return found


def test_resume_equal_fails_when_nothing_was_loaded():
    why = "resumed from nothing, not from update 20"
    found = failing("resume_equal", why, resumed=resumed(loaded=[]))
    assert found.measured["resumed_from"] == []


def test_resume_equal_fails_when_another_update_was_loaded():
    why = "resumed from [10], not from update 20"
    assert failing("resume_equal", why, resumed=resumed(loaded=[10])).measured["resumed_from"] == 10


def test_resume_equal_fails_when_ranks_loaded_different_updates():
    other = samples.changed(samples.resumed(), 1, loaded=[30])
    failing("resume_equal", "resumed from [20, 30], not from update 20", resumed=other)


@pytest.mark.parametrize("first", [1, 18, 20])
def test_resume_equal_fails_when_updates_were_trained_again(first):
    again = resumed(losses=samples.losses(first))
    failing("resume_equal", f"update {first} was trained again", resumed=again)


def test_resume_equal_fails_when_updates_are_missing():
    short = resumed(losses=samples.losses(21, 38))
    failing("resume_equal", "only 18 of 20 updates to compare", resumed=short)


def test_resume_equal_takes_a_nan_for_an_infinite_difference():
    off = resumed(losses=samples.losses(21) | {33: math.nan})
    found = failing("resume_equal", "loss differs by inf at update 33", resumed=off)
    assert found.measured["largest_difference"] == math.inf


def test_resume_equal_fails_when_the_resumed_run_did_not_end_well():
    why = "the launcher ended with exit code 1; rank 1 (node2) stopped after update 40"
    broken = samples.changed(samples.resumed(code=1), 1, ended=None)
    failing("resume_equal", why, resumed=broken)


@pytest.mark.parametrize("lacking", ["killed", "resumed"])
def test_resume_equal_is_not_run_when_a_half_is_missing(lacking):
    seen = samples.observation(**{lacking: None}, broken="node1 is gone")
    found = judge.resume_equal(SMOKE, seen)
    assert (found.outcome, found.why) == (NOT_RUN, "node1 is gone")


# no_strays


def test_no_strays_counts_the_trainings_it_looked_at():
    found = judge.no_strays(SMOKE, samples.observation())
    assert found.measured == {"processes_left": 0, "trainings": 4}


def test_no_strays_names_process_node_and_training():
    left = {"node1": [], "node2": [{"pid": 77, "command": "python train.py"}]}
    why = "two: node2 still runs 77: python train.py"
    found = failing("no_strays", why, trainings=trained(strays=left))
    assert found.measured["processes_left"] == 1


def test_no_strays_names_five_of_many_and_counts_all():
    left = {"node1": [{"pid": n, "command": "worker"} for n in range(7)]}
    why = "; ".join(f"two, killed: node1 still runs {n}: worker" for n in range(5))
    found = failing("no_strays", why, killed=samples.killed(strays=left))
    assert found.measured["processes_left"] == 7


def test_no_strays_looks_at_the_resumed_run():
    left = {"node1": [{"pid": 5, "command": "x"}]}
    why = "two, resumed: node1 still runs 5: x"
    failing("no_strays", why, resumed=samples.resumed(strays=left))


# The curve that CPU ranks had


def recorded(gap=0.0, updates=40):
    return {step: loss + gap for step, loss in samples.losses(1, updates).items()}


@pytest.mark.parametrize(
    ("curve", "why"),
    [
        (recorded(), ""),
        (recorded(0.0009), ""),
        (recorded(0.0011), "one: loss differs from CPU ranks' by 0.0011"),
        (recorded(updates=39), "one: only 39 updates to compare with CPU ranks"),
    ],
)
def test_gpus_are_held_against_what_cpu_ranks_had(curve, why):
    found = judge.parity(SMOKE, samples.observation(recorded=curve))
    assert found.outcome == ("failed" if why else "passed")
    assert why in found.why
    assert found.measured["one"]["against"] == "the curve recorded on CPU ranks"


def test_a_stacks_curve_was_recorded_with_the_locks_that_are_there():
    for path in sorted((ROOT / "images").glob("*/curve.json")):
        kept = json.loads(path.read_text())
        lock_file = path.with_name("cpu.lock")
        assert kept["lock"] == lock.locked_inputs(lock_file.read_text()), (
            f"{path.parent.name} has other packages now: invoke smoke {path.parent.name} --gpus 0,"
            f" then scripts/record-curve {path.parent.name}"
        )
        assert len(kept["curve"]) == 40
