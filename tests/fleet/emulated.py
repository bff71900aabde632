"""Hosts for the tests: containers with an address, an sshd and a container engine of their own.

Each is what a bare machine is to Stackyard: something that ssh reaches and that has a docker
socket. Images are loaded into one engine's folder once, the seed; every host has a folder of its
own whose layers are links into the seed, which takes a moment and no space (an engine never writes
into a layer's files).

Everything made here has a label with its owner, and the next run removes what a dead owner left.
The image of a machine and the current seed are a cache for the next run; `drop_cache` removes them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import testinfra

from stackyard.build import mirrors
from stackyard.build.base_image import base_reference, ensure_base
from stackyard.definitions.project import ROOT, load_project
from stackyard.gpu.access import LIBRARIES
from stackyard.system import cleanup
from stackyard.system.engine import Engine
from stackyard.system.lockfile import exclusive
from tests.fleet.images import CACHE, build_image

LABEL = "stackyard-test-hosts"
OWNER = "stackyard-test-owner"
MACHINE = "stackyard-test-machine"
READY = "STACKYARD_TEST_MACHINE"
PROGRAMS = "/usr/local/nvidia/bin"
# What a nested engine needs where --privileged is refused.
CAPABILITIES = (
    "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH",
    "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MKNOD",
    "NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG",
    "SYS_ADMIN", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE", "SYS_TIME",
)  # fmt: skip
# A host with GPUs may open these alone, beside what docker lets every container open: NVML would
# otherwise make and open the nodes of all GPUs of the machine.
DEVICES, FEW_DEVICES = "a *:* rwm", "c 10:* rwm"
# With control groups of version 2, a group that hands out controllers holds no process.
CGROUPS = r"""
for at in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,bind,rw "$at" 2> /dev/null; done
if at=/sys/fs/cgroup && [ -e $at/cgroup.controllers ]; then
    mkdir -p $at/init
    for pid in $(cat $at/cgroup.procs); do echo "$pid" > $at/init/cgroup.procs; done 2> /dev/null
    for name in $(cat $at/cgroup.controllers); do echo "+$name"; done |
        while read -r word; do echo "$word" > $at/cgroup.subtree_control; done 2> /dev/null
fi
"""
START = rf"""{CGROUPS}
mount -o remount,rw /proc/sys 2> /dev/null
if [ -d /seed/image ] && [ ! -d /var/lib/docker/image ]; then
    mkdir /var/lib/docker/overlay2
    cp -a /seed/image /var/lib/docker
    cp -a /seed/overlay2/l /var/lib/docker/overlay2
    for at in /seed/overlay2/*/link; do
        layer=${{at%/link}}; own=/var/lib/docker/overlay2/${{layer##*/}}
        mkdir "$own" "$own/work"
        ln -s "$layer/diff" "$own/diff"
        cp "$layer/link" "$own"
        [ ! -e "$layer/lower" ] || cp "$layer/lower" "$own"
        [ ! -e "$layer/committed" ] || cp "$layer/committed" "$own"
    done
fi
mkdir -p /run/sshd /root/.ssh && cp /keys/authorized_keys /root/.ssh/ && chmod 700 /root/.ssh
cp /keys/host_key /etc/ssh/ssh_host_ed25519_key && chmod 600 /etc/ssh/ssh_host_ed25519_key
printf '%s\n' 'HostKey /etc/ssh/ssh_host_ed25519_key' 'PermitRootLogin prohibit-password' \
    'MaxStartups 256' > /etc/ssh/sshd_config
[ ! -d {LIBRARIES} ] || {{ echo {LIBRARIES} > /etc/ld.so.conf.d/nvidia.conf && ldconfig; }}
for at in {PROGRAMS}/*; do [ ! -e "$at" ] || ln -sf "$at" /usr/bin; done
dockerd --storage-driver overlay2 > /var/log/dockerd.log 2>&1 &
exec /usr/sbin/sshd -D -e
"""
START_SEED = rf"""{CGROUPS}
exec dockerd --storage-driver overlay2 > /var/log/dockerd.log 2>&1
"""
# Every process of a container, by its namespace and not by its name.
PROCESSES = r"""
own=$(stat -L -c %i /proc/1/ns/pid)
stat -L -c '%i %n' /proc/[0-9]*/ns/pid 2> /dev/null | while read -r id at; do
    [ "$id" != "$own" ] || continue
    at=${at%/ns/pid}
    state=$(awk '/^State/ { print $2 }' "$at/status" 2> /dev/null)
    [ "${state:-Z}" = Z ] || echo "${at#/proc/} $(tr '\0' ' ' < "$at/cmdline" | cut -c1-150)"
