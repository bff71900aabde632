"""Judge the health of a machine and of its GPUs before their speed is measured.

Owns the limits, and the reason and remedy of each check. Pure: `inside/health.py` reads, on this
machine and on hosts. What it could not read is `not run`, never passed.

Over 300 lines: one short function a check.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stackyard.gpu.doctor import NOT_RUN, NOTE, OK, WRONG, Finding, shared_memory

# The reader, and how it is started with the program as its input, here and on hosts.
PROGRAM = (Path(__file__).parent.parent / "inside" / "health.py").read_bytes()
COMMAND = ("python3", "-I", "-")
SECONDS = 30.0
# The reader's light mode, and how long a look may take.
LOAD_COMMAND = (*COMMAND, "--load")
LOAD_SECONDS = 10.0
# A GPU that computes is busy and draws power. One that only waits in a collective is as busy, since
# a kernel runs, and draws little: at most this part of its limit, at least this busy. Seen on two
# H100 of 700 W: 121 W at 100 % waiting, 690 W at 97 % computing.
WAITING_POWER_RATIO, WAITING_BUSY_PERCENT = 0.4, 95
# The reader's `VERSION`; another one is not understood.
VERSION = 1
# A GPU that is allowed less than this part of its default power is slow enough to be noticed.
POWER_RATIO = 0.95
# Packets that the links of a GPU may send again after the driver was loaded.
LINK_REPLAYS = 100
CATALOG = "https://docs.nvidia.com/deploy/xid-errors/"
_RESET = "end all work on it and reset it (nvidia-smi --gpu-reset -i {gpu}), or reboot the host"
_SERVICE = "take the host out of use; if it comes back after a reboot, have the GPU replaced"
# Names of findings that are about GPUs by NVML: `health` is that of all of them.
OF_GPUS = (
    "health", "gpu", "memory errors", "memory rows", "pcie", "clocks", "power limit", "nvlink",
    "nvlink errors",
)  # fmt: skip
# Xid errors of the GPU, its memory, its links or its firmware, by NVIDIA's catalog, with remedies.
XIDS = {
    46: ("the GPU stopped processing", _RESET),
    48: ("memory had an error that cannot be corrected", _RESET),
    61: ("the GPU's internal micro-controller stopped", _SERVICE),
    62: ("the GPU's internal micro-controller halted", _RESET),
    63: ("a row of memory is marked to be replaced", _RESET),
    64: ("a row of memory could not be replaced", _SERVICE),
    74: ("an NVLink failed", "reset the GPU or reboot; if it comes back, check bridge or switch"),
    79: ("the GPU has fallen off the bus", "reboot; if it comes back, check its seat, power and"
         " temperature, or have it replaced"),
    92: ("many memory errors had to be corrected", _SERVICE),
    94: ("memory had an error that ended one process only", _RESET),
    95: ("memory had an error that may have reached all processes", _RESET),
    110: ("the GPU reports a security fault", _SERVICE),
    119: ("the GPU's system processor does not answer", _RESET),
    120: ("the GPU's system processor failed", _RESET),
    136: ("an NVLink failed while it was trained", _SERVICE),
    140: ("memory had an error that was not recovered from", _RESET),
    143: ("the GPU could not be started", _SERVICE),
    154: ("the driver asks for a reset or a reboot", _RESET),
}  # fmt: skip
# Xid errors that programs cause; a healthy GPU has them, too.
PROGRAMS = (8, 13, 31, 32, 43, 45, 68, 69, 109)
# nvml.h: nvmlClocksEventReason*. Those that slow a GPU down because something is wrong.
IDLE = 0x1
SLOWDOWNS = {
    0x8: "its hardware slows it down (heat, power brake or voltage)",
    0x20: "the driver slows it down: it, or its memory, is too hot",
    0x40: "its hardware slows it down: it is too hot",
    0x80: "its power supply slows it down (power brake)",
}
# Those that hold a GPU below its highest clocks because somebody, or its power limit, says so.
HELD = {
    0x2: "its application clocks are set below the highest",
    0x4: "it draws all the power that it is allowed",
    0x10: "it waits for the slowest of a group (sync boost)",
    0x100: "clocks of its display are set",
}


@dataclass(frozen=True, kw_only=True)
class NvLink:
    """Hold one NVLink of a GPU.

    Attributes:
        active: None where it cannot be read.
        errors: counts since the driver was loaded, by name; `unread` has reasons for missing ones.
    """

    number: int
    active: bool | None
    errors: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GpuHealth:
    """Hold what was read of one GPU.

    Attributes:
        values: by the reader's name; a name is in `values` or, with the reason, in `unread`.
        lost: why it does not answer at all any more; empty where it does.
    """

    index: int
    uuid: str
    name: str
    bus: str
    values: Mapping[str, int]
    unread: Mapping[str, str] = field(default_factory=dict)
    links: tuple[NvLink, ...] = ()
    lost: str = ""

    def missing(self, *names: str) -> str:
        """Return why one of these values is missing; empty when all are there."""
        lost = self.unread.get("gpu", "")
        found = [self.unread.get(name) or lost or "not read" for name in names
                 if name not in self.values]  # fmt: skip
        return found[0] if found else ""

    @property
    def waits(self) -> bool:
        """Return whether it is busy and draws too little power to compute."""
        names = ("busy_percent", "power_mw", "power_limit_mw")
        if self.missing(*names):
            return False
        busy, power, limit = (self.values[name] for name in names)
        return busy >= WAITING_BUSY_PERCENT and power <= WAITING_POWER_RATIO * limit


@dataclass(frozen=True, kw_only=True)
class Xid:
    """Hold an Xid error of the kernel log: how often one GPU had it, and its last line."""

    bus: str
    number: int
    count: int
    text: str


@dataclass(frozen=True, kw_only=True)
class HostHealth:
    """Hold what was read of one machine.

    Attributes:
        unread: why nothing could be read at all.
        no_gpus: why there is no GPU.
        nvml: why there is a driver but no answer of NVML.
        log: why the kernel log cannot be read; empty where it was.
        whole_log: whether the kernel log begins at the kernel's start.
        shm_bytes: size of /dev/shm; None where it cannot be read.
    """

    unread: str = ""
    driver: str = ""
    no_gpus: str = ""
    nvml: str = ""
    gpus: tuple[GpuHealth, ...] = ()
    log: str = ""
    whole_log: bool = True
    xids: tuple[Xid, ...] = ()
    shm_bytes: int | None = None


def parse(said: str) -> HostHealth:
    """Read the program's output; a login may have printed lines around its own."""
    for line in reversed(said.splitlines()):
        try:
            found = json.loads(line)
            if not isinstance(found, dict) or "version" not in found:
                continue
            if found["version"] != VERSION:
                return HostHealth(unread=f"its answer has version {found['version']!r},"
                                  f" not {VERSION}")  # fmt: skip
            return _host(found)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    last = said.strip().splitlines()[-1:]
    return HostHealth(unread=f"its answer cannot be read: {last[0][:160]}" if last
                      else "it does not answer")  # fmt: skip


