"""Speeds beside a baseline, or beside neighbours; what was not measured passes nothing."""

import pytest

from stackyard.definitions.spec import Baseline, Measure
from stackyard.validate.certify.compare import SUSPICIOUS, Reading, compare
from stackyard.validate.checks import FAILED, NOT_RUN, PASSED

GPU = "NVIDIA H200"
MEASURE = Measure(kind="allreduce_gb_s", ranks=2, bytes=2**30, value=330, low=320, high=340,
                  count=6, bound=313.5, source=("x",), field=("y",))  # fmt: skip
BASELINE = Baseline(name="h200", gpus=(GPU,), measures=(MEASURE,), not_measured={})


def reading(value, place="a", **changes):
    values = {"place": place, "gpu": GPU, "kind": "allreduce_gb_s", "ranks": 2, "bytes": 2**30,
              "value": value}  # fmt: skip
    return Reading(**{**values, **changes})


def outcomes(readings, baselines=()):
    return [one.outcome for one in compare(readings, baselines)]


@pytest.mark.parametrize(
    ("value", "outcome"),
    [(400, PASSED), (313.5, PASSED), (313.4, FAILED), (0, FAILED), (-1, FAILED)],
)
def test_a_speed_is_compared_with_the_bound_of_its_gpus_baseline(value, outcome):
    (found,) = compare([reading(value)], [BASELINE])
    assert (found.outcome, found.against, found.at_least) == (outcome, 330, 313.5)
    assert found.by == "the baseline of h200 (6 measurements)"


def test_neighbours_that_are_slow_too_do_not_help_where_there_is_a_baseline():
    assert outcomes([reading(100, "a"), reading(100, "b")], [BASELINE]) == [FAILED, FAILED]


@pytest.mark.parametrize(
    ("value", "outcome"), [(200, PASSED), (95, PASSED), (94.9, SUSPICIOUS), (1, SUSPICIOUS)]
)
def test_without_a_baseline_five_percent_below_the_neighbours_is_suspicious(value, outcome):
    readings = [reading(value, "a")]
    readings += [reading(v, p) for p, v in (("b", 99), ("c", 100), ("d", 101))]
    found = compare(readings, [])
    assert (found[0].outcome, found[0].against, found[0].at_least) == (outcome, 100, 95)
    assert found[0].by == "the median of 3 neighbours with the same GPU"
    assert {one.outcome for one in found[1:]} == {PASSED}


@pytest.mark.parametrize(("value", "outcome"), [(95, PASSED), (80, SUSPICIOUS), (79.9, FAILED)])
def test_far_below_the_neighbours_is_a_failure_where_that_is_asked_for(value, outcome):
    readings = [reading(value, "a"), *(reading(100, place) for place in "bcd")]
    assert compare(readings, [], bad=0.8)[0].outcome == outcome


def test_the_slower_of_two_neighbours_is_suspicious():
    assert outcomes([reading(100, "a"), reading(94, "b")]) == [PASSED, SUSPICIOUS]


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "NVIDIA H100 80GB HBM3"},
        {"kind": "tokens_s"},
        {"ranks": 4},
        {"bytes": 2**20},
        {"place": "a"},
        {"value": None},
        {"value": float("nan")},
    ],
)
def test_what_measured_something_else_is_no_neighbour(changes):
    other = reading(**{"value": 500, "place": "b", **changes})
    found = compare([reading(100), other], [])[0]
    assert (found.outcome, found.against) == (NOT_RUN, None)
    assert found.by == f"there is no baseline of allreduce_gb_s for {GPU}, and no neighbour" + (
        " of its model"
    )


def test_a_size_that_the_baseline_lacks_is_compared_with_neighbours():
    small = [reading(v, p, bytes=2**20) for p, v in (("a", 50), ("b", 50), ("c", 40))]
    assert outcomes(small, [BASELINE]) == [PASSED, PASSED, SUSPICIOUS]


@pytest.mark.parametrize(
    ("value", "why", "by"),
    [
        (None, "no peer access", "no peer access"),
        (None, "", "it was not measured"),
        (float("nan"), "", "it was not measured"),
        (float("inf"), "", "it was not measured"),
    ],
)
def test_what_was_not_measured_is_not_run(value, why, by):
    (found,) = compare([reading(value, why=why)], [BASELINE])
    assert (found.outcome, found.by) == (NOT_RUN, by)
