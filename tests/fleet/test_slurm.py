"""The three stacks train over two nodes of a real Slurm, end as they should, and leave nothing."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from stackyard.build.builder import Builder
from stackyard.definitions.project import INSIDE, ROOT
from stackyard.mesh.nodes import SMOKE_FOLDER
from stackyard.schedulers import slurm, slurm_client
from stackyard.schedulers.slurm_site import SlurmSite
from stackyard.system.engine import Engine
from tests.fleet.emulated import docker
from tests.fleet.images import build_image
from tests.fleet.programs import LIGHT
from tests.fleet.slurm_cluster import IMAGES, LABEL, USER, running_cluster, unpacked, wait
from tests.fleet.slurm_smoke import (
    ENDLESS,
    PROJECT,
    STACKS,
    assert_trained,
    cancelled,
    events,
    finished,
    job,
    losses,
)

pytestmark = pytest.mark.engine

# The cluster of this one also has its image unpacked.
UNPACKED = "fairseq"
in_one_cluster = pytest.mark.parametrize("cluster", [UNPACKED], indirect=True)
EVERY = [
    pytest.param(stack, marks=() if stack == UNPACKED else pytest.mark.repeat) for stack in STACKS
]
ROOTFS = f"{IMAGES}/{UNPACKED}"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """A cluster of a stack, one at a time: two cores are too few for several."""
    with Engine() as engine:
        built = Builder(PROJECT, engine, lambda stack, text: None).build_all(list(STACKS), "cpu")
    by_stack = {image.image.stack.name: image for image in built}
    with unpacked(by_stack[UNPACKED].tag, UNPACKED) as volume:

        def start(stack):
            image = build_image(f"{LABEL}:{stack}", "slurm", by_stack[stack].tag)
            return running_cluster(image, tmp_path_factory.mktemp(stack), volume)

        yield start, by_stack


@pytest.fixture(scope="module", params=EVERY)
def cluster(request, clusters):
    start, built = clusters
    with start(request.param) as running:
        yield request.param, running, dict(e.split("=", 1) for e in built[request.param].info.env)


@pytest.fixture
def submit(cluster, monkeypatch):
    """Exports a stack's smoke as a job and submits it, as a user would; gives number and folder."""
    stack, running, image_env = cluster
    monkeypatch.setenv("PATH", f"{running.commands}:{os.environ['PATH']}")

    def run(runtime="filesystem", image="", **changes):
        folder = running.shared / f"job-{time.monotonic_ns()}"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        site = SlurmSite(
            runtime=runtime, image=image, image_env=image_env, minutes=5, join_seconds=60
        )
        for name, text in slurm.render(job(stack, folder, **changes), site).items():
            (folder / name).write_text(text)
        return slurm_client.submit(folder), folder

    yield run
    # A job that a failed test leaves would hold the nodes of the next.
    if running.on("ctl", "squeue", "-h"):
        running.on("ctl", "scancel", "--user", USER)
        wait(lambda: running.on("ctl", "squeue", "-h") == "", 60)


def training_job(submit, **changes):
    """A job that trains on and on, with both ranks some updates on their way."""
    number, folder = submit(updates=ENDLESS, **changes)
    wait(lambda: min(len(losses(folder, rank)) for rank in (0, 1)) > 5, 60)
    return number, folder


@pytest.mark.repeat  # a smoke trains over both nodes, too, and is judged
def test_a_job_trains_over_two_nodes_of_the_images_own_file_system(cluster, submit):
    stack, running, _ = cluster
    number, folder = submit()
    found, log = finished(number)
    assert_trained(found, log, folder)
    # One log, whose name is known.
    assert (folder / slurm.log_name(stack, number)).read_text().rstrip("\n") == log
    assert running.processes() == []
    left = running.on("node1", "find", SMOKE_FOLDER, "-name", "*.py")
    assert left == "", "files of the job stayed on the node"


@pytest.mark.repeat  # Slurm's own containers are cancelled below, runs of the command line are, too
def test_a_cancelled_job_leaves_no_process_on_any_node(cluster, submit):
    _, running, _ = cluster
    number, _ = training_job(submit)
    assert {line.split(":")[0] for line in running.processes()} == {"node1", "node2"}
    cancelled(running, number)
    assert running.on("node2", "find", SMOKE_FOLDER, "-name", "*.py") == ""


