"""Node 1 of a mesh without a mesh: how trainings start, end, and what controllers are told."""

import json
import socket
import sys

import pytest

from tests.unit.beside import supervisor

Members, Client = sys.modules["members"].Members, sys.modules["client"].Client
NODES = ["a", "b"]


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(supervisor.time, "monotonic", lambda: self.now)

    def later(self, seconds):
        self.now += seconds


class Selector:
    """Registers everything, finds nothing."""

    def __init__(self):
        self.registered = []

    def register(self, what, events, data):
        self.registered.append(what)

    def unregister(self, what):
        self.registered.remove(what)


class Line:
    """A node's line: what is sent is kept, what it says is put in."""

    def __init__(self, name):
        self.name = self.source = name
        self.sent, self.lines, self.closed, self.why, self.said = [], [], False, "", ""

    def write(self, text):
        if text != "beat":
            self.sent.append(text)

    def read(self):
        found, self.lines = self.lines, []
        return found

    def lost(self, seconds):
        return self.why or ("its end of the line was closed" if self.closed else "")


class Connection:
    """A controller's end: what it is told is kept, at most `room` bytes of it."""

    def __init__(self):
        self.told, self.asked, self.room, self.closed = b"", [], 10**9, False

    def setblocking(self, _):
        pass

    def send(self, data):
        if self.closed:
            raise BrokenPipeError
        if self.room <= 0:
            raise BlockingIOError
        taken = data[: self.room]
        self.told, self.room = self.told + taken, self.room - len(taken)
        return len(taken)

    def recv(self, _):
        if not self.asked:
            raise BlockingIOError
        return self.asked.pop(0)

    def close(self):
        self.closed = True


class Launcher:
    """A launcher that ends when it is told to."""

    started = ()
    fails = None

    def __init__(self, words, folder, env, selector, say, over):
        if Launcher.fails:
            raise Launcher.fails
        self.words, self.folder, self.env, self.say, self.over = words, folder, env, say, over
        self.code, self.killed, self.last = None, False, []
        Launcher.started = (*Launcher.started, self)

    def poll(self):
        return self.code

    def kill(self):
        self.killed, self.code = True, -9

    def finish(self):
        for text in self.last:
            self.say(text)
        self.last = []


class Mesh:
    """A supervisor of two nodes, its nodes' lines, and one controller."""

    def __init__(self, clock, owner=0.0):
        self.clock = clock
        self.supervisor = supervisor.Supervisor(60.0, NODES, owner)
        self.lines = {name: Line(name) for name in NODES}
        for name, line in self.lines.items():
            self.supervisor._members.add(name, line)
        self.say("beat")
        self.connection, self.client = self.connect()

    def connect(self):
        connection = Connection()
        client = Client(connection)
        self.supervisor._clients.append(client)
        self.supervisor._selector.register(connection, 1, None)
        return connection, client

    def ask(self, do, connection=None, client=None, **values):
        connection, client = connection or self.connection, client or self.client
        connection.asked.append(json.dumps({"do": do, **values}).encode() + b"\n")
        self.supervisor._requests(client)
        return self.told(connection)

    def told(self, connection=None):
        connection = connection or self.connection
        found, connection.told = [json.loads(x) for x in connection.told.splitlines()], b""
        return found

    def say(self, *values, nodes=NODES):
        """Nodes say something: words, or values of the last job."""
        own = {"job": self.job.name} if self.job else {}
        for node in nodes:
            self.lines[node].lines += [
                v if isinstance(v, str) else json.dumps({**own, **v}) for v in values
            ]
            self.supervisor._members._hear(node)

    def answer(self, found=(), nodes=NODES):
        """Nodes answer what they were asked last, with the processes found."""
        for node in nodes:
            number = self.lines[node].sent[-1].split()[1]
            self.say({"answer": number, "found": list(found)}, nodes=[node])

    def start(self, **changes):
        job = {"name": "demo", "steps": [{"what": "train", "argv": ["train"]}], "env": {},
               "folder": "/code", "nodes": NODES, "grace_seconds": 5, **changes}  # fmt: skip
        return self.ask("start", **job)

    def tick(self, seconds=0.5):
        self.clock.later(seconds)
        self.supervisor._tick()
        self.supervisor._serve_all()

    def end(self, code, said=()):
        """The launcher of the current step ends, and the supervisor sees it."""
        Launcher.started[-1].code, Launcher.started[-1].last = code, list(said)
        self.tick()

    def close(self):
        """Nothing runs any more, and all words have come."""
        self.answer()
        self.say({"finished": self.job.name})
        self.tick()

    @property
    def job(self):
        return self.supervisor._jobs[-1] if self.supervisor._jobs else None

    def asked(self):
        return {node: line.sent[-1].split()[0] for node, line in self.lines.items()}


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["job"], "JOBS", tmp_path / "jobs")
    monkeypatch.setattr(supervisor, "listen", lambda: "server")
    monkeypatch.setattr(supervisor, "StepProcess", Launcher)
    monkeypatch.setattr(supervisor.selectors, "DefaultSelector", Selector)
    monkeypatch.setattr(Launcher, "started", ())
    monkeypatch.setattr(Launcher, "fails", None)
    return lambda owner=0.0: Mesh(Clock(monkeypatch), owner)


@pytest.fixture
def mesh(make):
    return make()


@pytest.fixture
def owned(make):
    """A mesh that ends when whoever started it is not heard for 8 s."""
    return make(8.0)


def events(found):
    return [event["event"] for event in found]


def state(mesh):
    return mesh.job.state, mesh.job.code, mesh.job.reason


# From its start to its end


def test_half_a_character_in_what_a_program_is_called_ends_no_supervisor(mesh):
    """Bytes of an argument that are no text come as such."""
    mesh.start(shown={"program": ["caf\udce9"]})
    (state,) = mesh.ask("state")
    assert state["jobs"][0]["shown"]["program"] == ["caf?"]


def test_a_job_that_ends_well_goes_through_all_its_states(mesh):
    assert events(mesh.start()) == ["started", "step"]
    assert [line.sent for line in mesh.lines.values()] == [[f"watch {mesh.job.path}/ranks"]] * 2
    assert state(mesh) == ("running", None, "")
    mesh.end(0)
    assert (state(mesh), mesh.asked()) == (("ending", 0, ""), {"a": "list", "b": "list"})
    mesh.answer()
    assert state(mesh) == ("closing", 0, "")
    assert {line.sent[-1] for line in mesh.lines.values()} == {"finish demo"}
    mesh.say({"finished": "demo"}, nodes=["a"])
    mesh.tick()
    assert mesh.job.state == "closing"
    mesh.say({"finished": "demo"}, nodes=["b"])
    mesh.tick()
    assert state(mesh) == ("ended", 0, "")
    assert mesh.job.ended >= mesh.job.started


