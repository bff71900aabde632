"""Read the facts that hosts report about themselves, and choose the network between them.

Owns the survey's script and its answers, and the choice of the network. Pure: `mesh.link` carries
the script and its output.

Over 300 lines: one reader for each section that `survey.sh` writes.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stackyard.gpu import infiniband
from stackyard.gpu.access import DriverFiles
from stackyard.gpu.infiniband import Adapters
from stackyard.gpu.placement import MIB, Gpu, GpuProcess

_PLACE = "section infiniband\n"
SCRIPT = (
    Path(__file__)
    .with_suffix(".sh")
    .read_text(encoding="utf-8")
    .replace(_PLACE, _PLACE + infiniband.SCRIPT)
)
# Names of interfaces that lead to containers and virtual machines of the host itself.
_INTERNAL = re.compile(r"(lo\d*$|docker|br-|veth|virbr|cni|flannel|cali|podman|lxc|vnet|tap)")
# Kernels and drivers report an unknown speed as -1, or as that in unsigned 16 or 32 bits.
_NO_SPEED = (65535, 2**32 - 1)


@dataclass(frozen=True, kw_only=True)
class Interface:
    """Describe a network interface with an IPv4 address.

    Attributes:
        speed: Mbit/s; 0 where the kernel reports none (virtual interfaces, InfiniBand).
    """

    name: str
    address: str
    subnet: str
    mtu: int
    speed: int


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """Describe a folder of a host: its real path (empty if it does not exist) and file system.

    Attributes:
        free_bytes: None where the host reports none.
    """

    path: str
    kind: str = ""
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Describe one host at the time of the survey.

    Attributes:
        skew: seconds that its clock is ahead of the controller's, within `skew_error` seconds; None
            where it reports no time.
        reached: the host's address that the controller's login came to.
        ports: TCP ports that something listens on.
        engine_free_bytes: where the engine keeps containers; None where the host reports none.
        folders: by their place in the nodes.
    """

    name: str
    skew: float | None
    skew_error: float
    reached: str
    interfaces: tuple[Interface, ...]
    ports: frozenset[int]
    memory_bytes: int
    engine_free_bytes: int | None
    folders: Mapping[str, FolderFacts] = field(default_factory=dict)
    driver: DriverFiles | None = None
    gpus: tuple[Gpu, ...] = ()
    infiniband: Adapters = field(default_factory=Adapters)
    cdi: tuple[str, ...] = ()


def sections(text: str) -> dict[str, list[str]]:
    """Return the survey's answers by section; empty when its end is missing."""
    found: dict[str, list[str]] = defaultdict(list)
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            current = found[line[3:].strip()]
        else:
            current.append(line)
    return found if "end" in found else {}


def parse(text: str, asked: float, answered: float) -> HostFacts | None:
    """Read a host's facts; None when the text is not a whole survey.

    Args:
        asked: the controller's clock when it sent the survey, in seconds since the epoch.
        answered: the controller's clock when the answer was complete.
    """
    found = sections(text)
    if not found:
        return None

    def first(name: str, default: str = "") -> str:
        lines = found.get(name, [])
        return lines[0].strip() if lines else default

    connection = first("reached").split()
    links = {words[0]: words[1:] for line in found["links"] if len(words := line.split()) >= 3}
    return HostFacts(
        name=first("name"),
        # The script reads the clock first, so `asked` is nearer to that moment than `answered`.
        skew=None if (clock := _clock(first("clock"))) is None else clock - asked,
        skew_error=max(0.0, answered - asked),
        reached=connection[2] if len(connection) == 4 else "",
        interfaces=tuple(_interfaces(found["addresses"], links)),
        ports=frozenset(_ports(found["listening"])),
        memory_bytes=_memory(found["memory"]),
        engine_free_bytes=_free(found["engine_disk"]),
        folders={
            name.partition(" ")[2]: _folder(lines)
            for name, lines in found.items()
            if name.startswith("folder ")
        },
        driver=_driver(found),
        gpus=_gpus(found),
        infiniband=infiniband.parse(found["infiniband"]),
        cdi=tuple(line.strip().strip("\"'") for line in found["cdi"]),
    )


def _number(text: str) -> float:
    """Return a text of a host as a number; 0 where it is none (`[N/A]`)."""
    return float(text) if re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", text, re.ASCII) else 0.0


def _clock(text: str) -> float | None:
    """Read seconds since the epoch (whole ones from busybox); None where there are none."""
    whole = re.match(r"[0-9]{1,18}(\.[0-9]{1,18})?", text, re.ASCII)
    return float(whole[0]) if whole else None


def _interfaces(lines: Iterable[str], links: Mapping[str, Sequence[str]]) -> Iterable[Interface]:
    for line in lines:
        words = line.split()
        if len(words) < 4 or words[2] != "inet":
            continue
        name, (address, _, bits) = words[1].partition("@")[0], words[3].partition("/")
        mtu, speed = [int(_number(word)) for word in (*links.get(name, ()), "0", "-1")[:2]]
        try:
            subnet = ipaddress.ip_network(f"{address}/{bits or 32}", strict=False)
        except ValueError:
            continue
        speed = 0 if speed in _NO_SPEED else max(0, speed)
        yield Interface(name=name, address=address, subnet=str(subnet), mtu=mtu, speed=speed)


def _ports(lines: Iterable[str]) -> Iterable[int]:
    for line in lines:
        _, _, port = line.strip().rpartition(":")
        if re.fullmatch(r"[0-9A-Fa-f]{4}", port):
            yield int(port, 16)


def _memory(lines: Iterable[str]) -> int:
    for line in lines:
        name, _, count = line.partition(" ")
        if name.startswith("MemTotal"):
            return int(_number(count)) * 1024
    return 0


