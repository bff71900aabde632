"""A user's own accelerate configuration: the run's keys, the user's, and contradictions."""

from __future__ import annotations

import pytest
import yaml

from stackyard.launch import LAUNCHERS, LaunchRequest
from stackyard.launch.accelerate_config import Ranks, complete, conflicts, parse, replaced
from stackyard.system.errors import UsageError

# As `accelerate config` writes one for a machine with two GPUs.
GPUS = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: default}
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
ZERO = """\
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, zero3_init_flag: true, offload_optimizer_device: cpu}
mixed_precision: bf16
"""
TWO = Ranks(nodes=("study", "train"), per_node=2, device="cuda", port=29500)
CPU = Ranks(nodes=("study", "train"), per_node=1, device="cpu", port=29500)


def read(text):
    return parse(text, "my.yaml")


def completed(text, ranks):
    return yaml.safe_load(complete(read(text), ranks))


def test_the_run_decides_on_hosts_ports_and_ranks_and_the_user_on_the_rest():
    found = completed(GPUS.replace("num_machines: 1\nnum_processes: 2\n", ""), TWO)
    ours = {
        "compute_environment": "LOCAL_MACHINE", "num_machines": 2, "num_processes": 4,
        "main_process_ip": "study", "main_process_port": 29500, "same_network": True,
        "use_cpu": False, "rdzv_backend": "static",
    }  # fmt: skip
    assert {name: found[name] for name in ours} == ours
    assert "machine_rank" not in found  # each node is told its own
    theirs = {name: value for name, value in yaml.safe_load(GPUS).items()
              if name not in ours and name != "machine_rank"}  # fmt: skip
    assert {name: found[name] for name in theirs} == theirs


def test_the_text_names_the_users_file():
    assert complete(read(GPUS), TWO).startswith("# my.yaml, completed with")


def test_defaults_of_deepspeed_give_way_to_the_users():
    found = completed(ZERO, TWO)["deepspeed_config"]
    assert found == {
        "zero_stage": 3, "zero3_init_flag": True, "offload_optimizer_device": "cpu",
        "offload_param_device": "none",
    }  # fmt: skip


def test_a_deepspeed_file_of_ones_own_stands_alone():
    """accelerate refuses keys beside it that the file decides."""
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    assert completed(text, TWO)["deepspeed_config"] == {"deepspeed_config_file": "ds.json"}


@pytest.mark.parametrize(("ranks", "kind"), [(CPU, "MULTI_GPU"), (TWO, "MULTI_CPU")])
def test_cpu_ranks_are_one_training_by_the_type_that_starts_torchs_launcher(ranks, kind):
    alone = Ranks(nodes=("study",), per_node=1, device="cpu")
    text = "distributed_type: MULTI_CPU\n"
    assert completed(text, ranks if ranks is CPU else alone)["distributed_type"] == kind