def test_a_step_gets_its_files_folder_and_environment(mesh, tmp_path, monkeypatch):
    monkeypatch.setenv("STACKYARD_CONTROL", "1")
    monkeypatch.setenv("OF_THE_NODE", "1")
    path = tmp_path / "scratch" / "hostfile"
    step = {"what": "train", "argv": ["deepspeed", "x"], "env": {"B": "2"},
            "files": {str(path): "a slots=1\n"}}  # fmt: skip
    mesh.start(steps=[step], env={"A": "1", "B": "1"})
    (found,) = Launcher.started
    assert (found.words, found.folder) == (["deepspeed", "x"], "/code")
    assert {k: found.env.get(k) for k in ("A", "B", "OF_THE_NODE", "STACKYARD_CONTROL")} == {
        "A": "1", "B": "2", "OF_THE_NODE": "1", "STACKYARD_CONTROL": None,
    }  # fmt: skip
    assert path.read_text() == "a slots=1\n"
    assert path.stat().st_mode & 0o777 == 0o600


STEPS = [{"what": "prepare: x", "argv": ["x"]}, {"what": "train", "argv": ["y"]}]


def test_steps_run_one_after_another(mesh):
    mesh.start(steps=STEPS)
    assert mesh.job.step == "prepare: x"
    mesh.end(0)
    assert (mesh.job.step, [s.words for s in Launcher.started]) == ("train", [["x"], ["y"]])
    assert events(mesh.told()) == ["step"]
    mesh.end(0)
    mesh.close()
    assert state(mesh) == ("ended", 0, "")


def test_a_step_that_fails_ends_the_job_and_is_named(mesh):
    mesh.start(steps=STEPS)
    mesh.end(3)
    assert mesh.asked() == {"a": "kill", "b": "kill"}
    mesh.close()
    assert state(mesh) == ("ended", 3, "prepare: x failed with exit code 3")
    assert len(Launcher.started) == 1


@pytest.mark.parametrize(("code", "told"), [(1, 1), (-9, 137), (-15, 143)])
def test_a_launchers_exit_code_is_told_as_shells_do(mesh, code, told):
    mesh.start()
    mesh.end(code)
    mesh.close()
    assert state(mesh) == ("ended", told, "")


def test_a_job_that_cannot_be_started_has_ended(mesh, monkeypatch):
    monkeypatch.setattr(Launcher, "fails", FileNotFoundError(2, "No such file", "torchrun"))
    mesh.start()
    assert state(mesh)[:2] == ("closing", 127)
    mesh.say({"finished": "demo"})
    mesh.tick()
    assert mesh.job.state == "ended"
    assert mesh.job.reason.startswith("train cannot be started:")
    assert "torchrun" in mesh.job.reason


def test_files_that_cannot_be_written_end_the_job_and_not_the_mesh(mesh, tmp_path):
    (tmp_path / "file").write_text("")
    mesh.start(steps=[{"what": "train", "argv": ["x"], "files": {f"{tmp_path}/file/x": ""}}])
    assert state(mesh)[:2] == ("closing", 127)
    assert f"{tmp_path}/file" in mesh.job.reason
    assert not mesh.supervisor._over


def test_a_file_that_ranks_make_is_removed_when_nothing_of_the_job_runs(mesh, tmp_path):
    path = tmp_path / "meeting"
    mesh.start(steps=[{"what": "train", "argv": ["x"], "makes": [str(path)]}])
    path.write_text("")
    mesh.ask("stop", job="demo")
    assert path.exists()
    mesh.answer()
    mesh.answer()
    assert (mesh.job.state, path.exists()) == ("closing", False)


def test_a_file_that_ranks_would_make_and_that_is_there_ends_the_job_and_stays(mesh, tmp_path):
    path = tmp_path / "meeting"
    path.write_text("somebody's")
    mesh.start(steps=[{"what": "train", "argv": ["x"], "makes": [str(path)]}])
    assert state(mesh)[:2] == ("closing", 127)
    assert f"{path} exists already" in mesh.job.reason
    assert path.read_text() == "somebody's"


def test_a_file_that_ranks_made_and_that_cannot_be_removed_is_named(mesh, tmp_path):
    path = tmp_path / "meeting"
    mesh.start(steps=[{"what": "train", "argv": ["x"], "makes": [str(path)]}])
    path.mkdir()
    mesh.end(0)
    mesh.close()
    assert f"{path} is left behind" in mesh.job.log.read_text()


# What is refused


@pytest.mark.parametrize(
    "changes",
    [{"steps": []}, {"steps": [{}]}, {"steps": ["x"]}, {"steps": [{"what": "x"}]}, {"name": None,
     "steps": None}, {"env": "x"}, {"lease": "soon"}],
)  # fmt: skip
def test_what_is_no_job_is_refused_and_another_can_be_started(mesh, changes):
    assert events(mesh.start(**changes)) == ["refused"]
    assert mesh.job is None
    assert events(mesh.start()) == ["started", "step"]


def test_a_second_job_is_refused_until_the_first_has_ended(mesh):
    mesh.start()
    (refused,) = mesh.start(name="two")
    assert (refused["event"], refused["why"]) == ("refused", "job demo is running here")
    assert "invoke stop" in refused["hint"]
    mesh.end(0)
    assert events(mesh.start(name="two")) == ["refused"]
    mesh.close()
    assert events(mesh.start(name="two")) == ["started", "step"]


def test_a_job_on_a_lost_node_is_refused_and_one_without_it_is_not(mesh):
    mesh.lines["b"].why = "nothing was heard for 60 s"
    mesh.tick()
    mesh.told()
    assert mesh.start() == [{"event": "refused", "why": "b: nothing was heard for 60 s"}]
    assert events(mesh.start(nodes=["a"])) == ["started", "step"]


def test_a_job_whose_log_cannot_be_made_is_refused(mesh, tmp_path):
    (tmp_path / "jobs").write_text("")
    (found,) = mesh.start()
    assert found["event"] == "refused" and "Not a directory" in found["why"]
    assert mesh.job is None


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"do": "dance"}, "unknown request 'dance'"),
        ({}, "unknown request None"),
        ({"do": "follow", "from": "x"}, "no job yet"),
        ({"do": "follow"}, "no job yet"),
        ({"do": "follow", "job": "x"}, "there is no job x"),
        ({"do": "port", "address": "192.0.2.1"}, "port: [Errno 99]"),
    ],
)
def test_what_is_no_request_is_refused_with_its_reason(mesh, request_, why):
    found = mesh.ask(request_.pop("do", None), **request_)
    assert events(found) == ["refused"] and found[0]["why"].startswith(why)


