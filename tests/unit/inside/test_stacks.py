"""Real processes answer where they are, and one that does not know the signal lives on."""

import os
import pickle
import socket
import subprocess
import sys
import threading
import time

import pytest

from stackyard.definitions.project import ROOT
from tests.unit.beside import stacks

SITE = ROOT / "stackyard" / "inside" / "rank_site"
pytestmark = pytest.mark.usefixtures("allow_processes", "allow_own_servers")
PROGRAM = """
import sys, time
def waits_here():
    print("ready", flush=True)
    time.sleep(60)
waits_here()
"""


@pytest.fixture
def rank(tmp_path):
    """Start a rank that waits; its PID and the folder of ranks."""
    started = []

    def start(number, *, known=True):
        folder = tmp_path / "ranks"
        env = {"PATH": os.environ["PATH"], "RANK": str(number)}
        if known:
            env |= {"PYTHONPATH": str(SITE), "STACKYARD_LOGS": str(folder)}
        path = tmp_path / f"program{number}.py"
        path.write_text(PROGRAM)
        child = subprocess.Popen([sys.executable, path], env=env, stdout=subprocess.DEVNULL)
        started.append(child)
        said = folder / f"rank{number}.log"
        end = time.monotonic() + 20
        while known and not (said.exists() and "ready" in said.read_text()):
            assert time.monotonic() < end
            time.sleep(0.02)
        return child, folder

    yield start
    for child in started:
        child.kill()
        child.wait()


def test_a_live_rank_answers_again_and_again(rank):
    child, folder = rank(3)
    for _ in range(2):
        (found,) = stacks.collect({child.pid: 3}, folder)
        assert (found["rank"], found["stopped"], found["open"]) == (3, False, [])
        names = [function for _, _, function in found["stack"]]
        assert names == ["waits_here", "<module>"]
    assert child.poll() is None


def test_a_process_without_the_handler_is_left_alone(rank, tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "ANSWER_SECONDS", 0.2)
    child, _ = rank(4, known=False)
    assert not stacks.catches(child.pid, stacks.SIGNAL)
    (found,) = stacks.collect({child.pid: 4}, tmp_path)
    assert found["stack"] == []
    assert child.poll() is None


def test_who_has_ended_is_not_asked(rank):
    child, folder = rank(5)
    child.kill()
    child.wait()
    assert stacks.collect({child.pid: 5}, folder) == []
    assert not stacks.catches(child.pid, stacks.SIGNAL)


def test_open_collectives_are_read_from_plain_records_only(tmp_path):
    entries = [
        {"profiling_name": "nccl:all_reduce", "collective_seq_id": 5, "state": "completed"},
        {"profiling_name": "nccl:all_reduce", "collective_seq_id": 6, "state": "started"},
    ]
    path = tmp_path / "flight-0"
    path.write_bytes(pickle.dumps({"entries": entries}))
    assert stacks._open_collectives(path) == [
        {"name": "nccl:all_reduce", "number": 6, "state": "started"}
    ]
    witness = tmp_path / "witness"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(witness),)

    path.write_bytes(pickle.dumps({"entries": Evil()}))
    assert stacks._open_collectives(path) == []
    assert not witness.exists()
    path.write_bytes(b"\x80")
    assert stacks._open_collectives(path) == stacks._open_collectives(tmp_path / "none") == []


def test_ras_is_asked_by_its_protocol():
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = []

        def answer():
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(4096))
                connection.sendall(b"SERVER PROTOCOL 2\nOK\nRank 0 has launched up to 6\n")

        thread = threading.Thread(target=answer)
        thread.start()
        said = stacks._ask_ras("127.0.0.1", server.getsockname()[1])
        thread.join()
    assert heard == [b"CLIENT PROTOCOL 2\nTIMEOUT 3\nVERBOSE STATUS\n"]
    assert "Rank 0 has launched up to 6" in said


def test_without_ras_there_is_no_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert stacks._ask_ras("127.0.0.1", port) == ""


def test_ras_of_a_job_is_asked_at_its_own_address_beside_another_jobs(monkeypatch):
    asked, env = [], {"NCCL_RAS_ADDR": "127.200.1.2:28028"}
    monkeypatch.setattr(stacks, "_environment", lambda pid: env)
    monkeypatch.setattr(stacks, "_ask_ras", lambda host, port: asked.append((host, port)) or "OK")
    assert stacks._ras({2**22 + 1: 0}) == "OK"
    assert asked == [("127.200.1.2", 28028)]
    # Without an address whoever answers at NCCL's own may be another job.
    env.clear()
    assert stacks._ras({2**22 + 1: 0}) == "" and len(asked) == 1
