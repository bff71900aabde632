"""`invoke certify` on emulated hosts: good ones pass, planted faults are named in few rounds."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest

from stackyard.definitions.project import ROOT
from tests.fleet import emulated
from tests.fleet.emulated import Yard
from tests.fleet.planted import planted


@contextmanager
def hosts_of(count, images, folder):
    """Start so many hosts for the tests of a module."""
    folder.mkdir(exist_ok=True)
    names = [f"n{number:02}" for number in range(count)]
    with emulated.hosts(names, images, folder) as found:
        yield Yard(folder=folder, hosts={host.name: host for host in found})


@pytest.fixture(scope="module")
def four(images, programs, tmp_path_factory):
    with hosts_of(4, images, tmp_path_factory.mktemp("four")) as yard:
        yield yard


@pytest.fixture(scope="module")
def eight(images, programs, tmp_path_factory):
    with hosts_of(8, images, tmp_path_factory.mktemp("eight")) as yard:
        yield yard


@pytest.fixture(scope="module")
def many(images, programs, tmp_path_factory):
    with hosts_of(32, images, tmp_path_factory.mktemp("many")) as yard:
        yield yard


def certify(yard, *more, code=0, seconds=1500, hang=8):
    """The report of a certification, and the seconds that it took."""
    started = time.monotonic()
    words = ("certify", "accelerate", "--gpus", "0", "--hang", str(hang), "--json", *more)
    done = yard.invoke(*words, check=False, seconds=seconds)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    assert yard.left() == {}
    return json.loads(done.stdout), time.monotonic() - started


def bad(value):
    """What is bad, by name, with the reason."""
    found = {host["host"]: host["why"] for host in value["hosts"] if host["why"]}
    found |= {g["name"]: g["why"] for h in value["hosts"] for g in h["gpus"] if g["state"] == "bad"}
    return found | {" - ".join(one["names"]): one["evidence"]
                    for one in value["faults"] if one["kind"] == "link"}  # fmt: skip


def in_few_rounds(value):
    """Whether the groups needed few rounds; the first one is every host alone."""
    return len(value["rounds"]) - 1 <= 2 * math.ceil(math.log2(len(value["hosts"]))) + 4


def shown(value, seconds):
    """One line of the table in docs/howto/certify.md."""
    print(f"{len(value['hosts'])} hosts: bad {bad(value)}: {len(value['rounds'])} rounds,"
          f" {seconds:.0f} s")  # fmt: skip


def test_who_corrupts_or_hangs_is_named(yard):
    value, seconds = certify(planted(yard, {"train": "corrupt", "depot": "hang"}), code=1)
    shown(value, seconds)
    assert set(bad(value)) == {"train:0", "depot"}
    assert bad(value)["train:0"] == "it computes something else from update 4 on"
    # What is left to it are two hosts, so no other group tells who is bad.
    assert bad(value)["depot"].startswith("good alone; study waited for it")
    assert in_few_rounds(value)
    (one,) = value["fingerprints"].values()
    assert one["compared_with"] == "2 of 3 of its model" and len(one["bits"]) == 20


@pytest.mark.repeat
def test_of_four_hosts_one_that_corrupts_and_one_that_hangs_are_named(four):
    value, seconds = certify(planted(four, {"n01": "corrupt", "n03": "hang"}), code=1)
    shown(value, seconds)
    assert set(bad(value)) == {"n01:0", "n03"}
    assert bad(value)["n01:0"] == "it computes something else from update 4 on"
    assert re.search(r"rank \d \(n03\) \(at never \(sitecustomize.py:\d+\)\) never came to"
                     r" all_reduce", bad(value)["n03"])  # fmt: skip
    assert in_few_rounds(value)
    (one,) = value["fingerprints"].values()
    assert one["compared_with"] == "3 of 4 of its model" and len(one["bits"]) == 20


@pytest.mark.repeat  # of the three above one is good; eight pass twenty times below
def test_good_hosts_pass_and_others_meet_their_fingerprint(four):
    value, seconds = certify(four.only("n00", "n01"))
    shown(value, seconds)
    assert (value["outcome"], bad(value), len(value["rounds"])) == ("passed", {}, 2)
    assert len(value["links"]) == 1 and not any(link["slow"] for link in value["links"])
    (one,) = value["fingerprints"].values()
    assert one["compared_with"] == "2 of 2 of its model"
    page = (ROOT / "reports/certify/certify.html").read_text()
    assert all(f">{name}<" in page for name in ("n00", "n01"))
    earlier = four.folder / "earlier.json"
    earlier.write_text(json.dumps(value))
    others, seconds = certify(four.only("n02", "n03"), "--against", str(earlier))
    shown(others, seconds)
    assert list(others["fingerprints"].values()) == [
        {"bits": one["bits"], "compared_with": "the fingerprint of the earlier report"}
    ]


@pytest.mark.repeat
def test_of_many_hosts_one_that_corrupts_and_one_that_hangs_are_named(many):
    value, seconds = certify(planted(many, {"n05": "corrupt", "n26": "hang"}), code=1)
    shown(value, seconds)
    assert set(bad(value)) == {"n05:0", "n26"}
    assert in_few_rounds(value)


@pytest.mark.repeat
@pytest.mark.bounded
@pytest.mark.parametrize(
    ("hosts", "one", "other"), [("four", "n01", "n02"), ("eight", "n02", "n05")]
)
def test_a_slow_link_is_named(request, hosts, one, other):
    yard = request.getfixturevalue(hosts)
    with slow_link(yard, one, other):
        value, seconds = certify(yard, code=1, hang=20)
    shown(value, seconds)
    assert set(bad(value)) == {f"{one} - {other}"}
    assert "exchange" in bad(value)[f"{one} - {other}"]
    assert in_few_rounds(value)


@contextmanager
def slow_link(yard, one, other):
    """Shape what goes from one host to another, and nothing else."""
    host, to = yard.hosts[one], yard.hosts[other].address
    mark = ("-t", "mangle", "POSTROUTING", "-d", to, "-j", "CLASSIFY", "--set-class", "1:2")
    shape = (
        "tc qdisc add dev eth0 root handle 1: htb default 1"
        " && tc class add dev eth0 parent 1: classid 1:1 htb rate 10gbit"
        " && tc class add dev eth0 parent 1: classid 1:2 htb rate 24mbit burst 32k"
    )
    host.run("sh", "-c", shape)
    host.run("iptables", *mark[:2], "-A", *mark[2:])
    try:
        yield
    finally:
        host.run("iptables", *mark[:2], "-D", *mark[2:])
        host.run("tc", "qdisc", "del", "dev", "eth0", "root")


@pytest.mark.repeat
def test_a_slow_host_is_named(eight):
    value, seconds = certify(planted(eight, {"n06": "slow"}), code=1)
    shown(value, seconds)
    assert set(bad(value)) == {"n06:0"}
    assert "updates_s" in bad(value)["n06:0"]
    assert len(value["rounds"]) == 2


@pytest.mark.repeat
@pytest.mark.bounded
def test_good_hosts_pass_twenty_times(eight):
    for _ in range(20):
        value, seconds = certify(eight)
        shown(value, seconds)
        assert (value["outcome"], len(value["rounds"])) == ("passed", 2)


# Hangs of any run

HANGS = """
import os, time, torch, torch.distributed as dist

