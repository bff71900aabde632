"""Judge a machine before anything is built or run on it.

Owns the findings and their sentences. It is pure: `cli.doctor` reads the machine. A finding is
`ok`, `note` (it works with a limit), `wrong` (a run would fail or be slow), with what to type, or
`not run` (it could not be read). `gpu.health` judges counters and states of the hardware.

Over 300 lines: one short function a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from stackyard.definitions.spec import Base
from stackyard.gpu import access, placement
from stackyard.gpu.access import DriverFiles
from stackyard.gpu.infiniband import Adapters
from stackyard.gpu.placement import Gpu, GpuHost
from stackyard.system.errors import NothingToRunOn

OK, NOTE, WRONG, NOT_RUN = "ok", "note", "wrong", "not run"
GIB = 2**30
# Containers get their own /dev/shm; the host's serves processes outside of them.
SHM_BYTES = GIB
# The kernel driver that CUDA's minor version compatibility needs, by the CUDA major version.
DRIVER_FLOORS = {12: "525.60.13", 13: "580.65.06"}
_ARCH = re.compile(r"sm_(\d+)(\d)[a-z]?")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Hold the result of one examination, and what to type where it is not `ok`.

    Attributes:
        gpu: the GPU that it is about; None for the machine, or where `what` names several.
    """

    name: str
    state: str
    what: str
    hint: str = ""
    gpu: int | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Hold what was read of a machine.

    Attributes:
        engine: the engine's version; empty when none answers, and `no_engine` says why.
        gpus: None on a machine without GPUs, and `no_gpus` says why.
        way: how GPUs would enter containers.
        shm_bytes: size of the host's /dev/shm; None where it cannot be read.
        memlock: the limit of locked memory in bytes; -1 for no limit.
        free_bytes: free space where the engine keeps images; None when that is elsewhere.
    """

    engine: str = ""
    no_engine: str = ""
    client: str = ""
    gpus: GpuHost | None = None
    no_gpus: str = ""
    way: str = ""
    driver: DriverFiles | None = None
    shm_bytes: int | None = None
    memlock: int = -1
    free_bytes: int | None = None
    needed_bytes: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)


def examine(machine: Machine, bases: Iterable[Base]) -> tuple[Finding, ...]:
    """Return all findings, in the order in which one would repair them."""
    found = [*_engine(machine), *_host(machine)]
    if machine.gpus is None:
        found.append(Finding(name="gpus", state=NOTE, what=machine.no_gpus,
                             hint="training on CPU ranks works: --gpus 0"))  # fmt: skip
        return tuple(found)
    found += _access(machine, machine.gpus)
    found += _gpus(machine.gpus)
    found += _links(machine.gpus)
    found += _settings(machine)
    there = list(bases)
    for base in there:
        if base.device == "cuda":
            found += _base(machine.gpus, base, there)
    return tuple(found)


def _engine(machine: Machine) -> list[Finding]:
    if not machine.engine:
        return [Finding(name="engine", state=WRONG, what=machine.no_engine or "none answers",
                        hint="invoke engine")]  # fmt: skip
    found = [Finding(name="engine", state=OK, what=f"{machine.engine}, {machine.client}")]
    if machine.free_bytes is not None:
        enough = machine.free_bytes >= machine.needed_bytes
        found.append(
            Finding(
                name="disk",
                state=OK if enough else WRONG,
                what=f"{machine.free_bytes / GIB:.0f} GiB are free where the engine keeps images",
                hint="" if enough else f"{machine.needed_bytes / GIB:.0f} GiB are needed:"
                " docker system prune removes what no container uses",
            )
        )  # fmt: skip
    return found


def _host(machine: Machine) -> list[Finding]:
    found = [shared_memory(machine.shm_bytes)]
    unlimited = machine.memlock < 0
    found.append(
        Finding(
            name="memlock",
            state=OK if unlimited else NOTE,
            what="unlimited"
            if unlimited
            else f"{machine.memlock // 1024} KiB on the host;"
            " containers on GPUs are started without a limit",
        )
    )
    return found


def shared_memory(size: int | None) -> Finding:
    """Return what the size of a host's /dev/shm means for runs on it."""
    name = "/dev/shm"
    if size is None:
        return Finding(name=name, state=NOT_RUN, what="its size cannot be read")
    what = f"{size / GIB:.1f} GiB on the host; containers get their own, as large as needed"
    if size >= SHM_BYTES:
        return Finding(name=name, state=OK, what=what)
    hint = "--placement host-network uses the host's: mount -o remount,size=8G /dev/shm"
    return Finding(name=name, state=NOTE, what=what, hint=hint)


