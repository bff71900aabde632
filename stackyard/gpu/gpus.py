"""Read the GPUs of this machine from the driver's files and from NVML.

It changes nothing: no clock, mode or limit of a GPU is ever set. `gpu.placement` decides which GPUs
may be used, and `gpu.access` how they enter a container.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from stackyard.gpu import access, health, infiniband
from stackyard.gpu.access import DriverFiles
from stackyard.gpu.health import HostHealth
from stackyard.gpu.infiniband import Adapters
from stackyard.gpu.placement import Gpu, GpuHost, GpuProcess
from stackyard.system import process
from stackyard.system.errors import NothingToRunOn, StackyardError

_DRIVER = Path("/proc/driver/nvidia/version")
_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_MAX_LINKS = 18
# NVML's own number; nvidia-ml-py's constant for it is a tuple by mistake (13.615).
_P2P_READ = 0
# Variables of the caller that reach every container and every rank.
_CALLER = re.compile(
    r"NCCL_\w+|TORCH_SYMM_MEM_DISABLE_MULTICAST|NVSHMEM_DISABLE_NVLS|TORCH_NCCL_\w+"
)


def caller_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables for NCCL and NVLink, which override generated ones."""
    return {
        name: value
        for name, value in environment.items()
        if _CALLER.fullmatch(name)
        and name != "NCCL_VERSION"  # CUDA's images set it; NCCL does not read it
    }


