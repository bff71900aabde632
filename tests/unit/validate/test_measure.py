"""Measuring the GPUs, but for the GPUs."""

from pathlib import Path

from stackyard.validate import measure

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