def _host(found: Mapping[str, Any]) -> HostHealth:
    kernel = found["kernel"]
    shm = found["shm_bytes"]
    return HostHealth(
        driver=str(found["driver"]),
        no_gpus=str(found["no_gpus"]),
        nvml=str(found["nvml"]),
        gpus=tuple(_gpu(one) for one in found["gpus"]),
        log=str(kernel["unread"]),
        whole_log=bool(kernel["whole"]),
        xids=tuple(
            Xid(bus=str(one["bus"]), number=int(one["xid"]), count=int(one["count"]),
                text=str(one["text"]))
            for one in kernel["xids"]
        ),
        shm_bytes=None if shm is None else int(shm),
    )  # fmt: skip


def _gpu(found: Mapping[str, Any]) -> GpuHealth:
    return GpuHealth(
        index=int(found["index"]),
        uuid=str(found["uuid"]),
        name=str(found["name"]),
        bus=str(found["bus"]),
        values={str(name): int(value) for name, value in found["values"].items()},
        unread={str(name): str(why) for name, why in found["unread"].items()},
        lost=str(found["lost"]),
        links=tuple(
            NvLink(
                number=int(link["link"]),
                active=None if link["active"] is None else bool(link["active"]),
                errors={str(name): int(count) for name, count in link["errors"].items()},
                unread={str(name): str(why) for name, why in link["unread"].items()},
            )
            for link in found["links"]
        ),
    )


