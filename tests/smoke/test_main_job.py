"""The main job, as a user types it: all stacks, for real, judged and reported."""

from __future__ import annotations

import json
import subprocess

import pytest

from stackyard.definitions.project import ROOT, load_project
from stackyard.gpu.gpus import driver_version

INVOKE = str(ROOT / ".venv" / "bin" / "invoke")
CHECKS = [
    "mesh",
    "world_size",
    "loss_falls",
    "ranks_agree",
    "parity",
    "resume_equal",
    "no_strays",
]


def invoke(*words, folder=ROOT, timeout=900):
    return subprocess.run(
        [INVOKE, *words], cwd=folder, capture_output=True, text=True, timeout=timeout
    )


@pytest.fixture(scope="module")
def main_job():
    return invoke("smoke", "--gpus", "0", "--json")


def test_the_main_job_passes(main_job):
    assert main_job.returncode == 0, what_failed(main_job)


def what_failed(done):
    """The checks that did not pass, with what was measured and the last lines of trainings."""
    try:
        reports = json.loads(done.stdout)["reports"]
    except (ValueError, KeyError):
        return f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    lines = []
    for report in reports:
        if report["outcome"] == "passed":
            continue
        lines += [
            f"{report['stack']}: {check['name']} {check['outcome']}: {check['why']}"
            for check in report["checks"]
            if check["outcome"] != "passed"
        ]
        lines += [
            f"{report['stack']}: {name}: {tail}" for name, tail in report["last_lines"].items()
        ]
    return "\n".join(lines)


def test_standard_output_is_the_result_and_nothing_else(main_job):
    answer = json.loads(main_job.stdout)
    assert answer["outcome"] == "passed"
    stacks = sorted(load_project().definitions.stacks)
    assert [report["stack"] for report in answer["reports"]] == stacks


def test_the_report_files_are_what_was_printed(main_job):
    for report in json.loads(main_job.stdout)["reports"]:
        folder = ROOT / "reports" / report["stack"] / "cpu"
        assert json.loads((folder / "smoke.json").read_text()) == report
        assert "<polyline" in (folder / "smoke.html").read_text()


def test_every_check_says_what_was_measured_and_expected(main_job):
    for report in json.loads(main_job.stdout)["reports"]:
        assert [check["name"] for check in report["checks"]] == CHECKS
        for check in report["checks"]:
            assert check["outcome"] == "passed"
            assert check["measured"]
            assert check["expected"]
        assert all(phase["seconds"] >= 0 for phase in report["phases"])
        layouts = load_project().definitions.stacks[report["stack"]].smoke.layouts
        for layout in layouts:
            assert len(report["curves"][layout.name]) >= 40


def test_progress_goes_to_standard_error_as_plain_lines(main_job):
    assert "train" in main_job.stderr
    assert "\x1b[" not in main_job.stderr
    assert "loss" in main_job.stderr


def test_building_again_does_nothing(main_job):
    done = invoke("build", "--base", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    assert [image["made"] for image in json.loads(done.stdout)["images"]] == [False] * 3


@pytest.mark.skipif(bool(driver_version()), reason="it would train on this machine's GPUs")
def test_without_gpus_a_gpu_smoke_says_what_to_type():
    done = invoke("smoke", "fairseq", "--gpus", "2")
    assert done.returncode == 3
    assert "2 GPUs are wanted, none found on this machine" in done.stderr
    assert "invoke smoke fairseq --gpus 0" in done.stderr
