"""Every launcher's materialisation, whole: command, environment and files."""

import json

import pytest

from stackyard.launch import LAUNCHERS, LaunchRequest

CASES = [(name, nodes) for name in sorted(LAUNCHERS) for nodes in (1, 2)
         if (name, nodes) != ("alone", 2)]  # fmt: skip
FILES = [f"{name}-{nodes}.txt" for name, nodes in CASES]


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