# Through the command line, as a user would


@pytest.fixture
def words(cluster, monkeypatch):
    """What follows `invoke export slurm fairseq` and `invoke run fairseq --on slurm`, and --out."""
    _, running, _ = cluster
    monkeypatch.setenv("PATH", f"{running.commands}:{os.environ['PATH']}")
    site = running.shared / "site.yml"
    site.write_text("slurm: {minutes: 5, join_seconds: 60, runtime: filesystem}\n")
    return ["--nodes", "2", "--gpus", "0", "--site", str(site), "--out"]


@pytest.mark.repeat  # the example of the next test trains to its end, too
@in_one_cluster
def test_an_exported_example_trains_over_two_nodes(cluster, words):
    _, running, _ = cluster
    folder = running.shared / "exported"
    words = [*words, str(folder), "--example", "lm-ddp", "--set", "updates=40,log_every=1"]
    subprocess.run([ROOT / ".venv/bin/invoke", "export", "slurm", "fairseq", *words], cwd=ROOT,
                   check=True, capture_output=True, timeout=120)  # fmt: skip
    folder.chmod(0o777)
    found, log = finished(slurm_client.submit(folder), 180)
    assert (found.state, found.code) == ("done", 0), log[-3000:]
    assert "'distributed_world_size': 2" in log
    assert {"node1", "node2"} == set(re.findall(r"stackyard: (node\d): address ", log))
    found_losses = [float(value) for value in re.findall(r" loss=([0-9.]+)", log)]
    assert len(found_losses) >= 35
    assert found_losses[-1] < 0.7 * found_losses[0]


@pytest.fixture
def signalled(cluster, words):
    """A job that Slurm signals, as when it preempts one: SIGTERM to every process of its steps.

    Its folder, the update that its ranks saved, and where.
    """
    _, running, _ = cluster
    folder, save = running.shared / "stopped", running.shared / "checkpoints"
    save.mkdir(mode=0o777)
    save.chmod(0o777)
    words = [*words, str(folder), "--example", "lm-ddp", "--set", "updates=60,log_every=1",
             "--save", str(save)]  # fmt: skip
    subprocess.run([ROOT / ".venv/bin/invoke", "export", "slurm", "fairseq", *words], cwd=ROOT,
                   check=True, capture_output=True, timeout=120)  # fmt: skip
    folder.chmod(0o777)

    number = slurm_client.submit(folder)

    def on_its_way():
        over = slurm_client.status(number).ended
        return over or max(updates(_log(folder, number)), default=0) > 10

    wait(on_its_way, 240)
    assert not slurm_client.status(number).ended, _log(folder, number)[-3000:]
    running.on("ctl", "scancel", "--signal=TERM", number)
    found, log = finished(number)
    assert (found.state, found.slurm) == ("failed", "FAILED")
    last = {int(update) for update in re.findall(r"stopped by SIGTERM after update (\d+)", log)}
    assert len(last) == 1 and "stackyard: node1: stopped by a signal" in log, log[-3000:]
    return folder, last.pop(), save


def updates(log):
    return [int(number) for number in re.findall(r"num_updates=(\d+),", log)]


@in_one_cluster
def test_a_job_that_slurm_signals_saves(signalled):
    _, last, save = signalled
    assert last > 10 and (save / "checkpoint_last.pt").stat().st_size > 0


@pytest.mark.repeat  # what is saved that way is taken up in test_stop.py
@in_one_cluster
def test_the_job_after_one_that_slurm_signalled_goes_on(signalled):
    folder, last, _ = signalled
    found, log = finished(slurm_client.submit(folder), 300)
    assert (found.state, found.code) == ("done", 0), log[-3000:]
    assert (min(updates(log)), max(updates(log))) == (last + 1, 60)


def _log(folder, number):
    """What a job has said so far."""
    return "".join(path.read_text() for path in folder.glob(f"*-{number}.log"))


