"""A job in a standing mesh: which slots it takes, and what its supervisor is asked to run."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from stackyard.launch import LAUNCHERS
from stackyard.launch.accelerate_config import parse
from stackyard.launch.job import Job
from stackyard.mesh import settings
from stackyard.mesh.jobs import (
    replaced_lines,
    request_of,
    require_startable,
    select,
    start_request,
)
from stackyard.mesh.node import rank_folder
from stackyard.system.errors import UsageError
from tests.unit.machines import node, plan

TWO = plan(node("a"), node("b"))
# Two hosts with two GPUs each; and two nodes on one host, which see the GPUs of both.
GPUS = plan(node("a", gpus=(0, 1)), node("b", gpus=(4, 6)))
BESIDE = plan(node("a-1", "a", gpus=(2, 5)), node("a-2", "a", gpus=(6, 7)))


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "name": "demo-1", "stack": "fairseq", "base": "cpu", "image": "sha256:0", "nodes": 2,
        "per_node": 1, "device": "cpu", "program": ("/srv/train.py", "--lr=1"),
    }  # fmt: skip
    return Job(**{**values, **changes})


def cuda(**changes: Any) -> Job:
    return job(device="cuda", per_node=2, **changes)


def refused(call, *words, **named):
    with pytest.raises(UsageError) as caught:
        call(*words, **named)
    return str(caught.value)


# Which nodes and slots


@pytest.mark.parametrize(
    ("mesh", "per_node", "slots"),
    [
        (TWO, 1, {"a": (0,), "b": (0,)}),
        (TWO, 3, {"a": (0, 1, 2), "b": (0, 1, 2)}),
        (GPUS, 1, {"a": (0, 1), "b": (0, 1)}),
    ],
)
def test_a_node_has_a_slot_for_each_gpu_or_cpu_rank(mesh, per_node, slots):
    assert select(mesh, per_node).slots == slots


@pytest.mark.parametrize(
    ("include", "slots"),
    [
        ("a", {"a": (0, 1)}),
        ("b@a", {"a": (0, 1), "b": (0, 1)}),
        ("b:1", {"b": (1,)}),
        ("a:1,0", {"a": (0, 1)}),
        ("a:0@b:0,1", {"a": (0,), "b": (0, 1)}),
        ("a:0@a:1@a:0", {"a": (0, 1)}),
    ],
)
def test_what_is_included_takes_part_in_the_meshs_order(include, slots):
    found = select(GPUS, 1, include=include).slots
    assert (found, list(found)) == (slots, list(slots))


@pytest.mark.parametrize(
    ("exclude", "slots"),
    [("a", {"b": (0, 1)}), ("b:1", {"a": (0, 1), "b": (0,)}), ("a:0,1@b:0", {"b": (1,)})],
)
def test_what_is_excluded_does_not_take_part(exclude, slots):
    assert select(GPUS, 1, exclude=exclude).slots == slots


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"include": "c"}, "--include: there is no node 'c'"),
        ({"exclude": "a@"}, "--exclude: there is no node ''"),
        ({"include": "a:2"}, "--include: a has no slot '2'"),
        ({"include": "a:"}, "--include: a has no slot ''"),
        ({"include": "a:0-1"}, "--include: a has no slot '0-1'"),
        ({"exclude": "b:-1"}, "--exclude: b has no slot '-1'"),
        ({"include": "a:²"}, "--include: a has no slot '²'"),
        ({"include": "a", "exclude": "b"}, "--include and --exclude cannot be given together"),
        ({"exclude": "a@b"}, "--exclude a@b leaves nothing"),
        ({"per_node": 0}, "--per-node must be at least 1, not 0"),
    ],
)
def test_what_does_not_exist_or_leaves_nothing_is_refused(words, said):
    assert said in refused(select, GPUS, **{"per_node": 1, **words})


def test_a_slot_that_is_not_there_is_refused_with_those_that_are():
    assert "it has 2 slots: 0 to 1" in refused(select, GPUS, 1, "a:7")
    assert "it has 1 slot: 0 to 0" in refused(select, TWO, 1, "a:7")
    assert "one of: a, b" in refused(select, TWO, 1, "c")


# What the launcher is asked for


def asked(mesh, wanted, *, include="", per_node=1):
    return request_of(mesh, wanted, select(mesh, per_node, include), 29500)


def test_a_request_says_what_runs_where():
    found = asked(TWO, job(env={"A": "1"}, folder="/code"), per_node=2)
    assert (found.nodes, found.per_node, found.port, found.folder) == (
        ("a", "b"), 2, 29500, "/code",
    )  # fmt: skip
    assert (found.program, found.device, found.gpus, found.include) == (
        ("/srv/train.py", "--lr=1"), "cpu", (), "",
    )  # fmt: skip
    assert found.scratch == "/run/stackyard/launch/demo-1"


def test_ranks_are_told_where_their_words_go_and_keep_their_python_path():
    env = asked(TWO, job(env={"PYTHONPATH": "/code", "A": "1"})).env
    assert env == {
        "A": "1",
        "STACKYARD_JOB": "demo-1",
        "STACKYARD_LOGS": "/var/lib/stackyard/jobs/demo-1/ranks",
        "PYTHONPATH": "/srv/stackyard/rank_site:/code",
    }
    assert asked(TWO, job()).env["PYTHONPATH"] == "/srv/stackyard/rank_site"


def test_one_port_of_all_nodes_is_named_and_different_ones_are_left_to_ssh():
    assert asked(TWO, job()).ssh_port == 2222
    assert asked(plan(node("a"), node("b", port=2223)), job()).ssh_port == 0


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "plain", "each"])
def test_uneven_slots_are_refused_where_a_launcher_starts_as_many_on_every_node(launcher):
    said = refused(asked, TWO, job(launcher=launcher), include="a:0,1@b:0", per_node=2)
    assert f"{launcher} starts as many ranks on every node, not a 2, b 1" in said
    assert "--launcher deepspeed" in said


def hostfile(request):
    launch = LAUNCHERS["deepspeed"](request)
    words = list(launch.argv)
    included = words[words.index("--include") + 1] if "--include" in words else ""
    return launch.files[f"{request.scratch}/hostfile"].splitlines(), included


def test_deepspeed_is_told_uneven_cpu_ranks_in_slots_that_its_hostfile_has():
    found = asked(TWO, job(launcher="deepspeed"), include="a:1,2@b:2", per_node=3)
    assert hostfile(found) == (["a slots=2", "b slots=2"], "a:0,1@b:0")


@pytest.mark.parametrize(
    ("mesh", "include", "expected"),
    [
        (GPUS, "", (["a slots=2", "b slots=2"], "a:0,1@b:0,1")),
        (GPUS, "a:1@b:0,1", (["a slots=2", "b slots=2"], "a:1@b:0,1")),
        (BESIDE, "", (["a-1 slots=4", "a-2 slots=4"], "a-1:0,1@a-2:2,3")),
        (BESIDE, "a-2:1", (["a-2 slots=4"], "a-2:3")),
    ],
)
def test_deepspeed_is_told_gpus_as_each_container_numbers_them(mesh, include, expected):
    assert hostfile(asked(mesh, cuda(launcher="deepspeed"), include=include)) == expected


@pytest.mark.parametrize(
    ("mesh", "include", "visible"),
    [
        (GPUS, "", None),
        (GPUS, "a@b", None),
        (GPUS, "b", None),
        (GPUS, "a:1@b:1", "1"),
        (GPUS, "b:1", "1"),
        (BESIDE, "", None),  # each node's own environment says it
        (BESIDE, "a-2:1", "3"),
    ],
)
def test_ranks_that_take_some_of_the_gpus_are_told_which(mesh, include, visible):
    env = asked(mesh, cuda(), include=include).env
    assert env.get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize(
    ("mesh", "include"), [(GPUS, "a:0@b:1"), (BESIDE, "a-1:0@a-2:0")], ids=["hosts", "one host"]
)
@pytest.mark.parametrize(
    ("launcher", "options", "tells"),
    [
        ("torchrun", {}, False),
        ("plain", {}, False),
        ("accelerate", {}, False),
        ("accelerate", {"zero_stage": "2", "start": "standard"}, False),
        ("accelerate", {"zero_stage": "2"}, True),
        ("deepspeed", {}, True),
    ],
)
def test_different_gpus_on_each_node_are_refused_unless_deepspeed_tells_them(
    mesh, include, launcher, options, tells
):
    wanted = cuda(launcher=launcher, options=options)
    if tells:
        assert "CUDA_VISIBLE_DEVICES" not in asked(mesh, wanted, include=include).env
    else:
        assert f"{launcher} gives every node the same GPUs" in refused(
            asked, mesh, wanted, include=include
        )


def test_ranks_that_meet_by_a_file_find_it_in_the_shared_folder_or_where_they_are_told():
    assert asked(TWO, job()).options["meeting"] == "/shared/stackyard-demo-1.meeting"
    told = job(options={"meeting": "/mnt/x"})
    assert asked(TWO, told).options["meeting"] == "/mnt/x"


def test_one_process_alone_is_refused_for_several_ranks():
    assert "starts one process, not 2 ranks" in refused(asked, TWO, job(launcher="alone"))
    assert asked(TWO, job(launcher="alone"), include="b").nodes == ("b",)


@pytest.mark.parametrize(
    ("launcher", "options", "said"),
    [
        ("torchrun", {"rendezvous": "etcd"}, "rendezvous must be static or c10d, not 'etcd'"),
        ("torchrun", {"restarts": "-1"}, "restarts must be a number below 1000, not '-1'"),
        ("accelerate", {"zero_stage": "4"}, "zero_stage must be 0 to 3, not '4'"),
        ("plain", {"meet": "udp"}, "meet must be tcp or file, not 'udp'"),
    ],
)
def test_options_that_a_launcher_does_not_have_are_refused(launcher, options, said):
    assert said in refused(asked, TWO, job(launcher=launcher, options=options))


# What the supervisor is asked for


def start(mesh, wanted, lease=60.0):
    return start_request(mesh, wanted, select(mesh, wanted.per_node), 29500, lease)


@pytest.mark.parametrize("launcher", sorted(set(LAUNCHERS) - {"alone"}))
def test_every_launcher_starts_a_job_without_options(launcher):
    value, launch = start(TWO, job(launcher=launcher))
    json.dumps(value)
    assert value["steps"][-1]["argv"] == list(launch.argv)
    assert value["steps"][-1]["what"] == "train"


def test_a_job_is_prepared_on_every_node_before_it_trains():
    prepare = (("python3", "/srv/prepare.py", "--data=/x y"), ("fairseq-preprocess",))
    value, _ = start(TWO, job(prepare=prepare))
    assert [step["what"] for step in value["steps"]] == [
        "prepare: python3 /srv/prepare.py --data=/x y", "prepare: fairseq-preprocess", "train",
    ]  # fmt: skip
    first = value["steps"][0]["argv"]
    assert first[first.index("-w") + 1] == "a,b"
    assert shlex.split(first[-1])[-3:] == list(prepare[0])
    # What prepares a training is no rank: it has no words of one.
    assert "STACKYARD_LOGS" not in first[-1]
    assert "STACKYARD_LOGS" in value["steps"][-1]["argv"][-1]


def test_a_request_names_its_job_lease_nodes_and_what_people_are_shown():
    value, _ = start(TWO, job(launcher="deepspeed", env={"A": "1"}, per_node=2), lease=8.0)
    assert {key: value[key] for key in ("name", "env", "folder", "lease", "nodes", "shown")} == {
        "name": "demo-1", "env": {"A": "1"}, "folder": "/root", "lease": 8.0, "nodes": ["a", "b"],
        "shown": {"stack": "fairseq", "base": "cpu", "launcher": "deepspeed", "ranks": 4,
                  "program": ["/srv/train.py", "--lr=1"]},
    }  # fmt: skip
    value, _ = start(TWO, job(updates=500))
    assert value["shown"]["updates"] == 500


def test_files_are_node_1s_unless_every_node_needs_them():
    value, launch = start(TWO, job(launcher="deepspeed"))
    assert value["steps"][0]["files"] == launch.files != {}
    value, launch = start(TWO, job(launcher="deepspeed", options={"ssh": "no"}))
    assert launch.everywhere and launch.files
    assert value["steps"][0]["files"] == {}


def test_ranks_on_gpus_log_what_nccl_uses_unless_the_user_asks_nccl_to_speak():
    env = asked(GPUS, cuda()).env
    assert (env["NCCL_DEBUG"], env["STACKYARD_NCCL_LOGS"]) == ("INFO", rank_folder("demo-1"))
    own = {name: {"NCCL_DEBUG": "WARN"} for name in ("a", "b")}
    for request in (request_of(GPUS, cuda(), select(GPUS, 2), 29500, own), asked(TWO, job())):
        assert not {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "STACKYARD_NCCL_LOGS"} & set(request.env)


def test_each_job_on_gpus_has_an_address_of_its_own_for_nccls_ras():
    """Jobs in one network namespace would answer for each other at NCCL's own address."""
    one, other = asked(GPUS, cuda()).env, asked(GPUS, cuda(name="demo-2")).env
    again = asked(replace(GPUS, run="other"), cuda()).env
    found = {env["NCCL_RAS_ADDR"] for env in (one, other, again)}
    assert len(found) == 3
    for address in found:
        host, _, port = address.partition(":")
        assert ip_address(host).is_loopback and (host, port) != ("127.0.0.1", "28028")
    own = {name: {"NCCL_RAS_ADDR": "localhost:5"} for name in ("a", "b")}
    assert "NCCL_RAS_ADDR" not in request_of(GPUS, cuda(), select(GPUS, 2), 29500, own).env
    assert "NCCL_RAS_ADDR" not in asked(TWO, job()).env


