"""A smoke on Slurm: what its job runs, what is seen of its nodes, and how that is judged."""

from types import SimpleNamespace

import pytest

from stackyard.build.builder import Built
from stackyard.build.catalog import resolve
from stackyard.mesh.preflight import NotReady
from stackyard.report import smokes
from stackyard.report.page import render_page
from stackyard.schedulers import slurm_client
from stackyard.system.errors import UsageError
from stackyard.validate import slurm_plan, slurm_smoke
from stackyard.validate.outcome import Observation
from stackyard.validate.slurm_follower import Follower
from stackyard.validate.smoke import SmokeWatcher
from tests.schemas.published import refused
from tests.unit import reports, samples, slurm_smokes
from tests.unit.slurm_jobs import site

SEEN = Observation(nodes=(), environment={})


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    found = slurm_smokes.Nodes(tmp_path)
    found.state = slurm_smokes.state("COMPLETED", "done")
    found.served(monkeypatch)
    return found


def run(nodes, **changes):
    follower = Follower(slurm_smokes.plan(nodes.folder, **changes), "17")
    outcome = slurm_smoke.run(follower, follower.asked.smoke, SEEN, SmokeWatcher())
    return outcome, follower.nodes


def outcomes(outcome):
    return {check.name: (check.outcome, check.why) for check in outcome.checks}


# What the job runs


def test_the_image_the_data_and_every_launch_are_steps_in_this_order(tmp_path):
    found = slurm_plan.steps(slurm_smokes.plan(tmp_path))
    assert [step.label for step in found] == ["image", "data", "one", "two", "two-resumed"]
    assert [step.job.nodes for step in found] == [2, 1, 1, 2, 2]
    assert [step.trains for step in found] == [False, False, True, True, True]
    # Each training has a name of its own, by which what it left is found.
    assert len({step.job.env.get("STACKYARD_JOB") for step in found[2:]}) == 3


def test_files_of_a_smoke_are_the_jobs_own_on_every_runtime(tmp_path):
    program = ("/srv/smoke/train.py", "--x=/srv/smoke/y", "--record={record}")
    asked = slurm_smokes.plan(tmp_path, smoke=samples.smoke(program=program))
    one = slurm_plan.steps(asked)[2].job
    work = f"{tmp_path}/work"
    assert one.program == (f"{work}/train.py", f"--x={work}/y", f"--record={tmp_path}/records/one")
    assert one.binds == {str(tmp_path): str(tmp_path)}
    found = slurm_plan.contents(asked)
    assert {"job.sh", "work/train.py", "work/stackyard_record.py"} < set(found)


def test_ranks_on_cpus_see_no_gpu_and_gpus_are_asked_for_by_the_node(tmp_path):
    found = slurm_plan.contents(slurm_smokes.plan(tmp_path))["job.sh"].decode()
    assert "NVIDIA_VISIBLE_DEVICES=void" in found and "--gres" not in found
    smoke = samples.smoke(device="cuda")
    found = slurm_plan.contents(slurm_smokes.plan(tmp_path, smoke=smoke))["job.sh"].decode()
    assert "#SBATCH --gres=gpu:1" in found and "survey_to facts-after" in found


def test_a_site_that_a_smoke_does_not_fit_is_refused(tmp_path):
    asked = slurm_smokes.plan(tmp_path, site=site("squashfs", image=""))
    with pytest.raises(UsageError, match="cannot run on Slurm"):
        slurm_plan.contents(asked)


# What is seen and judged


def test_a_good_smoke_passes_every_check_that_applies(nodes):
    outcome, placed = run(nodes)
    found = outcomes(outcome)
    assert "mesh" not in found
    assert {name: one for name, one in found.items() if one != ("passed", "")} == {}
    assert outcome.verdict == "passed"
    assert nodes.killed == ["two"]
    assert (nodes.folder / "killed" / "two").exists()
    assert placed.plan.names == outcome.observation.nodes == ("node1", "node2")
    assert [node.address for node in placed.plan.nodes] == ["10.0.0.1", "10.0.0.2"]
    assert placed.plan.image == "sha256:1"
    assert placed.machine["memory_gib"] == "2.0"
    # The nodes in rank order are those that the ranks named.
    assert outcome.observation.trainings["two"].nodes == ("node2", "node1")


def test_a_node_with_another_image_is_refused_with_its_name(nodes):
    nodes.image("node2", "e" * 64)
    with pytest.raises(NotReady) as caught:
        run(nodes)
    assert caught.value.exit_code == 3
    assert caught.value.what == "nothing was started: 1 problem on node2"
    assert "its packages are eeeeeeeeeeee, not dddddddddddd" in caught.value.why
    assert nodes.killed == []


def test_a_node_that_says_nothing_of_its_image_fails_the_smoke(nodes):
    (nodes.folder / "images" / "node2.json").unlink()
    outcome, placed = run(nodes)
    assert placed is None
    assert outcomes(outcome)["loss_falls"][0] == "failed"


def test_data_that_could_not_be_made_fails_with_its_last_lines(nodes):
    nodes.over("data", 3)
    nodes.write("logs/data", "0: no space left\n")
    outcome, _ = run(nodes)
    verdict, why = outcomes(outcome)["loss_falls"]
    assert verdict == "failed"
    assert "data ended with exit code 3" in why and "no space left" in why


def test_a_failed_launch_is_the_last_and_its_output_is_kept(nodes):
    nodes.over("one", 1)
    nodes.write("logs/one", "0: ValueError: no\n0: stackyard: node1: the training failed\n")
    outcome, _ = run(nodes)
    assert outcomes(outcome)["loss_falls"][0] == "failed"
    assert "the launcher ended with exit code 1" in outcomes(outcome)["loss_falls"][1]
    assert outcome.observation.trainings["one"].tail.startswith("ValueError: no")
    assert list(outcome.observation.trainings) == ["one"]


