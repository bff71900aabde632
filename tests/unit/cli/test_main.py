"""The command line, whole: what is typed to what is called, printed, and exited with."""

import dataclasses
import importlib
import io
import json
import signal
import subprocess
import sys

import pytest
from invoke.collection import Collection
from invoke.program import Program

import tasks
from stackyard.build import host
from stackyard.build.locks import locking
from stackyard.cli import bench, compare, console, lock, main, positional, smoke
from stackyard.definitions.load import load_failures
from stackyard.definitions.project import ROOT
from stackyard.system.errors import BuildError, NothingToRunOn, UsageError
from tests.unit import reports

TASKS = (
    "show",
    "render",
    "lock",
    "outdated",
    "base",
    "bundle",
    "build",
    "smoke",
    "bench",
    "compare",
    "diagnose",
    "engine",
)
ELSEWHERE = {
    "smoke": smoke,
    "bench": bench,
    "lock": lock,
    "outdated": lock,
    "compare": compare,
}


@pytest.fixture
def typed(monkeypatch):
    """Type a line: the calls that it makes into stackyard.cli, and the exit code."""
    monkeypatch.setattr(positional, "_LINE", {})
    calls = []

    def record(name, code=0):
        def called(*args, **named):
            calls.append((name, *args, named))
            return code

        monkeypatch.setattr(ELSEWHERE.get(name, main), name, called)

    def type_(line, **codes):
        calls.clear()
        positional._LINE.clear()
        for name in (*TASKS, "list_images"):
            record(name, codes.get(name, 0))
        # invoke empties a task's help when it reads it: every line gets tasks of its own.
        program = Program(namespace=Collection.from_module(importlib.reload(tasks)), version="0")
        code = 0
        try:
            program.run(["invoke", *line.split()])
        except SystemExit as leaving:
            code = leaving.code or 0
        return list(calls), code

    return type_


