"""Hold a group of hosts or GPUs that train together, and what came of it.

Values only: `certify.plan` names groups, `certify.play` trains on them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stackyard.gpu.nccl import NcclLog
from stackyard.validate.certify.plan import Group, gpu_name
from stackyard.validate.certify.record import RankRecord


@dataclass(frozen=True, kw_only=True)
class Place:
    """Hold where a rank runs: a host, and the GPU's number there (0 for the CPU rank)."""

    host: str
    index: int

    @property
    def name(self) -> str:
        """Return the name of the GPU, as in groups and faults."""
        return gpu_name(self.host, self.index)


@dataclass(frozen=True, kw_only=True)
class GroupRun:
    """Hold one training of a group and its end.

    Attributes:
        places: of the ranks, in order.
        reason: why the supervisor ended it; empty where it ended by itself.
        hang: who waited where, as the supervisor's examination has it; empty without one.
        late: places of the ranks that others waited for in it.
        tail: its last lines.
        nccl: what NCCL used between its ranks; None where they do not talk by NCCL.
    """

    places: tuple[Place, ...]
    ranks: Mapping[int, RankRecord]
    code: int | None
    reason: str = ""
    hang: str = ""
    late: tuple[Place, ...] = ()
    tail: str = ""
    seconds: float = 0.0
    nccl: NcclLog | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the hosts of the group, in order."""
        return tuple(dict.fromkeys(place.host for place in self.places))

    @property
    def missing(self) -> tuple[Place, ...]:
        """Return the places whose ranks did not end well."""
        return tuple(
            place for rank, place in enumerate(self.places)
            if rank not in self.ranks or not self.ranks[rank].ended
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Members:
    """Hold one group to train on.

    Attributes:
        gpus: by host, the numbers of its GPUs that take part.
        alone: each rank trains by itself.
    """

    gpus: Mapping[str, tuple[int, ...]]
    alone: bool = False

    @property
    def places(self) -> tuple[Place, ...]:
        """Return the place of each rank, in order; all hosts have as many ranks."""
        per_node = min(len(numbers) for numbers in self.gpus.values())
        return tuple(
            Place(host=host, index=index)
            for host, numbers in self.gpus.items() for index in numbers[:per_node]
        )  # fmt: skip


def members_of(group: Group, slots: Mapping[str, tuple[int, ...]]) -> Members:
    """Return the hosts and GPUs of a group of names: hosts, or GPUs of one host."""
    found: dict[str, tuple[int, ...]] = {}
    for host, numbers in slots.items():
        if host in group:
            found[host] = numbers
        elif own := tuple(n for n in numbers if Place(host=host, index=n).name in group):
            found[host] = own
    return Members(gpus=found)
