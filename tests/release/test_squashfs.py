"""Releases as one file: on hosts without an engine, training on Slurm nodes without docker."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stackyard.build.base_image import base_reference
from stackyard.definitions.project import ROOT
from stackyard.schedulers import slurm, slurm_client
from stackyard.schedulers.slurm_site import SlurmSite
from tests.fleet.emulated import docker, owned
from tests.fleet.images import build_image
from tests.fleet.slurm_cluster import LABEL, NODES, running_cluster, wait
from tests.fleet.slurm_smoke import (
    ENDLESS,
    PROJECT,
    cancelled,
    finished,
    job,
    losses,
)
from tests.release import driver
from tests.release.registry import shape
from tests.release.small import loaded, random_layers, small_image, tar
from tests.release.test_cuts import pulling, start, unshape

FOLDER = "/srv/images"
STACK = "fairseq"
AS_FILE = ("--as", "squashfs", "--into")


@pytest.fixture
def bare(site):
    """The site, whose hosts have no engine."""
    for host in site.yard.hosts.values():
        host.run("sh", "-c", "kill $(pidof dockerd); while pidof dockerd > /dev/null; do sleep 0.1;"
                 " done; rm -f /var/run/docker.sock")  # fmt: skip
    yield site
    for host in site.yard.hosts.values():
        unshape(host.container)
        host.run("rm", "-rf", FOLDER)
        host.start_engine()


def there(host) -> list[str]:
    """Every file in the folder, hidden ones, too."""
    return host.run("sh", "-c", f"ls -A {FOLDER} 2> /dev/null; true").split()


def hashes(host) -> set[str]:
    """The SHA-256 of every file in the folder."""
    return {f"sha256:{host.run('sha256sum', f'{FOLDER}/{name}').split()[0]}"
            for name in there(host)}  # fmt: skip


def test_one_file_comes_to_hosts_without_an_engine(bare):
    layers = [*random_layers(2, 4), tar({"etc/note": b"1"}), tar({"etc/.wh.note": b""})]
    with loaded(layers, env=["A=b"]) as image:
        done = driver.publish(bare.place, image, bare.key, bare.cache / "spool")
    pulled = bare.pull("accelerate", *AS_FILE, FOLDER)
    file = pulled["squashfs"]
    assert {mark["state"] for mark in pulled["hosts"].values()} == {"pulled"}, pulled
    assert pulled["from_registry_bytes"] == sum(layer.size for layer in done.layers)
    assert pulled["moved_bytes"] == 2 * file["bytes"]
    assert file["path"] == f"{FOLDER}/{done.name}.sqsh"
    for host in bare.yard.hosts.values():
        assert there(host) == [f"{done.name}.sqsh"]
        assert hashes(host) == {file["sha256"]}
    bare.require_nothing_left()
    before = bare.registry.sent()
    again = bare.pull("accelerate", *AS_FILE, FOLDER)
    assert {mark["state"] for mark in again["hosts"].values()} == {"held"}
    assert again["squashfs"] == file and bare.registry.sent() - before < 10**6


@pytest.mark.repeat  # pulls are killed in test_cuts.py
def test_a_pull_that_is_killed_leaves_no_file_and_the_next_brings_it(bare):
    with small_image(2, 30) as image:
        done = driver.publish(bare.place, image, bare.key, bare.cache / "spool")
    hosts = list(bare.yard.hosts.values())
    for host in hosts:
        shape(host.container, 8)  # a lease ends long before such a link has carried the file
    running = start(bare, *pulling(bare), *AS_FILE, FOLDER)
    parcels = "cat /root/.cache/stackyard/pull/* 2> /dev/null | wc -c"
    wait(lambda: int(hosts[-1].run("sh", "-c", parcels)) > 2 * 10**6, 120)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(60)
    bare.require_nothing_left(parcels=False)
    # The first host, which the file reaches over no slow link, may have all of it; none has a part.
    early = {host.name: hashes(host) for host in hosts}
    assert set() in early.values()
    for host in hosts:
        unshape(host.container)
    pulled = bare.pull("accelerate", *AS_FILE, FOLDER)
    states = {name: mark["state"] for name, mark in pulled["hosts"].items()}
    assert states == {name: "held" if early[name] else "pulled" for name in early}, pulled
    assert pulled["moved_bytes"] < 2 * pulled["squashfs"]["bytes"], "it went on where it was"
    for host in hosts:
        assert there(host) == [f"{done.name}.sqsh"]
        assert hashes(host) == {pulled["squashfs"]["sha256"]}
        assert early[host.name] <= hashes(host)
    bare.require_nothing_left()


# Slurm nodes of a bare Debian: no docker, no torch


@pytest.fixture(scope="module")
def released(make_site, image, tmp_path_factory):
    """A stack's release as one file in a folder that all nodes see, and the id of its image."""
    site = make_site(tmp_path_factory.mktemp("released"), "study")
    shared = tmp_path_factory.mktemp("shared")
    found = image(STACK)
    done = site.publish(STACK, "--unproven")
    words = ["pull", STACK, "--base", "cpu", "--from", site.place, "--signers", str(site.signers)]
    site.invoke(*words, *AS_FILE, str(shared / "images"))
    yield shared, shared / "images" / f"{done['name']}.sqsh", found.id


