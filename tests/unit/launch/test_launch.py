"""Each launcher's command; the whole of each is in tests/golden."""

import re
import shlex
import subprocess

import pytest
import yaml

from stackyard.launch import LAUNCHERS, OPTIONS, LaunchRequest


def request(nodes=2, **changes):
    values = {
        "nodes": tuple(f"node{n + 1}" for n in range(nodes)),
        "port": 29500,
        "program": ("/srv/smoke/train.py", "--data=/shared/data"),
        "env": {"B": "two words", "A": "1"},
        "folder": "/srv/smoke",
        "scratch": "/run/scratch",
        "ssh_port": 2222,
        "options": {"zero_stage": "3"},
    }
    return LaunchRequest(**{**values, **changes})


def launch(name, nodes=2, **changes):
    return LAUNCHERS[name](request(nodes, **changes))


def pdsh_expanded(command, number):
    """The command as pdsh gives it to node `number`: %n is the number, %% is a percent sign."""
    return re.sub("%(.)", lambda m: {"n": str(number), "%": "%"}[m.group(1)], command)


def remote_words(found, number=0):
    command = pdsh_expanded(found.argv[-1], number)
    before, _, after = command.partition(" && exec ")
    return shlex.split(before), shlex.split(after)


def test_every_launcher_with_options_exists():
    assert set(OPTIONS) <= set(LAUNCHERS) == {
        "alone", "torchrun", "deepspeed", "accelerate", "plain", "each",
    }  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_launch_does_not_change_its_request(name, nodes):
    asked = request(nodes)
    before = repr(asked)
    LAUNCHERS[name](asked)
    assert repr(asked) == before


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_every_generated_file_is_in_the_launchs_own_folder(name, nodes):
    files = launch(name, nodes).files
    assert all(path.startswith("/run/scratch/") for path in files)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_program_comes_last_and_whole(name):
    found = launch(name, 1)
    assert found.argv[-2:] == ("/srv/smoke/train.py", "--data=/shared/data")


def test_torchrun_alone_runs_without_ssh_in_its_environment():
    found = launch("torchrun", 1)
    assert found.argv[0] == "torchrun"
    assert dict(found.env) == {"A": "1", "B": "two words"}


@pytest.mark.parametrize("nodes", [2, 32, 33, 100])
def test_all_nodes_start_at_the_same_time(nodes):
    """pdsh starts 32 at a time unless told otherwise, and the first wait for the last."""
    argv = launch("torchrun", nodes).argv
    assert int(argv[argv.index("-f") + 1] if "-f" in argv else 32) >= nodes


def test_torchrun_gives_every_node_its_own_rank():
    found = launch("torchrun")
    assert found.argv[:-1] == ("pdsh", "-b", "-S", "-R", "ssh", "-w", "node1,node2")
    for number in (0, 1):
        words = remote_words(found, number)[1]
        assert words.count(f"--node-rank={number}") == 1
        assert words.index(f"--node-rank={number}") > words.index("torchrun")


def test_torchrun_gives_every_node_the_environment_and_the_folder():
    where, words = remote_words(launch("torchrun", folder="/srv/a b"))
    assert where == ["cd", "/srv/a b"]
    assert words[:4] == ["env", "A=1", "B=two words", "torchrun"]


def test_torchrun_runs_a_console_script_without_python():
    words = remote_words(launch("torchrun", program=("fairseq-train", "/data")))[1]
    assert words[-3:] == ["--no-python", "fairseq-train", "/data"]
    assert "--no-python" not in remote_words(launch("torchrun"))[1]


@pytest.mark.parametrize("word", ["50%", "%n", "%h", "a b", "$HOME", "it's", "--x=%(step)d"])
def test_torchrun_arguments_reach_the_node_as_they_are(word):
    found = launch("torchrun", program=("train.py", word))
    assert remote_words(found, 1)[1][-1] == word


@pytest.mark.parametrize("value", ["50%", "a b", "$(id)", "torchrun", "x=y"])
def test_torchrun_environment_reaches_the_node_as_it_is(value):
    found = launch("torchrun", env={"V": value})
    words = remote_words(found, 1)[1]
    assert words[:3] == ["env", f"V={value}", "torchrun"]
    assert words[3] == "--node-rank=1"


def test_torchrun_passes_processes_per_node_and_the_port():
    words = remote_words(launch("torchrun", per_node=4, port=31000))[1]
    assert {"--nnodes=2", "--nproc-per-node=4", "--master-port=31000"} <= set(words)
    assert "--master-addr=node1" in words


def test_deepspeed_gets_a_hostfile_in_rank_order():
    found = launch("deepspeed", per_node=2)
    assert found.files["/run/scratch/hostfile"] == "node1 slots=2\nnode2 slots=2\n"
    assert found.argv[:3] == ("deepspeed", "--hostfile", "/run/scratch/hostfile")


def test_deepspeed_exports_this_launchs_environment_and_nothing_else():
    found = launch("deepspeed")
    assert found.files["/run/scratch/deepspeed_env"] == "A=1\nB=two words\n"
    assert found.env["DS_ENV_FILE"] == "/run/scratch/deepspeed_env"


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.parametrize("value", ["`id`", "$(id)", "$HOME", 'a "b" c', "a\\b", "it's", "50% & ;#"])
def test_deepspeeds_environment_reaches_a_nodes_shell_as_it_is(value):
    """Its launcher writes each line as `export NAME="VALUE";` before the command."""
    text = launch("deepspeed", env={"V": value}).files["/run/scratch/deepspeed_env"]
    name, _, quoted = text.rstrip("\n").partition("=")
    script = f'export {name}="{quoted}"; printenv V'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{value}\n"


def test_deepspeed_without_environment_exports_an_empty_file():
    assert launch("deepspeed", env={}).files["/run/scratch/deepspeed_env"] == ""


def test_deepspeed_logs_in_at_the_meshs_port():
    argv = launch("deepspeed", ssh_port=2299).argv
    assert argv[argv.index("--ssh_port") + 1] == "2299"


def config(nodes, **changes):
    return yaml.safe_load(
        launch("accelerate", nodes, **changes).files["/run/scratch/accelerate.yaml"]
    )


def test_accelerate_alone_is_not_distributed():
    found = config(1)
    assert found["distributed_type"] == "NO"
    assert (found["num_machines"], found["num_processes"]) == (1, 1)


def test_accelerate_on_several_nodes_goes_through_deepspeed():
    found = config(2, per_node=4)
    assert (found["num_machines"], found["num_processes"]) == (2, 8)
    assert found["deepspeed_config"]["zero_stage"] == 3
    assert found["deepspeed_config"]["deepspeed_hostfile"] == "/run/scratch/hostfile"
    assert (found["main_process_ip"], found["main_process_port"]) == ("node1", 29500)


@pytest.mark.parametrize(("device", "use_cpu"), [("cpu", True), ("cuda", False)])
@pytest.mark.parametrize("nodes", [1, 2])
def test_accelerate_computes_on_what_was_asked_for(nodes, device, use_cpu):
    assert config(nodes, device=device)["use_cpu"] is use_cpu


def test_accelerate_names_its_configuration_so_that_no_other_is_read():
    argv = launch("accelerate").argv
    assert argv[:4] == ("accelerate", "launch", "--config_file", "/run/scratch/accelerate.yaml")
