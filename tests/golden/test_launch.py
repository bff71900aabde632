"""Every launcher's materialisation, whole: command, environment and files."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
import yaml

from stackyard.launch import LAUNCHERS, LaunchRequest
from stackyard.launch.accelerate_config import parse
from stackyard.launch.settings import file_text
from tests.unit.standins import StandIns

CASES = [(name, nodes) for name in sorted(LAUNCHERS) for nodes in (1, 2)
         if (name, nodes) != ("alone", 2)]  # fmt: skip
FILES = [f"{name}-{nodes}.txt" for name, nodes in CASES]


# On GPUs: one node with two, two nodes of one host that see both and take one each, and plain DDP.
GPU_CASES = [(name, nodes, stage) for name, stage in
             [("torchrun", ""), ("deepspeed", ""), ("accelerate", "3"), ("accelerate", "0")]
             for nodes in (1, 2)]  # fmt: skip
GPU_FILES = [f"{name}{f'-zero-{stage}' if stage else ''}-gpus-{nodes}.txt"
             for name, nodes, stage in GPU_CASES]  # fmt: skip


# What users bring: a file of variables on every node, and accelerate's configuration.
SETTINGS = "/run/stackyard/launch/sample/settings"
OWN_FSDP = parse(
    """
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_offload_params: true}
dynamo_config: {dynamo_backend: INDUCTOR}
machine_rank: 0
mixed_precision: bf16
""",
    "own.yaml",
)
OWN_ZERO = parse(
    """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, zero3_init_flag: true, offload_optimizer_device: cpu}
""",
    "own.yaml",
)

# Ways of starting that a launcher's options choose: name, nodes, options, other changes.
OPTION_CASES = {
    "torchrun-c10d-2": ("torchrun", 2, {"rendezvous": "c10d", "restarts": "3"}, {}),
    "torchrun-restarts-1": ("torchrun", 1, {"restarts": "3"}, {}),
    "deepspeed-no-ssh-2": ("deepspeed", 2, {"ssh": "no"}, {}),
    "deepspeed-no-ssh-1": ("deepspeed", 1, {"ssh": "no"}, {}),
    "deepspeed-include-2": ("deepspeed", 2, {}, {"include": "node1:0,1@node2:0", "per_node": 2}),
    "accelerate-standard-2": ("accelerate", 2, {"zero_stage": "3", "start": "standard"}, {}),
    "accelerate-ddp-2": ("accelerate", 2, {"zero_stage": "0"}, {}),
    "accelerate-ddp-1": ("accelerate", 1, {"zero_stage": "0"}, {"per_node": 2}),
    "torchrun-settings-2": ("torchrun", 2, {}, {"settings": SETTINGS}),
    "deepspeed-settings-2": ("deepspeed", 2, {}, {"settings": SETTINGS}),
    "accelerate-own-fsdp-2": ("accelerate", 2, {}, {"config": OWN_FSDP, "settings": SETTINGS}),
    "accelerate-own-zero-2": ("accelerate", 2, {}, {"config": OWN_ZERO, "settings": SETTINGS}),
    "accelerate-test-2": ("accelerate", 2, {}, {"program": ("accelerate", "test")}),
    "plain-file-2": ("plain", 2, {"meet": "file", "meeting": "/shared/a meeting"}, {}),
}


OPTION_FILES = [f"{case}.txt" for case in OPTION_CASES]


def on_gpus(nodes, stage):
    takes = ((0, 1),) if nodes == 1 else ((0,), (1,))
    changes = {"device": "cuda", "per_node": 2 // nodes, "gpus": takes}
    asked = dataclasses.replace(request(nodes), **changes)
    return dataclasses.replace(asked, options={"zero_stage": stage} if stage else {})


def request(nodes):
    return LaunchRequest(
        nodes=("node1", "node2")[:nodes],
        port=29500,
        program=("/srv/smoke/train.py", "--data=/shared/data", "--note=two words, 50%"),
        env={"OMP_NUM_THREADS": "1", "GREETING": "it's a $HOME"},
        folder="/srv/smoke",
        scratch="/run/stackyard/launch/sample",
        ssh_port=2222,
        options={"zero_stage": "2"},
    )


def written(launch):
    """A launch as text: one word a line, so that a difference shows where it is."""
    lines = ["argv:", *(f"  {json.dumps(word)}" for word in launch.argv), "env:"]
    lines += [f"  {name}={json.dumps(value)}" for name, value in sorted(launch.env.items())]
    for path, text in sorted(launch.files.items()):
        lines += [f"file {path}:", *(f"  |{line}" for line in text.split("\n"))]
    lines += [f"makes {path}" for path in launch.makes]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("name", "nodes"), CASES)
def test_a_launch_is_what_is_committed(golden, name, nodes):
    golden.check(f"{name}-{nodes}.txt", written(LAUNCHERS[name](request(nodes))))


@pytest.mark.parametrize(
    ("case", "file"), list(zip(GPU_CASES, GPU_FILES, strict=True)), ids=GPU_FILES
)
def test_a_launch_on_gpus_is_what_is_committed(golden, case, file):
    name, nodes, stage = case
    golden.check(file, written(LAUNCHERS[name](on_gpus(nodes, stage))))


def by_options(case):
    name, nodes, options, changes = OPTION_CASES[case]
    return name, dataclasses.replace(request(nodes), options=options, **changes)


@pytest.mark.parametrize("case", OPTION_CASES)
def test_a_launch_by_options_is_what_is_committed(golden, case):
    name, asked = by_options(case)
    golden.check(f"{case}.txt", written(LAUNCHERS[name](asked)))


# What shells make of the texts: a stand-in for pdsh gives each node's shell its line.

ALL = {
    **{file: (name, request(nodes)) for file, (name, nodes) in zip(FILES, CASES, strict=True)},
    **{file: (name, on_gpus(nodes, stage))
       for file, (name, nodes, stage) in zip(GPU_FILES, GPU_CASES, strict=True)},
    **{f"{case}.txt": by_options(case) for case in OPTION_CASES},
}  # fmt: skip
# Launchers that go to the other nodes themselves get a hostfile.
EVERYWHERE = [
    file for file, (name, asked) in ALL.items() if LAUNCHERS[name](asked).argv[0] == "pdsh"
]
EXPORTED = [
    file for file, (name, asked) in ALL.items() if "DS_ENV_FILE" in LAUNCHERS[name](asked).env
]
NUMBERED = {"torchrun": "--node-rank={}", "deepspeed": "--node_rank={}",
            "accelerate": "--machine_rank={}", "plain": "{}"}  # fmt: skip
# pdsh(1): %n is the node's number, %% a percent sign.
PDSH = """#!{python} -IS
import argparse, re, subprocess, sys
asked = argparse.ArgumentParser(allow_abbrev=False)
for flag in "-b", "-S":
    asked.add_argument(flag, action="store_true", required=True)
