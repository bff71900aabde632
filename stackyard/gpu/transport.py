"""Say what carried a run's data between GPUs, and where that is less than its hosts offer.

Owns the words for NCCL's transports and the remedies. Pure: NCCL's log and what hosts offer are
arguments. A log names no transport of a single rank, which has nobody to talk to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from stackyard.gpu.infiniband import Port
from stackyard.gpu.nccl import INFINIBAND, NET, P2P, ROCE, SHM, SOCKET, Adapter, NcclLog, kind

NVLINK, PCIE, PEER, MEMORY = "NVLink", "PCIe peer-to-peer", "peer-to-peer", "shared memory"
_INSIDE = (NVLINK, PCIE, PEER, MEMORY)
# Settings of NCCL that keep it from a transport, and the value that does.
_WITHIN = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
_BETWEEN = {"NCCL_IB_DISABLE": "1", "NCCL_NET": SOCKET}


class PathValue(TypedDict):
    """Hold one way that data took, as data.

    Attributes:
        through: adapters by host and name, with Gbit/s where known; network interfaces of sockets.
    """

    kind: str
    hosts: list[str]
    through: list[str]


def words(path: PathValue) -> str:
    """Say what a way is, for people."""
    hosts = path["hosts"]
    place = f"between {', '.join(hosts)}" if len(hosts) > 1 else f"in {hosts[0]}"
    through = f" ({'; '.join(path['through'])})" if path["through"] else ""
    return f"{path['kind']}{through} {place}"


@dataclass(frozen=True, kw_only=True)
class Path:
    """Describe one way that data took between GPUs.

    Attributes:
        hosts: where it was seen; between them, where there are several.
        adapters: what it went through between hosts.
    """

    kind: str
    hosts: tuple[str, ...]
    adapters: tuple[Adapter, ...] = ()

    @property
    def through(self) -> list[str]:
        """Return the adapters, those of the same name on several hosts once."""
        return list(dict.fromkeys(adapter.words() for adapter in self.adapters))

    def value(self) -> PathValue:
        """Return it as data."""
        return {"kind": self.kind, "hosts": list(self.hosts), "through": self.through}


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Hold what a run's hosts offer between GPUs.

    Attributes:
        ports: InfiniBand and RoCE ports that NCCL was to use, by host.
        nvlinks: hosts whose GPUs are joined by NVLink.
    """

    ports: Mapping[str, Sequence[Port]] = field(default_factory=dict)
    nvlinks: frozenset[str] = frozenset()


def paths(log: NcclLog, offer: Offer) -> tuple[Path, ...]:
    """Return the ways that data took, those inside hosts first."""
    found: dict[str, set[str]] = {}
    for host, taken in log.taken.items():
        for via in taken:
            found.setdefault(_name(via, log.joins.get(host, ())), set()).add(host)
    known = {(host, port.name): port.rate for host, ports in offer.ports.items() for port in ports}
    inside = [Path(kind=name, hosts=(host,)) for name in _INSIDE
              for host in sorted(found.get(name, ()))]  # fmt: skip
    between = [_between(n, found[n], log, known) for n in sorted(found) if n not in _INSIDE]
    return (*inside, *between)


def _name(via: str, joins: Sequence[str]) -> str:
    """Return the word for a transport as NCCL's log names it.

    Args:
        joins: types of the GPUs' connections inside the host, in the log's words.
    """
    family = kind(via)
    if family == P2P:
        if not joins:
            return PEER
        return NVLINK if any(join.startswith("NV") for join in joins) else PCIE
    if family == SHM:
        return MEMORY
    return via.split("/")[1] if family == NET and "/" in via else family


def _between(
    name: str, hosts: set[str], log: NcclLog, known: Mapping[tuple[str, str], float]
) -> Path:
    """Return a way between hosts, with its adapters; NCCL calls InfiniBand and RoCE both IB."""
    wanted = (INFINIBAND, ROCE) if name in ("IB", INFINIBAND) else (name,)
    adapters = tuple(
        adapter.with_rate(known.get((adapter.host, adapter.name), 0.0))
        for adapter in log.adapters
        if adapter.host in hosts and adapter.kind in wanted
    )
    kinds = {adapter.kind for adapter in adapters}
    if name == "IB":
        name = ROCE if kinds == {ROCE} else INFINIBAND
    return Path(kind="sockets" if name == SOCKET else name, hosts=tuple(sorted(hosts)),
                adapters=adapters)  # fmt: skip


def warnings(log: NcclLog, offer: Offer) -> list[str]:
    """Return where a run used less than its hosts offer, each with the remedy."""
    found = []
    for path in paths(log, offer):
        if path.kind == "sockets" and len(path.hosts) == 1:
            what = f"NCCL used sockets between the GPUs of {path.hosts[0]}"
            found.append(f"{what}: {_remedy(log, _WITHIN, 'give one container all of them')}")
        elif path.kind == "sockets" and all(offer.ports.get(host) for host in path.hosts):
            names = ", ".join(f"{h} {p.words()}" for h in path.hosts for p in offer.ports[h])
            what = f"NCCL used sockets ({', '.join(path.through)}) between {', '.join(path.hosts)}"
            remedy = _remedy(log, _BETWEEN, "invoke doctor --hosts shows its ports")
            found.append(f"{what}, which have {names}: {remedy}")
        elif path.kind == MEMORY and _held_back(log, path.hosts[0], offer):
            what = f"NCCL used shared memory between GPUs of {path.hosts[0]}, not peer-to-peer"
            found.append(
                f"{what}: {_remedy(log, _WITHIN, 'nvidia-smi topo -p2p r shows which can')}"
            )
        elif path.kind in (INFINIBAND, ROCE):
            found += _unused(path, offer)
    return found


def _held_back(log: NcclLog, host: str, offer: Offer) -> bool:
    """Return whether a host's GPUs could read each other's memory, as far as is known."""
    return host in offer.nvlinks or log.settings.get("NCCL_P2P_DISABLE") == "1"


def _unused(path: Path, offer: Offer) -> list[str]:
    """Return the active ports of hosts that a run left unused."""
    found = []
    for host in path.hosts:
        used = {adapter.name for adapter in path.adapters if adapter.host == host}
        left = [port.words() for port in offer.ports.get(host, ()) if port.name not in used]
        if used and left:
            found.append(
                f"NCCL left ports of {host} unused: {', '.join(left)}: unset NCCL_IB_HCA, or name"
                " them there"
            )
    return found


def _remedy(log: NcclLog, names: Mapping[str, str], otherwise: str) -> str:
    """Return what to do: unset a setting that the log names, or what NCCL itself warns of."""
    off = [name for name, value in names.items() if log.settings.get(name) == value]
    if off:
        return f"unset {', '.join(off)}"
    return f"NCCL says: {log.warnings[0]}" if log.warnings else otherwise