@in_one_cluster
def test_a_run_that_is_interrupted_is_cancelled_and_leaves_nothing(cluster, words):
    _, running, _ = cluster
    folder, program = running.shared / "attached", running.shared / "light.py"
    program.write_text(LIGHT)
    line = [ROOT / ".venv/bin/invoke", "run", "fairseq", "--on", "slurm", *words, folder,
            "--folder", running.shared, "--", program]  # fmt: skip
    # The job's user, who is not who types here, writes the log.
    with subprocess.Popen(line, cwd=ROOT, umask=0, text=True, stdout=subprocess.PIPE) as typed:
        try:
            said = ""
            for part in typed.stdout:
                said += part
                if "update 5 " in part:
                    break
            assert "update 5 " in said, said
            assert {line.split(":")[0] for line in running.processes()} == {"node1", "node2"}
        finally:
            typed.send_signal(signal.SIGINT)
        typed.communicate(timeout=60)
    assert typed.returncode == 130
    wait(lambda: running.processes() == [], 10)
    assert not folder.exists()
    assert running.on("ctl", "squeue", "-h") == ""


# Smokes and benches


def smoke(cluster, words, *more, **options):
    return typed_on(cluster, words, "smoke", *more, **options)


def typed_on(cluster, words, kind, *more, **options):
    """`invoke smoke STACK --on slurm`, typed; the job's user writes into its folder."""
    stack, running, _ = cluster
    folder = running.shared / kind
    # A step that Slurm had to kill, after its KillWait, leaves its scratch.
    for node in ("node1", "node2"):
        running.on(node, "find", "/tmp", "-maxdepth", "1", "-name", "stackyard-[0-9]*",
                   "-exec", "rm", "-rf", "{}", "+")  # fmt: skip
    line = [ROOT / ".venv/bin/invoke", kind, stack, "--gpus", "0", "--on", "slurm",
            "--site", words[words.index("--site") + 1], "--out", folder, *more]  # fmt: skip
    typed = subprocess.Popen(line, cwd=ROOT, umask=0, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, **options)  # fmt: skip
    return typed, folder


def assert_nothing_left(running, folder):
    wait(lambda: running.processes() == [], 10)
    assert not folder.exists()
    assert running.on("ctl", "squeue", "-h") == ""
    for node in ("node1", "node2"):
        # The scratch of steps; a job's own folder, without --save, stays there.
        assert running.on(node, "find", "/tmp", "-name", "stackyard-[0-9]*") == ""


def test_a_smoke_trains_kills_and_resumes_and_is_the_training_of_an_earlier_report(
    cluster, words, smoked, tmp_path
):
    """Its report names the nodes. The earlier one is of a smoke over hosts."""
    stack, running, _ = cluster
    before, _ = smoked(stack)
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(before))
    typed, folder = smoke(cluster, words, "--json", "--against", str(earlier))
    said, errors = typed.communicate(timeout=420)
    (value,) = json.loads(said)["reports"]
    wrong = [check for check in value["checks"] if check["outcome"] != "passed"]
    assert (wrong, typed.returncode) == ([], 0), errors[-2000:]
    assert "no ssh among them" in value["not_applicable"]["mesh"]
    assert value["nodes"] == ["node1", "node2"]
    found = value["hosts"]["hosts"]
    assert {host["image"] for host in found} == {value["image"]["id"]}
    assert all(host["interface"] and host["address"] for host in found)
    assert value["slurm"]["runtime"] == "filesystem"
    resumed = next(check for check in value["checks"] if check["name"] == "resume_equal")
    assert resumed["measured"]["killed_after"] >= resumed["measured"]["updates"]
    assert_same_training(value, before)
    assert_nothing_left(running, folder)


def assert_same_training(value, before):
    found, layouts = value["against"], set(value["commands"])
    assert found["outcome"] == "passed"
    assert found["before"]["run"] == before["run"] != value["run"]
    assert {curve["layout"] for curve in found["curves"]} >= layouts
    assert all(curve["updates"] > 15 for curve in found["curves"])  # a resumed one has the rest
    assert {row["layout"] for row in found["speeds"]["layouts"]} == layouts
    assert found["packages"]["from"] == "installed"
    assert found["packages"]["python"] == {"added": {}, "removed": {}, "moved": []}
    installed = value["image"]["installed"]
    assert installed["python"]["torch"] == value["image"]["packages"]["torch"]
    page = (ROOT / "reports" / value["stack"] / "cpu" / "smoke-slurm.html").read_text()
    assert "Against an earlier smoke" in page