# The user's own settings


OWN = {"a": {"A": "it's 5%", "NCCL_DEBUG": "INFO"}, "b": {"A": "2", "NCCL_DEBUG": "WARN"}}
SETTINGS = "/run/stackyard/launch/demo-1/settings"


def started(mesh, wanted, own=None, include=""):
    return start_request(mesh, wanted, select(mesh, wanted.per_node, include), 29500, 60.0, own)


@pytest.mark.parametrize("launcher", ["torchrun", "plain", "accelerate", "each"])
def test_every_node_reads_its_variables_before_its_command(launcher):
    value, launch = started(TWO, job(launcher=launcher, env={"A": "0", "B": "1"}), OWN)
    words = shlex.split(launch.argv[-1])
    assert words[:5] == ["cd", "/root", "&&", ".", SETTINGS]
    # What the file says is not said again, and its values are on no command line.
    assert not any(word.startswith("A=") for word in words) and "B=1" in words
    assert not {"it's 5%", "INFO", "WARN"} & set(words)
    assert "INFO" not in json.dumps(value)


def test_what_prepares_a_job_has_the_users_variables_too():
    value, _ = started(TWO, job(prepare=(("/srv/prepare.py",),)), OWN)
    assert f". {SETTINGS} &&" in value["steps"][0]["argv"][-1]


