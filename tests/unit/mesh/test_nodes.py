"""Nodes, but for their engine: what a login's answer means."""

import base64

import pytest

from stackyard.mesh.nodes import _json, session_environment
from stackyard.system.engine import ExecResult
from stackyard.system.errors import MeshError


def test_the_environment_of_a_session_is_read_with_line_breaks_and_equals_signs():
    encoded = base64.b64encode(b"A=1\0B=two\nlines\0C=x=y\0nothing\0").decode()
    assert session_environment(encoded) == {"A": "1", "B": "two\nlines", "C": "x=y"}


def test_the_last_line_of_a_probe_is_its_answer():
    assert _json(ExecResult(code=0, output='a warning\n{"a": 1}'), "the probe") == {"a": 1}


@pytest.mark.parametrize("output", ["", "Traceback\nImportError: x"])
def test_a_probe_without_answer_is_named_with_what_it_said(output):
    with pytest.raises(MeshError) as caught:
        _json(ExecResult(code=1, output=output), "the probe on node2")
    assert caught.value.what == "the probe on node2 gave no answer (exit code 1)"
    assert caught.value.why == output
