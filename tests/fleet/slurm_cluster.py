"""A real Slurm for the tests: three containers of a stack's image, on a network of their own.

`ctl` decides, `node1` and `node2` work; an ordinary user, `trainer`, submits. A folder of this
machine lies at the same path in all three, as a cluster's shared file system would, and small
programs named like Slurm's own call them in `ctl`: the client runs here as it would there.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fleet.emulated import docker, owned, sweep

LABEL = "stackyard-test-slurm"
USER = "trainer"
NODES = ("node1", "node2")
IMAGES = "/images"
# What a node needs for Slurm's own containers, where --privileged is refused.
POWERS = (
    "--cap-add=SYS_ADMIN",
    *(f"--security-opt={name}=unconfined" for name in ("seccomp", "apparmor", "systempaths")),
)
# What squashfuse needs of a node; where this machine has it.
FUSE = ("--device=/dev/fuse",) if Path("/dev/fuse").exists() else ()
# Everything that is not one of these belongs to a job.
DAEMONS = ("docker-init", "slurmd", "slurmctld", "munged", "slurmstepd")


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """A running cluster.

    Attributes:
        run: its name; containers are called `<run>-<host>`.
        shared: a folder that this machine and all of the cluster's see at the same path.
        commands: a folder with sbatch, scontrol, ... for a PATH.
    """

    run: str
    shared: Path
    commands: Path

    def on(self, host: str, *words: str, user: str = "root", check: bool = True) -> str:
        """The output of a command on one of its machines."""
        return docker("exec", "--user", user, f"{self.run}-{host}", *words, check=check)

    def processes(self, nodes: Sequence[str] = NODES) -> list[str]:
        """Every process of a job on some nodes."""
        found = []
        for node in nodes:
            lines = docker("top", f"{self.run}-{node}", "-eo", "pid,args").splitlines()[1:]
            found += [f"{node}: {line}" for line in lines if not _daemon(line.split(None, 1)[1])]
        return found

    def wait_for_nodes(self, seconds: float = 30) -> None:
        """Wait until both nodes take jobs."""
        wait(lambda: self.on("ctl", "sinfo", "-h", "-o", "%t %D", check=False) == "idle 2", seconds)


def _daemon(command: str) -> bool:
    name = Path(command.split()[0].rstrip(":")).name
    return name in DAEMONS or "slurm-node" in command


def wait(condition: object, seconds: float) -> float:
    """Wait until a condition holds; the seconds it took."""
    started = time.monotonic()
    while not condition():  # type: ignore[operator]
        waited = time.monotonic() - started
        assert waited < seconds, f"not within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - started


@contextlib.contextmanager
def running_cluster(image: str, shared: Path, volume: str = "") -> Iterator[SlurmCluster]:
    """Start a cluster of `image`; nothing of it is left in the end.

    Args:
        shared: an empty folder of this machine.
        volume: what lies at `IMAGES` on all machines: unpacked images; nothing does unless named.
    """
    run = f"{LABEL}-{secrets.token_hex(4)}"
    cluster = SlurmCluster(run=run, shared=shared, commands=shared.parent / f"{run}-commands")
    shared.chmod(0o777)
    images = ("--volume", f"{volume}:{IMAGES}") if volume else ()
    sweep()
    try:
        docker("network", "create", "--internal", *owned(), run)
        docker("volume", "create", *owned(), run)
        for host in ("ctl", *NODES):
            docker(
                "run", "--detach", "--init", *owned(), "--name", f"{run}-{host}",
                "--hostname", host, "--network", run, "--network-alias", host, *POWERS, *FUSE,
                "--volume", f"{run}:/cluster", *images,
                "--volume", f"{shared}:{shared}", "--entrypoint", "slurm-node", image,
                "controller" if host == "ctl" else "worker",
            )  # fmt: skip
        _write_commands(cluster)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        # What jobs wrote is their user's; removed by whoever may.
        cluster.on("ctl", "find", str(shared), "-mindepth", "1", "-delete", check=False)
        names = [f"{run}-{host}" for host in ("ctl", *NODES)]
        docker("rm", "--force", "--volumes", *names, check=False)
        docker("volume", "rm", run, check=False)
        docker("network", "rm", run, check=False)


def _write_commands(cluster: SlurmCluster) -> None:
    cluster.commands.mkdir()
    for name in ("sbatch", "scontrol", "scancel", "sacct", "squeue", "srun"):
        path = cluster.commands / name
        path.write_text(
            f"#!/bin/sh\nat=/\ncase $PWD in {cluster.shared}*) at=$PWD ;; esac\n"
            f'exec docker exec --user {USER} --workdir "$at" {cluster.run}-ctl {name} "$@"\n'
        )
        path.chmod(0o755)


@contextlib.contextmanager
def unpacked(reference: str, name: str) -> Iterator[str]:
    """A volume that holds an image unpacked, as an ordinary user would have it, below `name`."""
    volume = f"{LABEL}-{secrets.token_hex(4)}"
    docker("volume", "create", *owned(), volume)
    try:
        command = ["docker", "run", "--rm", *owned(), "--user=0", "--volume", f"{volume}:{IMAGES}",
                   "--entrypoint=sh", reference, "-euc"]  # fmt: skip
        script = (
            f"cp -dRx --preserve=mode,timestamps,links / /images/{name} 2> /dev/null || true;"
            f" rm -rf /images/{name}/images; chown -R 1000:1000 /images/{name}"
        )
        subprocess.run([*command, script], check=True, capture_output=True)
        yield volume
    finally:
        docker("volume", "rm", volume, check=False)
