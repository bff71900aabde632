"""Read NCCL's own log (NCCL_DEBUG=INFO) for the transports and the network that it used.

It is pure, and does not judge: `validate.judge` does. Lines such as
`Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM` are stable since 2.7; 2.10 to 2.30 were looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_CHANNEL = re.compile(
    r"Channel (\d+)(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via (\S+)"
)
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+\S*)")
_NET = re.compile(r"NET/(IB|Socket|OFI|Plugin\w*) ?: Using (.+)")
_NETWORK = re.compile(r"Using network (\S+)")


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """Hold what the communicators of one training used.

    Attributes:
        transports: by pair (`0>1`), every transport that a channel between the two took.
        channels: the number of channels seen in all.
        network: NCCL's network module, used between hosts (or where nothing better was found).
        warnings: NCCL's own warnings, without time and rank.
    """

    version: str
    transports: dict[str, tuple[str, ...]]
    channels: int
    network: str
    warnings: tuple[str, ...]


def read_log(lines: Iterable[str]) -> NcclLog:
    """Read the logs of all ranks together."""
    version = network = ""
    found: dict[str, set[str]] = {}
    channels = 0
    warnings: dict[str, None] = {}
    for line in lines:
        channel = _CHANNEL.search(line)
        if channel:
            _, source, target, via = channel.groups()
            found.setdefault(f"{source}>{target}", set()).add(via)
            channels += 1
            continue
        match = _VERSION.search(line)
        version = version or (match.group(1) if match else "")
        match = _NETWORK.search(line) or _NET.search(line)
        network = network or (match.group(1) if match else "")
        if " NCCL WARN " in line:
            warnings[line.split(" NCCL WARN ", 1)[1].strip()] = None
    return NcclLog(
        version=version,
        transports={pair: tuple(sorted(via)) for pair, via in sorted(found.items())},
        channels=channels,
        network=network,
        warnings=tuple(warnings),
    )


def kind(transport: str) -> str:
    """Return the family of a transport, `P2P`, `SHM` or `NET`."""
    return transport.split("/")[0]