def test_what_is_no_line_of_json_is_passed_over(mesh):
    mesh.connection.asked = [b'{"do"\n[1]\n5\n{"do": "be', b'at"}\n']
    mesh.supervisor._requests(mesh.client)
    mesh.supervisor._requests(mesh.client)
    assert events(mesh.told()) == ["beat"]


# What ends a job


def test_a_job_is_stopped_on_every_node_when_somebody_says_so(mesh):
    mesh.start()
    mesh.ask("stop", job=mesh.job.name, reason="it was interrupted")
    assert Launcher.started[0].killed
    assert mesh.asked() == {"a": "kill", "b": "kill"}
    mesh.close()
    assert state(mesh) == ("ended", None, "it was interrupted")


@pytest.fixture
def asked(mesh):
    """A job whose ranks were asked to end, 60 s from now at the latest."""
    mesh.start()
    mesh.say({"event": "rank", "rank": 0, "pid": 7}, nodes=["a"])
    mesh.ask("stop", job=mesh.job.name, reason="it was stopped by SIGTERM", seconds=60)
    assert {line.sent[-1].split()[0] for line in mesh.lines.values()} == {"term"}
    return mesh


def test_ranks_that_catch_sigterm_may_save_and_end(asked):
    asked.answer([{"pid": 7, "rank": 0}], nodes=["a"])
    asked.answer(nodes=["b"])
    asked.tick(3)
    assert state(asked)[0] == "running" and not Launcher.started[0].killed
    asked.end(0)
    asked.close()
    reason = "it was stopped by SIGTERM; its ranks ended by themselves after 4 s"
    assert state(asked) == ("ended", 0, reason)
    assert asked.job.value()["stopped"]


def test_where_no_rank_catches_sigterm_the_job_is_killed_at_once(asked):
    asked.answer()
    assert Launcher.started[0].killed
    asked.close()
    assert state(asked) == ("ended", None, "it was stopped by SIGTERM")


def test_ranks_that_do_not_end_in_time_are_killed(asked):
    asked.answer([{"pid": 7, "rank": 0}])
    asked.tick(60)
    assert not Launcher.started[0].killed
    asked.tick(1)
    assert Launcher.started[0].killed
    asked.close()
    assert asked.job.reason == "it was stopped by SIGTERM; its ranks did not end within 60 s"


def test_a_rank_that_fails_while_it_saves_is_named(asked):
    asked.answer([{"pid": 7, "rank": 0}])
    asked.say({"event": "gone", "rank": 0, "pid": 7, "end": "OSError: disk full"}, nodes=["a"])
    asked.tick(4)
    asked.close()
    why = "it was stopped by SIGTERM; rank 0 (a) ended: OSError: disk full"
    assert state(asked) == ("ended", None, why)


def test_who_asks_again_without_time_ends_it_at_once(asked):
    asked.answer([{"pid": 7, "rank": 0}])
    asked.ask("stop", job=asked.job.name, seconds=60)
    assert not Launcher.started[0].killed
    asked.ask("stop", job=asked.job.name)
    assert Launcher.started[0].killed


def test_after_a_step_that_was_stopped_no_other_begins(mesh):
    mesh.start(steps=STEPS)
    mesh.ask("stop", job=mesh.job.name, seconds=60)
    mesh.end(0)
    assert (mesh.job.state, len(Launcher.started)) == ("ending", 1)


def test_a_job_ends_as_soon_as_the_kernel_reports_the_end_of_its_launcher(mesh):
    mesh.start()
    (launcher,) = Launcher.started
    launcher.code = 0
    launcher.over()
    assert state(mesh) == ("ending", 0, "")
    mesh.answer()
    mesh.say({"finished": "demo"})
    assert state(mesh) == ("ended", 0, "")


@pytest.fixture
def pair(mesh):
    """Two jobs beside each other: `demo`, then `other`."""
    mesh.start()
    assert events(mesh.start(name="other", beside=True)) == ["started", "step"]
    return mesh, *mesh.supervisor._jobs


def test_jobs_beside_each_other_end_each_by_itself(pair):
    mesh, demo, other = pair
    mesh.ask("stop", job="demo", reason="enough")
    assert [launcher.killed for launcher in Launcher.started] == [True, False]
    # Processes of no job are left alone while another one runs.
    assert [line.sent[-1].split()[::2] for line in mesh.lines.values()] == [["kill", "demo"]] * 2
    mesh.answer()
    mesh.say({"finished": "demo"})
    assert (demo.state, demo.reason, other.state) == ("ended", "enough", "running")
    mesh.end(0)
    assert [line.sent[-1].split()[2:] for line in mesh.lines.values()] == [[], []]
    mesh.answer()
    mesh.say({"finished": "other"})
    assert (other.state, other.code) == ("ended", 0)


def test_what_ranks_say_goes_to_the_log_of_their_job(pair):
    mesh, demo, other = pair
    for job in ("demo", "other"):
        mesh.say({"job": job, "said": [{"rank": 0, "text": job}]}, nodes=["a"])
    assert [json.loads(job.log.read_text())["text"] for job in (demo, other)] == ["demo", "other"]
    mesh.ask("follow", job="demo")
    assert {event["job"] for event in mesh.ask("follow", job="other")} == {"other"}


def test_a_lost_node_and_a_process_of_no_job_end_all_jobs(pair):
    mesh, demo, other = pair
    mesh.say({"event": "orphan", "pid": 5, "command": "x", "job": ""}, nodes=["b"])
    assert {job.state for job in (demo, other)} == {"ending"}


def test_a_stopped_process_ends_its_job_and_is_named_by_its_rank(pair):
    mesh, demo, other = pair
    rank(mesh, 1, 50, "b")
    for pid, job in ((50, "other"), (51, "demo")):
        event = {"event": "stopped", "pid": pid, "command": "python train.py", "job": job}
        mesh.say(event, nodes=["b"])
    assert other.reason == "rank 1 (b) is stopped for 60 s: python train.py"
    assert demo.reason == "process 51 on b is stopped for 60 s: python train.py"


