"""The user's variables: what is refused, which one counts, and how nodes get them."""

from __future__ import annotations

import pytest

from stackyard.launch.job import Job
from stackyard.mesh.settings import by_node, files, parse, why_not
from stackyard.system.errors import UsageError

# Made up at random; a token of this form belongs to nobody.
TOKEN = "hf_" + "QmXzRtVbNkLpWsYdGhJcFeTuIoAqZxEr" + "7n"


def job(**changes):
    values = {
        "name": "demo-1", "stack": "fairseq", "base": "cpu", "image": "sha256:0", "nodes": 2,
        "per_node": 1, "device": "cpu", "program": ("/srv/train.py",), "env": {"A": "example"},
    }  # fmt: skip
    return Job(**{**values, **changes})


def test_the_last_of_the_same_name_counts_and_values_are_kept_whole():
    assert parse(["A=1", "B=x=y z", "A=2", "C="]) == {"A": "2", "B": "x=y z", "C": ""}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("A", "'A' is not NAME=VALUE"),
        ("MASTER_ADDR=10.0.0.1", "MASTER_ADDR cannot be set"),
        ("HF_TOKEN=abcdefgh", "looks like a secret"),
        ("WANDB_API_KEY=0a1b2c3d4e", "looks like a secret"),
        ("DB_PASSWORD=hunter22", "a file that only you can read"),
        (f"HARMLESS={TOKEN}", "looks like a secret"),
        ("HTTPS_PROXY=http://me:hunter22@proxy.lab:3128", "looks like a secret"),
    ],
)
def test_what_cannot_be_set_is_refused_without_its_value(word, said):
    with pytest.raises(UsageError) as caught:
        parse([word])
    text = f"{caught.value} {caught.value.why} {caught.value.hint}"
    assert said in text
    value = word.partition("=")[2]
    assert not value or value not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [("HF_TOKEN_PATH", "/data/token"), ("TOKENIZERS_PARALLELISM", "false"), ("NCCL_DEBUG", "INFO"),
     ("GOOGLE_APPLICATION_CREDENTIALS", "/data/key.json"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")],
)  # fmt: skip
def test_paths_and_switches_are_no_secrets(name, value):
    assert why_not(name, value) == ""


def test_the_command_line_precedes_a_host_and_a_host_what_is_filled_in():
    hosts = {"a": {"A": "host", "B": "host"}, "b": {}}
    found = by_node(job(settings={"B": "typed", "C": "typed"}), hosts)
    assert found == {
        "a": {"A": "host", "B": "typed", "C": "typed"},
        "b": {"A": "example", "B": "typed", "C": "typed"},
    }


def test_a_path_of_the_users_comes_after_what_every_job_needs():
    env = {"PYTHONPATH": "/view"}
    found = by_node(job(env=env), {"a": {"PYTHONPATH": "/code"}, "b": {}})
    assert found == {"a": {"PYTHONPATH": "/srv/stackyard/rank_site:/view:/code"},
                     "b": {"PYTHONPATH": "/srv/stackyard/rank_site:/view"}}  # fmt: skip


def test_several_nodes_read_files_of_their_own_and_a_node_alone_needs_none():
    own = {"a": {"A": "1"}, "b": {"A": "2"}}
    path = "/run/stackyard/launch/demo-1/settings"
    assert files(job(), own) == {
        "a": {path: b"export A=1\n"}, "b": {path: b"export A=2\n"},
    }  # fmt: skip
    assert files(job(), {"a": {"A": "1"}}) == {}
    assert files(job(), {"a": {}, "b": {}}) == {}