@pytest.mark.repeat  # its steps are a smoke's, its figures those of one machine
def test_a_bench_trains_its_sides_in_turn_over_both_nodes(cluster, words):
    _, running, _ = cluster
    sides = ("--sides", "stock")  # all of them are trained on one machine, in test_bench.py
    typed, folder = typed_on(cluster, words, "bench", "--rounds", "1", *sides, "--json")
    said, errors = typed.communicate(timeout=420)
    (value,) = json.loads(said)["reports"]
    wrong = [check for check in value["checks"] if check["outcome"] != "passed"]
    assert (wrong, typed.returncode) == ([], 0), errors[-2000:]
    assert [run["label"] for run in value["runs"]] == [
        f"{side}-{ranks}-1" for ranks in (1, 2) for side in value["sides"]
    ]
    assert all(line["speed"] for line in value["results"])
    device = next(check for check in value["checks"] if check["name"] == "own_device")
    assert len(device["measured"][value["runs"][-1]["label"]]) == 2
    found = value["hosts"]["hosts"]
    assert [host["name"] for host in found] == ["node1", "node2"]
    assert {host["image"] for host in found} == {value["image"]["id"]}
    assert all(host["interface"] and host["address"] for host in found)
    assert value["slurm"]["runtime"] == "filesystem"
    assert_nothing_left(running, folder)


@in_one_cluster
@pytest.mark.repeat  # unit tests hold the refusal; here it is a node's own file that differs
def test_a_node_with_another_image_is_named_and_nothing_is_trained(cluster, words):
    _, running, _ = cluster
    where = "/usr/local/lib/python3.11/dist-packages/fairseq/added.py"
    running.on("node2", "touch", where)
    try:
        typed, folder = smoke(cluster, words)
        _, errors = typed.communicate(timeout=180)
    finally:
        running.on("node2", "rm", where)
    assert typed.returncode == 3, errors[-2000:]
    assert re.search(r"nothing was started: 1 problem on node2\n.*node2: its image is another one",
                     errors), errors  # fmt: skip
    assert_nothing_left(running, folder)


@in_one_cluster
@pytest.mark.repeat  # a run that is interrupted is cancelled by the same code
def test_a_smoke_that_is_interrupted_cancels_its_job_and_leaves_nothing(cluster, words):
    _, running, _ = cluster
    typed, folder = smoke(cluster, words)
    try:
        wait(lambda: list(folder.glob("records/ddp-2/rank1.jsonl")), 180)
    finally:
        typed.send_signal(signal.SIGINT)
    typed.communicate(timeout=90)
    assert typed.returncode == 130
    assert_nothing_left(running, folder)


# What does not depend on the stack is tried with one of them, and a program that starts fast

TOY = """
import os, sys, time
import torch
import torch.distributed as dist
from stackyard_record import Recorder

dist.init_process_group("gloo")
record = Recorder(sys.argv[1], dist.get_rank(), dist.get_world_size(), backend="gloo")
for step in range(1, int(sys.argv[2]) + 1):
    value = torch.ones(1)
    dist.all_reduce(value)
    record.step(step, value.item())
    time.sleep(0.05)
record.end(step)
dist.destroy_process_group()
"""


@pytest.fixture
def submit_toy(cluster, submit):
    def run(updates=ENDLESS, **changes):
        toy, folder = f"{SMOKE_FOLDER}/toy.py", cluster[1].shared / "records"
        cluster[1].on("ctl", "rm", "-rf", str(folder))
        beside = (INSIDE / "stackyard_record.py").read_bytes()
        fields = {
            "program": (toy, str(folder / "record"), str(updates)),
            "files": {toy: TOY.encode(), f"{SMOKE_FOLDER}/stackyard_record.py": beside},
            "prepare": (),
            "binds": {str(folder): str(folder)},
        }
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        number, _ = submit(**{**fields, **changes})
        return number, folder

    return run


def all_move(folder):
    """Whether both ranks have made some updates."""
    return min(len(losses(folder, rank)) for rank in (0, 1)) > 5