def recorded(mesh, number, **event):
    entry = {"rank": number, "record": json.dumps(event)}
    mesh.say({"said": [entry]}, nodes=[NODES[number]])


PLACED = {"placed": NODES, "join_seconds": 20, "silent_seconds": 8}


def test_ranks_that_do_not_record_their_start_in_time_are_named(mesh):
    mesh.start(**PLACED)
    recorded(mesh, 0, event="start")
    mesh.tick(20)
    assert mesh.job.state == "running"
    mesh.tick(0.1)
    assert state(mesh) == ("ending", None, "rank 1 (b) did not join within 20 s")


def test_ranks_that_record_nothing_for_too_long_are_named_with_their_update(mesh):
    mesh.start(**PLACED)
    for number in (0, 1):
        recorded(mesh, number, event="start")
    mesh.tick(8)
    recorded(mesh, 0, event="step", step=3, loss=1.0)
    mesh.tick(8)
    assert mesh.job.state == "running"
    mesh.tick(0.1)
    assert state(mesh)[2] == (
        "no rank said anything for 8 s: rank 1 (b) at update 0, rank 0 (a) at update 3"
    )


def answered(mesh, *found, nodes=NODES):
    """Nodes answer where their ranks are."""
    for node in nodes:
        number = mesh.lines[node].sent[-1].split()[1]
        own = [one for one in found if NODES[one["rank"]] == node]
        mesh.say({"answer": number, "found": own}, nodes=[node])


TORCH = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
WAITS = {"rank": 0, "stack": [[TORCH, 9, "all_reduce"], ["/code/train.py", 7, "main"]]}
LOADS = {"rank": 1, "stack": [["/code/data.py", 3, "load"]]}
MISSING = "rank 1 (b) (at load (data.py:3)) never came to all_reduce, where rank 0 (a) waits"


@pytest.fixture
def training(mesh):
    """A job of two ranks that has made three updates, 2 s each."""
    mesh.start(**{**PLACED, "silent_seconds": 60})
    for number in (0, 1):
        rank(mesh, number, 50, NODES[number])
        recorded(mesh, number, event="start")
    for step in (1, 2, 3):
        mesh.tick(2)
        for number in (0, 1):
            recorded(mesh, number, event="step", step=step, loss=1.0)
    mesh.told()
    return mesh


def test_the_last_loss_and_the_rate_are_told_also_where_records_come_in_bursts(training):
    # Three updates, 2 s each; then 40 of 0.1 s that an agent reads five at a time.
    assert (training.job.value()["loss"], training.job.rate) == (1.0, 0.5)
    for burst in range(8):
        training.tick(0.5)
        for step in range(5):
            recorded(training, 0, event="step", step=4 + 5 * burst + step, loss=0.5)
    value = training.job.value()
    assert (value["update"], value["loss"]) == (43, 0.5)
    assert value["updates_per_second"] == pytest.approx(38 / 8, rel=0.2)
    recorded(training, 1, event="step", step=4, loss=9.0)  # a rank that is behind
    recorded(training, 0, event="step", step=44, loss=float("nan"))
    value = training.job.value()
    assert value["loss"] == "nan"
    json.dumps(value, allow_nan=False)


def test_of_a_program_that_records_nothing_neither_loss_nor_rate_is_told(mesh):
    mesh.start()
    mesh.say({"said": [{"rank": 0, "text": "hello"}]})
    value = mesh.job.value()
    assert (value["loss"], value["updates_per_second"], value["update"]) == (None, None, None)


def test_ranks_that_do_not_get_on_are_asked_once_and_the_missing_one_is_named(training):
    training.tick(39.5)  # 5 times the longest update, and 30 s
    assert training.asked() == {"a": "watch", "b": "watch"}
    training.tick(1)
    assert training.asked() == {"a": "stacks", "b": "stacks"}
    answered(training, WAITS, LOADS)
    (event,) = [e for e in training.told() if e["event"] == "hang"]
    assert (event["job"], event["what"]) == ("demo", MISSING)
    assert (training.job.state, training.job.value()["hang"]) == ("running", MISSING)
    lines = [json.loads(line)["text"] for line in training.job.log.read_text().splitlines()
             if "text" in line]  # fmt: skip
    assert [line for line in lines if line.startswith("hang: no update for")]
    assert "hang: rank 1 (b) waits in no collective, at load (data.py:3)" in lines
    asked = len(training.lines["a"].sent)
    training.tick(5)
    assert len(training.lines["a"].sent) == asked


def test_a_run_that_is_silent_from_its_start_is_asked_how_many_ranks_have_started(mesh):
    mesh.start(shown={"ranks": 2})
    mesh.tick(200)
    rank(mesh, 0, 50, "a")
    mesh.tick(299)
    assert mesh.asked() == {"a": "watch", "b": "watch"}
    mesh.tick(2)
    assert mesh.asked() == {"a": "stacks", "b": "stacks"}
    answered(mesh, WAITS)
    assert (mesh.job.state, mesh.job.hang) == (
        "running",
        "1 of 2 ranks have started Python; rank 0 (a) waits in all_reduce, and nobody else is"
        " there",
    )
    rank(mesh, 1, 51, "b")
    assert mesh.job.hang == ""
    mesh.tick(301)
    answered(mesh, WAITS, LOADS)
    assert mesh.job.hang == MISSING


def test_a_run_of_which_no_rank_starts_says_so_once_its_data_are_prepared(mesh):
    steps = [{"what": what, "argv": [what]} for what in ("prepare", "train")]
    mesh.start(shown={"ranks": 2}, steps=steps)
    mesh.tick(301)
    assert mesh.asked() == {"a": "watch", "b": "watch"}
    mesh.end(0)
    mesh.tick(301)
    answered(mesh)
    assert mesh.job.hang == "0 of 2 ranks have started Python; the launcher waits"


@pytest.mark.parametrize(
    ("launcher", "said", "asked"),
    [("each", "", False), ("plain", "hello", False), ("plain", "", True), ("torchrun", "W", True)],
)
def test_a_command_that_is_no_rank_may_be_silent(mesh, launcher, said, asked):
    mesh.start(shown={"ranks": 2, "launcher": launcher})
    if said:
        mesh.tick(200)
        Launcher.started[-1].say(said)
        mesh.tick(299)
        assert mesh.asked()["a"] == "watch"
    mesh.tick(10_000)
    assert mesh.asked()["a"] == ("stacks" if asked else "watch")


