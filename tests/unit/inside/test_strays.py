"""Which processes of a node a training left behind, on a made-up /proc."""

import os

import pytest

from stackyard.inside import strays

ME = os.getpid()


@pytest.fixture(autouse=True)
def a_node(tmp_path_factory, monkeypatch):
    """Every test here is on a node; what `kill` does elsewhere is tested below."""
    path = tmp_path_factory.mktemp("run") / "sshd.pid"
    path.write_text("")
    monkeypatch.setattr(strays, "PID_FILE", path)


@pytest.fixture
def hide(monkeypatch):
    """Let a process have another user, whose environment the kernel keeps from this one."""
    hidden, look = set(), strays._environment

    def environment(entry):
        if int(entry.name) in hidden:
            raise PermissionError(13, "Permission denied")
        return look(entry)

    monkeypatch.setattr(strays, "_environment", environment)
    return lambda folder: hidden.add(int(folder.name))


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Add a process: its parent, name, command line, state, environment."""
    monkeypatch.setattr(strays, "_PROC", tmp_path)
    (tmp_path / "meminfo").write_text("")

    def add(pid, parent=1, *, name="python", command="python train.py", state="S", env=""):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} 0 0\n")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
        (folder / "environ").write_bytes(env.replace(" ", "\0").encode() + b"\0")
        return folder

    add(1, 0, name="tini", command="tini")
    add(7_000_001, 1, name="sh", command="sh")
    add(ME, 7_000_001, command="python strays.py")
    return add


def found():
    return {process["pid"]: process["command"] for process in strays.strays()}


def test_a_node_with_nothing_but_its_own_has_no_strays(proc):
    assert found() == {}


def test_what_a_training_left_is_found_with_its_command(proc):
    proc(7_000_010, command="python -m torch train.py")
    assert found() == {7_000_010: "python -m torch train.py"}


def test_a_program_just_executed_is_looked_at_again(proc, monkeypatch):
    """The kernel shows no environment between the exec and the program's first instruction."""
    environment = proc(7_000_010, command="true") / "environ"
    environment.write_bytes(b"")
    its_own = b"STACKYARD_CONTROL=1\0"
    monkeypatch.setattr(strays.time, "sleep", lambda _: environment.write_bytes(its_own))
    assert found() == {}


def test_a_child_of_the_listening_sshd_is_no_part_of_the_node(proc, tmp_path, monkeypatch):
    proc(7_000_010, 1, name="sshd", command="sshd -D")
    proc(7_000_011, 7_000_010, name="sshd", command="sshd: root@notty")
    monkeypatch.setattr(strays, "PID_FILE", tmp_path / "sshd.pid")
    (tmp_path / "sshd.pid").write_text("7000010")
    assert found() == {7_000_011: "sshd: root@notty"}


def test_what_the_controller_marked_is_left_out(proc):
    proc(7_000_010, env="A=1 STACKYARD_CONTROL=1 B=2")
    proc(7_000_011, env="A=STACKYARD_CONTROL=1")
    proc(7_000_012, env="STACKYARD_CONTROL=10")
    assert sorted(found()) == [7_000_011, 7_000_012]


@pytest.mark.parametrize("state", ["Z", "X"])
def test_the_dead_are_no_strays(proc, state):
    proc(7_000_010, state=state)
    assert found() == {}


def test_a_name_with_blanks_and_parentheses_does_not_mislead(proc):
    proc(7_000_010, 1, name="x) Z 1 (y", command="odd")
    assert found() == {7_000_010: "odd"}


def test_ancestors_are_by_descent_and_not_by_name(proc):
    proc(7_000_010, 1, name="sh", command="sh")
    assert found() == {7_000_010: "sh"}


def test_a_process_that_went_meanwhile_is_passed_over(proc):
    (proc(7_000_010) / "cmdline").unlink()
    (proc(7_000_011) / "stat").unlink()
    assert found() == {}


def test_a_long_command_is_cut(proc):
    proc(7_000_010, command="x" * 500)
    assert found() == {7_000_010: "x" * 160}


def test_killing_goes_on_until_none_is_left_and_tells_what_was_there(monkeypatch):
    sights = [[{"pid": 1, "command": "a"}], [{"pid": 2, "command": "b"}], []]
    killed = []
    monkeypatch.setattr(strays, "strays", lambda job: sights.pop(0))
    monkeypatch.setattr(strays.os, "kill", lambda pid, signal: killed.append((pid, int(signal))))
    assert strays.kill() == [{"pid": 1, "command": "a"}]
    assert killed == [(1, 9), (2, 9)]


def test_killing_ends_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr(strays, "strays", lambda job: [{"pid": 1, "command": "a"}])
    monkeypatch.setattr(strays.os, "kill", lambda pid, signal: None)
    assert strays.kill(seconds=0.05) == [{"pid": 1, "command": "a"}]


