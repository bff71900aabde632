"""up, run, status, logs, stop and down on three hosts, with real trainings."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time

import pytest

from stackyard.definitions.project import ROOT
from stackyard.mesh.link import ALIVE_SECONDS
from tests.fleet.programs import LIGHT

# ssh gives a connection up after three silent looks; the lease of a detached run is a minute.
CUT_SECONDS = 3 * ALIVE_SECONDS + 3
TWO = ("--include", "study@train")
STANDARD = (*TWO, "--set", "start=standard")
# Where the launcher is not what a test is about: torchrun loads torch once more on every host.
PLAIN = ("--launcher", "plain")


def launched(stack, example, more, ranks, *marks, name=""):
    """One launch over the hosts: the stack, the example, what else is typed, the ranks."""
    return pytest.param(stack, example, more, ranks, id=name or example, marks=marks)


# Every launcher of the 2021 notes, each way it starts; all but one way of each are repetition.
# lm-ddp and llama-zero2 train over hosts in other tests here, too, and by deepspeed's launcher and
# accelerate's users' own programs (test_own_settings); smokes play both on two nodes.
repeat = pytest.mark.repeat
LAUNCHERS = (
    launched("fairseq", "gpt2-fsdp", TWO, 2, repeat),  # torchrun, static rendezvous; fully sharded
    launched("fairseq", "lm-ddp", (), 3, repeat),  # torchrun, c10d rendezvous
    # deepspeed, hostfile, -i
    launched("megatron", "gpt-tp", ("--include", "study:0@train:0"), 2, repeat),
    launched("megatron", "gpt-pp", ("--exclude", "depot"), 2, repeat),  # deepspeed, -e
    launched("megatron", "gpt-no-ssh", ("--include", "study@depot"), 2, repeat),  # --no_ssh
    launched("megatron", "gpt-3d", (*TWO, "--per-node", "4"), 8, repeat),  # 3D over hosts
    launched("accelerate", "llama-ddp", TWO, 2, repeat),  # accelerate on every node
    launched("accelerate", "llama-zero2", TWO, 2, repeat),  # accelerate, pdsh, ZeRO-2
    launched("accelerate", "llama-zero3", TWO, 2, repeat),  # accelerate, pdsh, ZeRO-3
    launched("accelerate", "llama-zero3-standard", TWO, 2, repeat),
    launched("accelerate", "ddp-tcp", (), 3, repeat),  # init_method tcp://
    launched("accelerate", "ddp-file", TWO, 2),  # init_method file:// on the shared folder
    # torchrun, two ranks of one host of the inventory
    launched("megatron", "gpt2-345m", ("--include", "study", "--per-node", "2"), 2, repeat),
    launched("megatron", "gpt2-345m", TWO, 2, repeat, name="gpt2-345m-hosts"),
    # accelerate on every node, by the option that llama-zero3-standard has
    launched("accelerate", "llama-zero3", STANDARD, 2, repeat, name="llama-zero3-set-standard"),
)


def losses(text):
    """Losses that ranks printed, in order: of our programs, and of fairseq."""
    found = re.findall(r"update \d+(?:/\d+)? loss ([0-9.]+)|loss=([0-9.]+), ppl", text)
    return [float(ours or theirs) for ours, theirs in found]


def every_line(done):
    """The file that got every line of a run that was followed."""
    path = re.search(r"every line is in (\S+\.log)", done.stderr)[1]
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def meshes(three):
    """Meshes of two stacks, side by side on the same hosts; all are taken down at the end."""
    for stack in ("fairseq", "accelerate"):
        said = json.loads(three.invoke("up", stack, "--gpus", "0", "--json").stdout)
        assert [node["host"] for node in said["nodes"]] == list(three.hosts)
    (three.folder / "shared" / "light.py").write_text(LIGHT)
    yield three
    three.invoke("down", "--all")
    assert three.left() == {}


def test_runs_side_by_side_have_ports_of_their_own(meshes):
    found = json.loads(meshes.invoke("status", "--json").stdout)["runs"]
    assert [run["run"] for run in found] == ["accelerate", "fairseq"]
    assert all(run["missing"] == [] and run["lost"] == {} for run in found)
    for host in meshes.hosts.values():
        for port in (2222, 2223):
            assert host.infra.socket(f"tcp://{host.address}:{port}").is_listening


def test_a_node_has_the_name_servers_of_its_host(meshes):
    for host in meshes.hosts.values():
        words = ("grep", "^nameserver", "/etc/resolv.conf")
        found = host.run("docker", "exec", f"stackyard-fairseq-{host.name}", *words)
        assert found and found == host.run(*words)


@pytest.mark.parametrize(("stack", "example", "more", "ranks"), LAUNCHERS)
def test_every_launcher_trains_over_hosts(meshes, stack, example, more, ranks):
    done = meshes.invoke("run", stack, "--gpus", "0", "--example", example, *more)
    assert f": {ranks} ranks on " in done.stderr
    assert re.search(rf"is done: {ranks} ranks", done.stdout), done.stdout[-2000:]
    found = losses(done.stdout)
    assert len(found) >= 4 and found[-1] < 0.85 * found[0], found
    # Lines say which node and rank they are from, shown and in the file that gets every line.
    kept = every_line(done)
    for said in (done.stdout, kept):
        assert re.search(r"^(study|train|depot) 0 +\| ", said, re.MULTILINE), said[-2000:]
    assert set(found) <= set(losses(kept))
    assert all(host.ranks() == [] for host in meshes.hosts.values())
    # Where ranks end without a word to torch, it leaves the file by which they met behind.
    assert [*(meshes.folder / "shared").glob("*.meeting")] == []


@pytest.mark.repeat  # of the inventory; another way to name hosts is what is shown
def test_a_hostfile_of_deepspeed_is_an_inventory(meshes, tmp_path, monkeypatch):
    """Its names, and one typed in its place, are aliases of the ssh configuration (a wrapper's)."""
    config = (meshes.folder / "ssh_config").read_text()
    names = {name: meshes.hosts[name].address for name in ("study", "train")}
    aliases = "".join(f"Host {name}\n  HostName {place}\n" for name, place in names.items())
    (tmp_path / "config").write_text(aliases + config)
    wrapper = tmp_path / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("# the two that are free\nstudy slots=8\n\ntrain slots=8\n")
    for hosts, count, more in ((hostfile, 2, ()), ("study", 1, ("--per-node", "2"))):
        done = subprocess.run(
            [ROOT / ".venv/bin/invoke", "run", "megatron", "--example", "gpt-tp", "--gpus", "0",
             "--hosts", hosts, "--name", "by-hostfile", *more],
            cwd=ROOT, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=240,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        found = losses(done.stdout)
        assert re.search(r"is done: 2 ranks", done.stdout) and found[-1] < 0.85 * found[0], found
        assert re.search(r"^study 0 +\| ", done.stdout, re.MULTILINE), done.stdout[-2000:]
        assert f"2 ranks on {count} node" in done.stderr


@pytest.mark.repeat  # tests/unit/mesh/test_example_copy.py reads copies
def test_a_copy_that_was_edited_trains_by_its_own_script(meshes):
    """Its arguments, values and program are the user's; the template's stay as they are."""
    name, two = f"copy-{secrets.token_hex(3)}", meshes.only("study", "train")
    own = two.folder / name
    two.invoke("run", "megatron", "--example", "gpt2-345m-tp", "--gpus", "0", "--name", name,
               "--save", f"/shared/{name}", "--write", str(own))  # fmt: skip
    for file, old, new in (
        ("example.yml", "  updates: '30'", "  updates: '12'"),
        ("example.yml", "- --clip=1.0", "- --clip=0.5\n- --mark=mine"),
        ("files/srv-templates/pretrain.py", '    parser.add_argument("--tp"',
         '    parser.add_argument("--mark")\n    parser.add_argument("--tp"'),
        ("files/srv-templates/pretrain.py", "    recorder.end(options.updates)",
         "    recorder.end(options.updates)\n    print('ended as', options.mark, options.clip)"),
    ):  # fmt: skip
        text = (own / file).read_text()
        assert text.count(old) == 1, (file, text)
        (own / file).write_text(text.replace(old, new))
    done = subprocess.run(
        ["sh", own / "start.sh", "--lr=0.004"], cwd=two.folder, stdin=subprocess.DEVNULL,
        text=True, capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert "is done: 2 ranks" in done.stdout
    assert "ended as mine 0.5" in done.stdout  # a line that another rank has printed is not shown
    found = losses(done.stdout)
    assert len(found) >= 2 and found[-1] < found[0], found
    # What it saved is where the copy was told to save, on the folder of all hosts.
    kept = meshes.folder / "shared" / name
    assert {path.name for path in kept.glob("global_step*")} == {"global_step12"}


@pytest.mark.parametrize(
    "launcher", ["plain", *(pytest.param(n, marks=repeat) for n in ("deepspeed", "accelerate"))]
)
def test_a_command_of_ones_own_sees_every_rank_and_its_bar(meshes, launcher):
    """tqdm through pdsh comes in one block at the end; here it comes while it moves."""
    program = (
        "import os, time; from tqdm import tqdm\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
        "for n in tqdm(range(40)): time.sleep(0.1)\n"
    )
    path = meshes.folder / "shared" / "bar.py"
    path.write_text(program)
    stack = "fairseq" if launcher == "plain" else "accelerate"
    more = ("--set", "zero_stage=2") if launcher == "accelerate" else ()  # by pdsh
    done = meshes.invoke("run", stack, "--launcher", launcher, *more, "--", "/shared/bar.py")
    said = done.stdout
    assert {f"rank {n} of 3" for n in range(3)} <= {
        line.partition("| ")[2] for line in said.splitlines()
    }
    kept = re.findall(r"^(\w+) (\d) +\| (rank \d of 3)$", every_line(done), re.MULTILINE)
    assert sorted(kept, key=lambda line: line[1]) == [
        (host, str(n), f"rank {n} of 3") for n, host in enumerate(meshes.hosts)
    ]
    bars = [int(found) for found in re.findall(r"(\d+)%\|.*/40 \[", said)]
    assert any(0 < bar < 100 for bar in bars), said[-2000:]


def test_a_program_that_fails_is_named_with_its_rank_and_host(meshes):
    path = meshes.folder / "shared" / "fail.py"
    path.write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1': raise RuntimeError('the third batch is empty')\n"
        "time.sleep(300)\n"
    )
    started = time.monotonic()
    done = meshes.invoke("run", "fairseq", "--", "/shared/fail.py", check=False)
    assert done.returncode == 1
    assert "rank 1 (train) ended: RuntimeError: the third batch is empty" in done.stdout
    assert time.monotonic() - started < 60
    assert all(host.ranks() == [] for host in meshes.hosts.values())


def test_a_detached_run_survives_its_controller_and_a_cut_that_outlasts_ssh(meshes):
    words = ("run", "fairseq", *PLAIN, "--detach", "--json", "--", "/shared/light.py")
    job = json.loads(meshes.invoke(*words).stdout)["name"]
    _until_it_trains(meshes, "fairseq")
    before = sorted(pid for host in meshes.hosts.values() for pid in host.ranks())
    assert len(before) == 3
    # Only one job runs in a mesh; who is refused leaves it alone.
    second = meshes.invoke(*words, check=False)
    assert second.returncode == 4 and "is running here" in second.stderr + second.stdout
    meshes.hosts["depot"].cut()
    time.sleep(CUT_SECONDS)
    meshes.hosts["depot"].mend()
    _until_it_trains(meshes, "fairseq", "--job", job)
    after = sorted(pid for host in meshes.hosts.values() for pid in host.ranks())
    assert after == before
    meshes.invoke("stop", "--name", "fairseq")
    assert all(host.ranks() == [] for host in meshes.hosts.values())


def _until_it_trains(meshes, run, *more, seconds=90):
    """Wait until a run's job says some more losses than it has said so far."""

    def count():
        return len(losses(meshes.invoke("logs", "--name", run, *more).stdout))

    end, seen = time.monotonic() + seconds, count()
    while count() < seen + 3:
        assert time.monotonic() < end
        time.sleep(0.5)


def test_ctrl_c_ends_a_run_everywhere_and_leaves_its_mesh(meshes):
    child = _interrupted(meshes, "fairseq", [])
    assert child.returncode == 130
    assert all(host.ranks() == [] for host in meshes.hosts.values())
    found = json.loads(meshes.invoke("status", "--name", "fairseq", "--json").stdout)["runs"]
    assert found[0]["missing"] == [] and found[0]["jobs"][-1]["reason"] == "it was interrupted"


def _interrupted(yard, stack, more):
    words = ["run", stack, "--hosts", yard.inventory, *more, "--", "/shared/light.py"]
    child = subprocess.Popen(
        [ROOT / ".venv/bin/invoke", *words], cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    with child:
        for line in child.stdout:
            if "update 10 " in line:
                os.kill(child.pid, signal.SIGINT)
                break
        child.stdout.read()
    return child


@pytest.mark.repeat  # test_kill_matrix.py ends such runs, too
def test_ctrl_c_of_a_run_with_a_mesh_of_its_own_leaves_nothing(meshes):
    name = f"own-{secrets.token_hex(3)}"
    assert _interrupted(meshes, "fairseq", ["--gpus", "0", "--name", name, *TWO]).returncode == 130
    assert not any(name in line for host in meshes.hosts.values() for line in host.containers())


@pytest.mark.repeat  # restarts are in test_stop, lost containers in the kill matrix
def test_a_lost_host_costs_a_restart_on_those_that_are_left(meshes):
    """A host's node is killed while it trains; the run goes on with the other, and ends well."""
    name, two = f"again-{secrets.token_hex(3)}", meshes.only("study", "train")
    words = ["run", "fairseq", "--gpus", "0", "--example", "lm-ddp", "--hosts", two.inventory,
             "--name", name, "--set", "updates=120", "--restarts", "1",
             "--save", f"/shared/{name}"]  # fmt: skip
    child = subprocess.Popen(
        [ROOT / ".venv/bin/invoke", *words], cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    said = []
    with child:
        for line in child.stdout:
            said.append(line)
            if "num_updates=60," in line and not any("starting again" in old for old in said):
                meshes.hosts["train"].run("docker", "kill", f"stackyard-{name}-train")
    text = "".join(said)
    assert child.returncode == 0, text[-3000:]
    assert "train lost: starting again on study (1 of 1 restarts)" in text
    assert "is done: 1 rank" in text
    # It went on from the checkpoint that the first attempt had written at the end of an epoch.
    assert "Loaded checkpoint" in text
