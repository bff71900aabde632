"""Every fix of every stack proves itself, and what does not is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from stackyard import cli_prove, guard
from stackyard.console import Terminal
from stackyard.engine import OWNER_LABEL
from stackyard.project import ROOT, load_project

pytestmark = pytest.mark.engine

INTERRUPTED = "megatron-scheduler-samples"
WANTED = {
    "tiny-good": "proven",
    "tiny-emptied": "not repaired",
    "tiny-weakened": "stale",
    "tiny-upstream": "stale",
    "tiny-other": "other symptom",
    "tiny-environment": "proven",
}


def test_what_does_not_prove_itself_is_found(project, engine):
    try:
        with guard.guarded(_Nobody), Terminal(json=True) as terminal:
            answer, code = cli_prove.prove_all(
                project, "all", "", "cpu", terminal, record_them=True
            )
    finally:
        engine.remove_image("stackyard/tiny:cpu")
    (report,) = answer["reports"]
    assert {proof["id"]: proof["verdict"] for proof in report["proofs"]} == WANTED
    assert (answer["outcome"], code) == ("failed", 1)
    assert engine.containers(f"stackyard.run={report['run']}") == []
    # Only what is proven is recorded.
    recorded = json.loads((project.root / "images/cpu.proofs.json").read_text())["tiny"]
    assert sorted(recorded) == ["tiny-environment", "tiny-good"]
    assert recorded["tiny-good"]["failed"] == "AssertionError: as released: tiny-good"
    assert "tiny-good" in (project.root / "docs/fixes.md").read_text()


class _Nobody:
    """No warden: the test removes what it makes."""

    def send(self, line: bytes) -> None:
        pass

    def finish(self) -> None:
        pass


def test_every_fix_and_limit_of_every_stack_proves_itself():
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "prove", "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    wrong = [
        (report["stack"], proof["id"], proof["verdict"], proof["why"], proof["last_lines"])
        for report in answer.get("reports", [])
        for proof in report["proofs"]
        if proof["verdict"] != "proven"
    ]
    assert wrong == []
    assert (done.returncode, answer["outcome"]) == (0, "passed"), answer.get("error")
    assert {report["stack"] for report in answer["reports"]} == set(
        load_project().definitions.stacks
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_proving_leaves_nothing(engine, number):
    before = set(_ours(engine))
    proving = subprocess.Popen(
        [sys.executable, "-m", "invoke", "prove", "megatron", "--fix", INTERRUPTED],
        cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _until(lambda: set(_ours(engine)) - before or proving.poll() is not None)
        assert set(_ours(engine)) - before, "it ended before it began"
        os.kill(proving.pid, number)
        code = proving.wait(timeout=60)
    finally:
        proving.kill()
        proving.wait()
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    _until(lambda: set(_ours(engine)) <= before)


def _ours(engine):
    return [c.name for c in engine.containers(OWNER_LABEL) if "prove-megatron" in c.name]


def _until(there, seconds=90):
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.1)