def test_a_job_that_slurm_ends_is_named_with_its_state(nodes):
    (nodes.folder / "ended" / "one").unlink()
    nodes.state = slurm_smokes.state("TIMEOUT", "failed", "TimeLimit")
    outcome, _ = run(nodes)
    assert "job 17 is TIMEOUT (TimeLimit)" in outcomes(outcome)["loss_falls"][1]


def test_a_process_that_is_left_fails_and_a_node_that_tells_nothing_proves_nothing(nodes):
    nodes.left("one", "node2", "42 python3 train.py\n")
    outcome, _ = run(nodes)
    said = "one: node2 still runs 42: python3 train.py"
    assert outcomes(outcome)["no_strays"] == ("failed", said)
    (nodes.folder / "left" / "one" / "node2").unlink()
    outcome, _ = run(nodes)
    assert outcomes(outcome)["no_strays"] == ("not run", "one: node2 did not tell what is left")


def test_a_training_that_is_silent_is_killed_and_says_so(nodes):
    (nodes.folder / "ended" / "two-resumed").unlink()
    nodes.state = slurm_smokes.state()
    outcome, _ = run(nodes, smoke=samples.smoke(stall_seconds=0))
    found = outcome.observation.everything
    stopped = {name: one.stopped for name, one in found.items() if one.stopped}
    assert stopped and "no rank recorded anything for 0 s" in set(stopped.values())


def test_a_training_that_ended_before_its_kill_was_not_killed(nodes, monkeypatch):
    monkeypatch.setattr(slurm_client, "kill_step", lambda job, label: nodes.over(label))
    outcome, _ = run(nodes)
    assert not outcome.observation.killed.killed
    assert outcomes(outcome)["resume_equal"][0] == "failed"


# GPUs, which no node had yet


def test_gpus_of_the_nodes_go_into_the_fields_of_a_run_over_hosts(nodes):
    for number, host in enumerate(slurm_smokes.HOSTS, 1):
        nodes.write(f"facts/{host}", slurm_smokes.gpu_survey(host, number, 10))
        nodes.write(f"facts-after/{host}", slurm_smokes.gpu_survey(host, number, 10 + number * 50))
    via = "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0"
    nodes.write("logs/two", f"0: stackyard: nccl: node1:7:9 [0] {via}\n")
    outcome, placed = run(nodes, smoke=samples.smoke(device="cuda"))
    seen = outcome.observation.gpu
    assert (seen.placement.name, seen.placement.transport) == ("slurm", "NET")
    assert [gpu.uuid for gpu in seen.placement.gpus] == ["GPU-1", "GPU-2"]
    assert (seen.driver, bool(seen.no_bare)) == ("580.95.05", True)
    found = outcomes(outcome)
    assert found["memory"][1].endswith("; 100 MiB are still held on GPU-2")
    assert {found[name][0] for name in ("bandwidth", "throughput")} == {"not run"}
    # Ranks of the records above are on CPUs, which a smoke on GPUs does not take for GPUs.
    assert "computes on no GPU, not asked for" in found["transport"][1]
    assert outcome.observation.trainings["two"].nccl.transports
    assert [node.gpus for node in placed.plan.nodes] == [(0,), (0,)]


@pytest.mark.parametrize(("own", "gpus"), [("1", (1,)), ("GPU-0,GPU-1", (0, 1)), ("", (0, 1))])
def test_gpus_that_slurm_gave_to_other_jobs_are_not_taken_for_the_runs(nodes, own, gpus):
    """Slurm shows all of a node where it does not confine jobs (ConstrainDevices)."""
    for number, host in enumerate(slurm_smokes.HOSTS):
        one = slurm_smokes.gpu_survey(host, 0, 10)
        line = next(line for line in one.splitlines() if "GPU-0" in line)
        other = line.replace("0, GPU-0", "1, GPU-1", 1)
        for folder in ("facts", "facts-after"):
            nodes.write(f"{folder}/{host}", one.replace(line, f"{line}\n{other}"))
        nodes.image(host, gpus=own if number == 0 else "")
    _, placed = run(nodes, smoke=samples.smoke(device="cuda"))
    assert [node.gpus for node in placed.plan.nodes] == [gpus, (0, 1)]


# The report


def test_the_report_names_job_nodes_and_image(nodes, monkeypatch):
    monkeypatch.setattr(smokes, "_keep", lambda *_: None)
    image = resolve(samples.definitions(), "toy", "cpu")
    built = Built(image=image, tag="stackyard/toy:cpu", info=reports.INFO, seconds=0.0, made=False)
    project = SimpleNamespace(root=nodes.folder, definitions=samples.definitions())
    follower = Follower(slurm_smokes.plan(nodes.folder), "17")
    value = smokes.smoke_on_slurm(project, follower, built, SmokeWatcher(), {"python": {}})
    assert value["slurm"] == {"job": "17", "runtime": "filesystem"}
    assert [host["name"] for host in value["hosts"]["hosts"]] == ["node1", "node2"]
    assert {host["image"] for host in value["hosts"]["hosts"]} == {"sha256:1"}
    assert (value["nodes"], value["outcome"]) == (["node1", "node2"], "passed")
    assert value["not_applicable"] == {"mesh": slurm_smoke.NO_LOGINS}
    page = render_page(value)
    assert "<code>mesh</code> does not apply: Slurm starts the ranks" in page
    assert value["commands"]["two"][0] == "torchrun"
    assert refused("reports/smoke", value) == []