def allowed(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs of CUDA_VISIBLE_DEVICES, which batch systems set, too; None for all."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else tuple(part.strip() for part in value.split(","))


def driver_version(path: Path = _DRIVER) -> str:
    """Return the kernel driver's version; empty when none is loaded."""
    try:
        text = path.read_text()
    except OSError:
        return ""
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return match.group(1) if match else ""


def read_host(command: str = "") -> GpuHost:
    """Read every GPU of this machine.

    Args:
        command: a command that runs on CPU ranks instead, for the hint.

    Raises:
        NothingToRunOn: there is no driver, or its library does not load or answer.
    """
    version = driver_version()
    if not version:
        raise NothingToRunOn(
            "there is no NVIDIA GPU on this machine",
            why=f"no NVIDIA driver is loaded ({_DRIVER} is not there)",
            hint=f"run it where the GPUs are{', or on CPU ranks: ' + command if command else ''}",
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NothingToRunOn(
            f"the NVIDIA driver {version} is loaded, but its library does not answer",
            why=str(error),
            hint="libnvidia-ml.so.1 comes with the driver's packages and must be of the kernel"
            " module's version: after an update of one of the two, load the module again or reboot",
        ) from error
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        links = _links(handles)
        gpus = tuple(_gpu(index, handles, links) for index in range(len(handles)))
    except pynvml.NVMLError as error:
        raise NothingToRunOn("a GPU does not answer the driver", why=str(error)) from error
    finally:
        pynvml.nvmlShutdown()
    return GpuHost(
        driver=version,
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=gpus,
        infiniband=read_adapters(),
    )


def read_adapters() -> Adapters:
    """Read the InfiniBand and RoCE adapters of this machine."""
    said = process.run(["sh", "-c", infiniband.SCRIPT], timeout=20)
    return infiniband.parse(said.output.splitlines())


def read_health(
    env: Mapping[str, str] | None = None, command: Sequence[str] = health.COMMAND
) -> HostHealth:
    """Read the health of this machine, in a process of its own: a broken GPU may hang NVML.

    Args:
        env: variables added to this process's own.
    """
    argv = [sys.executable, *command[1:]]
    try:
        said = process.run(argv, stdin=health.PROGRAM, env=env, timeout=health.SECONDS, check=False)
    except StackyardError as error:
        return HostHealth(unread=error.what)
    return health.parse(said.output)


def _or(default: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer, or `default` where this GPU or driver has none."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return default


def _gpu(index: int, handles: Sequence[Any], links: Mapping[int, Mapping[int, int]]) -> Gpu:
    handle = handles[index]
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    mode = _or(0, pynvml.nvmlDeviceGetComputeMode, handle)
    mig = _or((0, 0), pynvml.nvmlDeviceGetMigMode, handle)
    capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    running = _or([], pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    peers = frozenset(
        other for other in range(len(handles)) if other != index and _peer(handle, handles[other])
    )
    return Gpu(
        index=index,
        minor=int(_or(index, pynvml.nvmlDeviceGetMinorNumber, handle)),
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        capability=(int(capability[0]), int(capability[1])),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        compute_mode=_MODES.get(int(mode), f"{mode}"),
        mig=bool(mig[0]),
        processes=tuple(
            GpuProcess(pid=p.pid, bytes=int(p.usedGpuMemory or 0), command=_command(p.pid))
            for p in running
        ),
        nvlinks=links.get(index, {}),
        peers=peers,
    )


def _peer(one: Any, other: Any) -> bool:
    return bool(_or(None, pynvml.nvmlDeviceGetP2PStatus, one, other, _P2P_READ) == 0)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()[:80]


def _links(handles: Sequence[Any]) -> dict[int, dict[int, int]]:
    """Return the number of NVLinks between each two GPUs.

    Where links end at a switch, NVML names no GPU at their other end. Two GPUs at a switch count as
    joined by as many links as the one with fewer has to it.
    """
    by_bus = {str(pynvml.nvmlDeviceGetPciInfo(h).busId).lower(): n for n, h in enumerate(handles)}
    direct: dict[int, dict[int, int]] = {n: {} for n in range(len(handles))}
    switched = dict.fromkeys(range(len(handles)), 0)
    for number, handle in enumerate(handles):
        for link in range(_MAX_LINKS):
            if not _or(0, pynvml.nvmlDeviceGetNvLinkState, handle, link):
                continue
            remote = _or(None, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            other = by_bus.get(str(remote.busId).lower()) if remote is not None else None
            if other is None:
                switched[number] += 1
            else:
                direct[number][other] = direct[number].get(other, 0) + 1
    for a in direct:
        for b in direct:
            through = min(switched[a], switched[b])
            if a != b and through and _peer(handles[a], handles[b]):
                direct[a][b] = direct[a].get(b, 0) + through
    return direct


def used_bytes(gpus: Sequence[Gpu]) -> dict[str, int]:
    """Return the bytes of memory in use on some GPUs, by UUID; those that were lost have none."""
    used: dict[str, int] = {}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for gpu in gpus:
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                used[gpu.uuid] = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        pynvml.nvmlShutdown()
    return used


def driver_files() -> DriverFiles:
    """Find the driver's device nodes, libraries and programs on this machine."""
    listed = process.run(["ldconfig", "-p"], check=False, timeout=20).output
    return DriverFiles(
        version=driver_version(),
        nodes=tuple(str(p) for p in sorted(Path("/dev").glob("nvidia*")) if p.is_char_device()),
        libraries=libraries(listed, os.path.realpath),
        programs={
            name: at
            for name in ("nvidia-smi",)
            if (at := _program(name)) and not Path(at).is_symlink()
        },
    )


def _program(name: str) -> str:
    import shutil

    found = shutil.which(name)
    return os.path.realpath(found) if found else ""


def libraries(listed: str, real: Callable[[str], str]) -> dict[str, str]:
    """Return the real file behind each of the driver's libraries.

    Args:
        listed: the output of `ldconfig -p`; the first entry of a name is the one that is loaded.
        real: a function that follows links.
    """
    found: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, path = line.strip().partition(" => ")
        name = name.split(" ")[0]
        wanted = next(
            (
                w
                for w in (*access.REQUIRED, *access.OPTIONAL)
                if name == w or name.startswith(f"{w}.")
            ),
            "",
        )
        if wanted and path and "x86-64" in line and name not in found:
            found[name] = real(path)
    return found


def cdi_kinds(folders: Sequence[str] = ("/etc/cdi", "/var/run/cdi")) -> tuple[str, ...]:
    """Return the kinds of the CDI specifications on this machine (as in `nvidia.com/gpu`).

    A specification of GPUs that does not name them by UUID (nvidia-ctk's `--device-name-strategy`
    decides) is passed over: their indexes may be others than the driver's.
    """
    import yaml

    found = set()
    for folder in folders:
        for path in sorted(Path(folder).glob("*")):
            if path.suffix not in (".yaml", ".yml", ".json"):
                continue
            try:
                text = path.read_text(encoding="utf-8")
                content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
                kind, names = str(content["kind"]), [one["name"] for one in content["devices"]]
                if kind != "nvidia.com/gpu" or any(str(name).startswith("GPU-") for name in names):
                    found.add(kind)
            except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
                continue
    return tuple(sorted(found))
