"""Ranks that meet by themselves: their environment, and how all of them end."""

import os
import sys
import time

import pytest

from stackyard.inside import plain_ranks


def test_a_rank_is_told_what_torchrun_would_tell_it():
    assert plain_ranks.environment(1, 3, 2, 1, "tcp://a:29500") == {
        "RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2", "STACKYARD_INIT_METHOD": "tcp://a:29500",
        "MASTER_ADDR": "a", "MASTER_PORT": "29500",
    }  # fmt: skip


def test_ranks_that_meet_by_a_file_are_told_no_address():
    found = plain_ranks.environment(0, 1, 1, 0, "file:///shared/a meeting")
    assert found["STACKYARD_INIT_METHOD"] == "file:///shared/a meeting"
    assert not {"MASTER_ADDR", "MASTER_PORT"} & set(found)


def test_every_rank_of_all_nodes_has_a_number_of_its_own():
    found = [plain_ranks.environment(n, 3, 2, local, "tcp://a:1")["RANK"]
             for n in range(3) for local in range(2)]  # fmt: skip
    assert found == [str(number) for number in range(6)]


@pytest.fixture
def run(tmp_path, allow_processes):
    """Run a program as two ranks of one node; the code, and what each wrote."""

    def start(program, per_node=2):
        path = tmp_path / "train.py"
        path.write_text(f"import os, sys, time\nrank = os.environ['RANK']\n{program}\n")
        return plain_ranks.main(["1", "2", str(per_node), "tcp://a:1", str(path), str(tmp_path)])

    return start


def test_a_python_program_runs_as_every_rank_of_the_node(run, tmp_path):
    assert run("open(sys.argv[1] + '/' + rank, 'w').write(sys.executable)") == 0
    assert {p.name: p.read_text() for p in tmp_path.glob("[0-9]")} == {
        "2": sys.executable, "3": sys.executable,
    }  # fmt: skip


def test_another_program_runs_as_it_is(tmp_path, allow_processes):
    line = f'echo "$@" > {tmp_path}/$RANK'
    assert plain_ranks.main(["0", "1", "1", "tcp://a:1", "sh", "-c", line, "x", "two words"]) == 0
    assert (tmp_path / "0").read_text() == "two words\n"


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sys.exit(3 if rank == '3' else 0)", 3),
        ("os.kill(os.getpid(), 9) if rank == '2' else None", 137),
        ("os.kill(os.getpid(), 15)", 143),
    ],
)
def test_the_code_is_that_of_the_first_rank_that_fails(run, program, code):
    assert run(program) == code


def test_a_rank_that_fails_ends_the_others(run, tmp_path):
    started = time.monotonic()
    program = """
open(f"{sys.argv[1]}/{rank}", "w").write(str(os.getpid()))
while not os.path.exists(f"{sys.argv[1]}/3"): time.sleep(0.01)
sys.exit(5) if rank == "2" else time.sleep(100)
"""
    assert run(program) == 5
    assert time.monotonic() - started < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "3").read_text()), 0)


def test_a_rank_that_is_done_does_not_end_the_others(run, tmp_path):
    program = "time.sleep(0.4 if rank == '3' else 0); open(sys.argv[1] + '/' + rank, 'w')"
    assert run(program) == 0
    assert (tmp_path / "3").exists()
