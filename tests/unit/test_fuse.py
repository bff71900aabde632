"""The fuse of the fast tests blows, also when what it says is caught."""

import shutil
import socket
import subprocess
import sys

import pytest

from stackyard import process
from stackyard.engine import Engine
from tests import conftest

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


@pytest.mark.usefixtures("allow_processes")
def test_a_test_that_asks_for_it_may_start_a_process():
    done = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True)
    assert done.stdout == b"1\n"


CATCHES = """import subprocess
def test_it():
    try:
        subprocess.run(["one"], check=True)
    except BaseException:
        pass
"""


@pytest.mark.usefixtures("allow_processes")
def test_code_that_catches_the_failure_does_not_get_away_with_it(tmp_path):
    tests = tmp_path / "tests"
    for folder in ("unit", "golden", "smoke"):
        (tests / folder).mkdir(parents=True)
        (tests / folder / f"test_{folder}.py").write_text(CATCHES)
    shutil.copy(conftest.__file__, tests / "conftest.py")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", tests]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    failed = {line.split()[1] for line in said.splitlines() if line.startswith("ERROR ")}
    assert failed == {f"tests/{kind}/test_{kind}.py::test_it" for kind in ("unit", "golden")}
    assert "a fast test tried to start ['one']" in said
