"""Locks between processes."""

import subprocess
import sys

import pytest

from stackyard.definitions.project import ROOT
from stackyard.system.lockfile import exclusive

HOLDER = """
import sys, time
from stackyard.system.lockfile import exclusive
with exclusive("thing", lambda: print("waits", flush=True)):
    print("has", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(allow_processes, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with child:
        assert child.stdout.readline() == "has\n"
        yield child
        child.kill()


def test_a_lock_that_nobody_holds_is_had_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        with exclusive("thing", lambda: pytest.fail("waits")):
            pass


def test_the_second_waits_for_the_first(holder):
    def told():
        holder.stdin.write("\n")
        holder.stdin.flush()

    with exclusive("thing", told):
        assert holder.wait(timeout=10) == 0


def test_the_dead_hold_no_lock(holder):
    with exclusive("thing", holder.kill):
        assert holder.wait(timeout=10) == -9


def test_other_things_are_not_kept_waiting(holder):
    with exclusive("other", lambda: pytest.fail("waits")):
        pass
