"""A whole batch script, run by bash beside stand-ins for Slurm's and the runtimes' programs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stackyard.gpu import access
from stackyard.schedulers import slurm
from tests.unit.slurm_jobs import job, site
from tests.unit.standins import StandIns

SCONTROL = """#!/bin/sh
case "$*" in
  "show hostnames node[1-2]") printf 'node1\\nnode2\\n' ;;
  "show hostnames node1") echo node1 ;;
  "show node "*) echo "NodeName=$3 Arch=x86_64 NodeAddr=$3.lab NodeHostName=$3" ;;
  *) exit 1 ;;
esac
"""
GETENT = """#!/bin/sh
[ "$1" = ahostsv4 ] || exit 64
case $2 in
  node1.lab) echo '127.0.0.1 STREAM node1.lab'; echo '127.0.0.1 DGRAM' ;;
  node2.lab) echo '127.0.0.2 STREAM node2.lab'; echo '127.0.0.2 DGRAM' ;;
  *) exit 2 ;;
esac
"""
# The batch script and the first node are on one machine, the second node is another.
IP = """#!/bin/sh
case "$*" in
  "-o -4 addr show to 127.0.0.1") [ "$HOSTNAME" = node2 ] || echo '2: eth7    inet 127.0.0.1/8' ;;
  "-o -4 addr show to "*) ;;
  "-o -4 route get 127.0.0.2") echo '127.0.0.2 dev eth7 src 127.0.0.1 uid 0' ;;
  "-o -4 route get 127.0.0.1") echo '127.0.0.1 dev eth8 src 127.0.0.2 uid 0' ;;
  *) exit 64 ;;
esac
"""
# srun gives its input to a task on each node, and the highest of their codes is its own.
SRUN = """#!{python} -IS
import argparse, json, os, subprocess, sys
place = os.path.dirname(os.path.realpath(__file__))
asked = argparse.ArgumentParser(allow_abbrev=False)
for name in ("nodes", "ntasks", "ntasks-per-node", "time", "kill-on-bad-exit", "wait", "mpi",
             "export", "cpus-per-task", "cpu-bind", "job-name", "container", "container-image",
             "container-mounts"):
    asked.add_argument("--" + name)
for name in ("label", "no-container-mount-home", "no-container-entrypoint", "container-writable",
             "container-remap-root"):
    asked.add_argument("--" + name, action="store_true")
asked.add_argument("command", nargs=argparse.REMAINDER)
found = asked.parse_args()
script = sys.stdin.read()
seen = {{"options": vars(found), "env": dict(os.environ), "bundle": {{}}}}
if found.container:
    for entry in os.scandir(found.container):
        told = os.readlink(entry.path) if entry.is_symlink() else open(entry.path).read()
        seen["bundle"][entry.name] = told
with open(os.path.join(place, "..", "srun.json"), "w") as file:
    json.dump(seen, file)
