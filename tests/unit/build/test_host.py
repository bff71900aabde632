"""This machine: how many GPUs it has, and what is said when there are too few."""

import pytest

from stackyard.build import host
from stackyard.system.errors import NothingToRunOn


def test_gpus_are_what_the_driver_lists(tmp_path):
    assert host.gpu_count(tmp_path / "gone") == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert host.gpu_count(tmp_path) == 2


@pytest.mark.parametrize(
    ("there", "what", "why"),
    [
        (0, "2 GPUs are wanted, none found on this machine",
         "no NVIDIA driver is loaded (/proc/driver/nvidia/gpus is not there)"),
        (1, "2 GPUs are wanted, 1 found on this machine", "/proc/driver/nvidia/gpus lists 1"),
    ],
)  # fmt: skip
def test_too_few_gpus_are_said_with_what_to_type(monkeypatch, there, what, why):
    monkeypatch.setattr(host, "gpu_count", lambda: there)
    with pytest.raises(NothingToRunOn) as caught:
        host.require_gpus(2, "invoke smoke toy")
    assert (caught.value.what, caught.value.why) == (what, why)
    assert caught.value.hint.endswith("on CPU ranks: invoke smoke toy --gpus 0")
    assert caught.value.exit_code == 3


def test_enough_gpus_are_enough(monkeypatch):
    monkeypatch.setattr(host, "gpu_count", lambda: 2)
    assert host.require_gpus(2, "x") is None