def _free(lines: Sequence[str]) -> int | None:
    """Return the free bytes from a line of `df -Pk`, whose names may hold blanks."""
    found = re.search(r"\s\d+\s+-?\d+\s+(-?\d{1,18})\s+(\d+%|-)\s", lines[0]) if lines else None
    return max(0, int(found[1])) * 1024 if found else None


def _folder(lines: Sequence[str]) -> FolderFacts:
    path, kind, *rest = (*lines, "", "")
    return FolderFacts(path=path, kind=kind, free_bytes=_free(rest))


def _driver(found: Mapping[str, Sequence[str]]) -> DriverFiles | None:
    version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", "\n".join(found["driver"]))
    if not version:
        return None
    libraries: dict[str, str] = {}
    for line in found["libraries"]:
        name, _, path = line.partition(" ")
        libraries.setdefault(name, path.strip())
    return DriverFiles(
        version=version[1], nodes=tuple(found["gpu_nodes"]), libraries=_wanted(libraries)
    )


def _wanted(libraries: Mapping[str, str]) -> dict[str, str]:
    from stackyard.gpu.access import OPTIONAL, REQUIRED

    names = (*REQUIRED, *OPTIONAL)
    return {
        name: path
        for name, path in libraries.items()
        if any(name == wanted or name.startswith(f"{wanted}.") for wanted in names)
    }


def _gpus(found: Mapping[str, Sequence[str]]) -> tuple[Gpu, ...]:
    minors = {}
    for line in found["gpu_minors"]:
        words = line.split()
        if len(words) == 2:
            minors[words[0]] = int(_number(words[1]))
    running: dict[str, list[GpuProcess]] = {}
    for line in found["gpu_processes"]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3:
            held = int(_number(cells[2])) * MIB
            process = GpuProcess(pid=int(_number(cells[1])), bytes=held, command="")
            running.setdefault(cells[0], []).append(process)
    gpus = []
    for line in found["gpus"]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 8:
            continue
        index, total = int(_number(cells[0])), int(_number(cells[3])) * MIB
        major, _, minor = cells[7].partition(".")
        gpus.append(
            Gpu(
                index=index,
                minor=minors.get(cells[1], index),
                uuid=cells[1],
                name=cells[2],
                capability=(int(_number(major)), int(_number(minor))),
                memory_bytes=total,
                free_bytes=total - int(_number(cells[4])) * MIB,
                compute_mode=cells[5].lower().replace("_", " "),
                mig=cells[6].lower() == "enabled",
                processes=tuple(running.get(cells[1], ())),
            )
        )
    return tuple(gpus)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Describe the network between the nodes of a run.

    Attributes:
        chosen: interface of each host, by the host's name.
        why: one sentence for people.
    """

    chosen: Mapping[str, Interface]
    why: str


def choose_network(
    facts: Mapping[str, HostFacts], wanted: Mapping[str, str]
) -> tuple[Network, list[tuple[str, str]]]:
    """Choose each host's interface: in the fastest common subnet, else the one that ssh reached.

    Args:
        wanted: interface by host: `auto`, or one by its name or address.

    Returns:
        The network, and problems: (host, what is wrong).
    """
    problems: list[tuple[str, str]] = []
    named = {host: name for host, name in wanted.items() if name != "auto" and host in facts}
    chosen: dict[str, Interface] = {}
    for host, name in named.items():
        fitting = [i for i in facts[host].interfaces if name in (i.name, i.address)]
        if fitting:
            chosen[host] = fitting[0]
        else:
            there = ", ".join(i.name for i in facts[host].interfaces)
            problems.append((host, f"it has no interface {name!r} with an address; it has {there}"))
    open_ = {host: found for host, found in facts.items() if host not in named}
    subnet, speed = _best_subnet(open_, {interface.subnet for interface in chosen.values()})
    by_ssh = []
    for host, found in open_.items():
        inside = [i for i in _outward(found) if i.subnet == subnet]
        reached = [i for i in found.interfaces if i.address == found.reached]
        if inside:
            chosen[host] = inside[0]
        elif reached:
            chosen[host] = reached[0]
            by_ssh.append(host)
        else:
            problems.append((host, _unreached(found)))
    why = "by `interface:` of the inventory" if named and not open_ else ""
    if by_ssh:
        why = "no subnet is common to all hosts: where ssh reaches them"
    elif subnet:
        rate = f", at least {speed} Mbit/s" if speed else ""
        why = f"all hosts are in {subnet}{rate}"
    return Network(chosen=chosen, why=why), problems


def _unreached(found: HostFacts) -> str:
    if not found.interfaces:
        return "it names no network interface with an IPv4 address (is the `ip` command there?)"
    return (
        f"none of its interfaces has the address {found.reached or '?'} that ssh reached;"
        " name one by `interface:` in hosts.yml"
    )


def _outward(found: HostFacts) -> list[Interface]:
    """Return the interfaces that may lead to other hosts."""
    return [i for i in found.interfaces if not _INTERNAL.match(i.name)]


def _best_subnet(facts: Mapping[str, HostFacts], named: Collection[str]) -> tuple[str, int]:
    """Return the fastest subnet of all hosts, and its speed; prefer those of `named`."""
    counts = Counter(s for found in facts.values() for s in {i.subnet for i in _outward(found)})
    common = [subnet for subnet, count in counts.items() if count == len(facts)]
    reached = Counter(
        i.subnet for found in facts.values() for i in found.interfaces if i.address == found.reached
    )

    def speed(subnet: str) -> int:
        rates = [i.speed for f in facts.values() for i in _outward(f) if i.subnet == subnet]
        return min(rates, default=0)

    if not common:
        return "", 0
    best = max(sorted(common), key=lambda s: (s in named, speed(s), reached[s]))
    return best, speed(best)
