"""Read the records of one training's ranks into values.

Owns reading the lines that `inside/stackyard_record.py` writes. It must not judge them.
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
    """Hold the speed and memory of one rank over some updates.

    Attributes:
        seconds: wall time, with the device synchronised at both ends.
        tokens: tokens of this rank.
        peak_bytes: the most GPU memory that tensors took since the training began; 0 on a CPU rank.
        updates: seconds of each update; empty in older records, which lack them.
        time: when it ended, in seconds since the epoch; 0 in older records, which lack it.
    """

    seconds: float
    tokens: float
    peak_bytes: int
    updates: tuple[float, ...] = ()
    time: float = 0.0


# Over how many updates the GPUs' own work is measured.
WORK_UPDATES = 3


def measured_work(after: int) -> dict[str, str]:
    """Return the environment in which `stackyard_record` measures it, after an update's end."""
    return {"STACKYARD_GPU_WORK": f"{after}:{WORK_UPDATES}"}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Hold what a GPU did in one update, in seconds.

    Attributes:
        wall: all of the update's time, while a profiler watched.
        seconds: it ran any kernel, or a copy.
        compute: it ran a kernel that is none of NCCL's.
        communication: it ran one of NCCL's. Where that waits for another rank, it counts as well.
    """

    wall: float
    seconds: float
    compute: float
    communication: float


@dataclass
class RankRecord:
    """Hold what one rank recorded of itself.

    Attributes:
        gpu: UUID of the physical GPU; empty on a CPU rank.
        times: when each update was done, in seconds since the epoch.
        memory: peak bytes of GPU memory: `allocated` to tensors, `reserved` from the driver.
        losses: mean loss over the global batch, by update number.
        valid: mean loss of a validation, by update number.
        params: hash of the parameters, by update number and group.
        windows: in a bench: speed and memory, by the last update of each window.
        fused: state of the fused parts, by name; empty where the process has none.
        work: what its GPU did in an update; None where that was not measured.
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
    valid: dict[int, float] = field(default_factory=dict)
    params: dict[tuple[int, str], str] = field(default_factory=dict)
    windows: dict[int, Window] = field(default_factory=dict)
    fused: dict[str, Part] = field(default_factory=dict)
    work: Work | None = None
    saved: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    ended: int | None = None

    @property
    def last(self) -> int:
        """Return the last update that this rank recorded (0 if none)."""
        return max([0, *self.losses, *(step for step, _ in self.params)])


@dataclass(frozen=True, kw_only=True)
class Training:
    """Hold one finished launch, with everything that judging needs.

    Attributes:
        ranks: records by rank number; a rank that recorded nothing is missing.
        wanted: number of ranks that should have taken part.
        nodes: the nodes that they should have run on.
        code: the launcher's exit code (None when it was killed on purpose).
        stopped: why the controller stopped it; empty when it ended by itself.
        strays: processes left on each node after the launch ended (and a grace period).
        command: the command that node 1 ran.
        nccl: NCCL's log of its channels; None on CPU ranks.
        began: when it was launched, in seconds since the epoch; 0 where that is not known.
        unseen: nodes that did not tell which processes were left.
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
    unseen: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Return whether the launch ended in another way than intended."""
        return bool(self.stopped) or (not self.killed and self.code != 0)

    @property
    def losses(self) -> dict[int, float]:
        """Return the loss by update, from the first rank that recorded any."""
        for rank in sorted(self.ranks):
            if self.ranks[rank].losses:
                return self.ranks[rank].losses
        return {}

    @property
    def updates_s(self) -> float:
        """Return the first rank's updates per second, from its first to its last; 0 if unknown.

        Start-up and shutdown are left out; time between updates (checkpoints, too) counts.
        """
        for rank in sorted(self.ranks):
            times = self.ranks[rank].times
            if len(times) > 1 and times[max(times)] > times[min(times)]:
                return (max(times) - min(times)) / (times[max(times)] - times[min(times)])
        return 0.0


def take_line(ranks: dict[int, RankRecord], rank: int, text: str) -> tuple[RankRecord, str] | None:
    """Add one line of a rank's record (JSON) to the records.

    Returns:
        The rank's record and the kind of event; None when the line is not a whole event.
    """
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
    elif kind == "valid":
        record.valid[int(event["step"])] = float(event["loss"])
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
    elif kind == "work":
        keys = ("wall", "seconds", "compute", "communication")
        record.work = Work(**{key: float(event[key]) for key in keys})
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
