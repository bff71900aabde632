"""Judge what joins the GPUs of a certification: speeds of links, and the ways that NCCL took.

Owns when a link is slow, and the check `transport`. Pure: records and NCCL's logs are arguments.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from stackyard.gpu import transport
from stackyard.gpu.transport import Offer
from stackyard.validate.certify.group import GroupRun
from stackyard.validate.checks import Check, at_most, check, not_run

INSIDE, BETWEEN = "inside hosts", "between hosts"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Hold the parts of a median below which something is suspicious or bad.

    CPU ranks share caches and links with other programs, so only much less counts there.
    """

    suspicious: float
    bad: float
    link: float


BOUNDS = {
    "cuda": Bounds(suspicious=0.95, bad=0.8, link=0.8),
    "cpu": Bounds(suspicious=0.6, bad=0.3, link=0.05),
}


@dataclass(frozen=True, kw_only=True)
class LinkSeen:
    """Hold the best measured speed between two GPUs, in each direction."""

    ends: tuple[str, ...]
    kind: str
    gb_s: float
    slow: bool


@dataclass(kw_only=True)
class Links:
    """Hold the measured speeds between GPUs, by both names and kind of link."""

    device: str
    speeds: dict[frozenset[str], list[float]] = field(default_factory=dict)
    kinds: dict[frozenset[str], str] = field(default_factory=dict)

    def add(self, run: GroupRun) -> list[frozenset[str]]:
        """Add the links of a group; return them."""
        new: dict[frozenset[str], float] = {}
        for number, rank in run.ranks.items():
            for peer, speed in rank.links.items():
                if number >= len(run.places) or not 0 <= peer < len(run.places):
                    continue
                one, other = run.places[number], run.places[peer]
                pair = frozenset((one.name, other.name))
                # Both ends measure one exchange; the slower one has waited for it.
                new[pair] = min(speed, new.get(pair, speed))
                self.kinds[pair] = INSIDE if one.host == other.host else BETWEEN
        for pair, speed in new.items():
            self.speeds.setdefault(pair, []).append(speed)
        return list(new)

    def best(self, pair: frozenset[str]) -> float:
        """Return the best speed of a link: other programs may have used it meanwhile."""
        return max(self.speeds[pair])

    def median(self, kind: str) -> float:
        """Return the median of all links of a kind; 0 without any."""
        found = [self.best(pair) for pair, one in self.kinds.items() if one == kind]
        return statistics.median(found) if found else 0.0

    def slow(self, pairs: Iterable[frozenset[str]]) -> list[str]:
        """Describe those of some links that were slow in their last measurement."""
        ratio = BOUNDS[self.device].link
        found = []
        for pair in pairs:
            speed, middle = self.speeds[pair][-1], self.median(self.kinds[pair])
            if speed < ratio * middle:
                one, other = sorted(pair)
                found.append(f"{one} and {other} exchange {speed:.3g} GB/s,"
                             f" the median {self.kinds[pair]} is {middle:.3g}")  # fmt: skip
        return found

    def seen(self) -> list[LinkSeen]:
        """Return all links, by the names of their ends."""
        return [
            LinkSeen(ends=tuple(sorted(pair)), kind=self.kinds[pair],
                     gb_s=round(self.best(pair), 4), slow=bool(self.slow([pair])))
            for pair in sorted(self.speeds, key=sorted)
        ]  # fmt: skip


@dataclass(kw_only=True)
class Carried:
    """Hold what carried data between the GPUs of all groups, and where hosts offer more.

    Attributes:
        hosts: by kind of way, where it was seen; a way between hosts is that of all of them.
        less: where a group used less than its hosts offer, each with the remedy.
        groups: groups whose ranks talked by NCCL; `unread` of them left no line that names a way.
    """

    offer: Offer
    hosts: dict[str, set[str]] = field(default_factory=dict)
    less: dict[str, None] = field(default_factory=dict)
    groups: int = 0
    unread: int = 0

    def add(self, run: GroupRun) -> None:
        """Add what one group used."""
        if run.nccl is None:
            return
        self.groups += 1
        self.unread += not run.nccl.taken
        for path in transport.paths(run.nccl, self.offer):
            self.hosts.setdefault(path.kind, set()).update(path.hosts)
        self.less |= dict.fromkeys(transport.warnings(run.nccl, self.offer))


def transport_check(seen: Carried) -> Check:
    """Check that NCCL used the best that hosts offer between GPUs."""
    expected = {"less_than_offered": at_most(0)}
    measured = {kind: len(hosts) for kind, hosts in sorted(seen.hosts.items())}
    if seen.less:
        return check("transport", measured, expected, list(seen.less))
    if not seen.groups:
        return not_run("transport", expected, "no two GPUs trained together")
    if seen.unread:
        why = f"NCCL's log of {seen.unread} of {seen.groups} groups names no way of data: they"
        why += " ended early, or NCCL_DEBUG is set"
        return not_run("transport", expected, why, measured)
    return check("transport", measured, expected, ())
