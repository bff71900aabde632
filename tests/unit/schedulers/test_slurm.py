"""The batch script of a job: its exact commands, and what bash makes of the part that nodes run."""

import json
import os
import shlex
import signal
import subprocess
import time

import pytest

from stackyard.gpu import access
from stackyard.schedulers import entering, slurm
from stackyard.system.errors import UsageError
from tests.unit.slurm_jobs import job, site

SRUN = ("srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --time=60 --kill-on-bad-exit=1 --wait=60"
        " --label --mpi=none --export=ALL")  # fmt: skip
BASH = """bash -s -- "$address" "$port" "$SLURM_JOB_ID" <<'STACKYARD_NODE' || code=$?"""


def script(wanted=None, where=None):
    files = slurm.render(wanted or job(), where or site())
    assert list(files) == ["job.sh"]
    return files["job.sh"]


def command(text):
    """The one srun of a script, its two lines as one."""
    lines = text.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("srun ")]
    return " ".join([lines[at].removesuffix(" \\"), lines[at + 1].strip()])


# The command of every runtime


@pytest.mark.parametrize(
    ("runtime", "changes", "words"),
    [
        ("pyxis", {}, "'--container-image=registry.example#toy:cpu' --no-container-mount-home"
         " --no-container-entrypoint --container-writable --container-remap-root"
         " --container-mounts=/on/nodes:/data"),
        ("pyxis", {"image": "/images/toy.sqsh"}, "--container-image=/images/toy.sqsh"
         " --no-container-mount-home --no-container-entrypoint --container-writable"
         " --container-remap-root --container-mounts=/on/nodes:/data"),
        ("apptainer", {}, "apptainer exec --cleanenv --no-home --writable-tmpfs --fakeroot"
         " --bind /on/nodes:/data /images/toy.sif"),
        ("apptainer", {"image": "/images/toy.sqsh"}, "apptainer exec --cleanenv --no-home"
         " --writable-tmpfs --fakeroot --bind /on/nodes:/data /images/toy.sqsh"),
        ("enroot", {}, "enroot start --root --rw"
         " --mount /on/nodes:/data:none:x-create=auto,rbind /images/toy.sqsh"),
        ("squashfs", {}, "unshare --user --map-root-user --mount --pid --fork --kill-child"
         ' bash -c "$enter" enter'),
        ("oci", {}, '--container="$bundle"'),
        ("filesystem", {"image": "/images/toy"},
         'unshare --user --map-root-user --mount bash -c "$enter" enter'),
    ],
)  # fmt: skip
def test_each_runtime_has_its_command(runtime, changes, words):
    text = script(job(binds={"/data": "/on/nodes"}), site(runtime, **changes))
    assert command(text) == f"{SRUN} {words} {BASH}"


def test_on_the_nodes_own_file_system_nothing_stands_before_bash():
    assert command(script(None, site("filesystem"))) == f"{SRUN} {BASH}"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("registry.example/a/toy:1", "registry.example#a/toy:1"),
        ("localhost:5000/toy", "localhost:5000#toy"),
        ("stackyard/toy:cpu", "stackyard/toy:cpu"),
        ("toy", "toy"),
    ],
)
def test_enroot_is_told_where_the_registry_ends(reference, words):
    options = slurm.srun_options(job(image=reference), site())
    assert f"--container-image={words}" in options


def test_gpus_are_asked_for_as_the_site_wants_it():
    on_gpus = job(device="cuda", per_node=8)
    assert "--gres=gpu:h100:8" in slurm.directives(on_gpus, site(gpu_type="h100"))
    assert "--gres=gpu:8" in slurm.directives(on_gpus, site())
    named = site(gpu_option="gpus-per-node", gpu_type="h100")
    assert "--gpus-per-node=h100:8" in slurm.directives(on_gpus, named)
    assert not [word for word in slurm.directives(job(), site()) if "gpu" in word]
    assert " --nv " in command(script(on_gpus, site("apptainer")))
    assert " --env NVIDIA_VISIBLE_DEVICES=all " in command(script(on_gpus, site("enroot")))
    assert "NVIDIA" not in command(script(job(), site("enroot")))