codes = []
for task in range(int(found.ntasks)):
    env = {{**os.environ, "SLURM_PROCID": str(task), "HOSTNAME": "node%d" % (task + 1)}}
    done = subprocess.run(found.command, input=script, text=True, env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for line in done.stdout.splitlines():
        print("%d: %s" % (task, line), flush=True)
    codes.append(done.returncode)
sys.exit(max(codes))
"""
# What is inside has nothing of the environment outside but what apptainer leaves.
APPTAINER = """#!{python} -IS
import argparse, json, os, sys
place = os.path.dirname(os.path.realpath(__file__))
asked = argparse.ArgumentParser(allow_abbrev=False)
asked.add_argument("verb", choices=["exec"])
for name in ("cleanenv", "no-home", "writable-tmpfs", "fakeroot", "nv"):
    asked.add_argument("--" + name, action="store_true")
asked.add_argument("--bind")
asked.add_argument("image")
asked.add_argument("command", nargs=argparse.REMAINDER)
found = asked.parse_args()
with open(os.path.join(place, "..", "apptainer.json"), "w") as file:
    json.dump(vars(found), file)
kept = ("PATH", "HOME", "HOSTNAME") if found.cleanenv else os.environ
env = {{name: os.environ[name] for name in kept if name in os.environ}}
os.execvpe(found.command[0], found.command, env)
"""
UNSHARE = """#!/bin/sh
[ "$1 $2 $3" = "--user --map-root-user --mount" ] || exit 64
shift 3
if [ "$1 $2 $3" = "--pid --fork --kill-child" ]; then shift 3; fi
exec "$@"
"""
CHROOT = """#!/bin/sh
echo "$1" > "$(dirname "$0")/../root"
shift
exec "$@"
"""
LATE = """#!/bin/sh
touch "$(dirname "$0")/../started"
exec sleep 60
"""


class Cluster:
    """Two nodes whose programs write down what they are told; the batch script runs here."""

    def __init__(self, folder):
        self.folder = folder
        self.programs = StandIns(folder)
        python = {"python": sys.executable}
        for name, text in (
            ("scontrol", SCONTROL), ("getent", GETENT), ("ip", IP), ("unshare", UNSHARE),
            ("srun", SRUN.format(**python)), ("apptainer", APPTAINER.format(**python)),
            ("chroot", CHROOT),
        ):  # fmt: skip
            self.programs.program(name, text)
        self.programs.program(
            "id", "#!/bin/sh\ncase $1 in -u) echo 1234 ;; -g) echo 5678 ;; esac\n"
        )
        self.programs.recorder("torchrun", "python3", "mount", "prepare-it")

    def environment(self, **env):
        slurms = {"JOB_ID": "17", "JOB_NODELIST": "node[1-2]", "SUBMIT_DIR": str(self.folder)}
        mine = {f"SLURM_{name}": value for name, value in slurms.items()}
        return {"PATH": self.programs.path, "HOME": str(self.folder), **mine, **env}

    def script(self, text):
        """The script where Slurm has its copy, beside what it was submitted from."""
        path = self.folder / "job.sh"
        path.write_text(text)
        return path

    def run(self, text, **env):
        return subprocess.run(
            ["bash", self.script(text)], env=self.environment(**env), cwd=self.folder,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def told(self, name):
        """How a runtime's program was called."""
        return json.loads((self.folder / f"{name}.json").read_text())


@pytest.fixture
def cluster(tmp_path, allow_processes):
    return Cluster(tmp_path)


def script(wanted, where):
    return slurm.render(wanted, where)["job.sh"]


HERE = ("pyxis", "apptainer", "oci", "filesystem")


@pytest.mark.parametrize("runtime", HERE)
def test_every_node_trains_with_the_same_rendezvous_and_the_job_ends_well(cluster, runtime):
    wanted = job(folder=str(cluster.folder / "work"), env={"NOTE": "it's $HOME", "LANG": "C"})
    done = cluster.run(script(wanted, site(runtime)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith("stackyard: job 17 on node1 node2;")
    assert done.stdout.splitlines()[-1] == "stackyard: done"
    assert "0: stackyard: node1: address 127.0.0.1, interface eth7" in done.stdout
    assert "1: stackyard: node2: address 127.0.0.2, interface eth8" in done.stdout
    first, second = cluster.programs.calls("torchrun")
    meeting = "--rdzv-endpoint=127.0.0.1:20017"
    for call in (first, second):
        assert meeting in call["argv"] and "--rdzv-id=17" in call["argv"]
        assert call["argv"][-2:] == ["train.py", "--data=/data"]
        assert (call["env"]["NOTE"], call["env"]["LANG"]) == ("it's $HOME", "C")
        assert call["folder"] == str(cluster.folder / "work")
        assert not Path(call["env"]["TMPDIR"]).exists()
    assert "--local-addr=127.0.0.1" in first["argv"]
    assert "--local-addr=127.0.0.2" in second["argv"]
    assert [word for word in first["argv"] if "is_host=1" in word]
    assert [word for word in second["argv"] if "is_host=0" in word]


def test_pyxis_is_told_the_image_and_folders_with_blanks(cluster):
    wanted = job(binds={"/my data": "/on nodes/it's", "/x": "/y"}, folder=str(cluster.folder))
    assert cluster.run(script(wanted, site("pyxis"))).returncode == 0
    options = cluster.told("srun")["options"]
    assert options["container_image"] == "registry.example#toy:cpu"
    assert options["container_mounts"] == "/on nodes/it's:/my data,/y:/x"
    assert (options["nodes"], options["ntasks"], options["ntasks_per_node"]) == ("2", "2", "1")
    assert options["command"] == ["bash", "-s", "--", "127.0.0.1", "20017", "17"]


def test_apptainer_is_told_the_image_and_folders_with_blanks(cluster):
    wanted = job(
        binds={"/my data": "/on nodes/it's", "/x": "/y"}, folder=str(cluster.folder),
        device="cuda", per_node=8,
    )  # fmt: skip
    assert cluster.run(script(wanted, site("apptainer"))).returncode == 0
    found = cluster.told("apptainer")
    assert (found["image"], found["nv"], found["fakeroot"]) == ("/images/toy.sif", True, True)
    assert cluster.told("srun")["env"]["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert found["bind"] == "/on nodes/it's:/my data,/y:/x"
    assert found["command"] == ["bash", "-s", "--", "127.0.0.1", "20017", "17"]


@pytest.mark.parametrize("runtime", HERE)
def test_the_environment_of_who_submits_does_not_reach_the_job(cluster, runtime):
    wanted = job(folder=str(cluster.folder))
    outside = {"TOKEN": "secret", "PYTHONPATH": "/mine", "SLURM_EXPORT_ENV": "NONE",
               "ENROOT_DATA_PATH": "/enroot"}  # fmt: skip
    assert cluster.run(script(wanted, site(runtime)), **outside).returncode == 0
    env = cluster.told("srun")["env"]
    # `ip` lies where users' own PATH does not lead everywhere.
    assert env["PATH"] == f"{cluster.programs.path}:/usr/sbin:/sbin"
    kept = set(outside) & set(env)
    assert kept == ({"ENROOT_DATA_PATH"} if runtime == "pyxis" else set())
    for call in cluster.programs.calls("torchrun"):
        assert not {"TOKEN", "PYTHONPATH", "SLURM_EXPORT_ENV", "SLURM_PROCID"} & set(call["env"])


@pytest.mark.parametrize("runtime", HERE)
def test_the_code_of_a_training_is_the_jobs_own(cluster, runtime):
    cluster.programs.recorder("torchrun", code=7)
    done = cluster.run(script(job(folder=str(cluster.folder)), site(runtime)))
    assert done.returncode == 7
    assert "0: stackyard: node1: the training failed with exit code 7" in done.stdout
    assert done.stderr.startswith("stackyard: failed with exit code 7: the first node that says")
    assert "stackyard: done" not in done.stdout


def test_a_node_without_its_gpus_neither_prepares_nor_trains(cluster):
    cluster.programs.recorder("python3", code=1)
    wanted = job(device="cuda", folder=str(cluster.folder), prepare=(("prepare-it",),))
    done = cluster.run(script(wanted, site("pyxis")))
    assert done.returncode == 1
    assert "0: stackyard: node1: the GPUs this job was to have are not there" in done.stdout
    assert cluster.programs.calls("prepare-it", "torchrun") == []


def test_a_port_that_is_taken_is_left_to_whoever_has_it(cluster):
    with socket.socket() as taken:
        # Nothing else chooses these: the system takes its own from 32768 on.
        for number in range(100):
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", 21000 + number))
                break
        taken.listen()
        port = taken.getsockname()[1]
        wanted = script(job(folder=str(cluster.folder)), site("pyxis"))
        done = cluster.run(wanted, SLURM_JOB_ID=str(port - 20000))
    assert done.returncode == 0
    (chosen,) = {word for call in cluster.programs.calls("torchrun") for word in call["argv"]
                 if word.startswith("--rdzv-endpoint=127.0.0.1:")}  # fmt: skip
    assert int(chosen.rpartition(":")[2]) > port


def test_a_node_that_no_name_leads_to_is_named_and_nothing_starts(cluster):
    cluster.programs.program("getent", "#!/bin/sh\nexit 2\n")
    done = cluster.run(script(job(folder=str(cluster.folder)), site("pyxis")))
    assert (done.returncode, done.stderr) == (1, "stackyard: no IPv4 address of node2\n")
    assert not (cluster.folder / "srun.json").exists()


def test_a_node_without_a_route_is_named_and_nothing_starts(cluster):
    cluster.programs.program("ip", "#!/bin/sh\nexit 0\n")
    done = cluster.run(script(job(folder=str(cluster.folder)), site("pyxis")))
    assert (done.returncode, done.stderr) == (
        1,
        "stackyard: node1 has no route to node2 (127.0.0.2)\n",
    )
    assert not (cluster.folder / "srun.json").exists()


@pytest.mark.parametrize("known", [True, False])
def test_a_lone_node_meets_itself_also_where_no_name_leads_to_it(cluster, known):
    if not known:
        cluster.programs.program("getent", "#!/bin/sh\nexit 2\n")
    wanted = script(job(nodes=1, folder=str(cluster.folder)), site("pyxis"))
    assert cluster.run(wanted, SLURM_JOB_NODELIST="node1").returncode == 0
    (call,) = cluster.programs.calls("torchrun")
    assert "--rdzv-endpoint=127.0.0.1:20017" in call["argv"]


# Slurm's own containers: a bundle that lasts as long as the job


@pytest.mark.parametrize("code", [0, 7])
def test_the_bundle_is_the_image_entered_by_who_submitted_and_goes_with_the_job(cluster, code):
    cluster.programs.recorder("torchrun", code=code)
    done = cluster.run(script(job(folder=str(cluster.folder)), site("oci")))
    assert done.returncode == code
    bundle = cluster.folder / ".toy-17"
    seen = cluster.told("srun")
    assert seen["options"]["container"] == str(bundle)
    assert seen["bundle"]["rootfs"] == "/images/toy"
    linux = json.loads(seen["bundle"]["config.json"])["linux"]
    assert linux["uidMappings"] == [{"containerID": 0, "hostID": 1234, "size": 1}]
    assert linux["gidMappings"] == [{"containerID": 0, "hostID": 5678, "size": 1}]
    assert not bundle.exists()


def test_a_job_that_is_cancelled_leaves_no_bundle(cluster):
    cluster.programs.program("srun", LATE)
    text = script(job(folder=str(cluster.folder)), site("oci"))
    batch = subprocess.Popen(
        ["bash", cluster.script(text)], env=cluster.environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 20
        while not (cluster.folder / "started").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert (cluster.folder / ".toy-17/config.json").exists()
        batch.terminate()
        assert batch.wait(20) != 0
        assert not (cluster.folder / ".toy-17").exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(batch.pid, signal.SIGKILL)
        batch.wait(20)


# An unpacked image: what is mounted before it becomes the root


def unpacked(cluster, **changes):
    """The job, put together below a folder of the test instead of one of the machine."""
    wanted = job(folder=str(cluster.folder), **changes)
    text = script(wanted, site("filesystem", image="/images/toy"))
    top = cluster.folder / "top"
    top.mkdir()
    assert text.count(" top=/mnt\n") == 1
    return text.replace(" top=/mnt\n", f" top={top}\n"), top


def test_an_unpacked_image_becomes_the_root_below_a_layer_in_memory(cluster):
    data = cluster.folder / "my data"
    data.mkdir()
    text, top = unpacked(cluster, nodes=1, binds={"/the data": str(data)})
    done = cluster.run(text, SLURM_JOB_NODELIST="node1")
    assert (done.returncode, done.stderr) == (0, "")
    mounts = [call["argv"] for call in cluster.programs.calls("mount")]
    assert mounts[0] == ["-t", "tmpfs", "stackyard", str(top)]
    layers = f"lowerdir=/images/toy,upperdir={top}/upper,workdir={top}/work,userxattr"
    assert mounts[1] == ["-t", "overlay", "stackyard", "-o", layers, f"{top}/root"]
    places = ("/proc", "/sys", "/dev", "/etc/hosts", "/etc/resolv.conf")
    assert mounts[2:] == [
        *(["--rbind", place, f"{top}/root{place}"] for place in places),
        ["--rbind", str(data), f"{top}/root/the data"],
    ]
    assert (top / "root/the data").is_dir() and (top / "root/etc/hosts").is_file()
    assert (cluster.folder / "root").read_text() == f"{top}/root\n"
    assert len(cluster.programs.calls("torchrun")) == 1


def test_nothing_trains_without_a_folder_that_was_to_be_mounted(cluster):
    cluster.programs.program("mount", '#!/bin/sh\ncase "$*" in *" /my/data "*) exit 1 ;; esac\n')
    text, _ = unpacked(cluster, nodes=1, binds={"/data": "/my/data"})
    assert cluster.run(text, SLURM_JOB_NODELIST="node1").returncode == 1
    assert cluster.programs.calls("torchrun") == []


def test_an_image_without_a_place_for_names_is_entered_all_the_same(cluster):
    cluster.programs.program("mount", '#!/bin/sh\ncase "$*" in *" /etc/"*) exit 1 ;; esac\n')
    text, _ = unpacked(cluster, nodes=1)
    assert cluster.run(text, SLURM_JOB_NODELIST="node1").returncode == 0
    assert len(cluster.programs.calls("torchrun")) == 1


def test_an_image_that_cannot_be_entered_is_named_and_nothing_trains(cluster):
    cluster.programs.program("mount", '#!/bin/sh\n[ "$2" != overlay ]\n')
    text, _ = unpacked(cluster, nodes=1)
    done = cluster.run(text, SLURM_JOB_NODELIST="node1")
    assert done.returncode == 1
    assert "0: stackyard: node1: cannot enter /images/toy: it must be there" in done.stdout
    assert cluster.programs.calls("torchrun") == []


# A squashfs file: the same root, above what squashfuse or unsquashfs makes of the file

# It writes down which signals it ignores.
SQUASHFUSE = """#!/bin/sh
mkdir -p "$2/etc"
printf 'PATH=%s\\nTOLD=it has blanks\\n# no variable\\nA-B=c\\n' "$PATH" > "$2/etc/environment"
awk '/^SigIgn/ { print $2 }' /proc/$$/status > "$(dirname "$0")/../ignored"
"""
UNSQUASHFS = """#!/bin/sh
for folder in "$@"; do case $before in -dest) break ;; esac; before=$folder; done
mkdir -p "$folder/etc" && echo "TOLD=unpacked" > "$folder/etc/environment"
"""


@pytest.fixture
def squashed(cluster):
    """Give the job that a squashfs file of the test is entered for, and run it on one node."""
    image = cluster.folder / "toy.sqsh"
    image.write_bytes(b"")
    cluster.programs.program("squashfuse", SQUASHFUSE)

    def run(**changes):
        wanted = job(folder=str(cluster.folder), nodes=1, **changes)
        text = script(wanted, site("squashfs", image="/images/toy.sqsh"))
        top = cluster.folder / "top"
        top.mkdir(exist_ok=True)
        text = text.replace(" top=/mnt\n", f" top={top}\n").replace("/images/toy.sqsh", str(image))
        return cluster.run(text, SLURM_JOB_NODELIST="node1"), top

    return run


def test_a_squashfs_file_becomes_the_root_below_a_layer_in_memory(cluster, squashed):
    done, top = squashed()
    assert (done.returncode, done.stderr) == (0, "")
    mounts = [call["argv"] for call in cluster.programs.calls("mount")]
    layers = f"lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work,userxattr"
    assert mounts[1] == ["-t", "overlay", "stackyard", "-o", layers, f"{top}/root"]
    assert mounts[2] == ["-t", "proc", "proc", f"{top}/root/proc"], "of its own namespace"
    places = ("/sys", "/dev", "/etc/hosts", "/etc/resolv.conf")
    assert mounts[3:] == [["--rbind", place, f"{top}/root{place}"] for place in places]
    (call,) = cluster.programs.calls("torchrun")
    assert call["env"]["TOLD"] == "it has blanks", "the image's own variables"
    assert "unpacking" not in done.stdout


def test_what_serves_the_file_outlives_the_signals_of_slurm(cluster, squashed):
    assert squashed()[0].returncode == 0
    ignored = int((cluster.folder / "ignored").read_text(), 16)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        assert ignored & 1 << (number - 1)


def test_variables_of_the_job_take_precedence_over_the_images(cluster, squashed):
    assert squashed(env={"TOLD": "by the job"})[0].returncode == 0
    (call,) = cluster.programs.calls("torchrun")
    assert call["env"]["TOLD"] == "by the job"


def test_where_squashfuse_fails_the_file_is_unpacked_and_the_reason_is_said(cluster, squashed):
    cluster.programs.program("squashfuse", "#!/bin/sh\necho fuse: device not found\nexit 1\n")
    cluster.programs.program("unsquashfs", UNSQUASHFS)
    done, _ = squashed()
    assert done.returncode == 0
    assert "(fuse: device not found): unpacking it into memory by unsquashfs" in done.stdout
    (call,) = cluster.programs.calls("torchrun")
    assert call["env"]["TOLD"] == "unpacked"


def test_a_node_that_can_neither_mount_nor_unpack_is_named(cluster, squashed):
    cluster.programs.program("squashfuse", "#!/bin/sh\nexit 1\n")
    cluster.programs.program("unsquashfs", "#!/bin/sh\necho FATAL: no space\nexit 1\n")
    done, _ = squashed()
    assert done.returncode == 1
    assert "0: FATAL: no space" in done.stdout
    assert "node1: cannot enter" in done.stdout and "/dev/fuse is needed" in done.stdout
    assert cluster.programs.calls("torchrun") == []


def test_a_node_without_the_file_is_named_with_how_to_bring_it(cluster, squashed):
    (cluster.folder / "toy.sqsh").unlink()
    done, _ = squashed()
    assert done.returncode == 1
    assert "node1: cannot read" in done.stdout and "invoke pull --as squashfs" in done.stdout
    assert cluster.programs.calls("torchrun") == []


def test_a_node_that_hides_parts_of_proc_is_named(cluster, squashed):
    cluster.programs.program("mount", '#!/bin/sh\n[ "$2" != proc ]\n')
    done, _ = squashed()
    assert done.returncode == 1 and "cannot mount /proc of a namespace" in done.stdout


LDCONFIG = """#!/bin/sh
while read -r name; do
  printf '\\t%s (libc6,x86-64) => %s/%s\\n' "$name" "$LIBS" "$name"
done < "$LIBS/list"
"""


@pytest.fixture
def driver(cluster):
    """Install libraries of a driver on the nodes."""
    folder = cluster.folder / "libs"
    folder.mkdir()

    def install(*names):
        (folder / "list").write_text("".join(f"{name}\n" for name in names))
        for name in names:
            (folder / name).write_bytes(b"")
        cluster.programs.program("ldconfig", LDCONFIG.replace("$LIBS", str(folder)))
        cluster.programs.program("nvidia-smi", "#!/bin/sh\n")
        return folder

    return install


def test_the_nodes_driver_goes_where_its_libraries_are_looked_for(cluster, squashed, driver):
    folder = driver(*access.REQUIRED, "libnvidia-gpucomp.so.580.1", "libz.so.1")
    done, top = squashed(device="cuda")
    assert done.returncode == 0, done.stdout
    mounts = [call["argv"] for call in cluster.programs.calls("mount")]
    place = f"{top}/root{access.LIBRARIES}"
    bound = {words[2]: words[1] for words in mounts if words[2].startswith(place)}
    assert bound == {
        **{f"{place}/{name}": f"{folder}/{name}" for name in access.REQUIRED},
        f"{place}/libnvidia-gpucomp.so.580.1": f"{folder}/libnvidia-gpucomp.so.580.1",
        f"{place}/libcuda.so": f"{place}/libcuda.so.1",
    }
    (call,) = cluster.programs.calls("torchrun")
    assert call["env"]["LD_LIBRARY_PATH"] == access.LIBRARIES
    assert call["env"]["TRITON_LIBCUDA_PATH"] == access.LIBRARIES


def test_a_node_whose_driver_lacks_a_library_is_named(cluster, squashed, driver):
    driver(*access.REQUIRED[:-1])
    done, _ = squashed(device="cuda")
    assert done.returncode == 1
    assert f"node1: the NVIDIA driver's {access.REQUIRED[-1]} is not where" in done.stdout
    assert cluster.programs.calls("torchrun") == []