def _access(machine: Machine, host: GpuHost) -> list[Finding]:
    found = [Finding(name="gpu access", state=OK, what=access.explain(machine.way))]
    if machine.way == access.DEVICES and machine.driver is not None:
        missing = access.missing_files(host.gpus, machine.driver)
        if missing:
            found = [
                Finding(
                    name="gpu access",
                    state=WRONG,
                    what="; ".join(missing),
                    hint="nvidia-modprobe -u makes device nodes; libraries come with the driver",
                )
            ]
    found.append(Finding(name="driver", state=OK, what=f"{host.driver}, supports CUDA {host.cuda}"))
    return found


def _gpus(host: GpuHost) -> list[Finding]:
    found = []
    for gpu in host.gpus:
        why = placement.why_not_usable(gpu)
        free = f"{gpu.free_bytes / GIB:.0f} of {gpu.memory_bytes / GIB:.0f} GiB free"
        found.append(
            Finding(
                name=f"GPU {gpu.index}",
                state=WRONG if why else OK,
                what=f"{gpu.name}, {free}{': ' + why if why else ''}",
                hint="end those processes, or set CUDA_VISIBLE_DEVICES to other GPUs"
                if why
                else "",
            )
        )
    return found


def _links(host: GpuHost) -> list[Finding]:
    found = []
    if len(host.gpus) > 1:
        transport = placement.best_transport(host.gpus)
        links = [a.nvlinks.get(b.index, 0) for a in host.gpus for b in host.gpus if a is not b]
        what = f"{min(links)} links between each two" if min(links) else "none"
        found.append(
            Finding(
                name="nvlink",
                state=OK if transport == placement.P2P else NOTE,
                what=f"{what}; peer access: {'yes' if transport == placement.P2P else 'no'}",
            )
        )
        found.append(
            Finding(
                name="ipc",
                state=OK,
                what="several containers on this host join one IPC namespace, see every GPU and"
                f" split them (--placement {placement.SHARED})",
            )
        )
    return [*found, *adapters(host.infiniband)]


def adapters(found: Adapters) -> list[Finding]:
    """Return what is found of a host's InfiniBand and RoCE adapters: ports, GIDs, GPUDirect."""
    if not found.ports:
        what = "none: between hosts NCCL would use TCP sockets"
        return [Finding(name="infiniband", state=NOTE, what=what)]
    shown = []
    for port in found.ports:
        gids = [f"GID {gid.index} {gid.ipv4} {gid.kind} {gid.interface}".strip()
                for gid in port.gids if gid.ipv4]  # fmt: skip
        shown.append(", ".join([port.words(), *gids]))
    if not found.active:
        hint = "check cables and switch; InfiniBand needs a subnet manager, RoCE its interface up"
        return [Finding(name="infiniband", state=NOTE, what="; ".join(shown), hint=hint)]
    passed = f"{len(found.devices)} device nodes go to containers"
    if not found.devices:
        passed = "its verbs device is missing, so containers get none: modprobe ib_uverbs"
    direct = Finding(name="gpudirect", state=OK, what=", ".join(found.direct))
    if not found.direct:
        direct = Finding(
            name="gpudirect", state=NOTE, what="no module registers GPU memory with adapters",
            hint="modprobe nvidia_peermem, or NVIDIA's open kernel modules (dma-buf)",
        )  # fmt: skip
    state = OK if found.devices else WRONG
    return [Finding(name="infiniband", state=state, what="; ".join([*shown, passed])), direct]


def _settings(machine: Machine) -> list[Finding]:
    if not machine.settings:
        return []
    shown = " ".join(f"{name}={value}" for name, value in sorted(machine.settings.items()))
    return [
        Finding(
            name="your settings",
            state=NOTE,
            what=f"{shown}: every container gets them, and they override generated ones",
        )
    ]


