"""Several jobs in one allocation, as bash runs them beside stand-ins for Slurm's programs."""

import contextlib
import json
import os
import signal

import pytest

from stackyard.mesh import survey
from stackyard.schedulers import slurm_steps
from stackyard.system.errors import UsageError
from stackyard.validate import slurm_plan
from tests.unit import benches, slurm_smokes
from tests.unit.schedulers.test_slurm_script import Cluster
from tests.unit.slurm_jobs import job, site

pytestmark = pytest.mark.once  # bash runs the job's script
LEAVES = """#!/bin/sh
sleep 60 > /dev/null 2>&1 &
echo $! >> "$(dirname "$0")/../left-behind"
"""
FAILS = """#!/bin/sh
case "$*" in *records/ours-2-*) exit 3 ;; esac
"""


@pytest.fixture
def cluster(tmp_path, allow_processes, monkeypatch):
    monkeypatch.setattr(slurm_steps, "GRACE_SECONDS", 0)
    return Cluster(tmp_path)


def script(cluster, runtime="filesystem"):
    asked = slurm_smokes.plan(cluster.folder / "job", site=site(runtime))
    cluster.folder.joinpath("job").mkdir(exist_ok=True)
    return slurm_plan.contents(asked)["job.sh"].decode()


def codes(cluster):
    found = {}
    for path in (cluster.folder / "job" / "ended").glob("[!.]*"):
        value = json.loads(path.read_text())
        assert value["began"] <= value["ended"]
        found[path.name] = value["code"]
    return found


@pytest.mark.parametrize("runtime", ["filesystem", "pyxis", "oci", "apptainer"])
def test_every_step_runs_in_turn_and_tells_its_end(cluster, runtime):
    cluster.programs.recorder("prepare")
    done = cluster.run(script(cluster, runtime))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "stackyard: done"
    steps = ("image", "data", "one", "two", "two-resumed")
    assert codes(cluster) == dict.fromkeys(steps, 0)
    ports = [word.split(":")[-1] for call in cluster.programs.calls("torchrun")
             for word in call["argv"] if word.startswith("--rdzv-endpoint")]  # fmt: skip
    # A port may stay in use after a kill: every launch has its own.
    assert ports == ["20019", "20020", "20020", "20021", "20021"]
    folder = cluster.folder / "job"
    for host in ("node1", "node2"):
        facts = survey.parse((folder / "facts" / host).read_text(), 0.0, 0.0)
        assert facts is not None and facts.memory_bytes > 0
        for label in steps[2:]:
            assert (folder / "left" / label / host).read_text().strip() == ""
    assert "stackyard: node1: address" in (folder / "logs" / "two").read_text()


def test_a_step_that_fails_is_the_last(cluster):
    cluster.programs.recorder("prepare", code=3)
    done = cluster.run(script(cluster))
    assert done.returncode == 1
    assert done.stderr == "stackyard: data failed with exit code 3\n"
    assert codes(cluster) == {"image": 0, "data": 3}


def test_after_a_step_that_was_killed_on_purpose_the_next_one_runs(cluster):
    cluster.programs.recorder("prepare")
    cluster.programs.recorder("torchrun", code=9)
    text = script(cluster)
    (cluster.folder / "job" / "killed").mkdir()
    for label in ("one", "two"):
        (cluster.folder / "job" / "killed" / label).touch()
    done = cluster.run(text)
    assert done.stderr == "stackyard: two-resumed failed with exit code 9\n"
    assert [codes(cluster)[label] for label in ("one", "two", "two-resumed")] == [9, 9, 9]


def test_a_failure_with_kin_leaves_out_only_its_kin_and_the_job_fails_at_its_end(cluster):
    cluster.programs.recorder("prepare")
    cluster.programs.program("torchrun", FAILS)
    cluster.folder.joinpath("job").mkdir()
    plan = benches.plan(2, nodes=2)
    text = slurm_plan.contents(slurm_smokes.bench(cluster.folder / "job", plan))["job.sh"]
    done = cluster.run(text.decode())
    good = dict.fromkeys(("image", "data", *(turn.label for turn in plan.turns())), 0)
    assert good.pop("ours-2-2") == 0
    assert codes(cluster) == {**good, "ours-2-1": 3}
    assert "stackyard: ours-2-2: left out, as ours-2-1 failed" in done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "stackyard: failed: ours-2-1\n")


def test_processes_that_a_training_left_are_listed_with_their_command(cluster):
    cluster.programs.recorder("prepare")
    cluster.programs.program("torchrun", LEAVES)
    try:
        assert cluster.run(script(cluster)).returncode == 0
        (left,) = (cluster.folder / "job" / "left" / "one" / "node1").read_text().splitlines()
        assert left.split(" ", 1)[1].strip() == "sleep 60"
    finally:
        for number in (cluster.folder / "left-behind").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)


def test_what_a_killed_step_could_not_remove_goes_with_it(cluster):
    cluster.programs.recorder("prepare")
    place = cluster.folder / "tmp"
    (place / "stackyard-17-abc").mkdir(parents=True)
    (place / "stackyard-170-abc").mkdir()
    text = script(cluster).replace("${TMPDIR:-/tmp}", str(place))
    assert cluster.run(text).returncode == 0
    assert [path.name for path in place.iterdir()] == ["stackyard-170-abc"]


def test_a_value_that_would_end_a_part_of_the_script_is_refused(tmp_path):
    bad = job(program=("train.py", "x\nSTACKYARD_NODE\ny"), folder="/x")
    step = slurm_steps.JobStep(label="one", job=bad)
    with pytest.raises(UsageError, match="a line that is only STACKYARD_NODE"):
        slurm_steps.render(job(), [step], site("filesystem"), "/x")