def test_an_address_goes_by_an_endpoint_where_nodes_agree_on_their_ranks():
    """accelerate gives torch the address apart from the port for a static rendezvous only."""
    assert completed(f"{GPUS}", TWO)["same_network"] is True
    c10d = GPUS.replace("rdzv_backend: static", "rdzv_backend: c10d")
    assert completed(c10d, TWO)["same_network"] is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "not an accelerate configuration"),
        ("a: b: c", "is not YAML"),
        ("1: x", "not an accelerate configuration"),
        ("mixed_precision: bf16", "distributed_type must be one of NO, MULTI_CPU"),
        ("distributed_type: TPU", "not TPU"),
        (f"{GPUS}compute_environment: AMAZON_SAGEMAKER", "must be LOCAL_MACHINE"),
        (f"{GPUS}gpu_ids: 0,1", "gpu_ids must be all"),
        (f"{GPUS}mpirun_config: {{mpirun_hostfile: /h}}", "not by MPI"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: 3", "deepspeed_config must hold keys"),
        (f"{GPUS}deepspeed_config: {{deepspeed_multinode_launcher: openmpi}}", "pdsh or standard"),
        (f"{GPUS}deepspeed_config: {{deepspeed_hostfile: /h}}", "deepspeed_hostfile: hosts are"),
        (f"{GPUS}deepspeed_config: {{deepspeed_inclusion_filter: a}}", "inclusion_filter: hosts"),
        (f"{GPUS}deepspeed_config: {{deepspeed_exclusion_filter: a}}", "exclusion_filter: hosts"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(text, said):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert said in str(caught.value) and "my.yaml" in str(caught.value)


def test_json_is_read_as_well():
    assert read('{"distributed_type": "FSDP"}').kind == "FSDP"


@pytest.mark.parametrize(
    ("text", "ranks", "said"),
    [
        (GPUS, TWO, "num_machines is 1, but this run has 2"),
        (GPUS, TWO, "num_processes is 2, but this run has 4"),
        ("distributed_type: MULTI_GPU\nuse_cpu: true", TWO, "use_cpu is true"),
        ("distributed_type: MULTI_CPU", TWO, "distributed_type is MULTI_CPU"),
        ("distributed_type: 'NO'", CPU, "starts 2 separate trainings"),
    ],
)
def test_what_contradicts_a_run_is_named(text, ranks, said):
    assert any(said in one for one in conflicts(read(text), ranks))


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (GPUS.replace("num_machines: 1\nnum_processes: 2", "num_machines: 2\nnum_processes: 4"),
         TWO),
        (ZERO, TWO),
        ("distributed_type: MULTI_CPU\nuse_cpu: true", CPU),
        ("distributed_type: 'NO'", Ranks(nodes=("study",), per_node=1, device="cpu")),
    ],
)  # fmt: skip
def test_what_fits_a_run_has_no_conflict(text, ranks):
    assert conflicts(read(text), ranks) == []


def test_lines_that_give_way_are_named_and_others_are_not():
    assert replaced(read(ZERO), CPU) == []
    (said,) = replaced(read(f"{GPUS}main_process_ip: 10.0.0.9\n"), CPU)
    assert said == (
        "my.yaml: main_process_ip, machine_rank, use_cpu: this run's own values are used"
    )


def launched(text, nodes, **changes):
    values = {
        "nodes": ("study", "train")[:nodes], "port": 29500, "program": ("/code/train.py",),
        "env": {}, "folder": "/code", "scratch": "/run/x", "ssh_port": 2222, "config": read(text),
    }  # fmt: skip
    return LAUNCHERS["accelerate"](LaunchRequest(**{**values, **changes}))


def test_every_node_runs_accelerate_with_the_completed_file():
    found = launched("distributed_type: FSDP", 2)
    assert found.argv[0] == "pdsh" and found.everywhere
    assert "--machine_rank=%n --config_file /run/x/accelerate.yaml" in found.argv[-1]
    assert list(found.files) == ["/run/x/accelerate.yaml"]


def test_deepspeed_starts_the_nodes_of_a_hostfile_unless_the_file_says_standard():
    found = launched(ZERO, 2)
    section = yaml.safe_load(found.files["/run/x/accelerate.yaml"])["deepspeed_config"]
    assert section["deepspeed_hostfile"] == "/run/x/hostfile" in found.files
    assert section["deepspeed_multinode_launcher"] == "pdsh"
    assert found.argv[0] == "accelerate" and found.env["DS_ENV_FILE"] in found.files
    standard = ZERO.replace("{zero_stage", "{deepspeed_multinode_launcher: standard, zero_stage")
    found = launched(standard, 2)
    section = yaml.safe_load(found.files["/run/x/accelerate.yaml"])["deepspeed_config"]
    assert found.argv[0] == "pdsh" and "deepspeed_hostfile" not in section


@pytest.mark.parametrize("text", ["distributed_type: MULTI_CPU", "distributed_type: FSDP"])
def test_cpu_ranks_are_told_unless_deepspeed_starts_them(text):
    assert launched(text, 1, per_node=2).env == {"ACCELERATE_USE_CPU": "true"}
    assert launched(ZERO, 1, per_node=2).env == {}


def test_accelerates_own_test_is_started_on_every_node():
    """`accelerate test` itself starts a launcher that knows one machine only."""
    found = launched("distributed_type: MULTI_CPU", 2, program=("accelerate", "test"))
    assert found.argv[-1].endswith(" -m accelerate.test_utils.scripts.test_script")


def test_a_console_script_is_started_without_python():
    found = launched("distributed_type: MULTI_CPU", 2, program=("my-train", "--lr", "1"))
    assert found.argv[-1].endswith(" --no_python my-train --lr 1")