def test_a_program_that_records_is_asked_between_its_first_updates(mesh):
    mesh.start(shown={"ranks": 2})
    for number in (0, 1):
        rank(mesh, number, 50, NODES[number])
        recorded(mesh, number, event="start")
    mesh.say({"said": [{"rank": 0, "text": "loading"}]})
    recorded(mesh, 0, event="step", step=1, loss=1.0)
    mesh.tick(299)
    assert mesh.asked()["a"] == "watch"
    mesh.tick(2)
    assert mesh.asked() == {"a": "stacks", "b": "stacks"}


def test_the_runs_own_rule_then_decides_and_carries_the_name(training):
    training.tick(41)
    answered(training, WAITS, LOADS)
    training.tick(18.9)
    assert training.job.state == "running"
    training.tick(0.2)
    assert state(training)[2].startswith("no rank said anything for 60 s: ")
    assert state(training)[2].endswith(MISSING)


def test_a_training_that_gets_on_again_does_not_hang(training):
    training.tick(41)
    answered(training, WAITS, LOADS)
    recorded(training, 0, event="step", step=4, loss=1.0)
    assert training.job.value()["hang"] == ""
    training.tick(41)  # its longest update is now 41 s
    assert training.asked() == {"a": "stacks", "b": "stacks"}
    training.end(0)
    training.close()
    assert state(training) == ("ended", 0, "")


def test_an_answer_that_comes_after_the_next_update_is_dropped(training):
    training.tick(41)
    recorded(training, 1, event="step", step=4, loss=1.0)
    answered(training, WAITS, LOADS)
    assert training.job.hang == ""
    assert "hang" not in events(training.told())


def test_silent_ranks_are_asked_before_their_job_is_stopped(mesh):
    mesh.start(**PLACED)
    for number in (0, 1):
        rank(mesh, number, 50, NODES[number])
        recorded(mesh, number, event="start")
    mesh.tick(8.1)
    assert (mesh.job.state, mesh.asked()) == ("running", {"a": "stacks", "b": "stacks"})
    answered(mesh, WAITS, LOADS)
    assert mesh.job.state == "ending"
    assert mesh.job.reason.startswith("no rank said anything for 8 s: ")
    assert mesh.job.reason.endswith(MISSING)


def test_silent_ranks_that_do_not_answer_are_not_waited_for(mesh):
    mesh.start(**PLACED)
    for number in (0, 1):
        rank(mesh, number, 50, NODES[number])
        recorded(mesh, number, event="start")
    mesh.tick(8.1)
    mesh.tick(15)
    assert mesh.job.state == "running"
    mesh.tick(0.2)
    assert mesh.job.state == "ending"


def test_a_node_that_is_lost_while_silent_ranks_are_asked_is_the_reason(mesh):
    mesh.start(**PLACED)
    for number in (0, 1):
        rank(mesh, number, 50, NODES[number])
        recorded(mesh, number, event="start")
    mesh.tick(8.1)
    answered(mesh, WAITS, nodes=["a"])
    mesh.lines["b"].why = "nothing was heard for 60 s"
    mesh.tick()
    assert state(mesh)[2] == "node b is gone: nothing was heard for 60 s"


def test_lines_are_updates_where_nothing_is_recorded(mesh):
    mesh.start()
    rank(mesh, 0, 50, "a")
    for _ in range(11):
        mesh.tick(2)
        mesh.say({"said": [{"rank": 0, "text": "loss 1.0"}]}, nodes=["a"])
    mesh.tick(39.9)
    assert mesh.asked()["a"] == "watch"
    mesh.tick(0.2)
    assert mesh.asked()["a"] == "stacks"


def test_a_program_of_a_few_lines_may_be_silent(mesh):
    mesh.start()
    rank(mesh, 0, 50, "a")
    for _ in range(5):
        mesh.say({"said": [{"rank": 0, "text": "hello"}]}, nodes=["a"])
    mesh.tick(10_000)
    assert mesh.asked()["a"] == "watch"


def test_a_launcher_that_does_not_notice_that_its_ranks_ended_is_stopped(mesh):
    mesh.start(**PLACED)
    for number in (0, 1):
        recorded(mesh, number, event="start")
        recorded(mesh, number, event="end", step=4)
    mesh.tick(25)
    assert mesh.job.state == "running"
    mesh.tick(0.1)
    assert state(mesh)[2] == "every rank ended, but the launcher did not within 25 s"


def test_a_job_that_records_nothing_may_be_silent(mesh):
    mesh.start()
    mesh.tick(100_000)
    assert mesh.job.state == "running"


def test_a_rank_that_dies_is_named_with_its_last_update(mesh):
    mesh.start(**PLACED)
    rank(mesh, 1, 50, "b")
    recorded(mesh, 1, event="step", step=7, loss=1.0)
    gone(mesh, 1, 50, "b", "")
    mesh.tick(3.1)
    assert state(mesh)[2] == "rank 1 (b) ended after update 7: killed"


def test_a_job_that_has_ended_well_is_not_stopped_any_more(mesh):
    mesh.start()
    mesh.end(0)
    mesh.answer()
    mesh.ask("stop", job=mesh.job.name)
    mesh.lines["b"].why = "its end of the line was closed"
    mesh.tick()
    mesh.say({"finished": "demo"}, nodes=["a"])
    mesh.tick()
    assert state(mesh) == ("ended", 0, "")


@pytest.mark.parametrize("named", [{"job": "another"}, {}])
def test_a_job_is_not_stopped_by_whoever_names_another(mesh, named):
    """Whoever was refused because of a job still says stop when it is interrupted."""
    mesh.start()
    mesh.ask("stop", **named)
    assert state(mesh) == ("running", None, "")
    assert not Launcher.started[0].killed


def test_a_stop_without_a_job_does_nothing(mesh):
    assert mesh.ask("stop", job="any") == []


def test_a_job_that_nobody_attached_is_heard_for_ends_after_its_lease(mesh):
    mesh.start(lease=8)
    mesh.tick(7)
    mesh.ask("beat")
    mesh.tick(7)
    assert mesh.job.state == "running"
    mesh.tick(2)
    assert state(mesh) == ("ending", None, "nobody attached was heard for 8 s")


def test_a_job_without_a_lease_goes_on_unheard(mesh):
    mesh.start(lease=0)
    mesh.tick(10_000)
    assert mesh.job.state == "running"


def test_somebody_who_only_looks_does_not_keep_a_job(mesh):
    mesh.start(lease=8)
    other = mesh.connect()
    mesh.tick(7)
    assert events(mesh.ask("beat", *other)) == ["beat"]
    mesh.tick(2)
    assert mesh.job.state == "ending"