PLAIN, JSON = {"as_json": False}, {"as_json": True}
TRAINED = {"image": "", "against": "", **PLAIN}
ONCE = {"again": False, "fresh": False, "offline": "", **PLAIN}
AGAIN = {**ONCE, "again": True}
LOCKS = {"check": False, **PLAIN}
LINES = [
    ("list", [("list_images", PLAIN)]),
    ("list --json", [("list_images", JSON)]),
    ("show toy", [("show", "toy", "", PLAIN)]),
    ("show toy --base cpu --json", [("show", "toy", "cpu", JSON)]),
    ("render", [("render", "all", {"check": False, **PLAIN})]),
    ("render --check", [("render", "all", {"check": True, **PLAIN})]),
    ("render toy", [("render", "toy", {"check": False, **PLAIN})]),
    ("lock", [("lock", "all", "", LOCKS)]),
    ("lock toy --base cpu", [("lock", "toy", "cpu", LOCKS)]),
    ("lock --check --json", [("lock", "all", "", {"check": True, **JSON})]),
    ("outdated", [("outdated", "all", "", PLAIN)]),
    ("outdated toy --base far --json", [("outdated", "toy", "far", JSON)]),
    ("build", [("build", "all", "", ONCE)]),
    ("build fairseq", [("build", "fairseq", "", ONCE)]),
    ("build fairseq --base cpu --again", [("build", "fairseq", "cpu", AGAIN)]),
    ("build --base cpu", [("build", "all", "cpu", ONCE)]),
    ("build --base=cpu fairseq", [("build", "fairseq", "cpu", ONCE)]),
    ("build fairseq --fresh", [("build", "fairseq", "", {**ONCE, "fresh": True})]),
    ("build --json", [("build", "all", "", {**ONCE, **JSON})]),
    ("build --base far --offline a.tar", [("build", "all", "far", {**ONCE, "offline": "a.tar"})]),
    ("base far", [("base", "far", PLAIN)]),
    ("base far --json", [("base", "far", JSON)]),
    ("bundle", [("bundle", "all", "", "", PLAIN)]),
    ("bundle toy --base far --out b.tar", [("bundle", "toy", "far", "b.tar", PLAIN)]),
    ("base cpu build --base cpu", [("base", "cpu", PLAIN), ("build", "all", "cpu", ONCE)]),
    ("smoke", [("smoke", "all", "", -1, 0, "", TRAINED)]),
    ("bench --gpus 0", [("bench", "all", "", 0, 0, 0, "", "", {"image": "", **PLAIN})]),
    ("bench fairseq --gpus 2 --base far --rounds 3 --updates 60 --sides layer,fsdp --counts 2"
     " --json",
     [("bench", "fairseq", "far", 2, 3, 60, "layer,fsdp", "2", {"image": "", **JSON})]),
    ("bench --gpus 2 --image mine:1",
     [("bench", "all", "", 2, 0, 0, "", "", {"image": "mine:1", **PLAIN})]),
    ("smoke fairseq --gpus 0 --image mine:1",
     [("smoke", "fairseq", "", 0, 0, "", {**TRAINED, "image": "mine:1"})]),
    ("smoke --gpus 2", [("smoke", "all", "", 2, 0, "", TRAINED)]),
    ("smoke --gpus 2 --nodes 2 --placement host-network",
     [("smoke", "all", "", 2, 2, "host-network", TRAINED)]),
    ("smoke fairseq --gpus 2", [("smoke", "fairseq", "", 2, 0, "", TRAINED)]),
    ("smoke --gpus 2 fairseq", [("smoke", "fairseq", "", 2, 0, "", TRAINED)]),
    ("smoke --gpus=0 --nodes=4", [("smoke", "all", "", 0, 4, "", TRAINED)]),
    ("build smoke --gpus 0",
     [("build", "all", "cpu", ONCE), ("smoke", "all", "", 0, 0, "", TRAINED)]),
    ("build fairseq smoke --gpus 0",
     [("build", "fairseq", "cpu", ONCE), ("smoke", "all", "", 0, 0, "", TRAINED)]),
    ("build fairseq smoke fairseq --gpus 0",
     [("build", "fairseq", "cpu", ONCE), ("smoke", "fairseq", "", 0, 0, "", TRAINED)]),
    ("build smoke --gpus 2",
     [("build", "all", "", ONCE), ("smoke", "all", "", 2, 0, "", TRAINED)]),
    ("build smoke --gpus 0 --base ngc",
     [("build", "all", "ngc", ONCE), ("smoke", "all", "ngc", 0, 0, "", TRAINED)]),
    ("build --base ngc smoke --gpus 0",
     [("build", "all", "ngc", ONCE), ("smoke", "all", "", 0, 0, "", TRAINED)]),
    ("smoke --gpus 0 build",
     [("smoke", "all", "", 0, 0, "", TRAINED), ("build", "all", "cpu", ONCE)]),
    ("lock build", [("lock", "all", "", LOCKS), ("build", "all", "", ONCE)]),
    ("smoke toy --gpus 0 --against old.json",
     [("smoke", "toy", "", 0, 0, "", {**TRAINED, "against": "old.json"})]),
    ("compare a.json b.json --json", [("compare", "a.json", "b.json", JSON)]),
    ("diagnose train.log", [("diagnose", "train.log", PLAIN)]),
    ("diagnose - --json", [("diagnose", "-", JSON)]),
    ("engine", [("engine", PLAIN)]),
]  # fmt: skip


