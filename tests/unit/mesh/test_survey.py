"""What hosts say about themselves, from recorded answers, and the network they share."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackyard.definitions.project import ROOT
from stackyard.gpu.access import missing_files
from stackyard.gpu.infiniband import Adapters
from stackyard.gpu.placement import MIB, why_not_usable
from stackyard.mesh import survey
from stackyard.mesh.survey import FolderFacts, choose_network, parse
from tests.unit.definitions.test_fuzz_definitions import FEW, examples
from tests.unit.fuzzing import broken_lines
from tests.unit.machines import facts, interface

SURVEYS = Path(__file__).resolve().parent / "surveys"
CPU = (SURVEYS / "cpu.txt").read_text(encoding="utf-8")
GPUS = (SURVEYS / "two-h200.txt").read_text(encoding="utf-8")
CLOCK = 1700000100.25  # of both


def read(text, asked=CLOCK, seconds=0.2):
    return parse(text, asked, asked + seconds)


def section(text, name, *lines):
    """A survey with other lines in one of its sections."""
    body = "".join(f"{line}\n" for line in lines)
    return re.sub(rf"(?ms)^== {re.escape(name)}\n.*?(?=^== )", lambda _: f"== {name}\n{body}", text)


# A whole answer


def test_a_machine_without_gpus_is_read():
    found = read(CPU)
    assert (found.name, found.reached) == ("study", "192.0.2.2")
    shown = [(i.name, i.address, i.subnet, i.mtu, i.speed) for i in found.interfaces]
    assert shown == [
        ("lo", "127.0.0.1", "127.0.0.0/8", 65536, 0),
        ("eth0", "192.0.2.2", "192.0.2.0/24", 1400, 0),
        ("docker0", "172.17.0.1", "172.17.0.0/16", 1500, 0),
    ]
    assert found.ports == {2024}
    assert found.memory_bytes == 24684084 * 1024
    assert found.engine_free_bytes == 34035380 * 1024
    assert found.folders == {
        "/shared": FolderFacts(path="/srv/shared", kind="ext2/ext3", free_bytes=34035380 * 1024)
    }
    assert (found.driver, found.gpus, found.infiniband, found.cdi) == (None, (), Adapters(), ())


def test_a_machine_with_gpus_is_read():
    found = read(GPUS)
    idle, busy = found.gpus
    assert (idle.index, idle.minor, idle.name, idle.capability) == (0, 0, "NVIDIA H200", (9, 0))
    assert idle.uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert (idle.memory_bytes, idle.free_bytes) == (143771 * MIB, 143767 * MIB)
    assert (why_not_usable(idle), idle.compute_mode, idle.mig) == ("", "default", False)
    assert why_not_usable(busy) == "processes hold it: 681 (not visible from here, 2566 MiB)"
    assert found.infiniband == Adapters()  # its adapters were not asked for by name then


def test_the_driver_of_a_machine_is_whole():
    found = read(GPUS)
    assert found.driver.version == "580.159.04"
    assert missing_files(found.gpus, found.driver) == []
    place = "/usr/local/nvidia/lib64"
    assert found.driver.libraries["libcuda.so.1"] == f"{place}/libcuda.so.580.159.04"
    assert "libcudart.so.13" not in found.driver.libraries


@pytest.mark.parametrize("end", range(0, len(CPU), 97))
def test_an_answer_that_was_cut_off_is_none(end):
    assert read(CPU[:end]) is None


def test_what_a_login_prints_first_is_passed_over():
    assert read(f"Welcome to study!\n* 3 updates\n{CPU}") == read(CPU)


def test_a_machine_that_answers_nothing_has_nothing():
    found = read("== clock\n== end\n")
    assert (found.interfaces, found.ports, found.memory_bytes, found.engine_free_bytes) == (
        (), frozenset(), 0, None,
    )  # fmt: skip


@examples(FEW)
@given(st.one_of(broken_lines(CPU), broken_lines(GPUS)))
def test_any_answer_is_read_or_none(text):
    found = read(text)
    assert found is None or all(i.speed >= 0 for i in found.interfaces)


# Its parts


@pytest.mark.parametrize(
    ("said", "asked", "skew"),
    [
        ("1700000100.250000000", CLOCK, 0.0),
        ("1700000700.250000000", CLOCK, 600.0),
        ("1700000040.250000000", CLOCK, -60.0),
        ("1700000100.%N", CLOCK - 0.25, 0.0),  # busybox
        ("1700000100", CLOCK - 0.25, 0.0),
    ],
)
def test_the_clock_is_held_against_ours_when_it_was_asked(said, asked, skew):
    found = read(section(CPU, "clock", said), asked)
    assert found.skew == pytest.approx(skew)
    assert found.skew_error == pytest.approx(0.2)


def test_a_host_that_reports_no_time_has_no_skew():
    assert read(section(CPU, "clock", "date: not found")).skew is None


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("/dev/vda 264212084 72355532 34035380 69% /", 34035380 * 1024),
        ("/dev/vda 264212084 264212084 0 100% /", 0),
        ("/dev/vda 100 120 -20 120% /", 0),
        ("//nas/my share 1000 100 900 10% /mnt/my share", 900 * 1024),
        ("overlay 0 0 0 - /var/lib/docker", 0),
        ("df: /var/lib/docker: No such file or directory", None),
    ],
)
def test_free_space_is_read_and_a_full_disk_is_not_an_unknown_one(line, free):
    assert read(section(CPU, "engine_disk", line)).engine_free_bytes == free


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((), FolderFacts(path="")),
        (("/srv/shared", "nfs", "nas:/x 10 1 9 10% /srv"), FolderFacts(
            path="/srv/shared", kind="nfs", free_bytes=9 * 1024)),
        (("/srv/shared", "unknown"), FolderFacts(path="/srv/shared", kind="unknown")),
    ],
)  # fmt: skip
def test_a_folder_is_read_or_not_there(lines, found):
    assert read(section(CPU, "folder /shared", *lines)).folders == {"/shared": found}


@pytest.mark.parametrize(
    ("speed", "found"),
    [("1000", 1000), ("400000", 400000), ("-1", 0), ("65535", 0), ("4294967295", 0), ("", 0)],
)
def test_a_speed_is_read_or_unknown(speed, found):
    eth0 = read(section(CPU, "links", f"eth0 1400 {speed} up")).interfaces[1]
    assert eth0.speed == found


def test_interfaces_of_every_form_are_read():
    text = section(
        CPU,
        "addresses",
        "2: eth0@if5    inet 10.1.2.3/16 brd 10.1.255.255 scope global eth0",
        "3: tun0    inet 10.8.0.2 peer 10.8.0.1/32 scope global tun0",
        "4: ib0    inet 10.9.0.1/24 brd 10.9.0.255 scope global ib0:1",
        "5: bad    inet 10.9.0.1/99",
        "6: six    inet6 fe80::1/64",
    )
    assert [(i.name, i.subnet) for i in read(text).interfaces] == [
        ("eth0", "10.1.0.0/16"), ("tun0", "10.8.0.2/32"), ("ib0", "10.9.0.0/24"),
    ]  # fmt: skip


def test_ports_of_both_protocols_are_read():
    text = section(CPU, "listening", "0100007F:0016", f"{'0' * 32}:08AE", "local_address", "")
    assert read(text).ports == {22, 2222}


@pytest.mark.parametrize(
    "line",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        'Field "compute_cap" is not a valid field to query.',
        "No devices were found",
        "0, GPU-0, NVIDIA H200",
    ],
)
def test_what_nvidia_smi_says_instead_of_gpus_is_none(line):
    assert read(section(GPUS, "gpus", line)).gpus == ()


def test_gpus_of_every_state_are_read():
    text = section(
        GPUS,
        "gpus",
        "0, GPU-0, Tesla T4, 15360, [N/A], Exclusive_Process, [N/A], 7.5",
        "3, GPU-3, NVIDIA H100 80GB HBM3, 81559, 12, Prohibited, Enabled, 9.0",
    )
    first, second = read(text).gpus
    assert (first.compute_mode, first.mig, first.capability) == ("exclusive process", False, (7, 5))
    assert first.free_bytes == first.memory_bytes
    assert (second.index, second.minor, second.mig) == (3, 3, True)


def test_a_process_whose_memory_is_not_told_holds_its_gpu_all_the_same():
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    found = read(section(GPUS, "gpu_processes", f"{uuid}, 99, [N/A]"))
    assert "processes hold it: 99" in why_not_usable(found.gpus[0])


def test_kinds_of_cdi_are_read_quoted_or_not():
    assert read(section(GPUS, "cdi", '"nvidia.com/gpu"', "vendor.com/net")).cdi == (
        "nvidia.com/gpu", "vendor.com/net",
    )  # fmt: skip


def test_gpus_that_cdi_does_not_name_by_uuid_are_passed_over(tmp_path, allow_processes):
    script = (ROOT / "stackyard/mesh/survey.sh").read_text(encoding="utf-8")
    part = script[script.index("section cdi;") : script.index("section end")]
    command = ["sh", "-c", f"section() {{ :; }}\n{part.replace('/etc/cdi', str(tmp_path))}"]
    text = "cdiVersion: 0.5.0\nkind: %s\ndevices:\n- name: %s\n"
    (tmp_path / "a.yaml").write_text(text % ("nvidia.com/gpu", '"0"'))
    (tmp_path / "b.yml").write_text(text % ("vendor.com/net", "nic0"))
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said == ["vendor.com/net"]
    (tmp_path / "a.yaml").write_text(text % ('"nvidia.com/gpu"', "GPU-1"))
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said == ['"nvidia.com/gpu"', "vendor.com/net"]


# The network between hosts

SLOW, FAST = "10.0.0", "10.9.0"


def on(number, *extra, **changes):
    """A host in the slow subnet, and others beside."""
    here = (interface("lo", "127.0.0.1", speed=0), interface("eth0", f"{SLOW}.{number}"), *extra)
    return facts(number=number, interfaces=here, **changes)


def fast(number, **changes):
    return interface("ib0", f"{FAST}.{number}", **{"speed": 100_000, **changes})


def chosen(found, **named):
    network, problems = choose_network(found, {**dict.fromkeys(found, "auto"), **named})
    return {host: i.address for host, i in network.chosen.items()}, network.why, problems


def test_the_fastest_subnet_that_all_hosts_are_in_is_chosen():
    found = {"a": on(1, fast(1)), "b": on(2, fast(2))}
    assert chosen(found) == (
        {"a": f"{FAST}.1", "b": f"{FAST}.2"},
        f"all hosts are in {FAST}.0/24, at least 100000 Mbit/s",
        [],
    )


def test_a_subnet_is_as_fast_as_its_slowest_interface():
    found = {"a": on(1, fast(1)), "b": on(2, fast(2, speed=100))}
    assert chosen(found)[0] == {"a": f"{SLOW}.1", "b": f"{SLOW}.2"}


def test_a_subnet_that_one_host_lacks_is_not_chosen():
    found = {"a": on(1, fast(1)), "b": on(2, fast(2)), "c": on(3)}
    assert chosen(found)[0] == {n: f"{SLOW}.{i}" for i, n in enumerate("abc", 1)}


def test_of_subnets_of_one_speed_the_one_that_ssh_came_by_is_chosen():
    other = {n: interface("eth1", f"10.5.0.{n}") for n in (1, 2)}
    found = {"a": on(1, other[1]), "b": on(2, other[2])}
    assert chosen(found)[0] == {"a": f"{SLOW}.1", "b": f"{SLOW}.2"}
    found = {
        "a": on(1, other[1], reached="10.5.0.1"),
        "b": on(2, other[2], reached="10.5.0.2"),
    }
    assert chosen(found)[0] == {"a": "10.5.0.1", "b": "10.5.0.2"}


@pytest.mark.parametrize("name", ["docker0", "br-1234", "veth0", "virbr0", "cni0", "lo"])
def test_a_network_inside_the_host_is_not_chosen_however_fast(name):
    inner = interface(name, "172.17.0.1", speed=400_000)
    found = {"a": on(1, inner), "b": on(2, inner)}
    assert chosen(found)[0] == {"a": f"{SLOW}.1", "b": f"{SLOW}.2"}


def test_without_a_common_subnet_hosts_are_reached_as_ssh_does():
    a = facts("a", interfaces=(interface("eth0", "10.1.0.1"),), reached="10.1.0.1")
    b = facts("b", interfaces=(interface("eth0", "10.2.0.1"), interface("eth1", "10.3.0.1")),
              reached="10.3.0.1")  # fmt: skip
    assert chosen({"a": a, "b": b}) == (
        {"a": "10.1.0.1", "b": "10.3.0.1"},
        "no subnet is common to all hosts: where ssh reaches them",
        [],
    )


def test_an_interface_is_chosen_by_its_name_or_address():
    found = {"a": on(1, fast(1)), "b": on(2, fast(2))}
    assert chosen(found, a="eth0", b=f"{SLOW}.2") == (
        {"a": f"{SLOW}.1", "b": f"{SLOW}.2"}, "by `interface:` of the inventory", [],
    )  # fmt: skip


def test_a_named_interface_takes_the_other_hosts_to_its_subnet():
    found = {"a": on(1, fast(1)), "b": on(2, fast(2))}
    assert chosen(found, a="eth0")[0] == {"a": f"{SLOW}.1", "b": f"{SLOW}.2"}


def test_every_host_without_its_named_interface_is_told():
    found = {"a": on(1), "b": on(2), "c": on(3)}
    problems = chosen(found, a="ib0", c="10.9.9.9")[2]
    assert problems == [
        ("a", "it has no interface 'ib0' with an address; it has lo, eth0"),
        ("c", "it has no interface '10.9.9.9' with an address; it has lo, eth0"),
    ]


def test_hosts_that_nothing_leads_to_are_told_each_with_its_reason():
    bare = facts("a", interfaces=())
    nat = facts("b", interfaces=(interface("eth0", "10.2.0.1"),), reached="203.0.113.7")
    problems = dict(chosen({"a": bare, "b": nat})[2])
    assert "no network interface with an IPv4 address" in problems["a"]
    assert "none of its interfaces has the address 203.0.113.7" in problems["b"]


def test_hosts_that_did_not_answer_are_not_asked_for_interfaces():
    assert chosen({"a": on(1)}, gone="eth7")[2] == []


# The script itself


@pytest.mark.usefixtures("allow_processes")
def test_the_script_run_here_gives_a_whole_answer(tmp_path):
    (tmp_path / "data here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data here")
    folders = ["/data", f"{tmp_path}/link", "/home data", "~/data here", "/no", f"{tmp_path}/no"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path),
           "SSH_CONNECTION": "192.0.2.9 50214 192.0.2.2 22"}  # fmt: skip
    done = subprocess.run(
        ["sh", "-s", "--", "/", *folders], input=survey.SCRIPT, capture_output=True, text=True,
        env=env, timeout=30, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    # The last two were asked for when the answer was recorded.
    recorded = set(survey.sections(CPU)) - {"folder /shared", "kernel", "processors"}
    assert recorded <= set(survey.sections(done.stdout))
    found = read(done.stdout)
    assert (found.name, found.reached) == (os.uname().nodename, "192.0.2.2")
    assert found.memory_bytes > 0 and found.engine_free_bytes >= 0
    real = os.path.realpath(tmp_path / "data here")
    assert {place: folder.path for place, folder in found.folders.items()} == {
        "/data": real, "/home data": real, "/no": "",
    }  # fmt: skip
    assert found.folders["/data"].kind and found.folders["/data"].free_bytes is not None