def test_somebody_who_attaches_again_keeps_it(mesh):
    mesh.start(lease=8)
    other = mesh.connect()
    mesh.tick(7)
    mesh.ask("attach", *other)
    mesh.tick(7)
    mesh.ask("beat", *other)
    mesh.tick(7)
    assert mesh.job.state == "running"


def test_a_lost_node_ends_the_job_everywhere_and_is_told_once(mesh):
    mesh.start()
    mesh.told()
    mesh.lines["b"].closed = True
    mesh.supervisor._members._hear("b")
    mesh.tick()
    assert [e for e in mesh.told() if e["event"] == "lost"] == [
        {"event": "lost", "node": "b", "why": "its end of the line was closed", "joined": True}
    ]
    assert state(mesh) == ("ending", None, "node b is gone: its end of the line was closed")
    # Only the node that is left is waited for.
    mesh.answer(nodes=["a"])
    mesh.say({"finished": "demo"}, nodes=["a"])
    mesh.tick()
    assert mesh.job.state == "ended"
    assert "kill" not in mesh.lines["b"].sent[-1]


def test_a_node_lost_while_it_is_asked_is_not_waited_for(mesh):
    mesh.start()
    mesh.end(0)
    mesh.answer(nodes=["a"])
    assert mesh.job.state == "ending"
    mesh.lines["b"].why = "nothing was heard for 60 s"
    mesh.tick()
    assert mesh.job.state == "closing"
    mesh.say({"finished": "demo"}, nodes=["a"])
    mesh.tick()
    assert mesh.job.state == "ended"


def test_without_its_own_agent_the_mesh_ends(mesh):
    """Nobody would end what runs on node 1."""
    mesh.start()
    mesh.lines["a"].closed = True
    mesh.supervisor._members._hear("a")
    assert mesh.supervisor._over


def rank(mesh, number, pid, node):
    mesh.say({"event": "rank", "rank": number, "pid": pid}, nodes=[node])


def gone(mesh, number, pid, node, end):
    mesh.say({"event": "gone", "rank": number, "pid": pid, "end": end}, nodes=[node])


def test_ranks_are_known_by_node_pid_and_end(mesh):
    mesh.start()
    rank(mesh, 0, 50, "a")
    rank(mesh, 1, 50, "b")
    gone(mesh, 1, 50, "b", "ok")
    assert mesh.job.ranks == {
        0: {"node": "a", "pid": 50, "end": None}, 1: {"node": "b", "pid": 50, "end": "ok"},
    }  # fmt: skip
    mesh.tick(1000)
    assert mesh.job.state == "running"


def test_fused_parts_are_kept_with_their_rank_and_those_of_strangers_are_not(mesh):
    mesh.start()
    rank(mesh, 0, 50, "a")
    parts = {"layer": {"state": "ran", "why": ""}}
    for number in (0, 7):
        mesh.say({"event": "fused", "rank": number, "parts": parts}, nodes=["a"])
    assert mesh.job.ranks == {0: {"node": "a", "pid": 50, "end": None, "fused": parts}}
    rank(mesh, 0, 60, "a")
    assert "fused" not in mesh.job.ranks[0]


@pytest.mark.parametrize(("end", "said"), [("", "killed"), ("ValueError: no", "ValueError: no")])
def test_a_dead_rank_ends_the_job_if_its_launcher_does_not(mesh, end, said):
    mesh.start()
    rank(mesh, 1, 50, "b")
    gone(mesh, 1, 50, "b", end)
    mesh.tick(2.9)
    assert mesh.job.state == "running"
    mesh.tick(0.2)
    assert state(mesh) == ("ending", None, f"rank 1 (b) ended: {said}")


def test_a_launcher_that_may_start_its_ranks_again_has_time_for_it(mesh):
    mesh.start(restarts=3)
    rank(mesh, 1, 50, "b")
    gone(mesh, 1, 50, "b", "")
    mesh.tick(29)
    assert mesh.job.state == "running"
    mesh.tick(2)
    assert state(mesh) == ("ending", None, "rank 1 (b) ended: killed")


def test_of_several_dead_ranks_the_first_is_named(mesh):
    mesh.start()
    for number, node in ((0, "a"), (1, "b")):
        rank(mesh, number, 50, node)
    gone(mesh, 1, 50, "b", "RuntimeError: mine")
    mesh.clock.later(1)
    gone(mesh, 0, 50, "a", "RuntimeError: lost my peer")
    mesh.end(1)
    mesh.close()
    assert state(mesh) == ("ended", 1, "rank 1 (b) ended: RuntimeError: mine")


MINE, PEER = "ValueError: batch 3", "RuntimeError: gloo: Connection closed by peer [10.0.0.2]"


@pytest.mark.parametrize(
    ("ends", "named"),
    [
        (("", MINE), 1),  # its launcher ended the other
        ((MINE, ""), 0),
        ((PEER, ""), 1),  # out of memory: the other lost it
        ((PEER, MINE), 1),
        (("", PEER), 0),
        ((PEER, PEER), 0),
        (("", ""), 0),
    ],
)
def test_of_ranks_that_die_at_the_same_time_the_cause_is_named(mesh, ends, named):
    mesh.start()
    for number in range(len(ends)):
        rank(mesh, number, 50 + number, "a")
    for number, end in enumerate(ends):
        gone(mesh, number, 50 + number, "a", end)
    mesh.end(1)
    mesh.close()
    assert mesh.job.reason == f"rank {named} (a) ended: {ends[named] or 'killed'}"


def test_how_a_rank_ended_may_come_after_its_launchers_end(mesh):
    mesh.start()
    rank(mesh, 0, 50, "a")
    mesh.end(1)
    mesh.answer()
    gone(mesh, 0, 50, "a", "ValueError: no")
    mesh.close()
    assert state(mesh) == ("ended", 1, "rank 0 (a) ended: ValueError: no")


def test_ranks_that_are_killed_because_their_job_is_over_are_no_reason(mesh):
    mesh.start()
    rank(mesh, 0, 9, "a")
    mesh.end(-9)  # the launcher was killed
    mesh.answer(LEFT, nodes=["a"])
    mesh.answer(nodes=["b"])
    gone(mesh, 0, 9, "a", "")
    mesh.close()
    assert state(mesh) == ("ended", 137, "")
    assert mesh.job.ranks[0]["end"] == "killed"