asked.add_argument("-R", choices=["ssh"], required=True)
asked.add_argument("-w", required=True)
asked.add_argument("command")
found = asked.parse_args()
for number in range(len(found.w.split(","))):
    names = {{"n": str(number), "%": "%"}}
    line = re.sub("%(.)", lambda match: names[match[1]], found.command)
    subprocess.run(["sh", "-c", line], check=True)
"""


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.parametrize("file", EVERYWHERE)
def test_every_node_starts_the_program_with_its_words_and_environment(file, tmp_path):
    name, asked = ALL[file]
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    programs = StandIns(tmp_path)
    programs.recorder("torchrun", "deepspeed", "accelerate", "python3")
    programs.program("pdsh", PDSH.format(python=sys.executable))
    settings = tmp_path / "settings"
    settings.write_text(file_text({"OWN": "it's 5%"} if asked.settings else {}))
    asked = dataclasses.replace(asked, settings=str(settings) if asked.settings else "")
    launch = LAUNCHERS[name](dataclasses.replace(asked, folder=str(folder)))
    subprocess.run(launch.argv, env={"PATH": programs.path, **launch.env}, check=True, timeout=60)
    calls = programs.calls()
    assert len(calls) == len(asked.nodes) > 1
    for call in calls:
        if asked.program != ("accelerate", "test"):  # a module in its place
            assert tuple(call["argv"][-len(asked.program) :]) == asked.program
        assert {name: call["env"].get(name) for name in asked.env} == asked.env
        assert call["env"].get("OWN") == ("it's 5%" if asked.settings else None)
        assert call["folder"] == str(folder)
    # Nodes are told their number, and nothing else apart, or find it out by themselves.
    first, second = (call["argv"] for call in calls)
    apart = [pair for pair in zip(first, second, strict=True) if len(set(pair)) > 1]
    own = "" if asked.options.get("rendezvous") == "c10d" else NUMBERED.get(name, "")
    assert apart == ([(own.format(0), own.format(1))] if own else [])


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.parametrize("file", EXPORTED)
def test_what_deepspeed_exports_on_nodes_is_the_environment(file):
    # DeepSpeed's launcher makes `export NAME="VALUE";` of each line, for the nodes' shells.
    name, asked = ALL[file]
    hostile = {"A": "`id` $(id) $HOME", "B": '"', "C": "\\ \\$x \\\\", "D": "a=b; exit 1"}
    launch = LAUNCHERS[name](dataclasses.replace(asked, env={**asked.env, **hostile}))
    lines = launch.files[launch.env["DS_ENV_FILE"]].splitlines()
    exports = "".join('export {}="{}"; '.format(*line.split("=", 1)) for line in lines)
    done = subprocess.run(
        ["sh", "-c", f"{exports} exec env -0"], env={"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    assert {n: found.get(n) for n in launch.env if n in asked.env} == asked.env
    assert {n: found.get(n) for n in hostile} == hostile


def included(name, asked):
    """The slots that DeepSpeed is to use, by node, and how many its hostfile says a node has."""
    launch = LAUNCHERS[name](asked)
    files = {path.rpartition("/")[2]: text for path, text in launch.files.items()}
    hosts = dict(re.fullmatch(r"(\S+) slots=(\d+)", line).groups()
                 for line in files["hostfile"].splitlines())  # fmt: skip
    words = [*launch.argv, "--include", ""]
    chosen = words[words.index("--include") + 1]
    if "accelerate.yaml" in files:
        config = yaml.safe_load(files["accelerate.yaml"])
        chosen = config["deepspeed_config"]["deepspeed_inclusion_filter"]
        assert config["num_processes"] == len(asked.nodes) * asked.per_node
    parts = [part.split(":") for part in chosen.split("@") if part]
    return {host: [int(slot) for slot in slots.split(",")] for host, slots in parts}, hosts


@pytest.mark.parametrize(
    "file", [file for file in EXPORTED if "gpus-2" in file or "include" in file]
)
def test_slots_that_deepspeed_is_to_use_are_in_its_hostfile(file):
    name, asked = ALL[file]
    used, hosts = included(name, asked)
    assert list(used) == list(hosts) == list(asked.nodes)
    # It refuses a slot that a node does not have.
    assert [n for n, slots in used.items() if max(slots) >= int(hosts[n])] == []
    if asked.gpus:
        assert [tuple(slots) for slots in used.values()] == list(asked.gpus)