def test_killing_what_is_gone_is_no_error(monkeypatch):
    def gone(pid, signal):
        raise ProcessLookupError

    sights = [[{"pid": 1, "command": "a"}], []]
    monkeypatch.setattr(strays, "strays", lambda job: sights.pop(0))
    monkeypatch.setattr(strays.os, "kill", gone)
    assert len(strays.kill()) == 1


def test_killing_goes_on_after_a_process_that_may_not_be_killed(monkeypatch):
    def refused(pid, signal):
        killed.append(pid)
        if pid == 1:
            raise PermissionError

    killed, left = [], [{"pid": 1, "command": "a"}, {"pid": 2, "command": "b"}]
    monkeypatch.setattr(strays, "strays", lambda job: left)
    monkeypatch.setattr(strays.os, "kill", refused)
    assert strays.kill(seconds=0.01) == left
    assert killed[:2] == [1, 2]


def jobs():
    return {process["pid"]: process["job"] for process in strays.strays()}


def test_a_process_belongs_to_the_job_of_its_environment_or_of_its_nearest_kin(proc):
    shell, rank, helper, other, lone = range(7_000_010, 7_000_015)
    proc(shell, 1, command="sh -c train")  # a login's shell, above a rank
    proc(rank, shell, env="STACKYARD_JOB=one")
    proc(helper, rank, env="A=1")
    proc(other, 1, env="A=1 STACKYARD_JOB=two")
    proc(lone, 1)
    assert jobs() == {shell: "one", rank: "one", helper: "one", other: "two", lone: ""}
    assert [process["pid"] for process in strays.strays("two")] == [other]
    assert [process["pid"] for process in strays.strays("one")] == [shell, rank, helper]


def test_a_job_started_below_another_is_its_own(proc):
    proc(7_000_010, 1, env="STACKYARD_JOB=one")
    proc(7_000_011, 7_000_010, env="STACKYARD_JOB=two")
    proc(7_000_012, 7_000_011)
    assert jobs() == {7_000_010: "one", 7_000_011: "two", 7_000_012: "two"}


def test_another_users_process_belongs_to_the_job_that_it_descends_from(proc, hide):
    rank, other, worker, left = range(7_000_010, 7_000_014)
    proc(rank, 1, command="runuser -u nobody", env="STACKYARD_JOB=one")
    hide(proc(other, rank))
    hide(proc(worker, other))
    hide(proc(left, 1))  # what started it has ended
    assert jobs() == {rank: "one", other: "one", worker: "one", left: ""}
    assert [process["pid"] for process in strays.strays("one")] == [rank, other, worker]


def test_what_sshd_runs_as_another_user_until_a_login_is_left_to_it(
    proc, hide, tmp_path, monkeypatch
):
    listener, coming, child, login, shell, other = range(7_000_010, 7_000_016)
    proc(listener, 1, command="sshd -D")
    proc(coming, listener, command="sshd: [accepted]")
    hide(proc(child, coming, command="sshd: [net]"))
    # A login is built alike, but a job runs below it.
    proc(login, listener, command="sshd: root@notty")
    proc(shell, login, env="STACKYARD_JOB=one")
    hide(proc(other, login))
    monkeypatch.setattr(strays, "PID_FILE", tmp_path / "sshd.pid")
    (tmp_path / "sshd.pid").write_text(str(listener))
    assert jobs() == {coming: "", login: "one", shell: "one", other: "one"}


@pytest.mark.parametrize(("state", "stopped"), [("T", True), ("t", True), ("S", False)])
def test_a_stopped_process_is_seen(proc, state, stopped):
    proc(7_000_010, state=state)
    assert strays.stopped(7_000_010) == stopped
    assert not strays.stopped(7_000_099)


@pytest.mark.parametrize(
    ("status", "caught"),
    [("SigIgn:\t0000000000004000\nSigCgt:\t0000000000000002\n", False),
     ("SigCgt:\t0000000180004202\n", True), ("Name:\tx\n", False), ("SigCgt:\n", False)],
)  # fmt: skip
def test_a_handler_of_ones_own_is_seen_and_an_ignored_signal_is_none(proc, status, caught):
    (proc(7_000_010) / "status").write_text(status)
    assert strays.catches(7_000_010, 15) == caught
    assert not strays.catches(7_000_099, 15)


def test_where_there_is_no_node_nothing_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(strays, "PID_FILE", tmp_path / "none")
    monkeypatch.setattr(strays.os, "kill", lambda *_: pytest.fail("killed"))
    with pytest.raises(SystemExit, match="no node of a mesh"):
        strays.kill()
