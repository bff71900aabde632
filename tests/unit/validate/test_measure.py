"""Measuring the GPUs, but for the GPUs."""

import json
from pathlib import Path

import pytest

from stackyard.mesh.supervisor import Refused
from stackyard.system.engine import ExecResult
from stackyard.system.errors import EngineError
from stackyard.validate import measure
from tests.unit.validate.test_training_at_once import Node

LOGS = Path(__file__).parent.parent / "logs"


def test_nccls_own_warning_is_the_reason_wherever_it_stands():
    said = (LOGS / "wrong-interface.nccl.log").read_text() + "frame #1\n" * 200
    assert measure.reason(said) == "Bootstrap : no socket interface found"


def test_without_a_warning_the_last_lines_are_the_reason():
    said = "\n".join(f"line {number}" for number in range(100))
    assert measure.reason(said).splitlines()[-1] == "line 99"
    assert len(measure.reason(said).splitlines()) == 40


def test_a_host_without_python_is_said():
    assert measure.host_python({"PATH": ""}) == ("", "there is no python3 on this host")


class Gpus(Node):
    """A mesh whose measuring job ends with a code; None: only when it is stopped."""

    def exec(self, node, words, **more):
        found = {"cat": {"allreduce": {}, "copy_gb_s": None}}.get(words[0], {"copy_gb_s": 391.4})
        return ExecResult(code=0, output=json.dumps(found))


def test_gpus_are_measured_by_a_job_of_the_supervisor():
    node = Gpus({measure.JOB: 0})
    assert measure.in_mesh(node, 2, 29500) == {"allreduce": {}, "copy_gb_s": 391.4}
    assert node.asked == [("start", "measure"), ("follow", "measure")]
    request = node.requests["measure"]
    words = " ".join(request["steps"][0]["argv"])
    assert "torchrun" in words and "gpu_measure.py --out /shared/runs/measure.json" in words
    assert (request["nodes"], request["lease"]) == (["node1"], 6.0)


def test_a_measuring_job_that_fails_or_takes_too_long_is_said(monkeypatch):
    with pytest.raises(EngineError, match="measuring the GPUs failed: exit code 3") as caught:
        measure.in_mesh(Gpus({measure.JOB: 3}), 2, 29500)
    assert "measure says goodbye" in caught.value.why
    monkeypatch.setattr(measure, "SECONDS", 0)
    late = Gpus({measure.JOB: None})
    with pytest.raises(EngineError, match="it did not end within 0 s"):
        measure.in_mesh(late, 2, 29500)
    assert late.asked[-1] == ("stop", "measure")


def test_a_measuring_job_without_its_nodes_or_its_supervisor_is_said():
    gone = Gpus({measure.JOB: None})
    gone.lost = "node node1 is gone"
    with pytest.raises(EngineError, match="node node1 is gone"):
        measure.in_mesh(gone, 2, 29500)
    refusing = Gpus({measure.JOB: None})
    refusing._events = [{"event": "refused", "why": "job x is running here"}]
    with pytest.raises(Refused, match="job x is running here"):
        measure.in_mesh(refusing, 2, 29500)
