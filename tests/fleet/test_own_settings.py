"""Users' own configurations, programs and variables over two hosts, each unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from stackyard.mesh.node import SCRATCH
from tests.fleet.programs import (
    DEEPSPEED,
    DEEPSPEED_JSON,
    LORA,
    NOTE_YAML,
    OWN_ACCELERATE,
    TRAINER,
    TRAINER_JSON,
    TRAINER_WORDS,
    ZERO_INIT,
)
from tests.shared import until

# Nothing is compiled on CPU ranks, and importing the compiler takes seconds.
LIGHTER = ("--env", "TORCHDYNAMO_DISABLE=1")
# What must go from the note's configuration; its numbers are of 2 x 8 GPUs.
NOTE = re.sub(r" *(deepspeed_hostfile|num_\w+|dynamo_\w+):.*\n", "", NOTE_YAML)
REPLACED = "main_process_ip, main_process_port, machine_rank, use_cpu"
# It says its variables into a folder of all hosts, and stays to be looked at.
SAYS = """
import os, pathlib, sys, time
place = pathlib.Path(sys.argv[-1])  # deepspeed puts a word of its own before it
own = place / os.environ["RANK"]
names = ("ONE", "ALL", "NCCL_DEBUG", "NCCL_NET", "MINE", "OMP_NUM_THREADS")
hidden = place.parent / f"{place.name}-{own.name}"
hidden.write_text(" ".join(os.environ.get(name, "-") for name in names))
hidden.rename(own)
time.sleep(60)
"""

WHERE = """
import os
print("where", os.uname().nodename, *(os.environ[name] for name in ("ONE", "ALL", "MINE")))
"""


@pytest.fixture(scope="module")
def two(three):
    """Two hosts with a mesh of accelerate's image; `study` has a variable of its own."""
    found = three.only("study", "train")
    path = Path(found.inventory)
    text = path.read_text().replace("defaults:\n", "defaults:\n  env: {ALL: all, ONE: all}\n")
    text = re.sub(r"( {2}study: \{address: [^}]*)\}", r"\1, env: {ONE: study}}", text)
    path.write_text(text)
    programs = {
        "own.py": OWN_ACCELERATE, "ds.py": DEEPSPEED, "hf.py": TRAINER, "says.py": SAYS,
        "lora.py": LORA, "init.py": ZERO_INIT, "where.py": WHERE,
        "ds.json": DEEPSPEED_JSON, "trainer.json": TRAINER_JSON, "deepspeed.json": TRAINER_JSON,
        "ds-3.json": json.dumps({**json.loads(DEEPSPEED_JSON), "train_batch_size": 6}),
        "bf16.json": json.dumps({**json.loads(TRAINER_JSON), "bf16": {"enabled": "auto"}}),
        "odd.json": json.dumps({"train_batch_size": 3}),
        "lora.json": json.dumps({
            "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
            "zero_optimization": {
                "stage": 3, "overlap_comm": False, "stage3_param_persistence_threshold": 0,
                "stage3_gather_16bit_weights_on_model_save": True,
            },
        }),
    }  # fmt: skip
    for name, text in programs.items():
        (three.folder / "shared" / name).write_text(text)
    found.invoke("up", "accelerate", "--gpus", "0")
    yield found
    found.invoke("down", "--all")
    assert found.left() == {}


@pytest.fixture
def config(two):
    """Write an accelerate configuration on the machine where the command is typed."""

    def write(text):
        path = two.folder / "my.yaml"
        path.write_text(text)
        return ("--launcher", "accelerate", "--accelerate-config", str(path))

    return write


def run(two, *words, lighter=LIGHTER, **more):
    at = words.index("--")
    return two.invoke("run", "accelerate", *words[:at], *lighter, *words[at:], **more)


def learned(said):
    found = [float(loss) for loss in re.findall(r"update \d+ loss ([0-9.]+)", said)]
    assert len(found) >= 4 and found[-1] < 0.9 * found[0], said[-3000:]