@pytest.mark.parametrize(
    ("launcher", "options"), [("deepspeed", {}), ("accelerate", {"zero_stage": "2"})]
)
def test_nodes_that_deepspeed_starts_are_told_where_their_variables_are(launcher, options):
    """DeepSpeed writes what it exports on a command line, the same for every node."""
    wanted = job(launcher=launcher, options=options, env={"A": "0", "PYTHONPATH": "/code"})
    own = {node: {**variables, "PYTHONPATH": "/x"} for node, variables in OWN.items()}
    _, launch = started(TWO, wanted, own)
    exported = dict(line.split("=", 1)
                    for line in launch.files[launch.env["DS_ENV_FILE"]].splitlines())  # fmt: skip
    assert exported["STACKYARD_SETTINGS"] == SETTINGS
    assert "A" not in exported and "NCCL_DEBUG" not in exported
    # The program that reads the file is found by this; it then sets the node's own.
    assert exported["PYTHONPATH"] == "/srv/stackyard/rank_site:/code"
    # DeepSpeed's own process must not read it: it exports what begins with NCCL or PYTHON.
    assert "STACKYARD_SETTINGS" not in launch.env


def test_a_node_alone_is_started_with_its_variables():
    value, launch = started(TWO, job(env={"A": "0"}), {"a": OWN["a"]}, include="a")
    assert launch.env["A"] == "it's 5%" and launch.env["NCCL_DEBUG"] == "INFO"
    assert SETTINGS not in json.dumps(value)