def _base(host: GpuHost, base: Base, bases: Sequence[Base]) -> list[Finding]:
    name = f"base {base.name}"
    wrong = misfits(host.driver, host.gpus, base)
    if wrong:
        other = fitting(host.driver, host.gpus, bases)
        return [
            Finding(
                name=name,
                state=NOTE if other else WRONG,
                what="; ".join(wrong),
                hint=advice(host.driver, host.gpus, bases),
            )
        ]
    unknown = [fact for fact in ("driver", "architectures") if not _fact(base, fact)]
    if unknown and not _fact(base, "cuda"):
        return [Finding(name=name, state=NOTE, what=f"its {' and '.join(unknown)} are not known")]
    return [Finding(name=name, state=OK, what=f"driver {host.driver} and these GPUs are enough")]


def misfits(driver: str, gpus: Iterable[Gpu], base: Base) -> list[str]:
    """Return why images on a base do not run on these GPUs under this driver, as far as is known.

    Each reason continues a sentence that begins with the base.
    """
    reasons = (_driver_too_old(driver, base), _no_kernels(gpus, base))
    return [reason for reason in reasons if reason]


def fitting(driver: str, gpus: Iterable[Gpu], bases: Iterable[Base]) -> list[str]:
    """Return the buildable bases that are known to fit, those for the newest drivers first."""
    there = list(gpus)
    known = [
        base
        for base in bases
        if base.bootstrap is not None and _floor(base) and _fact(base, "architectures")
        and not misfits(driver, there, base)
    ]  # fmt: skip
    return [b.name for b in sorted(known, key=lambda b: Version(_floor(b)), reverse=True)]


def advice(driver: str, gpus: Iterable[Gpu], bases: Iterable[Base]) -> str:
    """Return what to do where a base does not fit."""
    found = fitting(driver, gpus, bases)
    if found:
        return f"--base {found[0]} runs here (driver {driver}, these GPUs)"
    return "no base that can be built here fits: install a newer driver, or take other GPUs"


def _fact(base: Base, name: str) -> str:
    fact = base.facts.get(name)
    return fact.value if fact else ""


def _floor(base: Base) -> str:
    """Return the oldest driver that a base runs under; empty where neither it nor CUDA is known."""
    cuda = _fact(base, "cuda")
    stated = _fact(base, "driver")
    return stated or (DRIVER_FLOORS.get(int(cuda.split(".")[0]), "") if cuda else "")


def _driver_too_old(driver: str, base: Base) -> str:
    floor = _floor(base)
    if floor and Version(driver) < Version(floor):
        return f"needs driver {floor} or newer, this host has {driver}"
    return ""


def _no_kernels(gpus: Iterable[Gpu], base: Base) -> str:
    listed = _fact(base, "architectures")
    if not listed:
        return ""
    known = {(int(m.group(1)), int(m.group(2))) for m in _ARCH.finditer(listed)}
    without = sorted(
        {"{} (sm_{}{})".format(g.name, *g.capability)
         for g in gpus if not runs_on(g.capability, known)}
    )  # fmt: skip
    if without:
        return f"has no kernels for {', '.join(without)}: its torch has {listed}"
    return ""


def runs_on(capability: tuple[int, int], known: Iterable[tuple[int, int]]) -> bool:
    """Return whether code for a known capability runs: same major version, no later minor."""
    major, minor = capability
    return any(one == major and other <= minor for one, other in known)


def worst(findings: Sequence[Finding]) -> str:
    """Return the worst state of all findings; what was not read is no better than a limit."""
    states = {finding.state for finding in findings}
    return next((state for state in (WRONG, NOT_RUN, NOTE) if state in states), OK)


def require_fit(driver: str, gpus: Sequence[Gpu], base: Base, bases: Iterable[Base]) -> None:
    """Refuse a base whose images do not run on these GPUs under this driver, as far as is known.

    Args:
        bases: all bases, so that the hint can name one that fits.

    Raises:
        NothingToRunOn: the driver or a GPU does not fit; names it.
    """
    wrong = misfits(driver, gpus, base)
    if wrong:
        raise NothingToRunOn(
            f"base {base.name!r} does not run on this machine",
            why="\n".join(f"it {reason}" for reason in wrong),
            hint=advice(driver, gpus, bases),
        )
