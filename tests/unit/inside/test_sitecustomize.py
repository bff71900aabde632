"""What every Python of a job imports first: a rank's words and its end go to files of its own."""

import json
import os
import subprocess
import sys

import pytest

from stackyard.definitions.project import ROOT

SITE = ROOT / "stackyard" / "inside" / "rank_site"
pytestmark = pytest.mark.usefixtures("allow_processes")


@pytest.fixture
def job(tmp_path):
    """Run a program as rank 3; its folder of words, and what came out beside."""

    class Ran:
        folder = tmp_path / "logs" / "ranks"
        said = None

        def __call__(self, program, rank="3", path="", **env):
            found = {
                "PATH": os.environ["PATH"], "PYTHONPATH": f"{SITE}:{path}", "WORLD_SIZE": "4",
                "STACKYARD_LOGS": str(self.folder), **({"RANK": rank} if rank else {}), **env,
            }  # fmt: skip
            self.said = subprocess.run(
                [sys.executable, "-c", program], env=found, capture_output=True, text=True,
                timeout=30, check=False,
            )  # fmt: skip
            return self

        def read(self, name):
            path = self.folder / name
            return path.read_text() if path.exists() else None

        @property
        def log(self):
            return self.read("rank3.log")

        @property
        def end(self):
            return self.read("rank3.end")

    return Ran()


def test_a_ranks_words_go_to_its_own_file_and_nowhere_else(job):
    job("import sys, os; print('out'); print('err', file=sys.stderr); os.system('echo below')")
    assert sorted(job.log.split()) == ["below", "err", "out"]
    assert (job.said.stdout, job.said.stderr, job.said.returncode) == ("", "", 0)
    assert (job.folder / "rank3.log").stat().st_mode & 0o777 == 0o600


def test_who_a_rank_is_is_told(job):
    job("import os; print(os.getpid())")
    found = json.loads(job.read("rank3.json"))
    assert (found["rank"], found["world_size"]) == (3, "4")
    assert str(found["pid"]) == job.log.strip()


def test_nccl_logs_to_a_file_of_each_process(job):
    program = "import os; print(os.getpid(), os.environ['NCCL_DEBUG_FILE'])"
    pid, path = job(program, STACKYARD_NCCL_LOGS="/logs", NCCL_DEBUG_FILE="x").log.split()
    assert path == f"/logs/nccl.{os.uname().nodename}.{pid}"
    assert job("import os; print(os.environ.get('NCCL_DEBUG_FILE'))").log.split()[-1] == "None"


@pytest.mark.parametrize("program", ["pass", "import sys; sys.exit(0)"])
def test_a_rank_that_ends_well_says_so(job, program):
    assert job(program).end == "ok"


