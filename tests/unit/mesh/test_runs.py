"""What nodes are given before a job starts, and what is looked at there; engines are stand-ins."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stackyard.gpu.infiniband import Port
from stackyard.launch.job import Job
from stackyard.mesh import runs
from stackyard.mesh.hosts import Host
from stackyard.mesh.jobs import select
from stackyard.mesh.link import HostError
from stackyard.mesh.node import nccl_words
from stackyard.mesh.runs import Ended, Reached
from stackyard.mesh.standing import Standing
from stackyard.system.errors import MeshError, UsageError
from tests.unit.machines import NOW, fleet, node, plan

PLAN = plan(node("a", address="10.0.0.1"), node("b", address="10.0.0.2"))
RUN = Standing(plan=PLAN, containers={"a": "container-a", "b": "container-b"})
SETTINGS = "/run/stackyard/launch/demo-1/settings"


class Engine:
    """Keeps what is unpacked in each container, and has the files of `files`."""

    def __init__(self, files):
        self.given, self._files = {}, files

    def exec(self, container, words, *, seconds, stdin=b""):
        if words[0] == "tar":
            with tarfile.open(fileobj=io.BytesIO(stdin)) as archive:
                self.given.setdefault(container, {}).update(
                    {f"/{m.name}": archive.extractfile(m).read() for m in archive if m.isfile()}
                )
            return SimpleNamespace(code=0, output="")
        found = self._files.get(words[-1])
        return SimpleNamespace(code=int(found is None), output=found or "")


class Talk:
    """Answers as a supervisor, and keeps the job that it was to start."""

    def ask(self, do, event, **values):
        self.job = values.get("job")
        return {"port": 29500, "job": {"name": "demo-1"}}


def hosts(files=(), **env):
    machines = [Host(name=name, ssh=name, env=env.get(name, {})) for name in ("a", "b")]
    engine = Engine(dict(files))
    links = {host.name: SimpleNamespace(host=host, engine=engine) for host in machines}
    return Reached(fleet=fleet(*machines), links=links, failed={}), engine


def job(**changes):
    values = {
        "name": "demo-1", "stack": "accelerate", "base": "cpu", "image": "sha256:0", "nodes": 2,
        "per_node": 1, "device": "cpu", "program": ("train.py",), "folder": "/code",
    }  # fmt: skip
    return Job(**{**values, **changes})


def test_each_node_is_given_the_jobs_files_and_its_own_variables():
    there, engine = hosts(a={"A": "1"})
    wanted = job(files={"/srv/x.py": b"x"}, settings={"B": "2"}, env={"A": "0"})
    runs.begin(there, RUN, Talk(), wanted, select(PLAN, 1), 60.0)
    assert engine.given == {
        "container-a": {"/srv/x.py": b"x", SETTINGS: b"export A=1\nexport B=2\n"},
        "container-b": {"/srv/x.py": b"x", SETTINGS: b"export A=0\nexport B=2\n"},
    }


def test_a_configuration_that_every_node_reads_is_given_to_every_node():
    there, engine = hosts()
    runs.begin(there, RUN, Talk(), job(launcher="accelerate"), select(PLAN, 1), 60.0)
    place = "/run/stackyard/launch/demo-1/accelerate.yaml"
    assert [list(files) for files in engine.given.values()] == [[place], [place]]


def test_nothing_is_given_where_a_job_has_no_files():
    there, engine = hosts()
    runs.begin(there, RUN, Talk(), job(), select(PLAN, 1), 60.0)
    assert engine.given == {}


def test_a_deepspeed_configuration_is_read_on_the_first_node_before_the_start():
    there, _ = hosts(files={"/code/ds.json": '{"train_batch_size": 3}'})
    with pytest.raises(UsageError, match="cannot be divided by 2 ranks"):
        runs.remarks(there, RUN, job(program=("t.py", "--deepspeed=ds.json")), select(PLAN, 1))
    with pytest.raises(UsageError, match="which the first node cannot read"):
        runs.remarks(there, RUN, job(program=("t.py", "--deepspeed=no.json")), select(PLAN, 1))


def test_a_file_that_the_job_brings_is_read_from_it():
    there, _ = hosts()
    wanted = job(program=("t.py", "--deepspeed_config", "/srv/ds.json"),
                 files={"/srv/ds.json": b'{"train_batch_size": 3}'})  # fmt: skip
    (said,) = runs.remarks(there, RUN, wanted, select(PLAN, 1))
    assert "unless the program is model parallel" in said


def test_the_end_of_a_job_that_never_began_is_not_waited_for():
    class Silent:
        def send(self, do, **values):
            pass

        def events(self, seconds):
            yield {"event": "refused", "why": "there is no job demo-1"}
            raise AssertionError

    assert runs.end_job(Silent(), "demo-1") is None


def test_the_end_of_a_job_does_not_bring_its_whole_log_once_more():
    sent = {}

    class Talk:
        def send(self, do, **values):
            sent[do] = values

        def events(self, seconds):
            yield {"event": "ended", "job": {"name": "demo-1"}}

    assert runs.end_job(Talk(), "demo-1") == {"name": "demo-1"}
    assert sent["follow"]["from"] >= 2**40


@pytest.mark.parametrize(
    ("containers", "failed", "why"),
    [
        ({"a": "container-a"}, {}, "b: its container is exited"),
        (RUN.containers, {"b": HostError("b", "no route")}, "b: b: no route"),
        (RUN.containers, {}, "b: host b is not in this inventory"),
    ],
)
def test_a_node_that_cannot_take_part_is_named_before_anything_is_delivered(
    containers, failed, why
):
    there, _ = hosts()
    links = there.links if len(containers) < 2 else {"a": there.links["a"]}
    there = Reached(fleet=there.fleet, links=links, failed=failed)
    run = Standing(plan=PLAN, containers=containers, states={"a": "running", "b": "exited"})
    with pytest.raises(MeshError, match="b of run demo cannot take part") as caught:
        runs.require_valid(there, run, PLAN.names, NOW)
    assert caught.value.why == why
    assert caught.value.hint == "--exclude b, or: invoke down --name demo, then up"
    runs.require_valid(there, run, ("a",), NOW)


def test_only_nodes_that_took_part_are_lost():
    there, _ = hosts()
    links = {"a": SimpleNamespace(answers=lambda: True)}
    there = Reached(fleet=there.fleet, links=links, failed={})
    ended = Ended(job={"code": 1}, nodes=("a",), lost_nodes=("b",))
    assert runs.lost_nodes(there, RUN, ended) == []
    assert runs.lost_nodes(there, RUN, replace(ended, nodes=("a", "b"))) == ["b"]
    assert runs.lost_nodes(there, RUN, replace(ended, lost="silence")) == ["a"]


def test_a_job_that_may_save_is_given_its_time_and_its_record_comes_back():
    sent, waited = [], []

    class Talk:
        def send(self, do, **values):
            sent.append((do, values.get("seconds")))

        def events(self, seconds):
            waited.append(seconds)
            yield {"event": "log", "lines": []}
            yield {"event": "ended", "job": {"name": "demo-1", "reason": "x"}}

    assert runs.end_job(Talk(), "demo-1", "x", 90) == {"name": "demo-1", "reason": "x"}
    assert sent == [("stop", 90), ("follow", None)]
    assert waited == [90 + runs.END_SECONDS]


def test_what_nccl_used_is_read_on_every_node_and_held_against_their_ports(monkeypatch):
    class Nodes:
        def exec(self, container, words, *, seconds):
            assert words == nccl_words("demo-1")
            host = container[-1]
            lines = [
                f"{host}:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
                f"{host}:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via NET/Socket/0",
            ]
            return SimpleNamespace(code=0, output="\n".join(lines))

    there, _ = hosts()
    for link in there.links.values():
        link.engine = Nodes()
    port = Port(device="mlx5_0", number=1, state="ACTIVE", rate=400, layer="InfiniBand")
    fabric = SimpleNamespace(ports={"a": (port,), "b": (port,)})
    facts = SimpleNamespace(facts={"a": None, "b": None})
    asked = []
    monkeypatch.setattr(runs, "muster", lambda links, *_: asked.append(set(links)) or facts)
    monkeypatch.setattr(runs, "fabric_of", lambda *_: fabric)
    found, warned = runs.transport_of(there, RUN, ("a", "b"), "demo-1")
    assert found == [{"kind": "sockets", "hosts": ["a", "b"], "through": ["eth0"]}]
    assert len(warned) == 1 and "which have a mlx5_0:1 InfiniBand 400 Gbit/s active" in warned[0]
    runs.transport_of(there, RUN, ("a",), "demo-1")
    assert asked == [{"a", "b"}, {"a"}]


@pytest.mark.parametrize("lost", [True, False])
def test_nothing_is_announced_to_a_first_node_that_is_lost(monkeypatch, lost):
    """A supervisor that is stopped takes the request, and never answers it."""
    did = []
    monkeypatch.setattr(runs.standing, "give_up", lambda links, run: did.append("announced"))
    monkeypatch.setattr(runs.standing, "remove", lambda links, run: (["c"], {}))
    there, _ = hosts()
    assert runs.down(there, RUN, lost=lost) == (["c"], {})
    assert did == ([] if lost else ["announced"])


def test_a_job_without_nccl_used_nothing():
    there, _ = hosts()
    assert runs.transport_of(there, RUN, ("a", "b"), "demo-1") == ([], [])


def test_nccls_lines_are_found_in_its_own_files_and_among_what_ranks_print(
    tmp_path, allow_processes
):
    lines = ["a:1:1 [0] NCCL INFO Using network Socket", "a:1:1 [0] NCCL INFO Trees [0] -1",
             "a:1:1 [0] x.cc:1 NCCL WARN no memory"]  # fmt: skip
    (tmp_path / "nccl.a.1").write_text("\n".join(lines[:2]) + "\n")
    (tmp_path / "rank0.log").write_text(f"loss via 3\n{lines[2]}\n")
    *words, _, read = nccl_words("demo-1")
    done = subprocess.run([*words, tmp_path, read], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [lines[0], lines[2]]


def test_files_below_a_folder_are_those_of_all_nodes_that_are_there():
    class Nodes:
        def exec(self, container, words, *, seconds):
            assert words[:3] == ["find", "-L", "/shared/x"]
            found = {"container-a": "update-1/a.pt\n", "container-b": "update-1/b.pt\n"}
            return SimpleNamespace(code=0, output=found[container])

    there, _ = hosts()
    for link in there.links.values():
        link.engine = Nodes()
    assert runs.files_below(there, RUN, ("a", "b"), "/shared/x", 3) == {
        "update-1/a.pt", "update-1/b.pt",
    }  # fmt: skip
    alone = Standing(plan=PLAN, containers={"a": "container-a"})
    assert runs.files_below(there, alone, ("a", "b"), "/shared/x", 3) == {"update-1/a.pt"}