def load_data():
    time.sleep(10**6)

dist.init_process_group("gloo")
for update in range(1, 10**6):
    if update == 40 and dist.get_rank() == 1:
        load_data()
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        print(f"update {update}", flush=True)
    time.sleep(0.1)
"""
# It goes on after a minute.
LATE = HANGS.replace("sleep(10**6)", "sleep(60)").replace("1, 10**6", "1, 60")
# Rank 1 hangs before the first of anything.
HANGS_AT_ONCE = """
import os, time, torch.distributed as dist

def load_data():
    time.sleep(10**6)

if os.environ["RANK"] == "1":
    load_data()
dist.init_process_group("gloo")
"""
repeat = pytest.mark.repeat


def hang(four, program, *words, code=130):
    """Run a program on two hosts until its hang is told; return all that was said, and the wait.

    Args:
        code: with 0 it goes on to its end.
    """
    (four.folder / "shared" / "hangs.py").write_text(program)
    words = ["run", "accelerate", "--gpus", "0", "--hosts", four.only("n00", "n01").inventory,
             *words, "--", "/shared/hangs.py"]  # fmt: skip
    child = subprocess.Popen(
        [ROOT / ".venv/bin/invoke", *words], cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    said, last = [], time.monotonic()
    with child:
        for line in child.stdout:
            said.append(line)
            if "update 39" in line:
                last = time.monotonic()
            if "hang: rank 1" in line:
                break
        waited = time.monotonic() - last
        if code:
            os.kill(child.pid, signal.SIGINT)
        said += child.stdout.readlines()
    assert child.returncode == code, "".join(said)[-3000:]
    assert four.left() == {}
    return "".join(said), waited


@pytest.mark.parametrize(
    ("launcher", "more"),
    [
        pytest.param("torchrun", (), marks=repeat),
        pytest.param("deepspeed", (), marks=repeat),
        pytest.param("accelerate", ("--set", "zero_stage=0"), marks=repeat),
        pytest.param("plain", (), marks=repeat),
    ],
)
def test_a_run_that_hangs_names_who_never_came_by_any_launcher(four, launcher, more):
    text, waited = hang(four, HANGS, "--launcher", launcher, *more)
    assert ("rank 1 (n01) (at load_data (hangs.py:5)) never came to all_reduce, where rank 0 (n00)"
            " waits") in text, text[-3000:]  # fmt: skip
    assert waited < 60


@pytest.mark.repeat
def test_a_run_that_hangs_before_its_first_line_says_where_its_ranks_are(four):
    text, _ = hang(four, HANGS_AT_ONCE, "--launcher", "torchrun")
    assert ("rank 1 (n01) (at load_data (hangs.py:5)) never came to init_process_group, where"
            " rank 0 (n00) waits") in text, text[-3000:]  # fmt: skip


@pytest.mark.repeat
def test_a_run_that_was_told_to_hang_goes_on_and_ends_well(four):
    text, waited = hang(four, LATE, "--launcher", "torchrun", code=0)
    assert "rank 1 (n01) (at load_data (hangs.py:5)) never came to all_reduce" in text, text[-3000:]
    before, _, after = text.partition("hang: rank 1")
    assert "update 40" not in before and "update 59" in after and "is done: 2 ranks" in after
    assert waited < 60