def examine(host: HostHealth) -> tuple[Finding, ...]:
    """Return the findings of all checks, one a GPU, in the order of repair.

    A machine without GPUs has those of the machine only.
    """
    if host.unread:
        return (Finding(name="health", state=NOT_RUN, what=host.unread,
                      hint="it needs python3 (3.6 or newer) there"),)  # fmt: skip
    if host.no_gpus and not host.gpus:
        return ()
    if host.nvml or not host.gpus:
        return (Finding(name="health", state=NOT_RUN, what=host.nvml or "NVML names no GPU",
                      hint="nvidia-smi must answer first"),)  # fmt: skip
    found = list(_xids(host))
    found += [Finding(name="gpu", state=WRONG, what=gpu.lost, gpu=gpu.index,
                      hint="reboot; if it comes back, check its seat, power and temperature, or"
                      " have it replaced") for gpu in host.gpus if gpu.lost]  # fmt: skip
    there = [gpu for gpu in host.gpus if not gpu.lost]
    for check in (_ecc, _rows, _pcie, _clocks, _power):
        found += [result for gpu in there for result in check(gpu)]
    found += [result for gpu in there for result in _links(gpu, there)]
    return tuple(found)


def appeared(before: HostHealth, after: HostHealth) -> tuple[Finding, ...]:
    """Return the findings of a machine that are not `ok` and were not there before."""
    known = set(examine(before))
    return tuple(one for one in examine(after) if one.state != OK and one not in known)


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one finding for all GPUs with the same result of a check."""
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for one in findings:
        gpus = found.setdefault((one.name, one.state, one.what, one.hint), [])
        gpus += [] if one.gpu is None else [one.gpu]
    return tuple(
        Finding(
            name=name,
            state=state,
            what=f"GPU {', '.join(map(str, gpus))}: {what}" if gpus else what,
            hint=hint.format(gpu=",".join(map(str, gpus))),
        )
        for (name, state, what, hint), gpus in found.items()
    )


def host_findings(host: HostHealth) -> tuple[Finding, ...]:
    """Return the findings of a host: those of its GPUs, and its shared memory."""
    own = () if host.unread else (shared_memory(host.shm_bytes),)
    return (*own, *merged(examine(host)))


def silent(findings: Sequence[Finding], *, gpus: bool) -> str:
    """Return why nothing of a host's health could be read; empty where something was.

    Args:
        gpus: its GPUs take part, so only what NVML says of them counts.
    """
    own = [one for one in findings if one.name in OF_GPUS or not gpus]
    if any(one.state != NOT_RUN for one in own):
        return ""
    return "; ".join(f"{one.name}: {one.what}" for one in own) or "nothing was read"


def _xids(host: HostHealth) -> Iterator[Finding]:
    name = "xid errors"
    if host.log:
        yield Finding(name=name, state=NOT_RUN, what=f"the kernel log cannot be read: {host.log}",
                    hint="as root, or: sysctl kernel.dmesg_restrict=0; in a container, ask the"
                    " host")  # fmt: skip
        return
    gpus = {_place(gpu.bus): gpu.index for gpu in host.gpus if gpu.bus}
    for xid in host.xids:
        gpu = gpus.get(_place(xid.bus))
        where = "" if gpu is not None else f" at {xid.bus}"
        meaning, hint = XIDS.get(xid.number, ("", f"look it up: {CATALOG}"))
        state = WRONG if meaning else NOTE
        if xid.number in PROGRAMS:
            meaning, hint = "a program failed on it", "look at that program's own error first"
        what = f"Xid {xid.number}{where}, {xid.count} times: {meaning or 'not known here'}"
        hint = hint.replace("{gpu}", xid.bus) if gpu is None else hint
        yield Finding(name=name, state=state, what=f"{what} ({xid.text[:100]})", hint=hint, gpu=gpu)
    if not host.xids and host.whole_log:
        yield Finding(name=name, state=OK, what="none since the host was started")
    elif not host.whole_log:
        what = "the kernel log has lost its oldest lines: errors before them are not known"
        state = NOTE if host.xids else NOT_RUN
        yield Finding(name=name, state=state, what=what, hint="journalctl -k -b | grep Xid")


def _place(bus: str) -> str:
    """Return a PCI address in one form: NVML has eight digits of domain, the kernel four."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest.partition('.')[0]}"


