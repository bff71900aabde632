"""What the checks of hosts with GPUs call wrong, as a planted fault that is not named."""

import dataclasses

import pytest

from tests.fleet import matrix
from tests.gpu import hosts
from tests.unit.report.test_certify import KINDS, record

LINES = {
    "flip": "it computes something else from update 4 on",
    "skipped": "it did not end: rank 1 (train) (at never) never came to all_reduce, where",
}


def certified(name="", why="", unused=None, check=""):
    """A certification's report in which one GPU, host or link is bad."""
    value = record(KINDS["good"])
    value["unused"] = dict(unused or {})
    if name:
        value["hosts"][0]["gpus"][0] |= {"name": name, "state": "bad", "why": why}
    if check:
        value["checks"][0] |= {"outcome": "failed", "why": check}
    return value


NAMED = {
    "flip": certified("train:0", LINES["flip"]),
    "skipped": certified("train", LINES["skipped"]),
    "held": certified(unused={"both:1": "2048 MiB of it are in use, by processes not visible"}),
    "p2p": certified(check="NCCL used shared memory between GPUs of both, not peer-to-peer"),
}


@pytest.mark.parametrize("name", [name for name, case in hosts.CASES.items() if case.named])
def test_a_planted_fault_must_be_named(name):
    case = hosts.CASES[name]
    assert hosts.problems(case, 1, NAMED[name], 2) == []
    assert hosts.problems(case, 0, NAMED[name], 2) == ["its exit code is 0"]
    for other in (certified(), certified("study:0", LINES["flip"])):
        (why,) = hosts.problems(case, 1, other, 2)
        assert why.startswith("nothing matches")


def test_good_gpus_must_pass_with_one_fingerprint():
    good, case = certified(), hosts.CASES["good"]
    assert hosts.problems(case, 0, good, 8) == []
    assert hosts.problems(case, 1, good, 8) == ["its exit code is 1"]
    assert "8 GPUs have the fingerprints" in hosts.problems(case, 0, good, 2)[0]
    good["hosts"][0]["gpus"][0]["fingerprint"] = "other"
    assert "8 GPUs have the fingerprints" in hosts.problems(case, 0, good, 8)[0]
    for wrong in (NAMED["flip"], NAMED["held"], NAMED["p2p"]):
        assert any("nothing is bad, but" in one for one in hosts.problems(case, 0, wrong, 8))
    unread = certified()
    unread["checks"][1] |= {"outcome": "not run"}
    assert "checks did not pass" in hosts.problems(case, 0, unread, 8)[0]


CELL = matrix.Cell(stack="x", target="rank", seconds=1.0, ended=2.0, code=1, left={}, said="end",
                   held={"a": 5, "b": 7}, held_after={"a": 0, "b": 0})  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"seconds": None, "left": {"study": ["1 x"]}}, ["left: {'study': ['1 x']}"]),
        ({"code": 0}, ["invoke ended with 0"]),
        ({"target": "controller", "code": -9}, []),
        ({"target": "controller", "code": 0}, ["invoke ended with 0"]),
        ({"target": "container paused"}, ["it does not say 'node train is gone"]),
        ({"held": {"a": 5, "b": 0}}, ["no memory of b was held"]),
        ({"held_after": {"a": 0, "b": 1}}, ["1 bytes of b are held"]),
    ],
)
def test_what_is_wrong_with_a_cell(changes, wrong):
    found = dataclasses.replace(CELL, **changes).wrong
    assert len(found) == len(wrong)
    assert all(one.startswith(start) for one, start in zip(found, wrong, strict=True))


def test_memory_beyond_idle_is_held_until_it_is_free(monkeypatch):
    used = iter([{"a": 100}, {"a": 150}, {"a": 130}, {"a": 90}])
    monkeypatch.setattr(hosts.gpus, "used_bytes", lambda chosen: next(used))
    look = hosts.GpuMemory([])
    assert look.held() == {"a": 50}
    assert look.until_free() == {"a": 0}
    monkeypatch.setattr(hosts.gpus, "used_bytes", lambda chosen: {"a": 2**31})
    with pytest.raises(AssertionError, match="somebody holds GPUs before anything starts"):
        hosts.GpuMemory([])


def test_what_a_users_program_should_say_is_looked_for_in_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "ROOT", tmp_path)
    one = hosts.LAUNCHED["own-deepspeed"]
    (text,) = one.said
    log = tmp_path / "reports/runs/by-x/run-1.log"
    log.parent.mkdir(parents=True)
    for times, wrong in ((2, []), (1, [text])):
        log.write_text(f"rank 0: {text}\n" * times)
        assert hosts.missing(one, "by-x", {"name": "run-1"}) == wrong
    assert hosts.missing(one, "by-x", None) == [text]