done 2> /dev/null"""
CONTAINERS = "pidof dockerd > /dev/null && docker ps -a --format '{{.Names}}' | grep stackyard-"
# Processes that a launcher gave a RANK, less those that they started.
RANKS = r"""
with=" $(grep -lz '^RANK=' /proc/[0-9]*/environ 2> /dev/null | tr -dc '0-9\n' | tr '\n' ' ')"
for pid in $with; do
    parent=$(awk '/^PPid/ { print $2 }' "/proc/$pid/status" 2> /dev/null)
    case $with in *" ${parent:-gone} "*) ;; *) echo "$pid" ;; esac
done"""


def docker(*words: str, check: bool = True, **more) -> str:
    """The docker command; its output."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, **more)
    if check and done.returncode:
        raise AssertionError(f"docker {' '.join(words)[:200]}: {done.stderr[-2000:]}")
    return done.stdout.strip()


def machine_image(*, python: bool = False) -> str:
    """The image of a machine of the tests; its name. READY names one that is there already.

    Args:
        python: with `python3`, by which a host's health is read.
    """
    if ready := os.environ.get(READY):
        return ready
    project = load_project()
    base, common = project.definitions.bases["cpu"], project.definitions.common
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    with Engine() as engine:
        ensure_base(engine, base, common, caller, print)
    name, without = (f"{MACHINE}-python", "") if python else (MACHINE, "/usr/bin/python3*")
    return build_image(name, "machine", base_reference(base, common), WITHOUT=without)


@dataclasses.dataclass(kw_only=True)
class EmulatedHost:
    """One host: its container, address and keys."""

    name: str
    container: str
    address: str

    @cached_property
    def infra(self) -> Any:
        """The host, for testinfra: its files, processes, sockets, mounts."""
        return testinfra.get_host(f"docker://{self.container}")

    def run(self, *words: str, check: bool = True) -> str:
        """A command on the host, as root, without ssh."""
        return docker("exec", self.container, *words, check=check)

    def processes(self, text: str) -> list[str]:
        """Command lines on the host, its containers' included, that hold a text."""
        found = self.run("ps", "-eo", "pid,args", "--no-headers").splitlines()
        return [line for line in found if text in line and "ps -eo" not in line]

    def containers(self) -> list[str]:
        """Names of its containers, whatever their state."""
        return self.run("docker", "ps", "-a", "--format", "{{.Names}}").split()

    def up(self) -> bool:
        """Whether its engine runs."""
        return bool(self.infra.process.filter(comm="dockerd"))

    def of_containers(self) -> list[str]:
        """Processes of the containers on it, by PID and command."""
        return self.run("sh", "-c", PROCESSES, check=False).splitlines()

    def left(self) -> list[str]:
        """What of runs is on it: their containers, if its engine runs, and their processes."""
        return self.run("sh", "-c", f"{CONTAINERS}; {PROCESSES}", check=False).splitlines()

    def ranks(self) -> list[int]:
        """PIDs of training ranks on it: processes that a launcher gave a RANK."""
        return [int(word) for word in self.run("sh", "-c", RANKS).split()]

    def kill(self, pid: int, signal: str = "KILL") -> None:
        """Send a signal to a process on it."""
        self.run("kill", f"-{signal}", str(pid))

    def cut(self) -> None:
        """Cut it off: nothing gets in or out by its network."""
        for chain in ("INPUT", "OUTPUT"):
            side = "-i" if chain == "INPUT" else "-o"
            self.run("iptables", "-I", chain, "!", side, "lo", "-j", "DROP")

    def mend(self) -> None:
        """Undo `cut`."""
        for chain in ("INPUT", "OUTPUT"):
            side = "-i" if chain == "INPUT" else "-o"
            self.run("iptables", "-D", chain, "!", side, "lo", "-j", "DROP", check=False)

    def start_engine(self) -> None:
        """Start its engine again after a kill."""
        docker("exec", "-d", self.container, "sh", "-c",
               "rm -f /var/run/docker.pid; exec dockerd --storage-driver overlay2"
               " >> /var/log/dockerd.log 2>&1")  # fmt: skip
        self.wait_engine()

    def wait_engine(self, seconds: float = 40) -> None:
        """Wait until its engine answers."""
        end = time.monotonic() + seconds
        while not self.run("docker", "version", "--format", "{{.Server.Version}}", check=False):
            if time.monotonic() > end:
                raise AssertionError(self.run("tail", "-30", "/var/log/dockerd.log", check=False))
            time.sleep(0.1)


