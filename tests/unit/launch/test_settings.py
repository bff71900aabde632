"""The file of a node's own variables, and the names that a user cannot set."""

import subprocess

import pytest

from stackyard.launch.settings import file_text, why_not

HOSTILE = {"A": 'it\'s 50% "x" $HOME `id` \\ ; exit 1', "B": "", "C": "a=b", "NCCL_DEBUG": "INFO"}


@pytest.mark.usefixtures("allow_processes")
def test_a_shell_reads_every_value_as_it_is(tmp_path):
    path = tmp_path / "settings"
    path.write_text(file_text(HOSTILE))
    done = subprocess.run(
        ["sh", "-c", f". {path} && exec env -0"], env={"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    assert {name: found.get(name) for name in HOSTILE} == HOSTILE


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "OMP_NUM_THREADS", "_x", "TOKENIZERS_PARALLELISM"])
def test_a_users_variables_can_be_set(name):
    assert why_not(name, "any thing") == ""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("", "1", "not the name of a variable"),
        ("1A", "1", "not the name of a variable"),
        ("A-B", "1", "not the name of a variable"),
        ("RANK", "0", "the launcher sets it"),
        ("MASTER_ADDR", "10.0.0.1", "the launcher sets it"),
        ("CUDA_VISIBLE_DEVICES", "0", "--include"),
        ("STACKYARD_LOGS", "/x", "Stackyard's own"),
        ("A", "two\nlines", "one line"),
        ("A", "\0", "one line"),
    ],
)
def test_what_cannot_be_set_is_told(name, value, said):
    assert said in why_not(name, value)
