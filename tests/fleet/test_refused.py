"""What keeps a run from starting is found before anything is started, on all hosts, at once."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from tests.fleet.emulated import Yard


def altered(yard, tmp_path, change):
    """The same hosts behind another inventory."""
    folder = tmp_path / "inventory"
    folder.mkdir()
    for name in ("ssh_config", "known_hosts"):
        shutil.copy(yard.folder / name, folder / name)
    text = (
        (folder / "ssh_config")
        .read_text()
        .replace(f"{yard.folder}/known_hosts", f"{folder}/known_hosts")
    )
    (folder / "ssh_config").write_text(text)
    value = yaml.safe_load((yard.folder / "hosts.yml").read_text())
    value["defaults"]["ssh_config"] = f"{folder}/ssh_config"
    change(value, folder)
    (folder / "hosts.yml").write_text(yaml.safe_dump(value, sort_keys=False))
    return Yard(folder=folder, hosts=yard.hosts)


def refused(yard, *words):
    done = yard.invoke("up", "fairseq", "--gpus", "0", *words, check=False, seconds=90)
    assert done.returncode == 3, done.stderr
    assert yard.left() == {}
    return done.stderr


def test_everything_wrong_on_every_host_is_said_at_once(yard, tmp_path):
    """A changed host key, a host that is down, a missing folder, one that is not shared."""

    def change(value, folder):
        other = tmp_path / "other"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True
        )
        lines = (folder / "known_hosts").read_text().splitlines()
        public = " ".join(other.with_suffix(".pub").read_text().split()[:2])
        address = value["hosts"]["train"]["address"]
        lines = [
            f"{address} {public}" if line.startswith(f"{address} ") else line for line in lines
        ]
        (folder / "known_hosts").write_text("\n".join(lines) + "\n")
        # An address of their network that nobody has.
        value["hosts"]["away"] = {"address": f"{address.rpartition('.')[0]}.250"}
        value["folders"]["/code"] = "/srv/no-such-folder"
        value["folders"]["/private"] = {"path": "/var/tmp", "shared": True}

    said = refused(altered(yard, tmp_path, change))
    assert re.search(r"nothing was started: \d+ problems on", said)
    assert "train: its host key has changed" in said
    assert "away: it cannot be reached" in said or "away: it does not answer" in said
    assert "study: it has no folder /srv/no-such-folder" in said
    assert "depot: /private (/var/tmp) is said to be shared" in said


def test_another_image_and_a_missing_one_are_named_by_host(yard):
    train, depot = yard.hosts["train"], yard.hosts["depot"]
    for host in (train, depot):
        host.run("docker", "tag", "stackyard/fairseq:cpu", "kept:1")
    train.run("docker", "tag", "stackyard/megatron:cpu", "stackyard/fairseq:cpu")
    depot.run("docker", "rmi", "stackyard/fairseq:cpu")
    try:
        said = refused(yard)
    finally:
        for host in (train, depot):
            host.run("docker", "tag", "kept:1", "stackyard/fairseq:cpu")
    assert "train: its stackyard/fairseq:cpu is another image" in said
    assert "depot: it does not hold stackyard/fairseq:cpu" in said


def test_a_port_that_something_else_holds_is_passed_over(yard):
    study = yard.hosts["study"]
    study.run("sh", "-c", "/usr/sbin/sshd -o Port=2222 -o PidFile=/run/busy.pid")
    try:
        said = yard.invoke("up", "fairseq", "--gpus", "0", "--name", "busy")
        assert "sshd at port 2223" in said.stderr
    finally:
        study.run("sh", "-c", "kill $(cat /run/busy.pid)")
        yard.invoke("down", "--name", "busy")


def test_an_engine_that_does_not_run_is_named(yard):
    depot = yard.hosts["depot"]
    depot.run("sh", "-c", "kill $(pidof dockerd); while pidof dockerd; do sleep 0.1; done")
    try:
        said = refused(yard)
    finally:
        depot.start_engine()
    assert "depot: no container engine answers at /var/run/docker.sock" in said


def test_the_same_name_twice_is_refused(yard):
    yard.invoke("up", "fairseq", "--gpus", "0", "--name", "twice")
    try:
        done = yard.invoke("up", "fairseq", "--gpus", "0", "--name", "twice", check=False)
        assert done.returncode == 3
        assert "study: run 'twice' is on it already (stack fairseq)" in done.stderr
    finally:
        yard.invoke("down", "--name", "twice")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--include", "study:3"], "study has no slot '3'"),
        (["--include", "nobody"], "there is no node 'nobody'"),
        (["--launcher", "mpirun"], "there is no launcher 'mpirun'"),
    ],
)
def test_slots_nodes_and_launchers_that_do_not_exist_are_refused(yard, words, said):
    done = yard.invoke("run", "fairseq", "--gpus", "0", "--example", "lm-ddp", *words, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def test_doctor_tells_of_every_host_in_one_table(yard, tmp_path):
    def change(value, folder):
        value["hosts"]["away"] = {"address": "192.0.2.1"}

    found = altered(yard, tmp_path, change)
    left = "/dev/shm/stackyard-pull.4194303.1"  # of a process that cannot have begun at the boot
    yard.hosts["depot"].run("mkdir", left)
    try:
        done = found.invoke("doctor", "--stack", "fairseq", "--gpus", "0", check=False)
    finally:
        yard.hosts["depot"].run("rm", "-r", left)
    assert done.returncode == 1
    assert all(name in done.stdout for name in ("study", "train", "depot", "away"))
    assert "network between nodes: all hosts are in" in done.stdout
    assert "away: " in done.stdout
    said = f"depot: a broken pull left keys in {left}: the next `invoke pull` removes it"
    assert said in " ".join(done.stdout.split())
    assert done.stdout.count("a broken pull left") == 1
