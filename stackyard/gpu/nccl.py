"""Read NCCL's own log (NCCL_DEBUG=INFO) for the transports and the network that it used.

It is pure, and does not judge: `validate.judge` and `gpu.transport` do. Lines such as
`Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM` are stable since 2.7; 2.10 to 2.30 were looked at. Each
line begins with the name of its host, up to the first dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

P2P, SHM, NET = "P2P", "SHM", "NET"
INFINIBAND, ROCE, SOCKET = "InfiniBand", "RoCE", "Socket"
# What ranks write for `read_log`: GRAPH names how GPUs are joined, NET the speed of adapters.
SUBSYSTEMS = "INIT,ENV,NET,GRAPH"
# The lines that `read_log` reads, as an extended regular expression.
READ = "via |Using |NCCL version|NCCL WARN|set by env|Pattern|speed="
_CHANNEL = re.compile(
    r"Channel (\d+)(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via (\S+)"
)
_HOST = re.compile(r"^([^:\s]+):\d+:\d+ ")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+\S*)")
_NET = re.compile(r"NET/(IB|Socket|OFI|Plugin\w*) ?: Using (.+)")
_NETWORK = re.compile(r"Using network (\S+)")
_PORT = re.compile(r"\[\d+\]([^\s:]+:\d+)/(IB|RoCE)")
_SPEED = re.compile(r"NET/IB ?: \[\d+\] ([^\s:]+):\w+:(\d+)/(?:IB|RoCE) .*speed=(\d+)")
_INTERFACE = re.compile(r"\[\d+\]([^\s:]+):")
_SETTING = re.compile(r"(NCCL_\w+) set by environment to (\S+?)\.?$")
_JOIN = re.compile(r"Pattern \d+,.* type (\w+)/\w+")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Hold one adapter or network interface that NCCL uses between hosts.

    Attributes:
        kind: `InfiniBand`, `RoCE` or `Socket`.
        rate: Gbit/s; 0 where it is not known.
    """

    host: str
    kind: str
    name: str
    rate: float = 0.0

    def with_rate(self, rate: float) -> Adapter:
        """Return it with a rate that the log does not tell."""
        return self if self.rate else replace(self, rate=rate)

    def words(self) -> str:
        """Say what it is, for people."""
        return f"{self.name}, {self.rate:g} Gbit/s" if self.rate else self.name


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """Hold what the communicators of one training used.

    Attributes:
        transports: by pair (`0>1`), every transport that a channel between the two took.
        channels: the number of channels seen in all.
        network: NCCL's network module, used between hosts (or where nothing better was found).
        warnings: NCCL's own warnings, without time and rank.
        taken: by host, every transport that a channel of it took.
        adapters: of each host, by the network module that it uses.
        joins: by host, types of connections between its GPUs that NCCL planned with (`NVL`, `PHB`).
        settings: NCCL's settings that were in the environment.
    """

    version: str
    transports: dict[str, tuple[str, ...]]
    channels: int
    network: str
    warnings: tuple[str, ...]
    taken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    adapters: tuple[Adapter, ...] = ()
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Reading:
    """Gather what lines say."""

    version: str = ""
    network: str = ""
    module: str = ""
    channels: int = 0
    pairs: dict[str, set[str]] = field(default_factory=dict)
    taken: dict[str, set[str]] = field(default_factory=dict)
    joins: dict[str, set[str]] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    adapters: dict[tuple[str, str], Adapter] = field(default_factory=dict)
    speeds: dict[tuple[str, str], float] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Take one line."""
        where = _HOST.match(line)
        host = where[1] if where else ""
        if channel := _CHANNEL.search(line):
            _, source, target, via = channel.groups()
            self.pairs.setdefault(f"{source}>{target}", set()).add(via)
            self.taken.setdefault(host, set()).add(via)
            self.channels += 1
        elif speed := _SPEED.search(line):
            self.speeds[host, f"{speed[1]}:{speed[2]}"] = int(speed[3]) / 1000
        elif module := _NET.search(line):
            self.module = self.module or module[1]
            self._adapters(host, module[1], module[2])
        elif network := _NETWORK.search(line):
            self.network = self.network or network[1]
        elif join := _JOIN.search(line):
            self.joins.setdefault(host, set()).add(join[1])
        elif setting := _SETTING.search(line):
            self.settings[setting[1]] = setting[2]
        elif version := _VERSION.search(line):
            self.version = self.version or version[1]
        if " NCCL WARN " in line:
            self.warnings[line.split(" NCCL WARN ", 1)[1].strip()] = None

    def _adapters(self, host: str, module: str, text: str) -> None:
        text = text.partition("; OOB ")[0]
        if module == SOCKET:
            found = [(SOCKET, name) for name in _INTERFACE.findall(text)]
        else:
            layers = {"IB": INFINIBAND, "RoCE": ROCE}
            found = [(layers[layer], name) for name, layer in _PORT.findall(text)]
        for kind_, name in found:
            self.adapters[host, name] = Adapter(host=host, kind=kind_, name=name)


def read_log(lines: Iterable[str]) -> NcclLog:
    """Read the logs of all ranks together."""
    found = _Reading()
    for line in lines:
        found.take(line)
    adapters = (one.with_rate(found.speeds.get(at, 0.0)) for at, one in found.adapters.items())
    return NcclLog(
        version=found.version,
        transports=_sorted(found.pairs),
        channels=found.channels,
        # A module says what it found before NCCL says which of them it takes.
        network=found.network or found.module,
        warnings=tuple(found.warnings),
        taken=_sorted(found.taken),
        adapters=tuple(adapters),
        joins=_sorted(found.joins),
        settings=found.settings,
    )


def _sorted(found: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sorted(values)) for name, values in sorted(found.items())}


def kind(transport: str) -> str:
    """Return the family of a transport, `P2P`, `SHM` or `NET`."""
    return transport.split("/")[0]
