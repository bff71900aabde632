"""Whether a run that failed is started again, and on which hosts."""

import pytest

from stackyard.mesh.again import failure_of, hosts_left, require_shards, why_not
from stackyard.system.errors import UsageError


def failed(reason, update=17):
    return failure_of({"reason": reason, "code": 1, "update": update})


def test_the_same_failure_at_the_same_update_is_not_tried_a_third_time():
    # Another rank was seen first, at another address: the reason is the same.
    first = failed("rank 1 (train) ended after update 17: RuntimeError: NaN at 0x7f10, row 5")
    again = failed("rank 0 (study) ended after update 17: RuntimeError: NaN at 0x99a0, row 812")
    assert why_not([first]) == ""
    assert why_not([first, again]) == "it failed twice after update 17 for the same reason"


@pytest.mark.parametrize(
    ("reason", "update"),
    [("rank 1 (train) ended after update 18: ValueError: x", 18),
     ("rank 1 (train) ended after update 17: ValueError: y", 17),
     ("node train is gone: nothing was heard for 60 s", 17)],
)  # fmt: skip
def test_another_failure_or_another_update_is_tried_again(reason, update):
    first = failed("rank 1 (train) ended after update 17: ValueError: x")
    assert why_not([first, failed(reason, update)]) == ""


def test_of_programs_that_record_nothing_the_reason_decides():
    assert why_not([failed("x", None), failed("x", None)]) == "it failed twice for the same reason"
    codes = [failure_of({"reason": "", "code": code, "update": None}) for code in (1, 1)]
    assert why_not(codes) == "it failed twice for the same reason"


def test_a_lost_contact_is_a_reason():
    found = failure_of({"name": "demo"}, "study on study does not answer")
    assert (found.update, found.reason) == (None, "study on study does not answer")


HOSTS = ("study", "train", "depot")


@pytest.mark.parametrize(
    ("away", "answer", "shards", "left", "why"),
    [
        ((), (), None, HOSTS, ""),
        ((), (), 3, HOSTS, ""),
        (("train",), (), None, ("study", "depot"), ""),
        (("train",), ("train",), None, ("study", "depot"), ""),
        # A checkpoint that is cut over the ranks needs as many of them.
        (("train",), ("train",), 3, HOSTS, ""),
        (("train",), (), 3, (), "its checkpoint is cut over 3 ranks, which need train, too"),
        (("train", "depot"), ("depot",), 3, (),
         "its checkpoint is cut over 3 ranks, which need train, too"),
        (HOSTS, (), None, (), "no host is left"),
    ],
)  # fmt: skip
def test_hosts_that_are_left(away, answer, shards, left, why):
    assert hosts_left(HOSTS, away, answer, shards) == (left, why)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_checkpoint_that_is_cut_over_other_ranks_is_refused(ranks):
    with pytest.raises(UsageError, match=f"is cut over 2 ranks, and {ranks} would start"):
        require_shards("/shared/x", 2, ranks)


@pytest.mark.parametrize(("shards", "ranks"), [(2, 2), (None, 5)])
def test_as_many_ranks_or_a_whole_checkpoint_start(shards, ranks):
    require_shards("/shared/x", shards, ranks)
