"""What the ranks of one training said, as values.

Owns reading the record lines that `inside/stackyard_record.py` writes; it draws no conclusion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackyard.gpu.fused import Part, read_parts
from stackyard.gpu.nccl import NcclLog


@dataclass(frozen=True, kw_only=True)
class Window:
    """Some updates of one rank between two looks at the clock.

    Attributes:
        seconds: wall time, with the device synchronised at both ends.
        tokens: tokens of this rank.
        peak_bytes: the most GPU memory that tensors took since the training began; 0 on a CPU rank.
        updates: seconds of each update; empty in records of before they were told.
        time: when it ended, in seconds since the epoch; 0 where that was not told.
    """

    seconds: float
    tokens: float
    peak_bytes: int
    updates: tuple[float, ...] = ()
    time: float = 0.0


@dataclass
class RankRecord:
    """One rank, in its own words.

    Attributes:
        gpu: UUID of the physical GPU; empty on a CPU rank.
        times: when each update was done, in seconds since the epoch.
        memory: peak bytes of GPU memory: `allocated` to tensors, `reserved` of the driver.
        losses: mean loss over the global batch, by update number.
        params: hash of the parameters, by update number and group.
        windows: in a bench: speed and memory, by the last update of each window.
        fused: what became of the fused parts, by name; empty where the process has none.
    """

    rank: int
    world_size: int = 0
    host: str = ""
    pid: int = 0
    backend: str = ""
    device: str = ""
    gpu: str = ""
    memory: dict[str, int] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    params: dict[tuple[int, str], str] = field(default_factory=dict)
    windows: dict[int, Window] = field(default_factory=dict)
    fused: dict[str, Part] = field(default_factory=dict)
    saved: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    ended: int | None = None

    @property
    def last(self) -> int:
        """The last update this rank spoke of (0 when none)."""
        return max([0, *self.losses, *(step for step, _ in self.params)])


@dataclass(frozen=True, kw_only=True)
class Training:
    """One launch, finished: everything that judging needs.

    Attributes:
        ranks: by rank number; a rank that never spoke is missing.
        wanted: how many ranks were to take part.
        nodes: the nodes they were to run on.
        code: the launcher's exit code (None when it was killed on purpose).
        stopped: why the controller stopped it; empty when it ended by itself.
        strays: processes left on each node once it was over (after a grace).
        command: what node 1 ran.
        nccl: what NCCL said about its channels; None on CPU ranks.
        began: when it was launched, in seconds since the epoch; 0 where that is not known.
    """

    layout: str
    ranks: Mapping[int, RankRecord]
    wanted: int
    code: int | None
    stopped: str
    killed: bool
    strays: Mapping[str, Sequence[Mapping[str, Any]]]
    tail: str
    seconds: float
    command: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    nccl: NcclLog | None = None
    began: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it came to another end than it was to."""
        return bool(self.stopped) or (not self.killed and self.code != 0)

    @property
    def losses(self) -> dict[int, float]:
        """Loss by update, from the first rank that recorded any."""
        for rank in sorted(self.ranks):
            if self.ranks[rank].losses:
                return self.ranks[rank].losses
        return {}

    @property
    def updates_s(self) -> float:
        """Updates per second of the first rank, from its first to its last; 0 where unknown.

        Starting and ending are left out, the times between updates (checkpoints, too) are not.
        """
        for rank in sorted(self.ranks):
            times = self.ranks[rank].times
            if len(times) > 1 and times[max(times)] > times[min(times)]:
                return (max(times) - min(times)) / (times[max(times)] - times[min(times)])
        return 0.0


def take_line(ranks: dict[int, RankRecord], line: str) -> tuple[RankRecord, str] | None:
    """Add one followed line (`rankN<tab>{json}`) to the records.

    Returns:
        The rank's record and the kind of event; None when the line is not a whole event.
    """
    name, _, text = line.partition("\t")
    if not (name.startswith("rank") and name[4:].isdecimal()):
        return None
    rank = int(name[4:])
    record = ranks.get(rank) or RankRecord(rank=rank)
    try:
        event: dict[str, Any] = json.loads(text)
        kind = str(event["event"])
        _take(record, kind, event)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    ranks[rank] = record
    return record, kind


def _take(record: RankRecord, kind: str, event: Mapping[str, Any]) -> None:
    if kind == "start":
        world_size, pid = int(event["world_size"]), int(event["pid"])
        host, backend, device = (str(event[key]) for key in ("host", "backend", "device"))
        record.world_size, record.pid = world_size, pid
        record.host, record.backend, record.device = host, backend, device
        record.gpu = str(event.get("gpu", ""))
    elif kind == "step":
        record.losses[int(event["step"])] = float(event["loss"])
        record.times[int(event["step"])] = float(event.get("time", 0.0))
    elif kind == "window":
        step, loss = int(event["step"]), float(event["loss"])
        seconds, tokens, peak = (float(event[key]) for key in ("seconds", "tokens", "peak_bytes"))
        record.windows[step] = Window(
            seconds=seconds,
            tokens=tokens,
            peak_bytes=int(peak),
            updates=tuple(float(one) for one in event.get("updates", ())),
            time=float(event.get("time", 0.0)),
        )
        record.losses[step] = loss
    elif kind == "fused":
        record.fused = read_parts(event["parts"])
    elif kind == "memory":
        record.memory = {key: int(event[key]) for key in ("allocated", "reserved")}
    elif kind == "params":
        record.params[int(event["step"]), str(event["group"])] = str(event["sha256"])
    elif kind == "saved":
        record.saved.append(int(event["step"]))
    elif kind == "loaded":
        record.loaded.append(int(event["step"]))
    elif kind == "end":
        record.ended = int(event["step"])
