"""Smokes and benches over two hosts: the same phases and checks, one report, nothing left."""

from __future__ import annotations

import json
import re

import pytest

from stackyard.definitions.project import ROOT
from tests.fleet.conftest import two_of

repeat = pytest.mark.repeat


@pytest.fixture
def two(yard):
    return two_of(yard)


def shared(two):
    """What runs left in the folder that the hosts share."""
    return [path.name for path in (two.folder.parent / "shared").glob("stackyard-*")]


@pytest.mark.parametrize(
    "stack",
    ["fairseq", pytest.param("accelerate", marks=repeat), pytest.param("megatron", marks=repeat)],
)
def test_a_smoke_passes_over_hosts_and_its_report_names_them(two, smoked, stack):
    value, seen = smoked(stack)
    assert seen == {("study", "MINE=study"), ("train", "MINE=all")}
    assert value["outcome"] == "passed", [c for c in value["checks"] if c["outcome"] != "passed"]
    names = [check["name"] for check in value["checks"]]
    assert names == ["mesh", "world_size", "loss_falls", "ranks_agree", "parity", "resume_equal",
                     "no_strays"]  # fmt: skip
    assert value["nodes"] == ["study", "train"]
    found = value["hosts"]["hosts"]
    assert [host["name"] for host in found] == ["study", "train"]
    assert {host["address"] for host in found} == {host.address for host in two.hosts.values()}
    assert {host["image"] for host in found} == {value["image"]["id"]}
    assert all(host["interface"] and host["gpus"] == [] for host in found)
    assert value["hosts"]["network"]
    # Ranks of one training were on both hosts.
    layouts = next(c for c in value["checks"] if c["name"] == "world_size")["measured"]
    assert any(len(ranks) == 2 for ranks in layouts.values())
    page = (ROOT / "reports" / stack / "cpu" / "smoke-hosts.html").read_text()
    assert all(host.address in page for host in two.hosts.values())
    assert (two.left(), shared(two)) == ({}, [])


def test_hosts_with_different_images_are_refused_before_anything_starts(two):
    tag, host = "stackyard/fairseq:cpu", two.hosts["train"]
    held = host.run("docker", "image", "inspect", "--format", "{{.Id}}", tag)
    host.run("docker", "tag", "stackyard/accelerate:cpu", tag)
    try:
        done = two.invoke("smoke", "fairseq", "--gpus", "0", check=False)
    finally:
        host.run("docker", "tag", held, tag)
    assert done.returncode == 3, done.stderr[-2000:]
    assert re.search(r"train: its stackyard/fairseq:cpu is another image \(\w{12}, not \w{12}\)",
                     done.stderr)  # fmt: skip
    assert (two.left(), shared(two)) == ({}, [])


@repeat
def test_a_bench_over_hosts_measures_one_rank_and_one_on_each(two):
    words = ("--gpus", "0", "--rounds", "1", "--sides", "ddp", "--json")
    done = two.invoke("bench", "accelerate", *words, seconds=600)
    (value,) = json.loads(done.stdout)["reports"]
    assert value["outcome"] == "passed", [c for c in value["checks"] if c["outcome"] != "passed"]
    assert (value["counts"], value["available"]) == ([1, 2], 2)
    assert [host["name"] for host in value["hosts"]["hosts"]] == ["study", "train"]
    assert all(run["speed"] for run in value["runs"])
    assert (two.left(), shared(two)) == ({}, [])
