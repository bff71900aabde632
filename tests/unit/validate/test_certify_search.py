"""Hosts with planted faults are trained on, and exactly these are named, with evidence."""

import math
from dataclasses import replace

import pytest

from stackyard.definitions.spec import Baseline, Measure
from stackyard.gpu import nccl
from stackyard.gpu.doctor import NOT_RUN as UNREAD
from stackyard.gpu.doctor import OK, WRONG, Finding
from stackyard.gpu.transport import Offer
from stackyard.validate.certify import judge, search
from stackyard.validate.certify.judge import GroupRun, Place
from stackyard.validate.certify.links import BETWEEN, INSIDE, Links
from stackyard.validate.certify.record import read_records
from tests.unit.validate.certifying import UPDATES, Trainer, entry, gpu, names, steps

CLOCK = Finding(name="clock", state=OK, what="fine")
GOOD = {"h": (CLOCK, Finding(name="pcie", state=OK, what="its best"))}


def certified(trainer, *, baselines=(), known=None):
    return search.certify(trainer, baselines, known or {}, lambda text: None)


def outcomes(found, health=GOOD, unused=None):
    return {one.name: one.outcome for one in search.checks_of(found, health, unused or {})}


def hosts(count, gpus=1):
    return dict.fromkeys(names(count), gpus)


@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_hosts_without_a_fault_pass_in_two_rounds(count):
    trainer = Trainer(hosts(count, 2))
    found = certified(trainer)
    assert (found.wrong, found.faults, len(found.rounds)) == ([], (), 2)
    assert set(outcomes(found).values()) == {"passed"}
    assert search.bad_places(found) == {}
    between = count * (count - 1) // 2
    assert len(found.links.seen()) == between + count


def test_a_gpu_that_computes_something_else_is_named_with_its_update_and_left_out():
    trainer = Trainer(hosts(8, 2), corrupt={gpu("h03", 1): 4})
    found = certified(trainer)
    assert search.bad_places(found) == {"h03:1": "it computes something else from update 4 on"}
    assert outcomes(found)["fingerprint"] == "failed"
    assert all("h03" not in group for group in trainer.rounds[1])
    assert found.faults == ()


def test_the_earlier_fingerprint_goes_before_the_majority():
    good = certified(Trainer(hosts(1)))
    known = {"NVIDIA H200": good.bits["h00:0"]}
    wrong = dict.fromkeys((gpu("h00"), gpu("h01")), 3)
    found = certified(Trainer(hosts(3), corrupt=wrong), known=known)
    assert set(search.bad_places(found)) == {"h00:0", "h01:0"}


def test_of_two_that_differ_none_is_believed():
    found = certified(Trainer(hosts(2), corrupt={gpu("h01"): 3}))
    assert set(search.bad_places(found)) == {"h00:0", "h01:0"}
    assert "no two are more than others" in search.bad_places(found)["h00:0"]


def test_one_gpu_alone_is_compared_with_nothing_and_does_not_pass():
    found = certified(Trainer(hosts(1)))
    assert outcomes(found) == {
        "reached": "passed", "health": "passed", "fingerprint": "not run", "speed": "not run",
        "transport": "not run", "groups": "not run",
    }  # fmt: skip


def test_a_training_that_does_not_end_alone_is_a_fault():
    found = certified(Trainer(hosts(4), dead=(gpu("h02"),)))
    assert search.bad_places(found) == {"h02:0": "alone: rank 0 ended: killed"}
    assert outcomes(found)["fingerprint"] == "failed"


def test_a_slow_gpu_is_named_beside_its_neighbours():
    found = certified(Trainer(hosts(8), slow=(gpu("h05"),)))
    (name,) = search.bad_places(found)
    assert name == "h05:0"
    assert (
        "updates_s 10, the median of 7 neighbours with the same GPU is 100"
        in (search.bad_places(found)[name])
    )
    assert outcomes(found)["speed"] == "failed"


