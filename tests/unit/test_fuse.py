"""The fuse of the fast tests blows, also when what it says is caught."""

import re
import socket
import subprocess
import sys

import pytest

from stackyard.definitions.project import ROOT
from stackyard.system import process
from stackyard.system.engine import Engine

FAILED = pytest.fail.Exception


def test_starting_a_process_fails_the_test(fuse):
    with pytest.raises(FAILED, match=r"a fast test tried to start \['true'\]"):
        subprocess.run(["true"], check=True)
    assert fuse.blown == ["start ['true']"]
    fuse.blown.clear()


def test_a_process_started_by_the_package_fails_the_test(fuse):
    with pytest.raises(FAILED, match="tried to start"):
        process.run(["true"])
    fuse.blown.clear()


def test_asking_an_engine_fails_the_test(fuse, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/nobody.sock")
    with pytest.raises(FAILED, match=r"tried to connect to '/run/nobody\.sock'"):
        Engine()
    fuse.blown.clear()


def test_connecting_anywhere_fails_the_test(fuse):
    with socket.socket() as mine, pytest.raises(FAILED, match="tried to connect to"):
        mine.connect_ex(("127.0.0.1", 9))
    fuse.blown.clear()


@pytest.mark.usefixtures("allow_own_servers")
def test_a_test_that_asks_for_it_may_talk_to_its_own_servers_and_to_nobody_else(fuse):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as mine:
        mine.connect(server.getsockname())
    with socket.socket() as mine, pytest.raises(FAILED, match="tried to connect to"):
        mine.connect(("192.0.2.1", 9))
    fuse.blown.clear()


@pytest.mark.usefixtures("allow_processes")
def test_a_test_that_asks_for_it_may_start_a_process():
    done = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True)
    assert done.stdout == b"1\n"


# The fuse as every test has it, seen by pytest itself

TESTS = """
import subprocess, threading
import pytest

def start():
    try:
        subprocess.run(["true"])
    except BaseException:
        pass

def test_caught():
    start()

def test_in_a_thread():
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

@pytest.mark.usefixtures("allow_processes")
def test_allowed():
    subprocess.run(["true"], check=True)

def test_nothing_started():
    pass
"""


CONFTEST = """
import pathlib
from tests import conftest
from tests.conftest import allow_processes, fuse
conftest.FUSED = (pathlib.Path(__file__).parent / "fast",)
"""


@pytest.mark.usefixtures("allow_processes")
def test_code_that_catches_the_failure_does_not_get_away_with_it(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for folder in ("fast", "slow"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-c", "/dev/null",
         f"--rootdir={tmp_path}", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    said = re.findall(r"^([A-Z]+) \S*test_(\w+)\.py::test_(\w+)", done.stdout, re.MULTILINE)
    names = ("caught", "in_a_thread", "allowed", "nothing_started")
    # The failure comes with a test's end: it has passed, and is an error.
    assert {one for one in said if one[0] != "PASSED"} == {
        ("ERROR", "fast", "caught"), ("ERROR", "fast", "in_a_thread"),
    }  # fmt: skip
    assert {one for one in said if one[0] == "PASSED"} == {
        ("PASSED", folder, name) for folder in ("fast", "slow") for name in names
    }
