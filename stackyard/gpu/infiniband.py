"""Read the InfiniBand and RoCE adapters of hosts, and say what NCCL needs to use them.

Owns which ports a run uses, on which hosts, and the device nodes that containers get. Sources: the
kernel's ABI documents on sysfs-class-infiniband, and NCCL's documents on its environment variables.
No adapter was ever at hand: parsing is tested on trees written after those documents. Pure: it must
not run the script beside it, which callers do.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")
ETHERNET = "Ethernet"
_V2 = "RoCE v2"
# The connection manager's device: librdmacm opens it, whatever adapter is used.
_MANAGER = "rdma_cm"


@dataclass(frozen=True, kw_only=True)
class Gid:
    """Hold one entry of a port's GID table.

    Attributes:
        address: the GID as an IPv6 address; RoCE maps IPv4 addresses into it.
        kind: `RoCE v2`, or `IB/RoCE v1`.
        interface: name of the network interface that it belongs to; empty on InfiniBand.
    """

    index: int
    address: str
    kind: str = ""
    interface: str = ""

    @property
    def ipv4(self) -> str:
        """Return the IPv4 address that a RoCE GID stands for; empty where it stands for none."""
        try:
            mapped = ipaddress.IPv6Address(self.address).ipv4_mapped
        except ValueError:
            return ""
        return str(mapped or "")


@dataclass(frozen=True, kw_only=True)
class Port:
    """Hold one port of an adapter.

    Attributes:
        state: the subnet's word for it: `ACTIVE`, `DOWN`, `INIT`, `ARMED`.
        rate: Gbit/s.
        layer: `InfiniBand`, or `Ethernet` (RoCE).
    """

    device: str
    number: int
    state: str
    rate: float
    layer: str
    gids: tuple[Gid, ...] = ()

    @property
    def active(self) -> bool:
        """Return whether data can go through the port."""
        return self.state == "ACTIVE"

    @property
    def name(self) -> str:
        """Return the port's name as NCCL_IB_HCA takes it."""
        return f"{self.device}:{self.number}"

    def words(self) -> str:
        """Say what it is, for people."""
        layer = "RoCE" if self.layer == ETHERNET else self.layer
        return f"{self.name} {layer} {self.rate:g} Gbit/s {self.state.lower()}"


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Hold the adapters of one host.

    Attributes:
        verbs: device name by name of its node below /dev/infiniband.
        nodes: device nodes that are there.
        direct: how GPU memory can be registered with adapters: `nvidia_peermem`, `dma-buf`.
    """

    ports: tuple[Port, ...] = ()
    verbs: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()

    @property
    def active(self) -> tuple[Port, ...]:
        """Return the ports that data can go through."""
        return tuple(port for port in self.ports if port.active)

    @property
    def usable(self) -> tuple[Port, ...]:
        """Return the active ports of adapters with a verbs device, by which programs reach them."""
        there = {Path(node).name for node in self.nodes}
        reached = {device for name, device in self.verbs.items() if name in there}
        return tuple(port for port in self.active if port.device in reached)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the device nodes for a container: of adapters with an active port, or none."""
        used = {port.device for port in self.usable}
        names = {name for name, device in self.verbs.items() if device in used}
        if not names:
            return ()
        return tuple(node for node in self.nodes if Path(node).name in {*names, _MANAGER})


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Hold the ports that the hosts of a run use between them.

    Attributes:
        ports: by host; empty where NCCL is to use sockets.
        why: one sentence for people.
        gids: the GID index of each host's ports, where RoCE has one for all of them.
    """

    ports: Mapping[str, tuple[Port, ...]]
    why: str
    gids: Mapping[str, int]

    def settings(self, host: str) -> dict[str, str]:
        """Return NCCL's settings on a host; empty where there is nothing to set."""
        ports = self.ports.get(host, ())
        if not ports:
            return {}
        found = {"NCCL_NET": "IB", "NCCL_IB_HCA": f"={','.join(port.name for port in ports)}"}
        if host in self.gids:
            found["NCCL_IB_GID_INDEX"] = str(self.gids[host])
        return found


