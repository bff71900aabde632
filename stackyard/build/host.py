"""Count this machine's GPUs, and make a container engine run on it.

Owns all look-ups and changes on the host itself. It installs packages only on Debian or Ubuntu, as
root, and only for `invoke engine`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stackyard.build import mirrors
from stackyard.build.base_image import free_bytes, running_as_root
from stackyard.build.buildkit import find_client
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import CommandError, EngineError, NothingToRunOn

# Space (bytes) for a first build on a base that declares none, and for one on existing layers.
NEEDED_BYTES = 12 * 2**30
MORE_BYTES = 4 * 2**30
_PACKAGES = {"docker.io": "dockerd", "mmdebstrap": "mmdebstrap"}
# Fedora's names of the same programs; Debian's docker.io holds two of them.
_FEDORA = {"docker.io": "moby-engine docker-buildx"}
_OS_RELEASE = Path("/etc/os-release")
Say = Callable[[str], None]
# A rank that will never join is still named within this many times its limit.
MOST_PATIENCE = 4.0


def gpu_count(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Return the number of NVIDIA GPUs that the driver shows on this machine."""
    return len(list(driver.iterdir())) if driver.is_dir() else 0


def busy() -> str:
    """Return how busy this machine is, where programs take all its CPUs; else an empty text."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return f"load {load:.1f} on {cpus} CPUs" if load > cpus else ""


def patience() -> float:
    """Return how many times as long a start may take: programs share the CPUs of a busy machine."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return min(max(1.0, load / cpus), MOST_PATIENCE)


def require_gpus(wanted: int, command: str) -> None:
    """Require `wanted` GPUs on this machine.

    Raises:
        NothingToRunOn: there are fewer.
    """
    found = gpu_count()
    if found < wanted:
        raise NothingToRunOn(
            f"{wanted} GPUs are wanted, {found or 'none'} found on this machine",
            why="no NVIDIA driver is loaded (/proc/driver/nvidia/gpus is not there)"
            if not found
            else f"/proc/driver/nvidia/gpus lists {found}",
            hint=f"run it where the GPUs are, or on CPU ranks: {command} --gpus 0",
        )


def ensure_engine(say: Say, *, log: Path = Path("/var/log/dockerd-stackyard.log")) -> None:
    """Make sure that an engine answers and a client can build; install and start them if needed.

    Raises:
        EngineError: that is not possible here; the hint says what to type.
    """
    missing = [p for p, program in _PACKAGES.items() if not _find(program)]
    if (missing and _refusal()) or "mmdebstrap" in missing:
        _install(missing, say)
    refused = _refusal()
    if refused:
        _start(say, log, refused)
    client = find_client(os.environ.get("PATH", ""))
    with Engine() as engine:
        say(f"engine {engine.version}, building with {client.says}")
        require_space(engine)


def require_space(engine: Engine, needed: int = NEEDED_BYTES) -> None:
    """Require free space where the engine keeps its images.

    Args:
        needed: the number of bytes to be written.

    Raises:
        EngineError: there is too little; says how much is missing.
    """
    folder = engine.data_folder()
    free = free_bytes(folder)
    if free is not None and free < needed:
        raise EngineError(
            f"{free / 2**30:.1f} GiB are free in {folder}, {needed / 2**30:.0f} are needed:"
            f" {(needed - free) / 2**30:.1f} GiB are missing",
            hint="docker system prune removes what no container uses; or free space otherwise",
        )


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _refusal() -> EngineError | None:
    """Return the error of connecting to the engine; None where one answers."""
    try:
        Engine().close()
    except EngineError as error:
        return error
    return None


def install_words(packages: Sequence[str], os_release: str) -> str:
    """Return the command that installs packages, named as on Debian, on a distribution."""
    if mirrors.host_distribution(os_release).startswith("fedora/"):
        return f"dnf install {' '.join(_FEDORA.get(name, name) for name in packages)}"
    return f"apt-get install {' '.join(packages)}"


def _system() -> str:
    return _OS_RELEASE.read_text() if _OS_RELEASE.is_file() else ""


def _install(packages: list[str], say: Say) -> None:
    text = _system()
    name = mirrors.host_distribution(text).strip("/")
    words = install_words(packages, text)
    if not name.startswith(("debian/", "ubuntu/")) or not running_as_root():
        raise EngineError(
            f"{' and '.join(packages)} must be installed, which needs root on Debian or Ubuntu",
            why=f"this is {name or 'an unknown system'}, user id {os.geteuid()}",
            hint=f"sudo {words} (or your system's packages of the same programs), then again;"
            " DOCKER_HOST may also name an engine elsewhere",
        )
    say(f"installing {' '.join(packages)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        process.run(["apt-get", "-qq", "update"], env=quiet, timeout=300)
        process.run(
            ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages],
            env=quiet,
            timeout=900,
        )
    except CommandError as error:
        hint = f"type {words} to see its whole output"
        raise EngineError(error.what, why=error.why, hint=hint) from error


def _start(say: Say, log: Path, refused: EngineError) -> None:
    if os.environ.get("DOCKER_HOST") or not running_as_root():
        raise refused
    if Path("/run/systemd/system").is_dir():
        say("starting the engine with systemd")
        process.run(["systemctl", "start", "docker"], timeout=120, check=False)
    else:
        daemon = _find("dockerd")
        if daemon is None:
            raise EngineError("there is no dockerd", hint=install_words(["docker.io"], _system()))
        say(f"starting {daemon}; its log is {log}")
        process.start_daemon([daemon], log=log)
    end = time.monotonic() + 60
    while _refusal():
        if time.monotonic() > end:
            why = process.last_lines(log.read_text(errors="replace")) if log.is_file() else ""
            raise EngineError("the engine was started but does not answer", why=why)
        time.sleep(0.2)