def test_gpus_are_looked_for_before_anything_is_prepared():
    text = script(job(device="cuda", per_node=8, prepare=(("make-data",),)), site())
    assert text.index("torch.cuda.device_count()") < text.index("prepare make-data")
    assert "device_count" not in script()


def test_a_job_that_may_save_is_signalled_before_its_end_and_started_again():
    found = slurm.directives(job(), site())
    assert "--no-requeue" in found and not any(word.startswith("--signal") for word in found)
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in script()
    where = site(save_seconds=300, requeue=True)
    found = slurm.directives(job(), where)
    assert {"--requeue", "--signal=TERM@300"} <= set(found) and "--no-requeue" not in found
    # torchrun waits for its ranks as long as they may save.
    assert "export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=300\n" in script(where=where)


def test_cpus_are_said_to_srun_as_well():
    assert "--cpus-per-task=64" in slurm.directives(job(), site(cpus_per_node=64))
    assert slurm.srun_options(job(), site(cpus_per_node=64))[-7:-5] == [
        "--cpus-per-task=64",
        "--cpu-bind=none",
    ]


def test_the_log_has_the_name_that_is_told():
    assert "#SBATCH --output=toy-%j.log" in script().splitlines()
    assert slurm.log_name("toy", "17") == "toy-17.log"


def test_directives_stand_before_every_command():
    lines = script(None, site(lines=("--qos=long",))).splitlines()
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert [line for line in lines[first:] if line.startswith("#SBATCH")] == []
    assert "#SBATCH --qos=long" in lines[:first]


def test_rendering_twice_gives_the_same_text():
    files = {"/b": b"2", "/a": bytes(range(256))}
    assert script(job(files=files)) == script(job(files=dict(reversed(files.items()))))


def test_a_value_that_would_end_the_script_early_is_refused():
    with pytest.raises(UsageError, match="a line that is only STACKYARD_NODE"):
        script(job(program=("train.py", "a\nSTACKYARD_NODE\nreboot")))
    script(job(program=("train.py", "the word STACKYARD_NODE in a line")))


# What programs are told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, {}),
        ({"launcher": "deepspeed"}, {"DS_ACCELERATOR": "cpu"}),
        ({"launcher": "accelerate", "options": {"zero_stage": "0"}},
         {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "true"}),
        ({"launcher": "accelerate", "options": {"zero_stage": "0"}, "device": "cuda"},
         {"ACCELERATE_MIXED_PRECISION": "no"}),
    ],
)  # fmt: skip
def test_programs_are_told_what_their_launcher_would_say(changes, told):
    assert slurm.environment(job(**changes), site()) == {"PYTHONUNBUFFERED": "1", **told}