def parse(lines: Iterable[str]) -> Adapters:
    """Read what `infiniband.sh` printed; lines that are none of its own are passed over."""
    ports: dict[tuple[str, int], Port] = {}
    verbs: dict[str, str] = {}
    nodes: list[str] = []
    direct: list[str] = []
    for line in lines:
        match line.strip().split("|"):
            case ["port", device, number, state, rate, layer] if number.isdecimal():
                ports[device, int(number)] = Port(
                    device=device, number=int(number), state=_state(state), rate=_rate(rate),
                    layer=layer,
                )  # fmt: skip
            case ["gid", device, number, index, address, kind, interface] if (
                number.isdecimal() and index.isdecimal() and (device, int(number)) in ports
            ):
                gid = Gid(index=int(index), address=address, kind=kind, interface=interface)
                port = ports[device, int(number)]
                ports[device, int(number)] = replace(port, gids=(*port.gids, gid))
            case ["verbs", name, device]:
                verbs[name] = device
            case ["node", path]:
                nodes.append(path)
            case ["direct", word]:
                direct.append(word)
    found = [ports[key] for key in sorted(ports)]
    found = [
        replace(port, gids=tuple(sorted(port.gids, key=lambda gid: gid.index))) for port in found
    ]
    return Adapters(ports=tuple(found), verbs=verbs, nodes=tuple(nodes), direct=tuple(direct))


def _state(text: str) -> str:
    """Return the word of a state such as `4: ACTIVE`."""
    return text.rpartition(":")[2].strip().upper()


def _rate(text: str) -> float:
    """Return Gbit/s of a rate such as `200 Gb/sec (4X HDR)`; 0 where it says none."""
    found = re.match(r"\s*([0-9]+(?:\.[0-9]+)?)\s*Gb/sec", text)
    return float(found[1]) if found else 0.0


def choose(hosts: Mapping[str, Adapters], subnets: Mapping[str, Sequence[str]]) -> Fabric:
    """Choose the ports that all hosts of a run can use between them.

    NCCL pairs ports of different hosts by their place in the list, so a port that leads elsewhere
    (a direct cable, a storage network) fails the whole run. InfiniBand comes before RoCE; of
    InfiniBand the fastest active ports; of RoCE those with an address in a subnet of all hosts.

    Args:
        hosts: adapters by host.
        subnets: networks in which each host has an address.
    """
    if len(hosts) < 2:
        return Fabric(ports={}, why="nothing leaves the host", gids={})
    lacking = [host for host, found in hosts.items() if not found.usable]
    if lacking:
        return Fabric(
            ports={}, gids={},
            why=f"no usable InfiniBand or RoCE port on {', '.join(sorted(lacking))}: TCP sockets",
        )  # fmt: skip
    native = {host: _fastest(found.usable) for host, found in hosts.items()}
    if all(native.values()):
        return Fabric(ports=native, why="InfiniBand", gids={})
    common = set.intersection(*(set(subnets.get(host, ())) for host in hosts))
    routed = {host: _routed(found.usable, common) for host, found in hosts.items()}
    if not all(routed.values()):
        without = ", ".join(sorted(host for host, found in routed.items() if not found))
        return Fabric(
            ports={}, gids={},
            why=f"no RoCE v2 port of {without} has an address in a subnet of all hosts: TCP",
        )  # fmt: skip
    gids = {
        host: index for host, found in routed.items()
        if len(indexes := {gid.index for _, gid in found}) == 1 for index in indexes
    }  # fmt: skip
    return Fabric(
        ports={host: tuple(port for port, _ in found) for host, found in routed.items()},
        why="RoCE v2", gids=gids,
    )  # fmt: skip


def _fastest(ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the InfiniBand ports with the highest rate: slower ones are other networks."""
    native = [port for port in ports if port.layer != ETHERNET]
    best = max((port.rate for port in native), default=0.0)
    return tuple(port for port in native if port.rate == best)


def _routed(ports: Sequence[Port], subnets: Iterable[str]) -> list[tuple[Port, Gid]]:
    """Return RoCE ports with the GID of an address in one of the subnets."""
    networks = [ipaddress.ip_network(subnet) for subnet in sorted(subnets)]
    found = []
    for port in ports:
        if port.layer != ETHERNET:
            continue
        for gid in port.gids:
            address = gid.ipv4 if gid.kind == _V2 else ""
            if address and any(ipaddress.ip_address(address) in network for network in networks):
                found.append((port, gid))
                break
    return found