@dataclasses.dataclass(kw_only=True)
class Yard:
    """Some hosts and their inventory."""

    folder: Path
    hosts: dict[str, EmulatedHost]

    @property
    def network(self) -> str:
        """The network that they are on."""
        form = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}"
        return docker("inspect", "--format", form, next(iter(self.hosts.values())).container)

    @property
    def inventory(self) -> str:
        """The path of their hosts.yml."""
        return str(self.folder / "hosts.yml")

    @property
    def shared(self) -> Path:
        """The folder that all hosts see, as `/shared` in nodes."""
        above = (self.folder, *self.folder.parents)
        return next(at / "shared" for at in above if (at / "shared").is_dir())

    def only(self, *names: str) -> Yard:
        """Some of the hosts, with an inventory of their own."""
        folder = self.folder / f"only-{'-'.join(names)}"
        folder.mkdir(exist_ok=True)
        others = tuple(f"  {name}: " for name in self.hosts if name not in names)
        lines = Path(self.inventory).read_text().splitlines(keepends=True)
        (folder / "hosts.yml").write_text("".join(x for x in lines if not x.startswith(others)))
        return Yard(folder=folder, hosts={name: self.hosts[name] for name in names})

    def invoke(self, *words: str, check: bool = True, seconds: float = 240, **more):
        """`invoke COMMAND --hosts ...` as a user types it."""
        rest = list(words)
        at = rest.index("--") if "--" in rest else len(rest)
        rest[at:at] = ["--hosts", self.inventory]
        try:
            done = subprocess.run(
                [ROOT / ".venv/bin/invoke", *rest], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=seconds, check=False, **more,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            said = [part.decode()[-3000:] for part in (error.stdout, error.stderr) if part]
            ranks = {name: host.run("ps", "axfo", "pid,stat,wchan:20,args")[-9000:]
                     for name, host in self.hosts.items()}  # fmt: skip
            shown = "\n".join([*said, *(f"{name}:\n{text}" for name, text in ranks.items())])
            raise AssertionError(f"invoke {' '.join(rest)}: {seconds} s: {shown}") from error
        if check and done.returncode:
            said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
            raise AssertionError(f"invoke {' '.join(rest)} ended with {done.returncode}: {said}")
        return done

    def left(self) -> dict[str, list[str]]:
        """What of runs is on the hosts: containers, and processes of containers."""
        return {name: left for name, host in self.hosts.items() if (left := host.left())}

    def until_gone(self, seconds: float) -> tuple[float, dict[str, list[str]]]:
        """Wait until nothing is left on any host: how long that took, and what is left."""
        started = time.monotonic()
        while True:
            left, waited = self.left(), time.monotonic() - started
            if not left or waited > seconds:
                return waited, left
            time.sleep(0.1)


def seed(image: str, images: Sequence[str]) -> str:
    """A volume with an engine's folder that holds `images`; made once for the same ones."""
    ids = [docker("image", "inspect", "--format", "{{.Id}}", name) for name in (image, *images)]
    key = hashlib.sha256(" ".join(ids).encode()).hexdigest()[:12]
    volume = f"{LABEL}-{key}"
    for other in _seeds():
        if other != volume:
            docker("volume", "rm", other, check=False)  # stays where hosts still use it
    docker("volume", "create", "--label", CACHE, volume)
    whole = Path(docker("volume", "inspect", "--format", "{{.Mountpoint}}", volume)) / "whole"
    if whole.exists():
        return volume
    name = f"{LABEL}-seed-{secrets.token_hex(4)}"
    try:
        _start(name, image, START_SEED, *owned(), "-v", f"{volume}:/var/lib/docker")
        EmulatedHost(name="seed", container=name, address="").wait_engine()
        load = ["docker", "exec", "-i", name, "docker", "load"]
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as save:
            subprocess.run(load, stdin=save.stdout, check=True, stdout=subprocess.DEVNULL)
        assert save.returncode == 0
        docker("stop", "-t", "30", name)
    finally:
        docker("rm", "-f", "-v", name, check=False)
    whole.touch()
    return volume


def _seeds() -> list[str]:
    return docker("volume", "ls", "-q", "--filter", f"label={CACHE}").split()


def drop_cache() -> None:
    """Remove what is kept for the next run, where nothing uses it."""
    for kind in ("volume", "image"):
        for name in docker(kind, "ls", "-q", "--filter", f"label={CACHE}").split():
            docker(kind, "rm", name, check=False)


def owned() -> tuple[str, ...]:
    """The label of what this process makes, as an option."""
    return ("--label", f"{OWNER}={cleanup.owner()}")


def sweep() -> None:
    """Remove what a killed process left: its pytest can have no last word."""
    of_owner = f"label={OWNER}"
    for kind, every, rm in (
        ("container", ("-a",), ("-f", "-v")), ("network", (), ()), ("volume", (), ()),
        ("image", (), ("-f",)),
    ):  # fmt: skip
        for found in docker(kind, "ls", "-q", *every, "--filter", of_owner).split():
            at = ".Config.Labels" if kind in ("container", "image") else ".Labels"
            form = f'{{{{index {at} "{OWNER}"}}}}'
            # Another process may have removed it meanwhile; its owner is then unknown.
            if cleanup.owner_is_gone(docker(kind, "inspect", "--format", form, found, check=False)):
                docker(kind, "rm", *rm, found, check=False)


def _start(name: str, image: str, script: str, *more: str, devices: str = DEVICES) -> None:
    docker(
        "run", "-d", "--init", "--name", name, "--cap-drop", "ALL",
        *(word for cap in CAPABILITIES for word in ("--cap-add", cap)),
        "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
        "--device-cgroup-rule", devices, "--tmpfs", "/run", *more, image, "sh", "-c", script,
    )  # fmt: skip


@contextmanager
def hosts(
    names: Sequence[str], images: Sequence[str], folder: Path
) -> Iterator[list[EmulatedHost]]:
    """Start hosts that hold `images`; everything of them is removed at the end.

    Args:
        folder: gets `hosts.yml`, `ssh_config`, keys, and `shared`, one folder for all hosts.
    """
    token = secrets.token_hex(4)
    sweep()
    try:
        # The lock is held until the hosts use the seed: no other process removes it before.
        with exclusive(LABEL, lambda: None):
            image = machine_image()
            begin(dict.fromkeys(names, ()), images, folder, token, image, owned())
        yield ready(names, folder, token)
    finally:
        end(token)


def begin(
    options: Mapping[str, Sequence[str]],
    images: Sequence[str],
    folder: Path,
    token: str,
    machine: str,
    labels: Sequence[str] = (),
    devices: str = DEVICES,
) -> None:
    """Start the containers of hosts, which then start their engines; `ready` waits for these.

    Args:
        options: more options of `docker run`, by the host's name.
        token: what all that is made here is found by again.
        machine: the image of the hosts themselves.
    """
    labels = (*labels, "--label", f"{LABEL}={token}")
    network = docker("network", "create", *labels, f"{LABEL}-{token}")
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    _key(folder / "login")
    seeded = ("-v", f"{seed(machine, images)}:/seed:ro") if images else ()
    for name, more in options.items():
        keys = folder / f"{name}.keys"
        keys.mkdir()
        _key(keys / "host_key")
        (keys / "authorized_keys").write_text((folder / "login.pub").read_text())
        _start(
            f"{LABEL}-{name}-{token}", machine, START, *labels, *seeded, "-v", "/var/lib/docker",
            "--hostname", name, "--network", network, "-v", f"{keys}:/keys:ro",
            "-v", f"{shared}:/mnt/shared", *more, devices=devices,
        )  # fmt: skip


def ready(names: Iterable[str], folder: Path, token: str, defaults: str = "") -> list[EmulatedHost]:
    """Wait for the engines of started hosts, and write their inventory.

    Args:
        defaults: more of the inventory's `defaults`, as lines.
    """
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    found = []
    for name in names:
        container = f"{LABEL}-{name}-{token}"
        address = docker("inspect", "--format", form, container)
        found.append(EmulatedHost(name=name, container=container, address=address))
    for host in found:
        host.wait_engine()
    _inventory(folder, found, defaults)
    return found


def end(token: str) -> None:
    """Remove all that was made with a token."""
    for kind, every, rm in (("container", ("-a",), ("-f", "-v")), ("network", (), ())):
        for one in docker(kind, "ls", "-q", *every, "--filter", f"label={LABEL}={token}").split():
            docker(kind, "rm", *rm, one, check=False)


def _key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _inventory(folder: Path, found: Sequence[EmulatedHost], defaults: str) -> None:
    lines = []
    for host in found:
        public = (folder / f"{host.name}.keys" / "host_key.pub").read_text().split()[:2]
        lines.append(f"{host.address} {' '.join(public)}\n")
    (folder / "known_hosts").write_text("".join(lines))
    (folder / "ssh_config").write_text(
        f"Host *\n  User root\n  IdentityFile {folder}/login\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    )
    text = f"defaults:\n  ssh_config: {folder}/ssh_config\n{defaults}hosts:\n"
    text += "".join(f"  {host.name}: {{address: {host.address}}}\n" for host in found)
    text += (
        "folders:\n  /shared: {path: /mnt/shared, shared: true}\n  /data: volume:stackyard-data\n"
    )
    (folder / "hosts.yml").write_text(text)
