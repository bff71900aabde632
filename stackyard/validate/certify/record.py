"""Read what the ranks of a certifying training recorded.

Owns the reading of the records that `images/measure/fingerprint.py` writes. Pure: a line that is
none of its events is passed over, since a rank may die while it writes.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# The first updates warm up: memory is allocated and kernels are chosen.
WARM_UPDATES = 2


@dataclass(frozen=True, kw_only=True)
class Step:
    """Hold one update of a rank.

    Attributes:
        local: digest of the rank's own gradients and loss.
        shared: digest of the parameters after the update.
    """

    loss: float
    local: str
    shared: str
    seconds: float
    wait: float


@dataclass(kw_only=True)
class RankRecord:
    """Hold what one rank recorded.

    Attributes:
        model: the name of its GPU, or of its processor; empty until it has started.
        met: its process group was there.
        links: GB/s in each direction, by the other rank.
        allreduce: GB/s of bus bandwidth, by size of the message.
        speeds: what it measured of its GPU alone, by kind.
        ended: it did all that it was asked to.
    """

    model: str = ""
    gpu: str = ""
    torch: str = ""
    met: bool = False
    steps: dict[int, Step] = field(default_factory=dict)
    links: dict[int, float] = field(default_factory=dict)
    allreduce: dict[int, float] = field(default_factory=dict)
    speeds: dict[str, float] = field(default_factory=dict)
    ended: bool = False

    @property
    def updates_s(self) -> float | None:
        """Return how many updates a second it computed, by the median; None without enough."""
        times = [s.seconds for number, s in self.steps.items() if number > WARM_UPDATES]
        middle = statistics.median(times) if times else 0.0
        return 1 / middle if middle > 0 else None


def read_records(entries: Iterable[Mapping[str, Any]]) -> dict[int, RankRecord]:
    """Return the records of all ranks of a job, from the entries of its log."""
    found: dict[int, RankRecord] = {}
    for entry in entries:
        try:
            event = json.loads(entry["record"])
            take = _EVENTS[event["event"]]
            take(found.setdefault(int(entry["rank"]), RankRecord()), event)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _start(rank: RankRecord, event: Mapping[str, Any]) -> None:
    rank.model, rank.gpu, rank.torch = (str(event[key]) for key in ("model", "gpu", "torch"))


def _met(rank: RankRecord, event: Mapping[str, Any]) -> None:
    rank.met = True


def _step(rank: RankRecord, event: Mapping[str, Any]) -> None:
    rank.steps[int(event["step"])] = Step(
        loss=float(event["loss"]),
        local=str(event["local"]),
        shared=str(event["shared"]),
        seconds=float(event["seconds"]),
        wait=float(event["wait"]),
    )


def _link(rank: RankRecord, event: Mapping[str, Any]) -> None:
    rank.links[int(event["peer"])] = float(event["gb_s"])


def _allreduce(rank: RankRecord, event: Mapping[str, Any]) -> None:
    rank.allreduce[int(event["bytes"])] = float(event["gb_s"])


def _speeds(rank: RankRecord, event: Mapping[str, Any]) -> None:
    rank.speeds |= {str(kind): float(value) for kind, value in event["values"].items()}


def _end(rank: RankRecord, event: Mapping[str, Any]) -> None:
    rank.ended = True


_EVENTS = {
    "start": _start, "met": _met, "step": _step, "link": _link, "allreduce": _allreduce,
    "speeds": _speeds, "end": _end,
}  # fmt: skip