@pytest.mark.repeat  # one's own configuration goes to accelerate below, too
def test_accelerate_test_passes(two):
    # Its ranks append to one file in their working directory.
    done = run(two, "--launcher", "accelerate", "--folder", "/shared", "--", "accelerate", "test")
    assert re.search(r"is done: 2 ranks", done.stdout), done.stdout[-3000:]
    assert "Num processes: 2" in done.stdout


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param("distributed_type: MULTI_CPU\nuse_cpu: true\nmachine_rank: 0\n", "MULTI_CPU",
                     id="data parallel"),
        pytest.param("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"
                     "  deepspeed_multinode_launcher: standard\n", "DEEPSPEED", id="standard",
                     marks=pytest.mark.repeat),
        pytest.param(NOTE, "DEEPSPEED", id="note", marks=pytest.mark.repeat),
        pytest.param("distributed_type: MULTI_CPU\nuse_cpu: true\ndynamo_config:\n"
                     "  dynamo_backend: EAGER\n", "MULTI_CPU", id="dynamo",
                     marks=pytest.mark.repeat),
    ],
)  # fmt: skip
def test_a_program_with_its_own_accelerate_configuration(two, config, text, kind):
    words = (*config(text), "--folder", "/shared", "--", "own.py")
    # Where it is looked for, nothing else switches dynamo off.
    done = run(two, *words, lighter=() if kind == "MULTI_CPU" else LIGHTER)
    learned(done.stdout)
    assert done.stdout.count(", by dynamo") == 2 * ("dynamo" in text)
    assert done.stdout.count(f"of 2 by {kind}") == 2
    names = {"MULTI_CPU": "machine_rank"}.get(kind, REPLACED)
    if "machine_rank" in text:
        assert f"my.yaml: {names}: this run's own values are used" in done.stderr
    if text == NOTE:  # all else of it stays, zero3_init_flag and what is of TPUs too
        script = f"cat $(ls -t {SCRATCH}/*/accelerate.yaml | head -1)"
        node = ("docker", "exec", "stackyard-accelerate-study", "sh", "-c", script)
        kept = yaml.safe_load(two.hosts["study"].run(*node))
        asked = yaml.safe_load(NOTE)
        own = (asked.pop("deepspeed_config"), kept.pop("deepspeed_config"))
        assert {key for key in asked if kept[key] != asked[key]} <= {*names.split(", ")}, kept
        assert own[0].items() <= own[1].items()


@pytest.mark.repeat  # the user's own is read above
@pytest.mark.parametrize("flag", [True, False])
def test_zero_3_cuts_a_model_while_transformers_makes_it(two, config, flag):
    """Whatever the flag says: accelerate tells transformers of ZeRO-3 in any case."""
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n"
    words = config(f"{text}  zero3_init_flag: {str(flag).lower()}\n")
    done = run(two, *words, "--folder", "/shared", "--", "init.py")
    learned(done.stdout)
    assert done.stdout.count("by class: cut False") == 2, done.stdout[-3000:]
    assert done.stdout.count("by from_config: cut True") == 2
    assert done.stdout.count("by from_pretrained: cut True same True") == 2


@pytest.mark.repeat  # the user's own is read above
def test_no_default_configuration_of_accelerate_is_read(two):
    """`accelerate config` left one in every node, of bf16; the run's own says nothing of it."""
    folder = "/root/.cache/huggingface/accelerate"
    text = '{compute_environment: LOCAL_MACHINE, distributed_type: "NO", mixed_precision: bf16}'
    write = f"mkdir -p {folder} && echo '{text}' > {folder}/default_config.yaml"
    for host in two.hosts.values():
        host.run("docker", "exec", f"stackyard-accelerate-{host.name}", "sh", "-c", write)
    try:
        done = run(two, "--launcher", "accelerate", "--folder", "/shared", "--", "own.py")
    finally:
        for host in two.hosts.values():
            host.run("docker", "exec", f"stackyard-accelerate-{host.name}", "rm", "-r", folder)
    assert done.stdout.count("of 2 by MULTI_CPU in no") == 2, done.stdout[-3000:]
    assert f"{folder}/default_config.yaml on study is not read" in done.stderr


@pytest.mark.repeat  # of one limit of one package
def test_an_adapter_trained_under_zero_3_is_saved_whole_when_it_is_gathered(two, config):
    """And is not when it is not: peft's own way (images/limits/peft-zero3-saving.yml)."""
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
    text += "  deepspeed_config_file: /shared/lora.json\n  zero3_init_flag: false\n"
    done = run(two, *config(text), "--", "/shared/lora.py")
    learned(done.stdout)
    assert done.stdout.count("of 2 by DEEPSPEED") == 2
    assert "saved gathered: 4 of 4 as trained" in done.stdout, done.stdout[-3000:]
    assert "saved plain: 0 of 4 as trained" in done.stdout, done.stdout[-3000:]


@pytest.mark.parametrize(
    "launcher", ["deepspeed", pytest.param("torchrun", marks=pytest.mark.repeat)]
)
def test_a_deepspeed_program_with_its_own_ds_json(two, launcher):
    words = ("/shared/ds.py", "--deepspeed", "--deepspeed_config", "/shared/ds.json")
    done = run(two, "--launcher", launcher, "--", *words)
    learned(done.stdout)
    assert done.stdout.count("stage 2 of 2 ranks") == 2


@pytest.mark.repeat  # of the launcher above
def test_deepspeed_starts_the_chosen_slots_of_each_host(two):
    chosen = ("--per-node", "3", "--include", "study:1,2@train:2")
    words = ("/shared/ds.py", "--deepspeed", "--deepspeed_config", "/shared/ds-3.json")
    done = run(two, "--launcher", "deepspeed", *chosen, "--", *words)
    learned(done.stdout)
    found = re.findall(r"^(\w+) (\d) +\| rank (\d): stage 2 of 3 ranks", done.stdout, re.MULTILINE)
    assert sorted(found) == [("study", "0", "0"), ("study", "1", "1"), ("train", "2", "2")]