@pytest.fixture(scope="module")
def cluster(released):
    """A Slurm of a bare Debian with squashfuse."""
    definitions = PROJECT.definitions
    on = base_reference(definitions.bases["cpu"], definitions.common)
    with running_cluster(build_image(f"{LABEL}:bare", "slurm", on), released[0]) as running:
        yield running


@pytest.fixture
def submit(released, cluster, monkeypatch):
    """Submit the stack's smoke in the file; its number and folder."""
    monkeypatch.setenv("PATH", f"{cluster.commands}:{os.environ['PATH']}")

    def run(**changes):
        folder = cluster.shared / f"job-{time.monotonic_ns()}"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        site = SlurmSite(runtime="squashfs", image=str(released[1]), minutes=5, join_seconds=60)
        for name, text in slurm.render(job(STACK, folder, **changes), site).items():
            (folder / name).write_text(text)
        return slurm_client.submit(folder), folder

    return run


def left(cluster) -> list[str]:
    """What a job left on the nodes: processes, mounts, what it mounted them on."""
    mounts = [f"{node}: {line}" for node in NODES
              for line in cluster.on(node, "cat", "/proc/mounts").splitlines()
              if "stackyard" in line or "squashfuse" in line]  # fmt: skip
    tops = [cluster.on(node, "ls", "-A", "/mnt") for node in NODES]
    return [*cluster.processes(), *mounts, *filter(None, tops)]


