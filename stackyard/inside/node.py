"""Run a node of a mesh: wait for the run's key material, then become sshd.

Owns what happens inside a container between its start and sshd's. Standard library only. It holds
no secrets: keys live in /run/stackyard (memory), never in a layer.

    node.py            the container's command: waits, then becomes sshd
    node.py --join-within SECONDS    the same; ends the container if no agent has joined by then
    node.py install    reads a tar of the material from standard input and lets the first go on
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import tarfile
import time
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

ROOT = Path("/run/stackyard")
JOINED = ROOT / "joined"
# Set by sshd, the shell or the container for each process: not passed on to ssh sessions.
_OWN = {"HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"}


def environment_line(environment: Mapping[str, str]) -> str:
    """Return a `SetEnv` line that gives ssh sessions the container's environment.

    sshd takes the first SetEnv line only, so all variables are on one. Values that cannot be
    written on a line (line breaks) and per-process ones are left out.
    """
    words = []
    for name, value in sorted(environment.items()):
        if name in _OWN or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            continue
        if any(character in value for character in "\n\r\0"):
            continue
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        words.append(f'"{name}={escaped}"')
    return f"SetEnv {' '.join(words)}\n" if words else ""


def _gate() -> str:
    ROOT.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = ROOT / "start"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return str(path)


def end_unless_joined(seconds: float) -> None:
    """End the container if no agent has joined in time; runs beside the node's own program."""
    if os.fork():
        return
    end = time.monotonic() + seconds
    while not JOINED.exists():
        if time.monotonic() > end:
            os.kill(1, signal.SIGTERM)
            break
        time.sleep(0.5)
    os._exit(0)


def serve() -> None:
    """Wait for the key material, then become sshd in the foreground."""
    mesh = ROOT / "mesh"
    if not mesh.exists():
        os.close(os.open(_gate(), os.O_RDONLY))  # blocks until `install` opens the other end
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = int((mesh / "port").read_text())
    address = (mesh / "address").read_text().strip()
    listen = f"ListenAddress {ip_address(address)}\n" if address else ""
    line = environment_line(os.environ)
    (mesh / "sshd.conf").write_text(f"Port {port}\n{listen}{line}")
    (ROOT / "sshd.pid").write_text(str(os.getpid()))
    os.execv("/usr/sbin/sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/sshd_config"])


def install() -> None:
    """Unpack the material whole, move it into place in one rename, and open the gate.

    Members below `probe/` are the controller's own programs; they lie beside the material.
    """
    gate = _gate()
    arriving, probe = ROOT / "arriving", ROOT / "probe"
    for folder in (probe, arriving):
        folder.mkdir(mode=0o700)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            name = member.name.removeprefix("probe/")
            if not member.isfile() or "/" in name or name.startswith("."):
                raise SystemExit(f"unexpected member {member.name!r}")
            source = archive.extractfile(member)
            assert source is not None
            path = (arriving if name == member.name else probe) / name
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(target, "wb") as file:
                file.write(source.read())
            os.chmod(path, member.mode & 0o644)
    arriving.rename(ROOT / "mesh")
    _open_gate(gate)


def _open_gate(gate: str, seconds: float = 20.0) -> None:
    """Let `serve` go on, whether it waits already, is about to, or has seen the material itself."""
    end = time.monotonic() + seconds
    while not (ROOT / "sshd.pid").exists():
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            return
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: nobody has opened the other end yet
                raise
        if time.monotonic() > end:
            raise SystemExit("the node's own program does not wait for its material")
        time.sleep(0.01)


if __name__ == "__main__":
    if sys.argv[1:] == ["install"]:
        install()
    elif sys.argv[1:2] == ["--join-within"] and len(sys.argv) == 3:
        end_unless_joined(float(sys.argv[2]))
        serve()
    elif not sys.argv[1:]:
        serve()
    else:
        raise SystemExit(__doc__)