@pytest.mark.parametrize(
    ("launcher", "options"),
    [("torchrun", {}), ("deepspeed", {}), ("accelerate", {}), ("accelerate", {"zero_stage": "2"}),
     ("plain", {}), ("alone", {}), ("each", {})],
)  # fmt: skip
def test_a_lone_node_that_is_not_the_first_is_started_by_ssh_with_its_variables(launcher, options):
    wanted = job(launcher=launcher, options=options, per_node=1, prepare=(("/srv/p.py",),))
    value, launch = started(TWO, wanted, {"b": OWN["b"]}, include="b")
    for step in value["steps"]:
        assert step["argv"][:2] == ["pdsh", "-b"] and step["argv"][-2] == "b"
        assert f". {SETTINGS} &&" in step["argv"][-1] and step["files"] == {}
    # What the command reads is written on that node.
    assert launch.everywhere or not launch.files
    assert "WARN" not in json.dumps(value)
    assert settings.files(wanted, {"b": OWN["b"]}, away=True).keys() == {"b"}
    _, first = started(TWO, wanted, {"a": OWN["a"]}, include="a")
    assert first.argv[0] != "pdsh" and settings.files(wanted, {"a": OWN["a"]}) == {}


def test_without_variables_of_the_user_there_is_no_file():
    value, _ = started(TWO, job(), {"a": {}, "b": {}})
    assert value == start(TWO, job())[0] and SETTINGS not in json.dumps(value)


