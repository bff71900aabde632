"""`invoke bench --gpus 0`, as a user types it: every side at a tiny size, and nothing left."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from stackyard.definitions.project import ROOT, load_project
from stackyard.validate.bench.read import load_bench
from tests.smoke.test_main_job import INVOKE, invoke
from tests.trees import copy_tree

STACKS = sorted(load_project().definitions.stacks)
FIRST = "fairseq"  # the one with the fewest sides


@pytest.fixture(
    scope="module",
    params=[pytest.param(s, marks=() if s == FIRST else pytest.mark.repeat) for s in STACKS],
)
def played(request):
    done = invoke("bench", request.param, "--gpus", "0", "--rounds", "1", "--json", timeout=600)
    return request.param, done


def test_every_side_is_played_twice_at_once_on_one_rank_and_on_two_and_makes_the_same_losses(
    played,
):
    stack, done = played
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    (report,) = json.loads(done.stdout)["reports"]
    sides = [side.name for side in load_bench(ROOT, stack).sides if not side.asked]
    assert [run["label"] for run in report["runs"]] == [
        label
        for suffixes in (("1-1.1", "1-1.2"), ("2-1",))
        for side in sides
        for label in (f"{side}-{suffix}" for suffix in suffixes)
    ]
    trained = [phase["name"] for phase in report["phases"] if phase["name"].startswith("train ")]
    assert trained == [
        *(f"train {side}-1-1, 2 at once" for side in sides),
        *(f"train {side}-2-1" for side in sides),
    ]
    assert {check["name"]: check["outcome"] for check in report["checks"]} == {
        "trained": "passed", "own_device": "passed", "same_loss": "passed", "no_strays": "passed",
    }  # fmt: skip


def test_speeds_are_measured_and_no_mfu_is_made_up(played):
    stack, done = played
    (report,) = json.loads(done.stdout)["reports"]
    assert all(entry["speed"] > 0 for entry in report["results"])
    assert [entry["mfu"] for entry in report["results"]] == [None] * len(report["results"])
    folder = ROOT / "reports" / stack / "cpu"
    assert json.loads((folder / "bench.json").read_text()) == report
    assert "<polyline" in (folder / "bench.html").read_text()


def test_nothing_is_left_of_a_bench(played, engine):
    _, done = played
    (report,) = json.loads(done.stdout)["reports"]
    assert report["run"] not in engine.runs()


def test_without_gpus_a_gpu_bench_says_what_to_type():
    done = invoke("bench", "fairseq", "--gpus", "99")
    assert done.returncode == 3
    assert "invoke bench fairseq --gpus 0" in done.stderr


def test_an_unknown_side_is_refused_before_anything_is_started():
    done = invoke("bench", "fairseq", "--gpus", "0", "--sides", "layers")
    assert done.returncode == 2
    assert "did you mean 'layer'?" in done.stderr


@pytest.mark.repeat  # tests/unit/validate/test_bench.py judges failed trainings
def test_a_side_that_fails_is_shown_with_its_last_lines_and_the_others_go_on(tmp_path):
    tree = copy_tree(tmp_path)
    path = tree / "images" / "fairseq" / "bench.yml"
    side = "    what: all fused parts\n"
    assert side in path.read_text()
    path.write_text(path.read_text().replace(side, f"{side}    args: [--no-such-thing]\n"))
    done = invoke("bench", "fairseq", "--gpus", "0", "--rounds", "1", "--json", folder=tree)
    assert done.returncode == 1, done.stderr[-3000:]
    (report,) = json.loads(done.stdout)["reports"]
    assert [(run["label"], run["failed"]) for run in report["runs"]] == [
        ("stock-1-1.1", False), ("stock-1-1.2", False), ("ours-1-1.1", True),
        ("ours-1-1.2", True), ("stock-2-1", False), ("ours-2-1", True),
    ]  # fmt: skip
    assert "unrecognized arguments: --no-such-thing" in report["last_lines"]["ours-2-1"]
    outcomes = {check["name"]: check["outcome"] for check in report["checks"]}
    assert outcomes["trained"] == "failed"


@pytest.mark.repeat  # smokes are interrupted in the kill matrix
def test_an_interrupted_bench_leaves_nothing_but_what_it_saw(engine):
    words = [INVOKE, "bench", "fairseq", "--gpus", "0", "--rounds", "1"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            if "ours-1-1 x 2: update" in line:  # stock is done, two trainings are under way
                break
        mine = {run for run, owner in engine.runs().items() if f" {running.pid} " in owner}
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
        assert running.wait(30) == 130
    assert "fairseq: interrupted after 2 of 6 trainings: report in reports/" in said
    report = json.loads((ROOT / "reports" / "fairseq" / "cpu" / "bench.json").read_text())
    assert report["outcome"] == "failed"
    assert {run["label"]: run["speed"] > 0 for run in report["runs"]} == {
        "stock-1-1.1": True, "stock-1-1.2": True,
    }  # fmt: skip
    assert any(run.startswith("fairseq-") for run in mine)
    assert not mine & set(engine.runs())
