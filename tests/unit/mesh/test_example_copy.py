"""Copies of examples: what is written is an example again, and trains the same."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

from stackyard.cli.options.runs import RunRequest
from stackyard.cli.steps import examples
from stackyard.cli.steps import run as steps
from stackyard.definitions.examples import Where, job_of
from stackyard.definitions.job_source import (
    Work,
    example_files,
    example_names,
    load_example,
    make_job,
)
from stackyard.definitions.project import ROOT
from stackyard.definitions.read.example import read_example
from stackyard.mesh.example_copy import CopyRequest, copied, example_text, specialised
from stackyard.mesh.hosts import read_inventory
from stackyard.system.errors import UsageError
from tests.unit.lines import run, type_line

STACKS = ("fairseq", "megatron", "accelerate")
ALL = [(stack, name) for stack in STACKS for name in example_names(ROOT, stack)]
HOSTS = """\
hosts:
  study: {address: 10.0.0.5, gpus: "0,1,2,3"}
  train: {address: 10.0.0.6, gpus: "0,1,2,3"}
"""


def request(**changes):
    values = {"base": "b", "device": "cuda", "ranks": 4, "given": {}, "more": (), "options": (),
              "inventory": HOSTS, "root": "/there"}  # fmt: skip
    return CopyRequest(**{**values, **changes})


def files_of(stack, name, hosts=HOSTS, **changes):
    example = load_example(ROOT, stack, name)
    fleet = read_inventory(hosts, "hosts.yml")
    return copied(example, example_files(ROOT, example), fleet, request(**changes))


def where(device):
    return Where(name="n-1", base="b", image="", nodes=2, per_node=4, device=device,
                 folder="/job", save="/job/checkpoints")  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("stack", "name"), ALL)
def test_a_copy_trains_what_the_example_trains(stack, name, device, tmp_path):
    example = load_example(ROOT, stack, name)
    examples.write_folder(tmp_path / "own", files_of(stack, name, device=device))
    again = load_example(ROOT, stack, f"{tmp_path}/own")
    first = job_of(example, where(device), example_files(ROOT, example))
    second = job_of(again, where(device), example_files(ROOT, again))
    assert first == second and example.plain == again.plain


@pytest.mark.parametrize(("stack", "name"), ALL)
def test_what_the_user_set_and_added_is_the_copys_own(stack, name):
    example = load_example(ROOT, stack, name)
    given = {"updates": "7"} | ({"corpus": "/d/{x}"} if "corpus" in example.values else {})
    asked = request(given=given, more=("--new={y}",))
    own = read_example(example_text(specialised(example, asked)), "example.yml", stack, name)
    there = job_of(own, where("cuda"), {})
    here = job_of(example, where("cuda"), {}, given, ("--new={y}",))
    assert (there.program, there.prepare, there.env) == (here.program, here.prepare, here.env)
    assert there.program[-1] == "--new={y}"


def test_a_copy_names_the_users_hosts_and_what_is_typed():
    found = files_of("megatron", "gpt2-345m-3d", options=("--save", "/shared/my ckpt"))
    texts = {name: content.decode() for name, content in found.items()}
    assert texts["launch/hostfile"] == "study slots=4\ntrain slots=4\n"
    assert "--include study:0,1,2,3@train:0,1,2,3" in texts["launch/commands.sh"]
    assert "--replicas=2 " in texts["launch/commands.sh"]
    assert texts["hosts.yml"] == HOSTS
    typed = """ --example "$here" --hosts "$here/hosts.yml" --save '/shared/my ckpt' "$@"\n"""
    assert typed in texts["start.sh"] and "invoke run megatron" in texts["start.sh"]
    assert "8 GPUs on 2 hosts: study, train" in texts["README.md"]
    assert "files/srv-templates/pretrain.py" in found
    assert not any(name.endswith("stackyard_record.py") for name in found)


def test_the_configuration_of_accelerate_is_there_to_read():
    found = files_of("accelerate", "mt5-zero-3")
    config = yaml.safe_load(found["launch/accelerate.yaml"])
    assert config["num_machines"] == 2 and config["num_processes"] == 8
    assert config["deepspeed_config"]["zero_stage"] == 3
    assert json.loads(found["files/srv-templates/deepspeed.json"])["zero_optimization"]


def test_a_size_that_is_chosen_is_the_copys():
    found = files_of("fairseq", "gpt2-fsdp", given={"size": "reduced"})
    own = yaml.safe_load(found["example.yml"])
    assert "--decoder-layers=2" in own["program"] and "--fp16" in own["program"]
    assert own["values"]["updates"] == "60" and "sizes" not in own


def test_hosts_that_do_not_say_their_gpus_are_refused_unless_their_number_is_typed():
    hosts = "hosts:\n  study: {}\n  train: {}\n"
    with pytest.raises(UsageError, match="does not say how many GPUs study has"):
        files_of("fairseq", "gpt2-fsdp", hosts, ranks=0)
    found = files_of("megatron", "gpt2-zero-2", hosts, ranks=8)["launch/hostfile"]
    assert found == b"study slots=8\ntrain slots=8\n"
    none = "hosts:\n  study: {gpus: none}\n"
    with pytest.raises(UsageError, match="does not say how many GPUs study has"):
        files_of("fairseq", "gpt2-fsdp", none, ranks=8)


def test_a_template_that_does_not_fit_the_hosts_is_refused():
    one = 'hosts:\n  study: {gpus: "0,1"}\n'
    with pytest.raises(UsageError, match="needs a multiple of 4 ranks, not 2"):
        files_of("megatron", "gpt2-345m-3d", one)
    with pytest.raises(UsageError, match="tp must be a whole number, not 'two'"):
        files_of("megatron", "gpt2-345m-3d", given={"tp": "two"})
    assert files_of("megatron", "gpt2-345m-3d", one, given={"pp": "1"})


def test_a_folder_is_made_whole_or_not_at_all(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine").touch()
    with pytest.raises(UsageError, match="is there already"):
        examples.write_folder(tmp_path / "there", {"a": b""})
    with pytest.raises(UsageError, match="cannot be written"):
        examples.write_folder(tmp_path / "new", {"a": b"", "a/b": b""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]
    examples.write_folder(tmp_path / "new", {"a": b"1", "b/c": b"2"})
    assert (tmp_path / "new/b/c").read_bytes() == b"2"


# The command


def test_the_examples_of_a_stack_are_listed(capsys):
    assert run(examples.list_examples, "megatron", as_json=True) == 0
    found = json.loads(capsys.readouterr().out)["examples"]
    by_name = {entry["name"]: entry for entry in found}
    assert by_name["gpt2-345m-3d"]["ranks"] == "a multiple of tp x pp = 4"
    assert by_name["gpt2-345m"]["ranks"] == "any"
    assert by_name["gpt2-345m"]["note"].startswith("Megatron-LM")
    values = by_name["gpt2-345m"]["values"]
    assert [values[n] for n in ("layers", "hidden", "heads", "sequence", "lr")] == [
        "24", "1024", "16", "1024", "1.5e-4",
    ]  # fmt: skip
    assert by_name["gpt2-345m"]["reduced"]["layers"] == "2"
    assert run(examples.list_examples, "megatron") == 0
    assert "gpt2-zero-3" in capsys.readouterr().out


def write(tmp_path, hosts="", **changes):
    values = {"write": str(tmp_path / "own"), "example": "gpt2-zero-3", "per_node": 2}
    asked = RunRequest(stack="accelerate", hosts=hosts, gpus=0, **{**values, **changes})
    return run(examples.write_example, asked, as_json=True)


def test_a_copy_is_written_for_hosts_that_are_named(tmp_path, capsys):
    settings = "updates=9,start=standard"
    assert write(tmp_path, "root@10.0.0.7,train", set=settings, words=("--lr=1",)) == 0
    assert "example.yml" in json.loads(capsys.readouterr().out)["files"]
    own = yaml.safe_load((tmp_path / "own/example.yml").read_text())
    assert own["values"]["updates"] == "9" and own["program"][-1] == "--lr=1"
    assert own["options"] == {"zero_stage": "3", "start": "standard"}
    fleet = read_inventory((tmp_path / "own/hosts.yml").read_text(), "hosts.yml")
    assert [(host.ssh, host.user) for host in fleet.hosts] == [("10.0.0.7", "root"), ("train", "")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"example": ""}, "no example is named"),
        ({"detach": True}, "for hosts: --detach"),
        ({"set": "updats=1"}, "has no value 'updats'"),
        ({"set": "size=small"}, "has no size 'small'"),
        ({"set": "start=slow"}, "option start must be pdsh or standard"),
        ({"set": "zero_stage=2"}, "has no value 'zero_stage'"),
        ({"words": ("train.py",)}, "'train.py' is no argument for gpt2-zero-3"),
        ({"example": "gpt2-zero-4"}, "there is no example 'gpt2-zero-4' of accelerate"),
    ],
)
def test_a_copy_that_cannot_be_is_refused(tmp_path, capsys, changes, said):
    assert write(tmp_path, "study,train", **changes) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "own").exists()


def test_a_folder_without_an_example_is_refused_with_what_makes_one(tmp_path):
    with pytest.raises(UsageError, match="cannot be read") as caught:
        load_example(ROOT, "fairseq", f"{tmp_path}/none")
    assert f"--write {tmp_path}/none" in caught.value.hint


def test_arguments_follow_those_of_the_example():
    example = load_example(ROOT, "fairseq", "gpt2-fsdp")
    work = Work(example="gpt2-fsdp", settings="restarts=2,size=full", words=("--lr", "{1e-3}"))
    job = make_job(work, example, where("cpu"), root=ROOT, stack="fairseq", usual="")
    assert job.program[-2:] == ("--lr", "{1e-3}")
    assert job.options == {"restarts": "2"}
    assert "--arch=transformer_lm_gpt2_small" in job.program and "--cpu" in job.program


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.parametrize(
    ("typed", "last"), [([], []), (["--lr=1e-3", "a b"], ["--", "--lr=1e-3", "a b"])]
)
def test_the_script_of_a_copy_types_the_command(tmp_path, typed, last):
    root, own = tmp_path / "stack yard", tmp_path / "my copy"
    (root / ".venv/bin").mkdir(parents=True)
    fake = root / ".venv/bin/invoke"
    fake.write_text('#!/bin/sh\npwd\nfor word in "$@"; do echo "$word"; done\n')
    fake.chmod(0o755)
    options = ("--save", "/shared/my ckpt")
    files = files_of("fairseq", "lm-fsdp", root=str(root), options=options)
    examples.write_folder(own, files)
    done = subprocess.run(
        ["sh", str(own / "start.sh"), *typed], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        str(root), "run", "fairseq", "--example", str(own), "--hosts", f"{own}/hosts.yml",
        *options, *last,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("run megatron --examples", "list_examples"),
        (
            "run megatron --example gpt2-345m --hosts a --write /nowhere/x -- --lr=1",
            "write_example",
        ),
        ("run megatron --example gpt2-345m --hosts a -- --lr=1", "run"),
    ],
)
def test_a_line_about_examples_is_one_call(monkeypatch, line, name):
    calls = []
    for module, there in (
        (examples, ("list_examples", "write_example")),
        (steps, ("run",)),
    ):
        for one in there:
            monkeypatch.setattr(
                module, one, lambda *a, _n=one, **k: calls.append((_n, a, k)) or ({}, 0)
            )
    assert type_line(monkeypatch, line) == 0
    ((called, arguments, _),) = calls
    assert called == name
    if name != "list_examples":
        assert arguments[1].example == "gpt2-345m" and arguments[1].words == ("--lr=1",)