@pytest.mark.parametrize("count", [4, 8, 32])
def test_a_host_that_hangs_in_groups_is_named_in_few_rounds(count):
    last = names(count)[-1]
    found = certified(Trainer(hosts(count), hangs=(last,)))
    (fault,) = found.faults
    assert (fault.kind, fault.names) == ("host", (last,))
    assert "never came to all_reduce" in found.evidence(fault)
    assert len(found.rounds) <= 2 * math.ceil(math.log2(count)) + 4 + 1  # and the one alone
    assert outcomes(found)["groups"] == "failed"


def test_of_two_hosts_the_one_that_the_other_waited_for_is_named():
    found = certified(Trainer(hosts(2), hangs=("h01",)))
    (fault,) = found.faults
    assert (fault.kind, fault.names) == ("host", ("h01",))
    assert fault.why == "good alone; h00 waited for it, and neither had another partner"
    assert "never came to all_reduce" in found.evidence(fault)


def test_of_two_hosts_that_only_wait_for_each_other_the_link_is_named():
    pair = ("h00", "h01")
    found = certified(Trainer(hosts(2), cut=[pair]))
    (fault,) = found.faults
    assert (fault.kind, fault.names, fault.untried) == ("link", pair, pair)


@pytest.mark.parametrize("how", ["links", "cut"])
@pytest.mark.parametrize("count", [4, 8, 32])
def test_a_slow_or_cut_link_is_named_in_few_rounds(count, how):
    pair = (names(count)[1], names(count)[-2])
    found = certified(Trainer(hosts(count), **{how: [pair]}))
    (fault,) = found.faults
    assert (fault.kind, fault.names) == ("link", pair)
    assert ("exchange 0.4 GB/s" if how == "links" else "never came") in found.evidence(fault)
    assert len(found.rounds) <= 2 * math.ceil(math.log2(count)) + 4 + 1


def test_models_of_gpus_are_held_against_each_other_by_their_losses():
    def alone(model, loss):
        entries = [entry(0, "start", model=model, gpu="", torch="2"),
                   entry(0, "step", step=1, loss=loss, local=model, shared=model, seconds=1,
                         wait=0), entry(0, "end", step=1)]  # fmt: skip
        return GroupRun(places=(Place(host=model, index=0),), ranks=read_records(entries), code=0)

    for other, wrong in ((5.01, []), (5.03, ["losses of a and b differ by 0.03"]),
                         (math.nan, ["losses of a and b differ by nan"])):  # fmt: skip
        runs = [alone("a", 5.0), alone("b", other)]
        ranks = [rank for run in runs for rank in run.ranks.values()]
        expected, _ = judge.references(ranks, {})
        assert judge.disagreeing(runs, expected) == wrong


# One group


def group(entries, count=2, **more):
    places = tuple(Place(host=name, index=0) for name in names(count))
    return GroupRun(places=places, ranks=read_records(entries), **{"code": 0, **more})


def whole(rank, **more):
    return [entry(rank, "start", model="m", gpu="", torch="2"), *steps(rank, **more),
            entry(rank, "end", step=UPDATES)]  # fmt: skip


EXPECTED = {"m": judge.bits_of(read_records(whole(0))[0])}


def reasons(run, expected=None):
    given = EXPECTED if expected is None else expected
    return judge.reasons_against(run, given, Links(device="cuda"), ())