def config(text):
    return parse(text, "my.yaml")


def test_a_configuration_of_the_users_is_completed_on_every_node():
    wanted = job(launcher="accelerate", config=config("distributed_type: FSDP"))
    value, launch = started(TWO, wanted)
    assert launch.everywhere and value["steps"][-1]["files"] == {}
    (text,) = launch.files.values()
    assert "main_process_ip: a\n" in text and "num_machines: 2\n" in text


def test_deepspeed_tells_each_node_its_gpus_where_the_users_configuration_starts_it():
    zero = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n"
    wanted = cuda(launcher="accelerate", config=config(zero))
    assert "CUDA_VISIBLE_DEVICES" not in asked(GPUS, wanted, include="a:0@b:1").env


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"launcher": "torchrun"}, "my.yaml is for the launcher accelerate, not for torchrun"),
        ({"options": {"zero_stage": "2"}}, "my.yaml decides what zero_stage would, too"),
        ({"config": config("distributed_type: FSDP\nnum_processes: 4\nnum_machines: 8")},
         "num_processes is 4, but this run has 2"),
        ({"config": config("distributed_type: FSDP\nnum_processes: 4\nnum_machines: 8")},
         "num_machines is 8, but this run has 2"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused(changes, said):
    values = {"launcher": "accelerate", "config": config("distributed_type: FSDP"), **changes}
    text = refused(require_startable, job(**values), select(TWO, 1))
    assert said in text


def test_lines_that_give_way_are_told():
    wanted = job(config=config("distributed_type: FSDP\nmachine_rank: 0"))
    assert "machine_rank" in replaced_lines(wanted, select(TWO, 1))[0]
    assert replaced_lines(job(), select(TWO, 1)) == []