@pytest.mark.parametrize(
    ("launcher", "more"),
    [
        pytest.param(
            "torchrun", ("--deepspeed", "/shared/trainer.json"), id="zero", marks=pytest.mark.repeat
        ),
        pytest.param(
            "deepspeed",
            ("--deepspeed", "/shared/bf16.json", "--bf16"),
            id="deepspeed",
            marks=pytest.mark.repeat,
        ),
        pytest.param("torchrun", (), id="ddp", marks=pytest.mark.repeat),
        pytest.param("accelerate", (), id="accelerate", marks=pytest.mark.repeat),
    ],
)
def test_an_hf_trainer_script(two, launcher, more):
    words = ("/shared/hf.py", *TRAINER_WORDS, *more)
    done = run(two, "--launcher", launcher, "--", *words)
    learned(done.stdout)
    kind = "bfloat16" if "--bf16" in more else "float32"
    assert done.stdout.count(f"of 2 deepspeed {bool(more)} in torch.{kind}") == 2


@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun",
        *(pytest.param(name, marks=pytest.mark.repeat)
          for name in ("deepspeed", "accelerate", "plain", "each")),
    ],
)  # fmt: skip
def test_a_host_that_is_not_the_first_may_take_part_alone(two, launcher):
    """Launchers are started on the first host: they started the ranks there."""
    done = run(two, "--launcher", launcher, "--include", "train", "--env", "MINE=5",
               "--", "/shared/where.py")  # fmt: skip
    assert "where train all all 5" in done.stdout, done.stdout[-3000:]


@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun",
        *(pytest.param(name, marks=pytest.mark.repeat) for name in ("deepspeed", "plain")),
    ],
)
def test_every_rank_has_the_variables_of_its_host_the_command_and_the_shell(
    two, launcher, monkeypatch
):
    """And their values are on no command line of the hosts. A value of the image gives way.

    pdsh, ssh, shells, launchers and ranks are all looked at while they run.
    """
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_NET", "IB")  # gloo does not ask
    secret, place = "nobody-else-sees-this", two.shared / f"said-{launcher}"
    place.mkdir()
    words = ("--detach", "--launcher", launcher, "--env", 'ALL=it\'s 5% "x"', "--env",
             f"MINE={secret}", "--env", "OMP_NUM_THREADS=3", "--", "/shared/says.py",
             f"/shared/{place.name}")  # fmt: skip
    done = run(two, *words)
    try:
        until(lambda: len(list(place.iterdir())) == 2, 120)
        assert [line for host in two.hosts.values() for line in host.processes(secret)] == []
        said = {path.name: path.read_text() for path in place.iterdir()}
    finally:
        two.invoke("stop", "--name", "accelerate")
    assert said == {
        "0": f'study it\'s 5% "x" WARN IB {secret} 3', "1": f'all it\'s 5% "x" WARN IB {secret} 3',
    }  # fmt: skip
    assert "from your environment, for every rank: NCCL_DEBUG, NCCL_NET" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--env", "MASTER_ADDR=10.0.0.1", "--", "/shared/says.py"), "MASTER_ADDR cannot be set"),
        (("--env", "CUDA_VISIBLE_DEVICES=0", "--", "/shared/says.py"),
         "CUDA_VISIBLE_DEVICES cannot be set"),
        (("--env", "HF_TOKEN=hunter22", "--", "/shared/says.py"), "looks like a secret"),
        (("--launcher", "torchrun", "--", "/shared/hf.py", "--deepspeed", "/shared/odd.json"),
         "train_batch_size 3 cannot be divided by 2 ranks"),
        (("--", "/shared/ds.py", "--deepspeed_config", "/shared/no.json"),
         "which the first node cannot read"),
    ],
)  # fmt: skip
def test_what_contradicts_a_run_is_named_before_anything_starts(two, words, said):
    done = run(two, *words, check=False)
    assert done.returncode == 2 and said in done.stderr
    assert "hunter22" not in done.stdout + done.stderr
    assert all(host.ranks() == [] for host in two.hosts.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("distributed_type: MULTI_CPU\nnum_processes: 8\n",
                     "num_processes is 8, but this run has 2", id="numbers"),
        pytest.param(NOTE_YAML, "deepspeed_hostfile: hosts are chosen by hosts.yml", id="note"),
    ],
)  # fmt: skip
def test_a_configuration_for_other_numbers_is_refused_before_a_mesh_starts(two, config, text, said):
    words = config(text)
    done = run(two, "--name", "other", "--gpus", "0", *words, "--", "/shared/own.py", check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert not any("other" in line for host in two.hosts.values() for line in host.containers())