@pytest.mark.repeat  # the file is pulled and read below; other file systems train in test_slurm
def test_a_smoke_passes_over_two_slurm_nodes_without_docker(released, cluster, monkeypatch):
    """`invoke smoke STACK --on slurm --image FILE`: trained, killed, resumed and judged."""
    for words in ("command -v docker", "python3 -c 'import torch'"):
        assert cluster.on("node1", "sh", "-c", f"{words} && echo there", check=False) == ""
    monkeypatch.setenv("PATH", f"{cluster.commands}:{os.environ['PATH']}")
    site, folder = cluster.shared / "site.yml", cluster.shared / "smoke"
    site.write_text("slurm: {minutes: 10, join_seconds: 60, runtime: squashfs}\n")
    line = [ROOT / ".venv/bin/invoke", "smoke", STACK, "--gpus", "0", "--on", "slurm", "--site",
            site, "--image", released[1], "--out", folder, "--json"]  # fmt: skip
    # The job's user, who is not who types here, writes into the folder.
    with subprocess.Popen(line, cwd=ROOT, umask=0, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as typed:  # fmt: skip
        try:
            wait(
                lambda: typed.poll() is not None or list(folder.glob("records/*/rank1.jsonl")), 240
            )
            assert typed.poll() is None, typed.communicate()
            assert_served(cluster)
            said, errors = typed.communicate(timeout=420)
        finally:
            typed.send_signal(signal.SIGINT)
    (report,) = json.loads(said)["reports"]
    outcomes = {check["name"]: check["outcome"] for check in report["checks"]}
    assert "mesh" not in outcomes, "Slurm's nodes do not log in to each other"
    assert set(outcomes.values()) == {"passed"}, (report["checks"], errors[-2000:])
    assert {"world_size", "loss_falls", "parity", "resume_equal", "no_strays"} <= set(outcomes)
    assert (report["nodes"], report["slurm"]["runtime"]) == (list(NODES), "squashfs")
    assert {host["image"] for host in report["hosts"]["hosts"]} == {released[2]}
    wait(lambda: left(cluster) == [], 20)


def assert_served(cluster) -> None:
    """See that squashfuse serves the file on both nodes: they did not unpack it."""
    served = [line for line in cluster.processes() if "squashfuse" in line]
    assert {line.split(":")[0] for line in served} == set(NODES)


def moving(submit, cluster):
    """A job that trains on and on, its file served on both nodes."""
    number, folder = submit(updates=ENDLESS)
    wait(lambda: min(len(losses(folder, rank)) for rank in (0, 1)) > 5, 90)
    assert_served(cluster)
    return number


@pytest.mark.repeat
def test_a_cancelled_job_leaves_neither_process_nor_mount(submit, cluster):
    cancelled(cluster, moving(submit, cluster))
    assert left(cluster) == []


@pytest.mark.repeat
def test_a_job_that_is_killed_leaves_neither_process_nor_mount(submit, cluster):
    number = moving(submit, cluster)
    (line,) = [line for line in cluster.processes(["node2"]) if "unshare --user" in line]
    cluster.on("node2", "kill", "-9", _inside(cluster, "node2", line))
    assert finished(number, 60)[0].state == "failed"
    wait(lambda: left(cluster) == [], 20)


def _inside(cluster, node: str, line: str) -> str:
    """The PID on the node of a process that the engine lists by its own."""
    pid = re.split(r"\s+", line)[1]
    text = subprocess.run(["grep", "NSpid", f"/proc/{pid}/status"], capture_output=True, text=True,
                          check=True).stdout  # fmt: skip
    return text.split()[2]


@pytest.mark.repeat  # hosts pull the file and read it above
def test_the_file_holds_what_a_container_sees(released, tmp_path):
    _, path, image = released
    container = docker("create", *owned(), image)
    try:
        with (
            subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export,
            tarfile.open(fileobj=export.stdout, mode="r|") as archive,
        ):
            seen = dict(described(archive))
    finally:
        docker("rm", "-v", container)
    root = tmp_path / "root"
    # As a node without squashfuse unpacks it: there nobody can make a device.
    subprocess.run(["unshare", "--user", "--map-root-user", "unsquashfs", "-no-progress", "-dest",
                    root, path], check=True, capture_output=True)  # fmt: skip
    try:
        found = dict(read(root))
    finally:
        shutil.rmtree(root)
    # The engine adds these to containers, and the file holds the image's variables.
    added = (".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf",
             "etc/environment")  # fmt: skip
    for side in (found, seen):
        for name in [name for name in side if name in added or name.startswith(("dev/", "proc/"))]:
            del side[name]
    assert len(found) > 5000
    differ = {name for name in {*found, *seen} if found.get(name) != seen.get(name)}
    assert {name: (found.get(name), seen.get(name)) for name in differ} == {}


def described(archive: tarfile.TarFile) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Each path of an exported container, and what is compared of it."""
    digests: dict[str, tuple[object, ...]] = {}
    for member in archive:
        name = member.name.strip("/").removeprefix("./")
        if member.isreg():
            data = archive.extractfile(member)
            found = hashlib.sha256(data.read()).digest()
            digests[name] = ("file", member.mode & 0o7777, member.mtime, found)
            yield name, digests[name]
        elif member.islnk():
            yield name, digests[member.linkname.strip("/").removeprefix("./")]
        elif member.issym():
            yield name, ("link", member.linkname)
        elif name:
            yield name, ("folder", member.mode & 0o7777)


def read(root: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    """The same of an unpacked file."""
    for path in root.rglob("*"):
        name, told = str(path.relative_to(root)), path.lstat()
        if path.is_symlink():
            yield name, ("link", str(path.readlink()))
        elif path.is_dir():
            yield name, ("folder", told.st_mode & 0o7777)
        elif path.is_file():  # a device of /dev would be read without end
            data = hashlib.sha256(path.read_bytes()).digest()
            yield name, ("file", told.st_mode & 0o7777, int(told.st_mtime), data)