def _ecc(gpu: GpuHealth) -> Iterator[Finding]:
    name = "memory errors"
    why = gpu.missing("ecc_mode", "ecc_volatile", "ecc_aggregate")
    # Without ECC, NVML has no counts either.
    if gpu.values.get("ecc_mode") == 0:
        yield Finding(name=name, state=NOTE, gpu=gpu.index, what="ECC is off: errors are neither"
                    " corrected nor counted", hint="nvidia-smi -e 1, then reboot")  # fmt: skip
    elif gpu.values.get("ecc_volatile"):
        count = gpu.values["ecc_volatile"]
        what = f"{count} errors that cannot be corrected since the driver was loaded"
        yield Finding(name=name, state=WRONG, what=what, hint=_RESET, gpu=gpu.index)
    elif why:
        yield Finding(name=name, state=NOT_RUN, what=why, gpu=gpu.index)
    elif gpu.values["ecc_aggregate"]:
        what = f"{gpu.values['ecc_aggregate']} errors that cannot be corrected in its life, none"
        yield Finding(name=name, state=NOTE, what=f"{what} since the driver was loaded",
                    hint="watch it: if the count grows, have the GPU replaced",
                    gpu=gpu.index)  # fmt: skip
    else:
        yield Finding(name=name, state=OK, what="none that cannot be corrected", gpu=gpu.index)


def _rows(gpu: GpuHealth) -> Iterator[Finding]:
    """Judge the replacement of rows of memory; GPUs before Ampere retire pages instead."""
    name = "memory rows"
    why = gpu.missing("rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed")
    if why and not gpu.missing("pages_pending"):
        pending = gpu.values["pages_pending"]
        yield Finding(name=name, state=WRONG if pending else OK, gpu=gpu.index,
                    what="pages wait to be retired" if pending else "no page waits to be retired",
                    hint=_RESET if pending else "")  # fmt: skip
    elif why:
        yield Finding(name=name, state=NOT_RUN, what=why, gpu=gpu.index)
    elif gpu.values["rows_failed"]:
        yield Finding(name=name, state=WRONG, gpu=gpu.index, hint=_SERVICE,
                    what="a row with errors could not be replaced")  # fmt: skip
    elif gpu.values["rows_pending"]:
        yield Finding(name=name, state=WRONG, what="rows with errors wait to be replaced",
                    hint=_RESET, gpu=gpu.index)  # fmt: skip
    else:
        replaced = gpu.values["rows_corrected"] + gpu.values["rows_uncorrected"]
        yield Finding(name=name, state=OK, what=f"{replaced} replaced, none waits", gpu=gpu.index)


def _pcie(gpu: GpuHealth) -> Iterator[Finding]:
    name, values = "pcie", gpu.values
    why = gpu.missing("pcie_width", "pcie_width_max")
    seat = "check the seat, the riser and the slot; a BIOS may split slots (bifurcation)"
    if why:
        yield Finding(name=name, state=NOT_RUN, what=f"width: {why}", gpu=gpu.index)
    elif values["pcie_width"] < values["pcie_width_max"]:
        what = f"{values['pcie_width']} of {values['pcie_width_max']} lanes"
        yield Finding(name=name, state=WRONG, what=what, hint=seat, gpu=gpu.index)
    why = gpu.missing("pcie_generation", "pcie_generation_max")
    if why:
        yield Finding(name=name, state=NOT_RUN, what=f"generation: {why}", gpu=gpu.index)
    elif values["pcie_generation"] < values["pcie_generation_max"]:
        what = f"generation {values['pcie_generation']} of {values['pcie_generation_max']}"
        if not gpu.missing("clocks_event") and not values["clocks_event"] & IDLE:
            yield Finding(name=name, state=WRONG, what=what, hint=seat, gpu=gpu.index)
        else:
            yield Finding(name=name, state=NOT_RUN, gpu=gpu.index, hint="ask again under load",
                        what=f"{what}: an idle GPU may lower it")  # fmt: skip
    elif "pcie_width" in values and values["pcie_width"] >= values.get("pcie_width_max", 2**31):
        what = f"{values['pcie_width']} lanes of generation {values['pcie_generation']}"
        yield Finding(name=name, state=OK, what=f"{what}, its best", gpu=gpu.index)


def _clocks(gpu: GpuHealth) -> Iterator[Finding]:
    name = "clocks"
    why = gpu.missing("clocks_event")
    if why:
        yield Finding(name=name, state=NOT_RUN, what=why, gpu=gpu.index)
        return
    reasons = gpu.values["clocks_event"]
    slowed = [said for bit, said in SLOWDOWNS.items() if reasons & bit]
    held = [said for bit, said in HELD.items() if reasons & bit]
    known = IDLE | sum(SLOWDOWNS) | sum(HELD)
    if reasons & ~known:
        held.append(f"reasons that are not known here ({reasons & ~known:#x})")
    if slowed:
        yield Finding(name=name, state=WRONG, what="; ".join(slowed), gpu=gpu.index,
                    hint="check fans, air flow, power cables and supplies; the host's management"
                    " log names the sensor")  # fmt: skip
    elif held:
        yield Finding(name=name, state=NOTE, what="; ".join(held), gpu=gpu.index)
    else:
        what = "nothing slows it down" + (" (it is idle)" if reasons & IDLE else "")
        yield Finding(name=name, state=OK, what=what, gpu=gpu.index)