@pytest.mark.parametrize(
    ("program", "end"),
    [
        ("raise ValueError('batch 3 is empty')", "ValueError: batch 3 is empty"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("raise RuntimeError('x' * 9000)", f"RuntimeError: {'x' * 9000}"[:500]),
    ],
)
def test_an_exception_is_told_and_shown(job, program, end):
    assert job(program).end == end
    assert job.said.returncode != 0
    assert "Traceback" in job.log and end[:30].rstrip(": ") in job.log


@pytest.mark.parametrize(
    "program", ["import os; os.kill(os.getpid(), 9)", "import os; os._exit(1)"]
)
def test_a_rank_that_is_killed_tells_no_end(job, program):
    assert job(f"print('words', flush=True); {program}").end is None
    assert job.log == "words\n"


def test_a_fork_tells_no_end(job):
    program = """
import os
if os.fork() == 0:
    raise SystemExit(1)
os.wait()
print(os.path.exists(os.environ["STACKYARD_LOGS"] + "/rank3.end"))
"""
    assert job(program).end == "ok"
    assert job.log == "False\n"


def test_what_a_rank_starts_writes_to_its_file_and_is_no_rank_itself(job):
    inner = "import os; print(\\'inner\\', flush=True); os._exit(7)"
    job(f"import subprocess, sys; print(subprocess.call([sys.executable, '-c', '{inner}']))")
    assert job.log == "inner\n7\n"
    assert job.end == "ok"


def test_a_rank_that_is_started_again_writes_on_and_has_no_end_yet(job):
    job("raise ValueError('first')")
    job("import os; print('end' if os.path.exists(os.environ['STACKYARD_LOGS'] + '/rank3.end')"
        " else 'no end')")  # fmt: skip
    assert "ValueError: first" in job.log and job.log.endswith("no end\n")
    assert job.end == "ok"


def test_a_rank_writes_its_stacks_on_a_signal_and_goes_on(job):
    program = """
import os, signal
def here():
    os.kill(os.getpid(), signal.SIGRTMIN + 5)
here()
print("on")
"""
    assert job(program).end == "ok"
    assert job.log == "on\n"
    assert "in here" in job.read("rank3.stack")


def test_what_a_rank_starts_does_not_answer_for_it(job):
    inner = "import signal; print(signal.getsignal(signal.SIGRTMIN + 5) == signal.SIG_DFL)"
    job(f"import subprocess, sys; subprocess.call([sys.executable, '-c', '{inner}'])")
    assert job.log == "True\n"
    assert job.read("rank3.stack") == ""


def test_the_flight_recorder_writes_below_the_folder_unless_the_user_says_otherwise(job):
    show = "import os; print(os.environ['TORCH_FR_DUMP_TEMP_FILE'])"
    assert job(show).log == f"{job.folder}/flight-\n"
    assert job(show, TORCH_FR_DUMP_TEMP_FILE="/x").log.endswith("\n/x\n")


@pytest.mark.parametrize("rank", ["", "x", "-1", "²"])
def test_what_is_no_rank_writes_where_it_always_does(job, rank):
    job("print('launcher')", rank=rank)
    assert (job.said.stdout, job.said.stderr) == ("launcher\n", "")
    assert not job.folder.exists()


def test_outside_of_a_job_nothing_happens(job):
    assert job("print('x')", STACKYARD_LOGS="").said.stdout == "x\n"


def test_a_folder_that_cannot_be_written_leaves_the_words_where_they_were(job, tmp_path):
    (tmp_path / "logs").write_text("no folder")
    job("print('still heard')")
    assert (job.said.stdout, job.said.stderr) == ("still heard\n", "")


@pytest.mark.parametrize("logs", [True, False])
def test_the_sitecustomize_that_is_hidden_runs_too(job, tmp_path, logs):
    (tmp_path / "hidden").mkdir()
    hidden = tmp_path / "hidden" / "sitecustomize.py"
    hidden.write_text("import builtins; builtins.seen = (__name__, __file__)")
    job("print(*seen)", path=hidden.parent, **({} if logs else {"STACKYARD_LOGS": ""}))
    assert (job.log if logs else job.said.stdout) == f"sitecustomize {hidden}\n"


def test_of_several_hidden_ones_the_first_runs(job, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(
            f"import builtins; builtins.seen = getattr(builtins, 'seen', '') + '{name}'"
        )
    assert job("print(seen)", path=f"{tmp_path}/a:{tmp_path}/b").log == "a\n"


def test_a_nodes_own_variables_are_set_once(job, tmp_path):
    """A rank that changes one keeps the change in the processes that it starts."""
    path = tmp_path / "settings"
    path.write_text("export A='it'\"'\"'s 5%'\nexport B=x=y\nexport C=''\n")
    program = (
        "import os, subprocess, sys; print([os.environ[n] for n in 'ABC'])\n"
        "os.environ['A'] = 'new'\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"A\"])'])"
    )
    job(program, A="old", STACKYARD_SETTINGS=str(path))
    assert sorted(job.log.splitlines()) == ["[\"it's 5%\", 'x=y', '']", "new"]


def test_a_process_without_its_variables_does_not_start(job, tmp_path):
    job("print('started')", STACKYARD_SETTINGS=str(tmp_path / "gone"))
    assert job.said.returncode == 1
    assert "the variables of this node cannot be read" in job.said.stderr
    assert job.log is None