def test_zero_is_not_switched_off_by_the_switch_for_cpus():
    told = slurm.environment(job(launcher="accelerate", options={"zero_stage": "3"}), site())
    assert told["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert told["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert "ACCELERATE_USE_CPU" not in told


def test_the_jobs_own_environment_wins_over_all_others():
    wanted = job(launcher="deepspeed", env={"DS_ACCELERATOR": "mine", "PATH": "/mine"})
    where = site("oci", image_env={"PATH": "/image", "LANG": "C.UTF-8"})
    told = slurm.environment(wanted, where)
    assert (told["DS_ACCELERATOR"], told["PATH"], told["LANG"]) == ("mine", "/mine", "C.UTF-8")
    assert told["HOME"] == "/root"
    assert "HOME" not in slurm.environment(wanted, site("filesystem"))


def test_console_scripts_and_files_are_started_as_what_they_are():
    assert " --no-python " not in slurm.node_script(job(), site())
    assert " --no-python " in slurm.node_script(job(program=("fairseq-train",)), site())
    alone = job(launcher="alone", nodes=1)
    assert "train python3 \\\n    train.py" in slurm.node_script(alone, site())
    assert "torchrun --nnodes" not in slurm.node_script(alone, site())


def test_the_bundle_gives_the_job_nothing_but_its_own_user():
    config = json.loads(slurm.oci_config(job(binds={"/data": "/on/nodes"})))
    assert config["root"] == {"path": "rootfs", "readonly": False}
    assert "capabilities" not in config["process"]
    assert {space["type"] for space in config["linux"]["namespaces"]} == {"user", "mount", "pid"}
    assert {
        "destination": "/data",
        "type": "bind",
        "source": "/on/nodes",
        "options": ["rbind"],
    } in (config["mounts"])


def test_an_unpacked_image_is_put_together_where_nothing_is_needed():
    text = entering.enter_script(
        job(binds={"/data": "/mnt/data"}), site("filesystem", image="/media/toy")
    )
    assert "image=/media/toy top=/srv" in text
    assert "bind /mnt/data /data" in text


@pytest.mark.parametrize("gpus", [True, False])
def test_every_runtime_that_starts_a_file_has_a_line(gpus):
    lines = entering.by_hand("/my images/toy.sqsh", "toy", "cpu", gpus=gpus)
    assert {name: line.seen for name, line in lines.items()} == {
        "squashfs": True, "pyxis": False, "enroot": False, "apptainer": False,
    }  # fmt: skip
    for line in lines.values():
        words = shlex.split(line.text)
        assert words[-1] == "COMMAND"
        assert [word for word in words if word.endswith("/my images/toy.sqsh")]
    assert ("--nv" in lines["apptainer"].text) == gpus
    assert ("NVIDIA_VISIBLE_DEVICES=all" in lines["enroot"].text) == gpus


def test_the_drivers_libraries_stand_before_the_images_own():
    on_gpus = job(device="cuda")
    where = site("squashfs", image_env={"LD_LIBRARY_PATH": "/opt/lib"})
    env = slurm.environment(on_gpus, where)
    assert env["LD_LIBRARY_PATH"] == f"{access.LIBRARIES}:/opt/lib"
    assert "LD_LIBRARY_PATH" not in slurm.environment(on_gpus, site("squashfs"))
    assert slurm.environment(job(), where)["LD_LIBRARY_PATH"] == "/opt/lib"


# What bash makes of the part that nodes run, beside made-up `ip` and `torchrun`

IP = """#!/bin/sh
case "$*" in
  *"addr show to 10.0.0.1") if [ "$HERE" = 1 ]; then echo '2: eth7    inet 10.0.0.1/24 scope'; fi ;;
  *) echo '10.0.0.1 dev eth8 src 10.0.0.2 uid 0' ;;
esac
"""
TORCHRUN = """#!/usr/bin/env python3
import json, os, pathlib, sys
look = [path for path in os.environ.get("LOOK", "").split(":") if path]
seen = {"argv": sys.argv[1:], "env": dict(os.environ), "folder": os.getcwd()}
seen["stdin"] = sys.stdin.read()
seen["files"] = {path: pathlib.Path(path).read_text() for path in look}
pathlib.Path(os.environ["SEEN"]).write_text(json.dumps(seen))
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def node(tmp_path, allow_processes):
    """Runs a node's script as srun would; gives what torchrun saw, and how it ended."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("ip", IP), ("torchrun", TORCHRUN)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    seen = tmp_path / "seen.json"

    def run(wanted, here=True, **env):
        outer = {"PATH": f"{programs}:{os.environ['PATH']}", "SEEN": str(seen), "HERE": str(+here)}
        done = subprocess.run(
            ["bash", "-s", "--", "10.0.0.1", "20017", "17"],
            input=slurm.node_script(wanted, site()),
            env={**outer, **env},
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        return done, json.loads(seen.read_text()) if seen.exists() else None

    return run


HOSTILE = (
    "train.py",
    "",
    "two words",
    "it's",
    '"',
    "$HOME",
    "`id`",
    "$(id)",
    "a\nb",
    "--x=*;#",
    "\\",
)


def test_every_word_and_value_arrives_as_it_was(node, tmp_path):
    env = {f"V{n}": word for n, word in enumerate(HOSTILE)}
    folder = tmp_path / "a folder $HOME 'x'"
    done, seen = node(job(program=HOSTILE, env=env, folder=str(folder)))
    assert (done.returncode, done.stderr) == (0, "")
    assert seen["argv"][-len(HOSTILE) :] == list(HOSTILE)
    assert {name: seen["env"][name] for name in env} == env
    assert seen["folder"] == str(folder)
    assert seen["stdin"] == ""


def test_the_first_node_keeps_the_rendezvous_and_others_come_to_it(node, tmp_path):
    wanted = job(folder=str(tmp_path), device="cpu")
    _, first = node(wanted, here=True)
    _, second = node(wanted, here=False)
    meeting = {"--rdzv-endpoint=10.0.0.1:20017", "--rdzv-id=17"}
    waiting = "join_timeout=900,read_timeout=900"
    own = {"--local-addr=10.0.0.1", f"--rdzv-conf=is_host=1,{waiting}"}
    assert meeting | own <= set(first["argv"])
    own = {"--local-addr=10.0.0.2", f"--rdzv-conf=is_host=0,{waiting}"}
    assert meeting | own <= set(second["argv"])
    assert (first["env"]["GLOO_SOCKET_IFNAME"], first["env"]["NCCL_SOCKET_IFNAME"]) == (
        "eth7",
        "=eth7",
    )
    assert second["env"]["GLOO_SOCKET_IFNAME"] == "eth8"


def test_an_interface_that_the_job_names_is_kept(node, tmp_path):
    _, seen = node(job(folder=str(tmp_path), env={"GLOO_SOCKET_IFNAME": "ib0"}))
    assert seen["env"]["GLOO_SOCKET_IFNAME"] == "ib0"


def test_ranks_are_not_told_slurms_numbers_of_nodes(node, tmp_path):
    _, seen = node(job(folder=str(tmp_path)), SLURM_PROCID="1", SLURM_NTASKS="2", SLURM_JOB_ID="17")
    assert {name for name in seen["env"] if name.startswith("SLURM_")} == {"SLURM_JOB_ID"}


def test_files_are_there_for_the_training_and_gone_after_it(node, tmp_path):
    new, old = tmp_path / "deep" / "new.txt", tmp_path / "old.txt"
    old.write_text("before")
    files = {str(new): b"new", str(old): b"after"}
    done, seen = node(job(files=files, folder=str(tmp_path)), LOOK=f"{new}:{old}")
    assert done.returncode == 0
    assert seen["files"] == {str(new): "new", str(old): "after"}
    assert not new.exists()
    assert old.read_text() == "after"  # it was there before, and the job replaced it


def test_a_file_that_cannot_be_written_is_named(node, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done, seen = node(job(files={str(tmp_path / "file/x"): b""}, folder=str(tmp_path)))
    assert (done.returncode, seen) == (1, None)
    assert f"cannot write {tmp_path}/file/x" in done.stderr


def test_a_folder_that_cannot_be_had_is_named(node, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done, seen = node(job(folder=f"{tmp_path}/file/x y"))
    assert (done.returncode, seen) == (1, None)
    assert f"cannot work in {tmp_path}/file/x y" in done.stderr


def test_a_node_from_which_nothing_leads_to_the_first_says_so(node, tmp_path):
    (tmp_path / "bin/ip").write_text('#!/bin/sh\n[ "$3" = addr ]\n')
    done, seen = node(job(folder=str(tmp_path)))
    assert (done.returncode, seen) == (1, None)
    assert "no route to 10.0.0.1, the first node" in done.stderr


def test_preparing_reads_nothing_of_the_script(node, tmp_path):
    # bash reads the script from the same input.
    look = ("sh", "-c", 'test "$(readlink /proc/$$/fd/0)" = /dev/null')
    done, _ = node(job(folder=str(tmp_path), prepare=(look,)))
    assert done.returncode == 0


def test_preparing_comes_first_and_its_failure_keeps_the_node_from_training(node, tmp_path):
    done, seen = node(job(folder=str(tmp_path), prepare=(("touch", "made it"), ("ls", "made it"))))
    assert (done.returncode, (tmp_path / "made it").exists()) == (0, True)
    assert seen is not None
    (tmp_path / "seen.json").unlink()
    done, seen = node(job(folder=str(tmp_path), prepare=(("false",), ("touch", "later"))))
    assert (done.returncode, seen) == (1, None)
    assert "preparing failed with exit code 1: false" in done.stderr
    assert not (tmp_path / "later").exists()


def test_the_code_of_a_training_that_fails_is_the_nodes_own(node, tmp_path):
    done, _ = node(job(folder=str(tmp_path)), CODE="7")
    assert done.returncode == 7
    assert "the training failed with exit code 7" in done.stdout


@pytest.mark.usefixtures("allow_processes")
def test_a_signal_is_survived_until_the_training_has_ended_and_its_files_are_gone(tmp_path):
    started, ended, file = (tmp_path / name for name in ("started", "ended", "file.txt"))
    # Only while the node's script, its parent, is still there.
    mine = "set -- $(cat /proc/$$/stat); [ $4 = $PPID ]"
    last = f"sleep 0.2; {mine} && touch {shlex.quote(str(ended))}; exit 9"
    train = f"trap '{last}' TERM; touch {shlex.quote(str(started))}; while :; do sleep 0.05; done"
    wanted = job(
        nodes=1, launcher="each", program=("bash", "-c", train), folder=str(tmp_path),
        files={str(file): b"x"},
    )  # fmt: skip
    child = subprocess.Popen(
        ["bash", "-s", "--", "127.0.0.1", "20017", "17"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    child.stdin.write(slurm.node_script(wanted, site()))
    child.stdin.close()
    end = time.monotonic() + 20
    while not started.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert file.exists()
    os.killpg(child.pid, signal.SIGTERM)  # as Slurm does: every process of the step
    said = child.stdout.read()
    child.stdout.close()
    assert child.wait(20) == 1
    assert "stopped by a signal" in said
    assert ended.exists() and not file.exists()


NCCL_LINES = """\
node1:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
node1:9:9 [0] NCCL INFO Trees [0] -1/-1/-1
node1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
node1:9:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0
"""


def test_a_node_tells_what_nccl_used_once(tmp_path, allow_processes):
    text = script(job(device="cuda"))
    (tmp_path / "nccl.node1.9").write_text(NCCL_LINES)
    begin = text.index("tell_nccl() {")
    function = text[begin : text.index("\n}\n", begin) + 3]
    words = ["bash", "-euo", "pipefail", "-c", f'scratch="{tmp_path}"\n{function}\ntell_nccl']
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    first, _, channel, _ = NCCL_LINES.splitlines()
    assert done.stdout.splitlines() == [f"stackyard: nccl: {line}" for line in (first, channel)]
    (tmp_path / "nccl.node1.9").unlink()
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize("changes", [{}, {"device": "cuda", "env": {"NCCL_DEBUG": "WARN"}}])
def test_without_gpus_or_against_the_users_word_nccl_says_nothing_of_its_own(changes):
    assert "NCCL_DEBUG=INFO" not in script(job(**changes))
    assert "tell_nccl" not in script(job(**changes))
    assert 'NCCL_DEBUG_FILE="$scratch/nccl.%h.%p"' in script(job(device="cuda"))