def test_a_good_group_has_no_reason_against_it():
    assert reasons(group([*whole(0), *whole(1)])) == []


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (group([*whole(0, summed_from=3), *whole(1, summed_from=3)]),
         "h00:0: the sum over ranks differ from update 3 on"),
        (group([*whole(0, summed_from=3), *whole(1, wrong_from=3)]),
         "h01:0: its own gradients differ from update 3 on"),
        (group(whole(0)), "it did not end (h01:0): exit code 0"),
        (group([*whole(0), *whole(1)], code=1), "it did not end (all ranks did): exit code 1"),
        (group([*whole(0), *whole(1)], code=None, reason="node h01 is gone: cut"),
         "it did not end (all ranks did): node h01 is gone: cut"),
        (group([*whole(0), *whole(1, count=4)]), "h01:0: the sum over ranks differ from update 5"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_group_is_said(run, why):
    found = reasons(run)
    assert any(one.startswith(why) for one in found), found


def test_a_group_of_several_models_has_no_known_sum():
    other = [{**one, "record": one["record"].replace('"m"', '"n"')} for one in whole(1)]
    assert reasons(group([*whole(0, summed_from=1), *other])) == []


def test_an_all_reduce_below_the_baseline_makes_a_group_bad():
    measure = Measure(kind="allreduce_gb_s", ranks=2, bytes=2**30, value=330.0, low=328.0,
                      high=333.0, count=6, bound=313.0, source=("x",), field=("y",))  # fmt: skip
    baseline = Baseline(name="h200", gpus=("NVIDIA H200",), measures=(measure,), not_measured={})
    trainer = Trainer({"h00": 2})
    assert certified(trainer, baselines=[baseline]).faults == ()
    trainer.exchanged = lambda rank, places: [entry(rank, "allreduce", bytes=2**30, gb_s=60.0)]
    found = certified(trainer, baselines=[baseline])
    assert [(fault.kind, fault.names) for fault in found.faults] == [("link", ("h00:0", "h00:1"))]
    (fault,) = found.faults
    assert "allreduce_gb_s 60, the baseline of h200" in found.evidence(fault)
    # Without a baseline there is nothing to compare it with.
    assert certified(trainer).faults == ()


@pytest.mark.parametrize("kind", ["tokens_s", "peer_copy_gb_s"])
def test_what_a_baseline_has_of_ranks_together_is_compared_where_it_was_measured(kind):
    figures = {"value": 100.0, "low": 99.0, "high": 101.0, "count": 6, "bound": 95.0}
    measure = Measure(kind=kind, ranks=2, bytes=0, source=("x",), field=("y",), **figures)
    several = Baseline(
        name="h200",
        gpus=("NVIDIA H200",),
        not_measured={},
        measures=(measure, replace(measure, ranks=1), replace(measure, ranks=8)),
    )
    trainer = Trainer({"h00": 2})

    def compared(**values):
        more = [entry(0, "speeds", values=values)] if values else []
        trainer.exchanged = lambda rank, places: more if rank == 0 else []
        found = certified(trainer, baselines=[several]).compared
        return [(one.outcome, one.by) for one in found if one.reading.kind == kind]

    assert compared() == [("not run", "this command does not measure it")]
    assert [outcome for outcome, _ in compared(**{kind: 96.0})] == ["passed"]
    assert ("failed", "the baseline of h200 (6 measurements)") in compared(**{kind: 94.0})


def test_links_inside_and_between_hosts_are_compared_apart():
    links = Links(device="cuda")
    run = Trainer(hosts(3, 2)).run(
        search.members_of(frozenset(names(3)), Trainer(hosts(3, 2)).slots)
    )
    assert links.slow(links.add(run)) == []
    assert (links.median(INSIDE), links.median(BETWEEN)) == (400.0, 40.0)


def test_a_link_that_was_slow_once_is_shown_as_what_it_was_at_best():
    links = Links(device="cuda")
    for speed in (40.0, 1.0):
        links.add(group([entry(0, "link", peer=1, gb_s=speed)]))
    assert links.seen()[0].gb_s == 40.0


def test_a_peer_that_is_no_rank_of_the_group_is_passed_over():
    assert Links(device="cpu").add(group([entry(0, "link", peer=9, gb_s=1.0)])) == []


# Checks


@pytest.mark.parametrize(
    "names", [("health",), ("pcie", "clocks", "nvlink"), ()], ids=["NVML", "its values", "nothing"]
)
def test_health_is_not_run_where_a_hosts_gpus_say_nothing_whatever_else_was_read(names):
    found = certified(Trainer(hosts(2)))
    unread = (CLOCK, *(Finding(name=name, state=UNREAD, what="no answer") for name in names))
    (seen,) = (one for one in search.checks_of(found, {**GOOD, "h1": unread}, {})
               if one.name == "health")  # fmt: skip
    assert seen.outcome == "not run"
    assert seen.why == "h1: " + ("; ".join(f"{n}: no answer" for n in names) or "nothing was read")
    # One value that was read is enough for a host; those that were not are counted.
    more = {**GOOD, "h1": (*unread, Finding(name="power limit", state=OK, what="700 W"))}
    assert outcomes(found, more)["health"] == "passed"
    # CPU ranks use no GPU.
    found.links.device = "cpu"
    assert outcomes(found, {"h1": unread})["health"] == "passed"


def test_health_without_a_host_is_not_run_and_what_is_wrong_fails():
    found = certified(Trainer(hosts(2)))
    wrong = {"h": (*GOOD["h"], Finding(name="gpu", state=WRONG, what="lost"))}
    assert outcomes(found, wrong)["health"] == "failed"
    assert outcomes(found, {})["health"] == "not run"


def transport(found):
    (one,) = (c for c in search.checks_of(found, GOOD, {}) if c.name == "transport")
    return one


def test_gpus_that_nccl_joined_by_less_than_they_offer_are_named_with_the_setting():
    seen = transport(certified(Trainer(hosts(2, 2), sockets=("h01",))))
    assert seen.outcome == "failed"
    assert seen.why == ("NCCL used sockets between the GPUs of h01: unset NCCL_P2P_DISABLE,"
                        " NCCL_SHM_DISABLE")  # fmt: skip
    good = transport(certified(Trainer(hosts(2, 2))))
    assert (good.outcome, good.measured) == ("passed", {"peer-to-peer": 2})


def test_shared_memory_is_less_where_nvlink_joins_the_gpus():
    log = nccl.read_log(["h00:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"])
    trainer = Trainer(hosts(1, 2))
    trainer.log = lambda hosts: log
    assert transport(certified(trainer)).outcome == "passed"
    trainer.offer = Offer(nvlinks=frozenset({"h00"}))
    assert transport(certified(trainer)).why == (
        "NCCL used shared memory between GPUs of h00, not peer-to-peer: nvidia-smi topo -p2p r"
        " shows which can"
    )


def test_a_transport_that_no_log_names_is_not_run_and_cpu_ranks_have_none():
    trainer = Trainer(hosts(2))
    trainer.log = lambda hosts: nccl.read_log([])
    found = certified(trainer)
    assert transport(found).outcome == "not run"
    assert "1 of 1 groups names no way of data" in transport(found).why
    found.links.device = "cpu"
    assert "transport" not in outcomes(found)


def test_a_host_that_took_no_part_fails():
    found = certified(Trainer(hosts(2)))
    assert outcomes(found, unused={"h9": "no route to host"})["reached"] == "failed"


# Records


def test_lines_that_are_no_record_are_passed_over():
    lines = [
        {"rank": 0, "text": "hello"}, {"rank": 0, "record": "{"}, {"rank": 0, "record": "[]"},
        {"rank": "x", "record": '{"event": "met"}'}, entry(0, "dance"), entry(0, "step", step=1),
        entry(0, "met"), {"rank": 0, "record": "5"},
    ]  # fmt: skip
    found = read_records(lines)
    assert list(found) == [0]
    assert (found[0].met, found[0].steps, found[0].ended) == (True, {}, False)


def test_the_speed_of_updates_leaves_out_the_first_ones():
    slow_start = [*steps(0, count=2, seconds=9.0), *steps(0)[2:]]
    assert read_records(slow_start)[0].updates_s == pytest.approx(100)
    assert read_records(steps(0, count=2))[0].updates_s is None