def _power(gpu: GpuHealth) -> Iterator[Finding]:
    name = "power limit"
    why = gpu.missing("power_limit_mw", "power_default_mw")
    if why:
        yield Finding(name=name, state=NOT_RUN, what=why, gpu=gpu.index)
        return
    limit, default = gpu.values["power_limit_mw"], gpu.values["power_default_mw"]
    what = f"{limit / 1000:.0f} W, {default / 1000:.0f} W by default"
    state = OK if limit >= default else NOTE if limit >= POWER_RATIO * default else WRONG
    hint = f"nvidia-smi -i {{gpu}} -pl {default / 1000:.0f}, if nobody has lowered it on purpose"
    yield Finding(
        name=name, state=state, what=what, hint="" if state == OK else hint, gpu=gpu.index
    )


def _links(gpu: GpuHealth, others: Sequence[GpuHealth]) -> Iterator[Finding]:
    """Judge a GPU's NVLinks beside those of GPUs of its model on the same machine.

    How many links should be active is not known: bridges join some of them, switches all.
    """
    name = "nvlink"
    if not gpu.links:
        yield Finding(name=name, state=NOT_RUN, what=gpu.missing("nvlink"), gpu=gpu.index)
        return
    active = [link for link in gpu.links if link.active]
    unknown = [link for link in gpu.links if link.active is None]
    most = max(len([link for link in other.links if link.active]) for other in others
               if other.name == gpu.name)  # fmt: skip
    down = [str(link.number) for link in gpu.links if link.active is False]
    if unknown:
        why = next(iter(unknown[0].unread.values()), "not read")
        yield Finding(name=name, state=NOT_RUN, what=f"link {unknown[0].number}: {why}",
                    gpu=gpu.index)  # fmt: skip
    elif len(active) < most:
        yield Finding(name=name, state=WRONG, gpu=gpu.index, what=f"link {', '.join(down)} is down:"
                    f" {len(active)} are active, {most} on its neighbours", hint="reset the GPUs"
                    " or reboot; if it comes back, check bridge or switch")  # fmt: skip
    elif active and down:
        yield Finding(name=name, state=NOTE, gpu=gpu.index, what=f"{len(active)} of"
                    f" {len(gpu.links)} links are active", hint="bridges join some links only;"
                    " at a switch all are active")  # fmt: skip
    else:
        what = f"{len(active)} links are active" if active else "no link is joined to anything"
        yield Finding(name=name, state=OK if active else NOTE, what=what, gpu=gpu.index)
    if active:
        yield from _link_errors(gpu, active)


def _link_errors(gpu: GpuHealth, active: Sequence[NvLink]) -> Iterator[Finding]:
    name, hint = "nvlink errors", "reset the GPUs or reboot; if they grow, check bridge or switch"
    counts: dict[str, int] = {}
    unread: dict[str, str] = {}
    for link in active:
        unread.update(link.unread)
        for error, count in link.errors.items():
            counts[error] = counts.get(error, 0) + count
    shown = ", ".join(f"{count} {error}" for error, count in counts.items() if count)
    shown = f"{shown} since the driver was loaded"
    # Links since Hopper's correct bits all the time, as their signal needs it: healthy ones of 2 x
    # H100 at full bandwidth had counted 7,700 crc_data and 99,700 ecc_data, and sent nothing again.
    if counts.get("recovery", 0) or counts.get("replay", 0) >= LINK_REPLAYS:
        yield Finding(name=name, state=WRONG, what=shown, hint=hint, gpu=gpu.index)
    elif any(counts.values()):
        yield Finding(name=name, state=NOTE, what=f"{shown}, all corrected", gpu=gpu.index)
    elif counts:
        yield Finding(name=name, state=OK, what=f"no {', no '.join(counts)}", gpu=gpu.index)
    if unread:
        why = "; ".join(f"{error}: {why}" for error, why in sorted(unread.items()))
        yield Finding(name=name, state=NOT_RUN, what=why, gpu=gpu.index)
