"""This machine: how many GPUs it has, and what is said when there are too few."""

import pytest

from stackyard.build import host
from stackyard.system import process
from stackyard.system.errors import EngineError, NothingToRunOn


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


@pytest.mark.parametrize(("load", "said"), [(2.0, ""), (2.1, "load 2.1 on 2 CPUs")])
def test_a_machine_is_busy_where_programs_wait_for_its_cpus(monkeypatch, load, said):
    monkeypatch.setattr(host.os, "getloadavg", lambda: (load, 9.0, 9.0))
    monkeypatch.setattr(host.os, "cpu_count", lambda: 2)
    assert host.busy() == said


@pytest.mark.parametrize(("load", "times"), [(0.0, 1.0), (2.0, 1.0), (5.0, 2.5), (50.0, 4.0)])
def test_a_busy_machine_is_waited_for_longer_but_not_for_ever(monkeypatch, load, times):
    monkeypatch.setattr(host.os, "getloadavg", lambda: (load, 9.0, 9.0))
    monkeypatch.setattr(host.os, "cpu_count", lambda: 2)
    assert host.patience() == times


def test_enough_gpus_are_enough(monkeypatch):
    monkeypatch.setattr(host, "gpu_count", lambda: 2)
    assert host.require_gpus(2, "x") is None


FEDORA = 'NAME="Fedora Linux"\nVERSION_ID=41\nID=fedora\n'
UBUNTU = 'NAME="Ubuntu"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n'


def test_who_may_not_use_the_engine_is_told_so(monkeypatch):
    refused = EngineError("no container engine answers", hint="sudo usermod -aG docker $USER")

    def refuse():
        raise refused

    monkeypatch.setattr(host, "Engine", refuse)
    monkeypatch.setattr(host, "_find", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(host, "running_as_root", lambda: False)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with pytest.raises(EngineError) as caught:
        host.ensure_engine(lambda text: None)
    assert caught.value is refused


@pytest.mark.parametrize(
    ("os_release", "root", "what", "hint"),
    [
        (FEDORA, True, "fedora", "sudo dnf install moby-engine docker-buildx mmdebstrap (or"),
        (UBUNTU, False, "ubuntu/noble", "sudo apt-get install docker.io mmdebstrap (or"),
        ("", True, "an unknown system", "sudo apt-get install docker.io mmdebstrap (or"),
    ],
)
def test_where_nothing_is_installed_the_systems_own_command_is_named(
    monkeypatch, tmp_path, os_release, root, what, hint
):
    path = tmp_path / "os-release"
    path.write_text(os_release)
    monkeypatch.setattr(host, "_OS_RELEASE", path)
    monkeypatch.setattr(host, "running_as_root", lambda: root)
    with pytest.raises(EngineError) as caught:
        host._install(["docker.io", "mmdebstrap"], lambda text: None)
    assert f"this is {what}, user id" in caught.value.why
    assert caught.value.hint.startswith(hint)


def test_root_on_ubuntu_has_the_packages_installed(monkeypatch, tmp_path):
    path, ran = tmp_path / "os-release", []
    path.write_text(UBUNTU)
    monkeypatch.setattr(host, "_OS_RELEASE", path)
    monkeypatch.setattr(host, "running_as_root", lambda: True)
    monkeypatch.setattr(process, "run", lambda words, **named: ran.append(words[2]))
    host._install(["docker.io", "mmdebstrap"], lambda text: None)
    assert ran == ["update", "install"]