def test_a_rank_that_its_launcher_started_again_is_not_dead(mesh):
    mesh.start()
    rank(mesh, 0, 50, "a")
    gone(mesh, 0, 50, "a", "")
    rank(mesh, 0, 60, "a")
    mesh.tick(60)
    assert state(mesh) == ("running", None, "")
    assert mesh.job.ranks[0] == {"node": "a", "pid": 60, "end": None}


def test_the_end_of_a_rank_that_was_started_again_meanwhile_is_not_its_own(mesh):
    mesh.start()
    rank(mesh, 0, 50, "a")
    rank(mesh, 0, 60, "a")
    gone(mesh, 0, 50, "a", "")
    mesh.tick(60)
    assert state(mesh) == ("running", None, "")


def test_a_rank_without_its_launcher_ends_the_job(mesh):
    mesh.start()
    mesh.say({"event": "orphan", "pid": 5, "command": "python train.py"}, nodes=["b"])
    assert state(mesh) == (
        "ending", None, "on b the launcher of a rank is gone: python train.py",
    )  # fmt: skip


def test_a_full_disk_ends_the_job_and_not_the_mesh(mesh, monkeypatch):
    mesh.start()

    def full(entry):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mesh.job, "note", full)
    mesh.say({"said": [{"rank": 0, "text": "x"}, {"rank": 0, "text": "y"}]}, nodes=["b"])
    assert state(mesh) == (
        "ending", None, "on a the log of the job cannot be written: No space left on device",
    )  # fmt: skip
    mesh.close()
    assert mesh.job.state == "ended" and not mesh.supervisor._over


# What a launcher leaves behind

LEFT = [{"pid": 9, "command": "python train.py"}]


def test_what_is_left_may_end_by_itself_for_a_while(mesh):
    mesh.start()
    mesh.end(0)
    mesh.answer(LEFT, nodes=["b"])
    mesh.answer(nodes=["a"])
    assert mesh.job.state == "ending"
    mesh.tick(4)
    assert mesh.asked() == {"a": "list", "b": "list"}
    mesh.close()
    assert (state(mesh), mesh.job.left) == (("ended", 0, ""), {})


def test_what_is_still_there_then_is_killed_and_told(mesh):
    mesh.start()
    mesh.end(0)
    mesh.clock.later(6)
    mesh.answer(nodes=["a"])
    mesh.answer(LEFT, nodes=["b"])
    assert mesh.asked() == {"a": "kill", "b": "kill"}
    mesh.close()
    assert (state(mesh), mesh.job.left) == (("ended", 0, ""), {"b": LEFT})


def test_what_cannot_be_killed_does_not_hold_the_mesh_for_ever_and_is_told(mesh):
    mesh.start()
    mesh.ask("stop", job=mesh.job.name)
    for _ in range(20):
        if mesh.job.state == "ending":
            mesh.clock.later(1)
            mesh.answer(LEFT)
    assert (mesh.job.state, mesh.job.left) == ("closing", {"a": LEFT, "b": LEFT})


def test_what_was_killed_in_the_end_is_not_told_as_left(mesh):
    mesh.start()
    mesh.ask("stop", job=mesh.job.name)
    mesh.clock.later(16)
    mesh.answer(LEFT)  # killed meanwhile
    assert mesh.asked() == {"a": "list", "b": "list"}
    mesh.answer()
    assert (mesh.job.state, mesh.job.left) == ("closing", {})


def test_what_is_left_is_killed_although_another_node_was_frozen_meanwhile(mesh):
    mesh.start()
    mesh.end(0)
    mesh.answer(LEFT, nodes=["a"])
    mesh.clock.later(60)
    mesh.lines["b"].why = "nothing was heard for 60 s"
    mesh.tick()
    assert (mesh.job.state, mesh.asked()["a"]) == ("ending", "kill")
    mesh.answer(LEFT, nodes=["a"])
    mesh.answer(nodes=["a"])
    assert (mesh.job.state, mesh.job.left) == ("closing", {"a": LEFT})


def test_an_answer_to_an_earlier_question_does_not_count(mesh):
    mesh.start()
    mesh.end(0)
    old = [line.sent[-1].split()[1] for line in mesh.lines.values()]
    mesh.ask("stop", job=mesh.job.name)
    for node, number in zip(NODES, old, strict=True):
        mesh.say({"answer": number, "found": []}, nodes=[node])
    assert mesh.job.state == "ending"
    mesh.answer()
    assert mesh.job.state == "closing"


def test_last_words_are_waited_for_until_their_node_is_lost(mesh):
    mesh.start()
    mesh.end(0)
    mesh.answer()
    mesh.say({"finished": "another"})
    mesh.say({"finished": "demo"}, nodes=["a"])
    mesh.tick(50)
    assert mesh.job.state == "closing"
    mesh.lines["b"].why = "nothing was heard for 60 s"
    mesh.tick()
    mesh.tick()
    assert state(mesh) == ("ended", 0, "")
    said = "node b is gone, its last output may be missing: nothing was heard for 60 s"
    assert [entry["text"] for entry in log(mesh)] == [said]


# What is said


def log(mesh):
    return [json.loads(line) for line in mesh.job.log.read_text().splitlines()]


def words(entries):
    return [(e["node"], e["rank"], e["text"]) for e in entries]


def test_words_of_ranks_and_launchers_are_kept_by_node(mesh):
    mesh.start()
    mesh.say({"said": [{"rank": 1, "text": "step 1"}]}, nodes=["b"])
    say = Launcher.started[0].say
    say("b: from pdsh")
    say("c: not a node's")
    say("plain")
    say("b:  ")
    assert words(log(mesh)) == [
        ("b", 1, "step 1"), ("b", None, "from pdsh"), ("a", None, "c: not a node's"),
        ("a", None, "plain"),
    ]  # fmt: skip


def test_a_launchers_last_words_are_kept(mesh):
    mesh.start()
    mesh.end(1, said=["Traceback", "RuntimeError"])
    assert [e["text"] for e in log(mesh)] == ["Traceback", "RuntimeError"]


def test_who_follows_is_sent_all_from_where_it_says_and_then_the_end(mesh):
    mesh.start()
    for number in range(3):
        mesh.say({"said": [{"rank": 0, "text": f"line {number}"}]}, nodes=["a"])
    mesh.told()
    following, found = mesh.ask("follow", job="demo")
    assert following == {"event": "following", "job": "demo", "size": found["next"]}
    assert [e["text"] for e in found["lines"]] == ["line 0", "line 1", "line 2"]
    mesh.say({"said": [{"rank": 0, "text": "line 3"}]}, nodes=["a"])
    mesh.tick()
    (more,) = mesh.told()
    assert [e["text"] for e in more["lines"]] == ["line 3"]
    # Another one begins where the first has come to.
    other = mesh.connect()
    later = mesh.ask("follow", *other, **{"from": found["next"]})
    assert [e["text"] for event in later[1:] for e in event["lines"]] == ["line 3"]
    mesh.end(0)
    mesh.close()
    assert events(mesh.told())[-1] == "ended"
    assert mesh.told(other[0])[-1]["job"]["state"] == "ended"
    mesh.tick()
    assert mesh.told() == []


