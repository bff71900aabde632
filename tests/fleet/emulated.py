"""Hosts for the tests: containers with an address, an sshd and a container engine of their own.

Each is what a bare machine is to Stackyard: something that ssh reaches and that has a docker
socket. Images are loaded into one engine's folder once; every host gets that folder by hard links,
which is instant and takes no space (an engine never writes into a layer's files).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stackyard import guard, settings
from stackyard.engine import Engine
from stackyard.foundation import ensure_base
from stackyard.project import ROOT, load_project
from stackyard.spec import Bootstrap

LABEL = "stackyard-test-hosts"
OWNER = "stackyard-test-owner"
PACKAGES = (
    "docker.io", "openssh-server", "iproute2", "iptables", "iputils-ping", "ca-certificates",
    "procps", "mount",
)  # fmt: skip
# What a nested engine needs where --privileged is refused.
CAPABILITIES = (
    "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH",
    "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MKNOD",
    "NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG",
    "SYS_ADMIN", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE", "SYS_TIME",
)  # fmt: skip
START = r"""
for at in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,bind,rw "$at" 2> /dev/null; done
mount -o remount,rw /proc/sys 2> /dev/null
mkdir -p /run/sshd /root/.ssh && cp /keys/authorized_keys /root/.ssh/ && chmod 700 /root/.ssh
cp /keys/host_key /etc/ssh/ssh_host_ed25519_key && chmod 600 /etc/ssh/ssh_host_ed25519_key
printf '%s\n' 'HostKey /etc/ssh/ssh_host_ed25519_key' 'PermitRootLogin prohibit-password' \
    'MaxStartups 256' > /etc/ssh/sshd_config
dockerd --storage-driver overlay2 > /var/log/dockerd.log 2>&1 &
exec /usr/sbin/sshd -D -e
"""


def docker(*words: str, check: bool = True, **more) -> str:
    """The docker command; its output."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, **more)
    if check and done.returncode:
        raise AssertionError(f"docker {' '.join(words)[:200]}: {done.stderr[-2000:]}")
    return done.stdout.strip()


def machine_image(name: str, packages: tuple[str, ...]) -> str:
    """The image of a machine of the tests: Debian with some packages, bootstrapped once."""
    project = load_project()
    base = dataclasses.replace(
        project.definitions.bases["cpu"],
        name=name,
        reference=f"stackyard/test-{name}:debian",
        bootstrap=Bootstrap(suite="bookworm", packages=packages, exclude=("/usr/share/doc/*",)),
    )
    common = dataclasses.replace(project.definitions.common, system=())
    caller = settings.collect(os.environ, distribution=base.distribution)
    with Engine() as engine:
        return ensure_base(engine, base, common, caller, print).id


@dataclasses.dataclass(kw_only=True)
class EmulatedHost:
    """One host: its container, address and keys."""

    name: str
    container: str
    address: str

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
        return bool(self.run("pidof", "dockerd", check=False))

    def of_containers(self) -> list[str]:
        """Processes of the containers on it, by PID and command; by their shims, not by names."""
        script = r"""
        for at in /proc/[0-9]*; do
            grep -qE '/docker/[0-9a-f]+/docker/' $at/cgroup 2> /dev/null || continue
            state=$(awk '/^State/ { print $2 }' $at/status 2> /dev/null)
            [ "$state" = Z ] || echo "${at#/proc/} $(tr '\0' ' ' < $at/cmdline | cut -c1-150)"
        done 2> /dev/null"""
        return [line for line in self.run("sh", "-c", script, check=False).splitlines() if line]

    def ranks(self) -> list[int]:
        """PIDs of training ranks on it: processes that a launcher gave a RANK."""
        script = r"""
        has() { tr '\0' '\n' < /proc/$1/environ 2> /dev/null | grep -q '^RANK='; }
        for at in /proc/[0-9]*; do
            pid=${at#/proc/}; parent=$(awk '/^PPid/ { print $2 }' $at/status 2> /dev/null)
            has $pid && ! has $parent && echo $pid
        done; true"""
        return [int(word) for word in self.run("sh", "-c", script).split()]

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

    def invoke(self, *words: str, check: bool = True, seconds: float = 240, **more):
        """`invoke COMMAND --hosts ...` as a user types it."""
        rest = list(words)
        at = rest.index("--") if "--" in rest else len(rest)
        rest[at:at] = ["--hosts", self.inventory]
        done = subprocess.run(
            [ROOT / ".venv/bin/invoke", *rest], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=seconds, check=False, **more,
        )  # fmt: skip
        if check and done.returncode:
            said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
            raise AssertionError(f"invoke {' '.join(rest)} ended with {done.returncode}: {said}")
        return done

    def left(self, run: str = "") -> dict[str, list[str]]:
        """What of runs (or of one) is on the hosts: containers, and processes of containers."""
        found = {}
        for host in self.hosts.values():
            names = [n for n in host.containers() if f"stackyard-{run}" in n] if host.up() else []
            names += host.of_containers()
            if names:
                found[host.name] = names
        return found

    def until_gone(self, seconds: float) -> tuple[float, dict[str, list[str]]]:
        """Wait until nothing is left on any host: how long that took, and what is left."""
        started = time.monotonic()
        while True:
            left, waited = self.left(), time.monotonic() - started
            if not left or waited > seconds:
                return waited, left
            time.sleep(0.1)