@pytest.mark.parametrize(("line", "calls"), LINES)
def test_what_is_typed_is_what_is_called(typed, line, calls):
    assert typed(line) == (calls, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("build --help", ["Usage: invoke [--core-opts] build", "--again", "the base to build on"]),
        ("smoke --help", ["Usage: invoke [--core-opts] smoke", "--gpus", "--nodes"]),
        ("smoke -h", ["Usage: invoke [--core-opts] smoke"]),
        ("build fairseq --help", ["Usage: invoke [--core-opts] build"]),
        ("--help build", ["Usage: invoke [--core-opts] build"]),
    ],
)
def test_help_is_given_and_nothing_is_done(typed, capsys, line, words):
    assert typed(line) == ([], 0)
    text = " ".join(capsys.readouterr().out.split())
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("name", ["list", *TASKS])
def test_every_task_has_help_for_every_option(typed, capsys, name):
    assert typed(f"{name} --help") == ([], 0)
    words = capsys.readouterr().out.partition("Options:")[2].split()
    described = {
        word.partition("=")[0]: not after.startswith("-")
        for word, after in zip(words, [*words[1:], "-"], strict=True)
        if word.startswith("--")
    }
    assert described["--json"]
    assert all(described.values())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("show", "'show' did not receive required positional arguments: 'stack'"),
        ("build fairseq megatron", "No idea what 'megatron' is!"),
        ("bulid", "No idea what 'bulid' is!"),
        ("smoke --gpu 2", "No idea what '--gpu' is!"),
    ],
)
def test_what_cannot_be_understood_is_said_and_nothing_is_done(typed, capsys, line, said):
    calls, code = typed(line)
    assert (calls, code) == ([], 1)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("code", [1, 2, 3, 4, 130])
def test_a_tasks_exit_code_is_the_commands(typed, code):
    assert typed("smoke --gpus 0", smoke=code)[1] == code


def test_after_a_task_that_failed_the_next_is_not_begun(typed):
    calls, code = typed("build smoke --gpus 0", build=4)
    assert ([call[0] for call in calls], code) == (["build"], 4)


# What stackyard.cli does with a command's result


@pytest.mark.parametrize("as_json", [False, True])
def test_a_result_is_printed_as_json_only_where_asked_for(capsys, as_json):
    assert main.run(lambda terminal: ({"ü": 1}, 0), as_json=as_json) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ('{\n "ü": 1\n}\n' if as_json else "", "")


ERRORS = [
    (UsageError("no such stack", why="w", hint="h"), 2),
    (NothingToRunOn("no GPU"), 3),
    (BuildError("not built"), 4),
]


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_an_error_is_said_once_on_standard_error(capsys, error, code):
    def command(terminal):
        raise error

    assert main.run(command, as_json=False) == code
    assert capsys.readouterr() == ("", f"error: {error}\n")


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_an_error_is_json_where_json_was_asked_for(capsys, error, code):
    def command(terminal):
        raise error

    assert main.run(command, as_json=True) == code
    wanted = {"what": error.what, "why": error.why, "hint": error.hint}
    assert json.loads(capsys.readouterr().out) == {"error": wanted, "diagnoses": []}


FULL = BuildError("not built", why="cp: error writing 'x': No space left on device")


def test_a_known_failure_of_a_build_is_said_after_its_error(capsys):
    assert fails_with(FULL, as_json=False) == 4
    out, err = capsys.readouterr()
    assert (out, err.startswith(f"error: {FULL}\nrecognised: a disk is full [disk-full]\n")) == (
        "",
        True,
    )
    assert fails_with(FULL, as_json=True) == 4
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["diagnoses"]] == ["disk-full"]


def test_what_an_error_came_from_is_looked_at_too(capsys):
    error = BuildError("not built")
    error.__cause__ = FULL
    assert fails_with(error, as_json=False) == 4
    assert "[disk-full]" in capsys.readouterr().err


def test_an_error_of_what_was_typed_is_no_known_failure(capsys):
    assert fails_with(UsageError("No space left on device"), as_json=False) == 2
    assert "recognised" not in capsys.readouterr().err


def fails_with(error, *, as_json):
    def command(terminal):
        raise error

    return main.run(command, as_json=as_json)


def test_ctrl_c_is_130_and_says_so(capsys):
    def command(terminal):
        raise KeyboardInterrupt

    assert main.run(command, as_json=False) == 130
    assert capsys.readouterr().err == "interrupted: everything of this run has been removed\n"


def test_sigterm_unwinds_as_ctrl_c_does_and_the_old_way_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    unwound = []

    def command(terminal):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            unwound.append(True)

    assert main.run(command, as_json=False) == 130
    assert unwound == [True]
    assert signal.getsignal(signal.SIGTERM) is before


