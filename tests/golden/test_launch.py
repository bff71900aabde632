"""Every launcher's materialisation, whole: command, environment and files."""

import dataclasses
import json

import pytest

from stackyard.launch import LAUNCHERS, LaunchRequest

CASES = [(name, nodes) for name in sorted(LAUNCHERS) for nodes in (1, 2)
         if (name, nodes) != ("alone", 2)]  # fmt: skip
FILES = [f"{name}-{nodes}.txt" for name, nodes in CASES]


# On GPUs: one node with two, two nodes of one host that see both and take one each, and plain DDP.
GPU_CASES = [(name, nodes, stage) for name, stage in
             [("torchrun", ""), ("deepspeed", ""), ("accelerate", "3"), ("accelerate", "0")]
             for nodes in (1, 2)]  # fmt: skip
GPU_FILES = [f"{name}{f'-zero-{stage}' if stage else ''}-gpus-{nodes}.txt"
             for name, nodes, stage in GPU_CASES]  # fmt: skip


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


@pytest.mark.parametrize("case", OPTION_CASES)
def test_a_launch_by_options_is_what_is_committed(golden, case):
    name, nodes, options, changes = OPTION_CASES[case]
    asked = dataclasses.replace(request(nodes), options=options, **changes)
    golden.check(f"{case}.txt", written(LAUNCHERS[name](asked)))
