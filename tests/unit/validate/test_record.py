"""Record lines to values: what each kind says, and what is no record."""

import json

import pytest

from stackyard.gpu.fused import Part
from stackyard.validate.record import RankRecord, take_line
from tests.unit import samples


def taken(*events):
    ranks = {}
    for event in events:
        take_line(ranks, 1, json.dumps(event))
    return ranks


START = {
    "event": "start", "rank": 1, "world_size": 2, "host": "node2", "pid": 7, "backend": "gloo",
    "device": "cpu",
}  # fmt: skip


def test_a_start_says_who_the_rank_is():
    assert taken(START) == {
        1: RankRecord(rank=1, world_size=2, host="node2", pid=7, backend="gloo", device="cpu")
    }


def test_the_events_of_a_training_are_taken_together():
    found = taken(
        START,
        {"event": "loaded", "step": 20},
        {"event": "step", "step": 21, "loss": 2.5},
        {"event": "params", "step": 21, "group": "all", "sha256": "ab"},
        {"event": "params", "step": 21, "group": "left", "sha256": "cd"},
        {"event": "saved", "step": 30},
        {"event": "end", "step": 40},
    )[1]
    assert found.loaded == [20]
    assert found.losses == {21: 2.5}
    assert found.params == {(21, "all"): "ab", (21, "left"): "cd"}
    assert (found.saved, found.ended) == ([30], 40)


def test_a_nan_of_python_is_read():
    ranks = {}
    take_line(ranks, 0, '{"event": "step", "step": 3, "loss": NaN}')
    assert ranks[0].losses[3] != ranks[0].losses[3]


def test_the_record_that_changed_is_given_back_with_the_kind_of_event():
    ranks = {}
    record, kind = take_line(ranks, 1, json.dumps(START))
    assert (record is ranks[1], kind) == (True, "start")


@pytest.mark.parametrize("line", ["", "not json", "[1]", '"text"', "{}"])
def test_what_is_no_record_is_passed_over(line):
    ranks = {}
    assert take_line(ranks, 1, line) is None
    assert ranks == {}


@pytest.mark.parametrize("line", ['{"event": "step"}', '{"event": "step", "step": 1, "loss": "x"}'])
def test_an_event_without_what_it_must_say_is_no_record(line):
    ranks = {}
    assert (take_line(ranks, 1, line), ranks) == (None, {})


def test_half_an_event_changes_nothing_of_what_was_said_before():
    ranks = taken(START)
    half = {**START, "host": "elsewhere"}
    del half["device"]
    assert take_line(ranks, 1, json.dumps(half)) is None
    assert ranks == taken(START)


def test_an_unknown_event_says_nothing():
    assert taken({"event": "weather"}) == {1: RankRecord(rank=1)}


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"losses": {}, "params": {}}, 0),
        ({"losses": {3: 1.0}, "params": {}}, 3),
        ({"losses": {3: 1.0}, "params": {(5, "all"): "x"}}, 5),
    ],
)
def test_the_last_update_is_the_last_one_spoken_of(changes, last):
    assert samples.rank(**changes).last == last


def test_a_trainings_losses_are_the_first_ranks_that_has_any():
    ranks = {1: samples.rank(1, 2, losses={1: 5.0}), 0: samples.rank(0, 2, losses={})}
    assert samples.training(ranks=ranks).losses == {1: 5.0}
    assert samples.training(ranks={}).losses == {}


def test_what_became_of_fused_parts_is_the_last_that_was_said():
    said = {"layer": {"state": "fell back", "why": "no compiler"}}
    before = {"layer": {"state": "ran", "why": ""}}
    found = taken(START, {"event": "fused", "parts": before}, {"event": "fused", "parts": said})[1]
    assert found.fused == {"layer": Part(state="fell back", why="no compiler")}


@pytest.mark.parametrize("parts", [None, [], {"layer": None}, {"layer": {"state": "ran"}}])
def test_parts_that_are_not_told_whole_are_no_record(parts):
    ranks = taken(START)
    line = json.dumps({"event": "fused", "parts": parts})
    assert (take_line(ranks, 1, line), ranks[1].fused) == (None, {})