# What is asked for before anything starts


@pytest.mark.parametrize(
    ("gpus", "nodes", "kind", "what", "hint"),
    [
        (-1, 2, UsageError, "say how many GPUs the run is to use",
         "invoke smoke --gpus 0 (CPU) or --gpus 2"),
        (0, 3, UsageError, "a CPU smoke runs on 2 nodes, not on 3", "invoke smoke --gpus 0"),
        (2, 2, NothingToRunOn, "2 GPUs are wanted, none found on this machine",
         "run it where the GPUs are, or on CPU ranks: invoke smoke --gpus 0"),
    ],
)  # fmt: skip
def test_a_smoke_that_cannot_be_is_refused_with_what_to_type(
    monkeypatch, gpus, nodes, kind, what, hint
):
    monkeypatch.setattr(host, "gpu_count", lambda: 0)
    with pytest.raises(kind) as caught:
        smoke._node_count(gpus, nodes, "", "invoke smoke")
        host.require_gpus(gpus, "invoke smoke")
    assert (caught.value.what, caught.value.hint) == (what, hint)


def test_a_smoke_on_cpu_ranks_may_begin():
    assert smoke._node_count(0, 0, "", "invoke smoke") == 2


@pytest.mark.parametrize("line", ["smoke nothing --gpus 0", "build nothing"])
def test_an_unknown_stack_is_named_before_an_engine_is_asked(monkeypatch, capsys, line):
    monkeypatch.setattr(positional, "_LINE", {})
    with pytest.raises(SystemExit) as left:
        Program(namespace=Collection.from_module(tasks)).run(["invoke", *line.split()])
    assert left.value.code == 2
    assert "error: there is no stack 'nothing'" in capsys.readouterr().err


def test_show_prints_every_value_with_its_origin(capsys):
    assert main.show("fairseq", "cpu", as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tag"] == "stackyard/fairseq:cpu"
    assert found["packages"]["fairseq"]["from"] == "images/wheels/fairseq.yml"
    assert main.show("fairseq", "cpu", as_json=False) == 0
    assert "stackyard/fairseq:cpu" in capsys.readouterr().out


def test_diagnose_names_the_failure_of_a_log(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_bytes(b"fine \xff\nOSError: [Errno 28] No space left on device\n")
    assert main.diagnose(str(log), as_json=False) == 0
    said = capsys.readouterr().out
    assert "recognised: a disk is full [disk-full]" in said
    assert "seen in line 2: OSError: [Errno 28] No space left on device" in said
    assert main.diagnose(str(log), as_json=True) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["diagnoses"]] == ["disk-full"]


def test_diagnose_says_plainly_that_it_recognised_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"all is well\n")))
    assert main.diagnose("-", as_json=False) == 1
    said = capsys.readouterr().out
    assert said.startswith("nothing was recognised in -: ")
    assert f" {len(load_failures(ROOT))} failures are known" in said


def test_diagnose_says_that_a_log_is_not_there(capsys):
    assert main.diagnose("no/such/log", as_json=False) == 2
    assert "error: no/such/log cannot be read\n  No such file" in capsys.readouterr().err


def test_a_smoke_explains_what_it_recognised_under_its_checks(capsys):
    value = reports.BROKEN["recognised"]()
    with console.Terminal(live=False) as terminal:
        smoke._explain(value, terminal)
    said = capsys.readouterr().out
    assert "toy: loss_falls failed" in said
    assert "toy: recognised: a GPU is out of memory [oom]" in said
    assert said.index("loss_falls failed") < said.index("recognised") < said.index("last lines")


def test_list_says_that_no_engine_answers(monkeypatch, capsys):
    def refuse():
        raise main.StackyardError("no container engine answers")

    monkeypatch.setattr(main, "Engine", refuse)
    assert main.list_images(as_json=True) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["engine"] is None
    assert "no container engine answers: what is built is not known" in err


