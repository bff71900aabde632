"""Start a container engine for one benchmark: empty at the start, removed at the end.

Owns a second dockerd with its own data, socket, containerd and bridge, so that a build can be cold
without touching the caller's images and caches. Remains of an earlier benchmark that was killed are
removed first. It needs root, dockerd, ip and iptables.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError

BRIDGE = "stackyard-bench"
SUBNET, ADDRESS = "192.168.253.0/24", "192.168.253.1/24"
# Lets builds reach the network; the second engine itself must not touch the first one's rules.
_RULES = (
    ("nat", "POSTROUTING", "-s", SUBNET, "!", "-o", BRIDGE, "-j", "MASQUERADE"),
    ("filter", "FORWARD", "-i", BRIDGE, "!", "-o", BRIDGE, "-j", "ACCEPT"),
    ("filter", "FORWARD", "-o", BRIDGE, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED",
     "-j", "ACCEPT"),
)  # fmt: skip
_FLAGS = ("--iptables=false", "--ip-masq=false", "--userland-proxy=false", f"--bridge={BRIDGE}")


@contextlib.contextmanager
def private_engine(beside: Path) -> Iterator[Engine]:
    """Start an empty engine, point DOCKER_HOST at it, and remove all of it at the end.

    Args:
        beside: a folder on the disk that is to hold the engine's data.

    Raises:
        EngineError: it cannot be started here, or another benchmark has one running.
    """
    folder = beside / "stackyard-benchmark"
    previous = os.environ.get("DOCKER_HOST")
    with _alone(beside / "stackyard-benchmark.lock"):
        _remove(folder)
        try:
            _make_network()
            _start(folder)
            os.environ["DOCKER_HOST"] = f"unix://{folder}/socket"
            with _answering(folder) as engine:
                yield engine
        finally:
            os.environ.pop("DOCKER_HOST", None)
            if previous is not None:
                os.environ["DOCKER_HOST"] = previous
            _remove(folder)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        raise EngineError("an engine of the benchmark's own needs root", hint="sudo, as root")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EngineError("another benchmark has its own engine running") from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _make_network() -> None:
    process.run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    process.run(["ip", "addr", "add", ADDRESS, "dev", BRIDGE])
    process.run(["ip", "link", "set", BRIDGE, "up"])
    for table, chain, *rule in _RULES:
        process.run(["iptables", "-t", table, "-I", chain, "1", *rule])


def _remove_network() -> None:
    for table, chain, *rule in _RULES:
        while process.run(["iptables", "-t", table, "-D", chain, *rule], check=False).code == 0:
            pass
    process.run(["ip", "link", "del", BRIDGE], check=False)


def _start(folder: Path) -> None:
    folder.mkdir(mode=0o711, parents=True)
    # Replaces the machine's own configuration, whose settings could contradict these.
    (folder / "daemon.json").write_text("{}\n")
    daemon = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if daemon is None:
        raise EngineError("there is no dockerd", hint="apt-get install docker.io")
    words = [daemon, *_FLAGS, f"--config-file={folder}/daemon.json"]
    words += [f"--data-root={folder}/data", f"--exec-root={folder}/exec"]
    words += [f"--pidfile={folder}/pid", f"--host=unix://{folder}/socket"]
    # One containerd of the system may serve both engines: namespaces keep them apart.
    words += ["--containerd-namespace=benchmark", "--containerd-plugins-namespace=benchmark-p"]
    process.start_daemon(words, log=folder / "log")


def _answering(folder: Path) -> Engine:
    end = time.monotonic() + 60
    while True:
        try:
            # `docker save` writes the whole image to the disk before its first byte comes.
            return Engine(seconds=600)
        except EngineError as error:
            if time.monotonic() > end:
                why = process.last_lines((folder / "log").read_text(errors="replace"))
                raise EngineError("the benchmark's engine does not answer", why=why) from error
            time.sleep(0.1)


def _remove(folder: Path) -> None:
    """Stop the processes on `folder` (the engine, then its containerd), and remove every trace."""
    for pid in ("pid", "exec/containerd/containerd.pid"):
        _stop(folder / pid, folder)
    for mount in reversed(mounts_below(Path("/proc/self/mounts").read_text(), folder)):
        process.run(["umount", "-l", mount], check=False)
    _remove_network()
    if folder.is_dir():
        shutil.rmtree(folder)


def mounts_below(mounts: str, folder: Path) -> list[str]:
    """Return mount points below a folder, outermost first, from the text of /proc/self/mounts."""
    points = [line.split(" ")[1] for line in mounts.splitlines() if " " in line]
    return sorted(point for point in points if Path(point).is_relative_to(folder))


def _stop(file: Path, folder: Path) -> None:
    """End the process that a pid file names, if it is one of this folder's."""
    try:
        pid = int(file.read_text())
    except (OSError, ValueError):
        return
    for number, seconds in ((signal.SIGTERM, 60), (signal.SIGKILL, 10)):
        if not _ours(pid, folder):
            return
        os.kill(pid, number)
        end = time.monotonic() + seconds
        while _ours(pid, folder) and time.monotonic() < end:
            time.sleep(0.1)


def _ours(pid: int, folder: Path) -> bool:
    """Return whether a process lives and was started for this folder; reap a child that ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