def seed(image: str, images: Sequence[str]) -> Path:
    """An engine's folder that holds `images`; made once for the same ones."""
    ids = [docker("image", "inspect", "--format", "{{.Id}}", name) for name in images]
    key = hashlib.sha256(" ".join([image, *ids]).encode()).hexdigest()[:12]
    volume = f"{LABEL}-{key}"
    made = docker("volume", "create", "--label", LABEL, volume)
    place = Path(docker("volume", "inspect", "--format", "{{.Mountpoint}}", made))
    if (place / "seed.done").exists():
        return place
    _drop_old_seeds(volume)
    shutil.rmtree(place / "seed", ignore_errors=True)
    (place / "seed").mkdir()
    name = f"{LABEL}-seed-{secrets.token_hex(4)}"
    try:
        _start(name, image, place / "seed", [])
        host = EmulatedHost(name="seed", container=name, address="")
        host.wait_engine()
        load = ["docker", "exec", "-i", name, "docker", "load"]
        if images:
            with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as save:
                subprocess.run(load, stdin=save.stdout, check=True, stdout=subprocess.DEVNULL)
            assert save.returncode == 0
        docker("stop", "-t", "30", name)
    finally:
        docker("rm", "-f", "-v", name, check=False)
    for folder in ("network", "containerd", "buildkit", "plugins", "tmp", "swarm", "containers",
                   "volumes", "trust", "runtimes"):  # fmt: skip
        shutil.rmtree(place / "seed" / folder, ignore_errors=True)
    (place / "seed.done").touch()
    return place


def sweep(label: str) -> None:
    """Remove what a killed process left: its pytest can have no last word."""
    form = '{{.ID}} {{.Label "' + OWNER + '"}}'
    for kind, remove in (("ps -a", "rm -f -v"), ("network ls", "network rm")):
        listing = docker(*kind.split(), "--filter", f"label={label}", "--format", form)
        for line in listing.splitlines():
            found, _, owner = line.partition(" ")
            if guard.owner_is_gone(owner):
                docker(*remove.split(), found, check=False)


def _drop_folders(place: Path) -> None:
    """Remove the data of hosts that are gone."""
    used = docker("network", "ls", "--filter", f"label={LABEL}", "--format", "{{.Name}}").split()
    for own in place.glob("*-*"):
        if f"{LABEL}-{own.name.rpartition('-')[2]}" not in used:
            shutil.rmtree(own, ignore_errors=True)


def _drop_old_seeds(keep: str) -> None:
    """Remove what was made for other images and no host uses: gigabytes each."""
    for volume in docker("volume", "ls", "-q", "--filter", f"label={LABEL}").split():
        place = Path(docker("volume", "inspect", "--format", "{{.Mountpoint}}", volume))
        if volume != keep and {path.name for path in place.iterdir()} <= {"seed", "seed.done"}:
            docker("volume", "rm", volume, check=False)


def _start(name: str, image: str, data: Path, more: Sequence[str]) -> None:
    docker(
        "run", "-d", "--init", "--name", name, "--label", LABEL,
        "--label", f"{OWNER}={guard.owner()}", "--cap-drop", "ALL",
        *(word for cap in CAPABILITIES for word in ("--cap-add", cap)),
        "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
        "--device-cgroup-rule", "a *:* rwm", "--tmpfs", "/run", "-v", f"{data}:/var/lib/docker",
        *more, image, "sh", "-c", START if more else "mount -o remount,bind,rw /sys/fs/cgroup;"
        " for at in /sys/fs/cgroup/*; do mount -o remount,bind,rw $at; done; exec dockerd"
        " --storage-driver overlay2 > /var/log/dockerd.log 2>&1",
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
    image = machine_image("host", PACKAGES)
    place = seed(image, images)
    sweep(LABEL)
    _drop_folders(place)
    labels = ("--label", LABEL, "--label", f"{OWNER}={guard.owner()}")
    network = docker("network", "create", *labels, f"{LABEL}-{token}")
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    _key(folder / "login")
    found: list[EmulatedHost] = []
    data = [place / f"{name}-{token}" for name in names]
    try:
        for name, own in zip(names, data, strict=True):
            subprocess.run(["cp", "-al", str(place / "seed"), str(own)], check=True)
            keys = folder / f"{name}.keys"
            keys.mkdir()
            _key(keys / "host_key")
            (keys / "authorized_keys").write_text((folder / "login.pub").read_text())
            container = f"{LABEL}-{name}-{token}"
            _start(
                container,
                image,
                own,
                [
                    "--hostname",
                    name,
                    "--network",
                    network.strip(),
                    "-v",
                    f"{keys}:/keys:ro",
                    "-v",
                    f"{shared}:/mnt/shared",
                ],
            )
            address = docker(
                "inspect",
                "--format",
                "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}",
                container,
            )
            found.append(EmulatedHost(name=name, container=container, address=address))
        for host in found:
            host.wait_engine()
        _inventory(folder, found)
        yield found
    finally:
        for name in names:
            docker("rm", "-f", "-v", f"{LABEL}-{name}-{token}", check=False)
        docker("network", "rm", network, check=False)
        for own in data:
            shutil.rmtree(own, ignore_errors=True)


def _key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _inventory(folder: Path, found: Sequence[EmulatedHost]) -> None:
    lines = []
    for host in found:
        public = (folder / f"{host.name}.keys" / "host_key.pub").read_text().split()[:2]
        lines.append(f"{host.address} {' '.join(public)}\n")
    (folder / "known_hosts").write_text("".join(lines))
    (folder / "ssh_config").write_text(
        f"Host *\n  User root\n  IdentityFile {folder}/login\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    )
    text = f"defaults:\n  ssh_config: {folder}/ssh_config\nhosts:\n"
    text += "".join(f"  {host.name}: {{address: {host.address}}}\n" for host in found)
    text += (
        "folders:\n  /shared: {path: /mnt/shared, shared: true}\n  /data: volume:stackyard-data\n"
    )
    (folder / "hosts.yml").write_text(text)