def test_a_smokes_base_is_cpu_without_gpus_unless_told_otherwise(tmp_path):
    project = main.load_project(locks_required=False)
    assert project.base_for("", 0) == "cpu"
    assert project.base_for("", 2) == project.default_base
    assert project.base_for("other", 0) == "other"


@pytest.mark.parametrize(
    ("gpus", "nodes", "placement", "what"),
    [
        (0, 0, "isolated", "--placement is about GPUs"),
        (4, 0, "", "a smoke runs on 2 GPUs, not on 4"),
        (1, 0, "", "a smoke runs on 2 GPUs, not on 1"),
    ],
)
def test_numbers_that_fit_no_smoke_are_refused(gpus, nodes, placement, what):
    with pytest.raises(UsageError) as caught:
        smoke._node_count(gpus, nodes, placement, "invoke smoke")
    assert caught.value.what == what


@pytest.mark.parametrize(("gpus", "nodes", "count"), [(2, 0, 1), (2, 1, 1), (2, 2, 2), (0, 2, 2)])
def test_a_smoke_on_gpus_has_one_container_unless_told_otherwise(gpus, nodes, count):
    assert smoke._node_count(gpus, nodes, "", "invoke smoke") == count


def test_a_smoke_on_gpus_refuses_a_base_without_cuda_and_names_one_that_fits():
    project = main.load_project(locks_required=False)
    with pytest.raises(UsageError) as caught:
        smoke._require_device(project, ["fairseq"], "cpu", 2, "invoke smoke")
    assert caught.value.hint == "invoke smoke --gpus 2 --base cuda"


@pytest.mark.parametrize("base", ["cpu", "cuda", "cuda12"])
def test_cpu_ranks_train_in_the_images_of_every_base(base):
    project = main.load_project(locks_required=False)
    smoke._require_device(project, ["fairseq", "megatron"], base, 0, "invoke smoke")


@pytest.mark.parametrize(("gpus", "base"), [(0, "cpu"), (2, "cuda"), (-1, "cuda")])
def test_the_default_base_is_cuda_and_of_cpu_ranks_cpu(gpus, base):
    assert main.load_project(locks_required=False).base_for("", gpus) == base


def test_a_stack_without_a_smoke_on_gpus_is_named():
    project = main.load_project(locks_required=False)
    stack = dataclasses.replace(project.definitions.stacks["fairseq"], gpu_smoke=None)
    definitions = dataclasses.replace(project.definitions, stacks={"fairseq": stack})
    project = dataclasses.replace(project, definitions=definitions)
    with pytest.raises(UsageError, match="fairseq has no smoke on GPUs"):
        smoke._require_device(project, ["fairseq"], "ngc", 2, "invoke smoke")


def test_a_changed_stack_is_locked_wherever_it_is_locked_already():
    project = main.load_project(locks_required=False)
    assert locking.locked_bases(project, "fairseq") == ["cpu", "cuda", "cuda12", "nvidia-host"]
    kept = {path: text for path, text in project.definitions.locks.items() if "nvidia" not in path}
    definitions = dataclasses.replace(project.definitions, locks=kept)
    assert locking.locked_bases(dataclasses.replace(project, definitions=definitions), "all") == [
        "cpu", "cuda", "cuda12",
    ]  # fmt: skip


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_ends_a_command_without_a_traceback(stream, allow_processes):
    program = (
        "import sys; from stackyard.cli import main\n"
        f"def command(_): [print('x' * 999, file=sys.{stream}, flush=True) for _ in range(9999)]\n"
        "sys.exit(main.run(command, as_json=False))"
    )
    command = [sys.executable, "-c", program]
    both = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=both, stderr=both) as child:
        getattr(child, stream).readline()
        getattr(child, stream).close()
        other = child.stderr if stream == "stdout" else child.stdout
        assert other.read() == b""
    assert child.returncode == main.READER_GONE == 141


def test_another_broken_pipe_is_not_taken_for_the_readers(capsys):
    def command(terminal):
        raise BrokenPipeError("a child's")

    with pytest.raises(BrokenPipeError, match="a child's"):
        main.run(command, as_json=False)