@in_one_cluster
def test_a_job_trains_in_slurms_own_containers_and_can_be_cancelled(cluster, submit_toy):
    _, running, _ = cluster
    number, folder = submit_toy(updates=20, runtime="oci", image=ROOTFS)
    assert_toy_trained(*finished(number), folder)
    number, folder = submit_toy(runtime="oci", image=ROOTFS)
    wait(lambda: all_move(folder), 60)
    cancelled(running, number)
    assert list(running.shared.glob("job-*/.*")) == []
    assert running.on("node1", "find", f"{ROOTFS}{SMOKE_FOLDER}", "-name", "*.py") == ""


def assert_toy_trained(found, log, folder):
    assert found.state == "done", log
    assert [losses(folder, rank) for rank in (0, 1)] == [[2.0] * 20] * 2
    assert {events(folder, rank)[0]["host"] for rank in (0, 1)} == {"node1", "node2"}


@in_one_cluster
def test_two_ranks_on_one_node_need_no_other_and_leave_an_unpacked_image_as_it_was(
    cluster, submit_toy
):
    _, running, _ = cluster
    (started := running.shared / "started").touch()
    number, folder = submit_toy(updates=3, nodes=1, per_node=2, image=ROOTFS)
    found, log = finished(number)
    assert found.state == "done", log
    assert [losses(folder, rank) for rank in (0, 1)] == [[2.0] * 3] * 2
    assert running.on("node1", "find", ROOTFS, "-newer", str(started)) == ""


@in_one_cluster
def test_a_rank_that_is_killed_ends_the_job_with_its_node_named(cluster, submit_toy):
    _, running, _ = cluster
    number, folder = submit_toy()
    wait(lambda: all_move(folder), 60)
    starts = [events(folder, rank)[0] for rank in (0, 1)]
    (victim,) = [start for start in starts if start["host"] == "node2"]
    running.on("node2", "kill", "-9", str(victim["pid"]))
    found, log = finished(number, 20)
    assert (found.state, found.slurm) == ("failed", "FAILED")
    assert found.code != 0
    assert "stackyard: node2: the training failed" in log
    assert f"rank      : {victim['rank']} (local_rank: 0)" in log
    wait(lambda: running.processes() == [], 10)


@in_one_cluster
def test_a_node_that_cannot_prepare_keeps_all_from_training(cluster, submit_toy):
    _, running, _ = cluster
    number, folder = submit_toy(prepare=(("bash", "-c", 'test "$HOSTNAME" = node1'),))
    found, log = finished(number, 30)
    assert found.slurm == "FAILED"
    assert "stackyard: node2: preparing failed with exit code 1" in log
    assert not (folder / "record").exists()
    assert running.processes() == []


@in_one_cluster
def test_the_submitters_environment_stays_outside(cluster, submit_toy):
    # A step that Slurm had to kill, after its KillWait, leaves its files to the next job.
    for node in ("node1", "node2"):
        cluster[1].on(node, "find", SMOKE_FOLDER, "-name", "*.py", "-delete")
    show = ("bash", "-c", "env | sed 's/^/ENV /'")
    number, _ = submit_toy(launcher="each", program=show)
    found, log = finished(number, 30)
    assert found.state == "done", log
    names = {line.split("ENV ")[1].split("=")[0] for line in log.splitlines() if "ENV " in line}
    assert {"PYTHONPATH", "SLURM_JOB_ID"} <= names
    # Whoever submits in this cluster has it, and Slurm hands it over.
    assert "HOSTNAME" not in names
    assert "SLURM_PROCID" not in names
    left = cluster[1].on("node1", "find", SMOKE_FOLDER, "-name", "*.py")
    assert left == "", "files of the job stayed on the node"


@in_one_cluster
@pytest.mark.repeat  # a killed rank ends the job with its node named, too
def test_a_lost_node_ends_the_job_and_is_named(cluster, submit_toy):
    """The last one: the cluster has a node less afterwards."""
    _, running, _ = cluster
    number, folder = submit_toy()
    wait(lambda: all_move(folder), 60)
    docker("kill", f"{running.run}-node2")
    found, log = finished(number, 60)
    assert (found.state, found.slurm) == ("failed", "NODE_FAIL")
    assert found.code != 0
    assert "Node failure on node2" in log
    others = [line for line in running.processes(["node1"]) if "srun" not in line]
    assert others == []
