"""Names that tests give to images, by which a later session knows whose they are."""

import os

import pytest

from stackyard.system import cleanup
from tests.shared import name_is_left, own_name


def test_a_name_of_a_living_session_is_not_left_over():
    assert not name_is_left(f"stackyard/{own_name('slow')}:cpu")


@pytest.mark.parametrize("change", ["pid", "start"])
def test_a_name_of_a_session_that_has_ended_is_left_over(change):
    name = own_name("slow")
    started = cleanup.started_at(os.getpid())
    old, new = (f"-{os.getpid()}-", "-4194305-") if change == "pid" else (started, started + "0")
    assert name_is_left(f"stackyard/{name.replace(old, new)}:cpu")


def test_names_of_others_are_not_left_over(monkeypatch):
    gone = own_name("slow").replace(f"-{os.getpid()}-", "-4194305-")
    assert not name_is_left("stackyard/test-host:debian")
    assert not name_is_left("stackyard/fairseq:cpu")
    monkeypatch.setattr(cleanup, "owner", lambda: "another-machine 1 2")
    assert not name_is_left(f"stackyard/{gone}:cpu")