def test_a_line_longer_than_what_is_sent_at_once_stops_no_follower(mesh):
    mesh.start()
    for text in ("x" * 100_000, "after"):
        mesh.say({"said": [{"rank": 0, "text": text}]}, nodes=["a"])
    mesh.told()
    found = mesh.ask("follow", job="demo")
    mesh.end(0)
    mesh.close()
    found += mesh.told()
    said = [e["text"] for event in found if event["event"] == "log" for e in event["lines"]]
    assert [len(text) for text in said] == [100_000, 5]


@pytest.mark.parametrize("start", [3, -5, 10**9, "7"])
def test_a_place_in_the_middle_of_a_line_or_past_the_end_does_no_harm(mesh, start):
    mesh.start()
    mesh.say({"said": [{"rank": 0, "text": "one"}, {"rank": 0, "text": "two"}]}, nodes=["a"])
    mesh.told()
    mesh.ask("follow", **{"from": start})
    mesh.end(0)
    mesh.close()
    assert events(mesh.told())[-1] == "ended"


def test_bars_are_passed_on_to_who_follows_and_not_kept(mesh):
    mesh.start()
    mesh.ask("follow")
    other = mesh.connect()
    mesh.say({"said": [{"rank": 0, "text": "10%", "bar": True}]}, nodes=["a"])
    (found,) = mesh.told()
    assert (found["event"], found["node"], found["text"]) == ("bar", "a", "10%")
    assert mesh.told(other[0]) == [] == log(mesh)


def test_who_is_slow_gets_everything_in_the_end_and_no_more_than_it_takes(mesh):
    mesh.start()
    mesh.told()
    text = "x" * 3000
    mesh.say({"said": [{"rank": 0, "text": f"{n} {text}"} for n in range(300)]}, nodes=["a"])
    mesh.connection.room = 5000
    mesh.connection.asked = [b'{"do": "follow"}\n']
    mesh.supervisor._requests(mesh.client)
    for _ in range(5):
        mesh.tick()
    assert len(mesh.client._out) < 512 * 1024
    mesh.connection.room = 10**9
    mesh.supervisor._serve(mesh.client)
    mesh.tick()
    found = [e["text"].split()[0] for event in mesh.told() for e in event.get("lines", [])]
    assert found[-1] == "299"


def test_a_controller_that_goes_is_dropped_and_the_job_goes_on(mesh):
    mesh.start(lease=60)
    mesh.connection.asked = [b""]
    mesh.supervisor._requests(mesh.client)
    assert mesh.supervisor._clients == [] and mesh.connection.closed
    mesh.tick()
    assert mesh.job.state == "running"


def test_a_controller_that_breaks_while_it_is_told_is_dropped(mesh):
    mesh.connection.closed = True
    mesh.supervisor._tell(event="x")
    mesh.tick()
    assert mesh.supervisor._clients == []


# The mesh


def test_the_state_names_nodes_who_joined_who_is_lost_and_all_jobs(mesh):
    mesh.start()
    mesh.lines["b"].why = "gone"
    mesh.tick()
    mesh.told()
    (found,) = mesh.ask("state")
    assert (found["nodes"], found["joined"], found["lost"]) == (NODES, NODES, {"b": "gone"})
    assert [job["name"] for job in found["jobs"]] == ["demo"]


def test_what_ssh_says_is_the_reason_that_a_node_is_lost(mesh):
    mesh.say("b: Permission denied (publickey).", "7", nodes=["b"])
    assert mesh.lines["b"].said == "7"


def test_processes_are_told_when_all_nodes_have_answered(mesh):
    assert mesh.ask("list") == []
    mesh.answer(LEFT, nodes=["a"])
    assert mesh.told() == []
    mesh.answer(nodes=["b"])
    assert mesh.told() == [{"event": "processes", "nodes": {"a": LEFT, "b": []}}]


def test_without_any_node_a_question_is_answered_at_once(mesh):
    for line in mesh.lines.values():
        line.why = "gone"
    mesh.tick()
    mesh.told()
    assert mesh.ask("list") == [{"event": "processes", "nodes": {}}]


def test_a_free_port_is_told(mesh):
    (found,) = mesh.ask("port", address="127.0.0.1")
    assert 1024 <= found["port"] < 65536
    with socket.create_server(("127.0.0.1", found["port"])):
        (other,) = mesh.ask("port", address="127.0.0.1")
    assert other["port"] != found["port"]


def test_a_mesh_that_is_about_to_be_removed_rests(mesh, monkeypatch):
    monkeypatch.setattr(supervisor.line, "wait_listening", lambda node: None)
    monkeypatch.setattr(supervisor.line, "end_node", lambda: pytest.fail("ended"))
    monkeypatch.setattr(supervisor.line, "connect", lambda node, *_: Line(node))
    monkeypatch.setattr(supervisor, "_local", lambda seconds: mesh.lines["a"])
    assert mesh.ask("rest") == [{"event": "down"}]
    mesh.supervisor.supervise()
    assert mesh.lines["a"].sent[-1] == "rest"


def test_a_mesh_that_is_given_up_ends(mesh):
    assert mesh.ask("down") == [{"event": "down"}]
    assert mesh.supervisor._over


def test_a_mesh_ends_when_its_owner_is_not_heard(owned):
    mesh = owned
    mesh.ask("attach")
    mesh.tick(7)
    mesh.ask("beat")
    mesh.tick(7)
    assert not mesh.supervisor._over
    mesh.tick(2)
    assert mesh.supervisor._over


def test_a_mesh_whose_owner_never_came_ends(owned):
    owned.tick(9)
    assert owned.supervisor._over


def test_somebody_who_only_looks_does_not_keep_a_mesh(owned):
    mesh = owned
    mesh.ask("attach")
    other = mesh.connect()
    mesh.tick(7)
    mesh.ask("beat", *other)
    mesh.tick(2)
    assert mesh.supervisor._over


def test_a_mesh_without_an_owner_stands(mesh):
    mesh.tick(10**6)
    assert not mesh.supervisor._over
