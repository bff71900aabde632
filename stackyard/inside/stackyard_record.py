"""Record what a training rank does, for a smoke, for `invoke status` and for TensorBoard.

Owns the record format: one JSON object a line, in `<folder>/rank<N>.jsonl`, one file a rank. Runs
inside containers beside the workload, so it imports nothing but the standard library (tensors are
hashed through their own methods, and event files are written by torch's writer, which is imported
where a folder for them is named). It must not decide whether a run is good:
`stackyard.validate.judge` does, from these files.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

# `UPDATE:COUNT`: after which update the GPU's own work is measured, and over how many.
WORK = "STACKYARD_GPU_WORK"


def _uuid(device: str) -> str:
    """Return the UUID of the physical GPU behind a device's name; empty on a CPU rank."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return ""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _fused() -> dict[str, Any]:
    """Return the state of this process's fused parts; empty if no package has any."""
    ledger = sys.modules.get("stackyard_fused")
    return ledger.states() if ledger is not None else {}


def events_folder(folder: str, rank: int) -> str:
    """Return the folder for TensorBoard's event files; empty where its package is absent.

    The first rank then prints one line that says so.
    """
    if folder and importlib.util.find_spec("tensorboard") is None:
        if rank == 0:
            print("no TensorBoard events: the package tensorboard is not installed", flush=True)
        return ""
    return folder


def _measured() -> tuple[int, int]:
    """Return after which update the GPU's work is measured, and over how many; zeros for none."""
    after, _, count = os.environ.get(WORK, "").partition(":")
    return (int(after), int(count)) if count else (0, 0)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length that spans cover together, where they overlap only once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


class Recorder:
    """Write the record of one rank.

    Args:
        folder: where the record files of this launch go; created if missing.
        rank: global rank of this process, from the process group itself.
        world_size: number of ranks this process sees, from the process group itself.
        backend: the process group's backend (`gloo`, `nccl`, or `none` for a single process).
        device: device that the rank computes on (`cpu`, `cuda:0`, ...).
        tensorboard: folder for the first rank's event files, where no other part of the training
            writes them; empty for none.
        says: print every tenth loss in a user's run, where the program does not.

    Attributes:
        work_from: the update after whose end the GPU's work is watched; 0 where nobody asked.
    """

    def __init__(
        self,
        folder: str,
        rank: int,
        world_size: int,
        *,
        backend: str,
        device: str = "cpu",
        tensorboard: str = "",
        says: bool = True,
    ) -> None:
        os.makedirs(folder, exist_ok=True)
        self.rank = rank
        # A user's own run shows the output of ranks; a smoke reads the record instead.
        self._says = says and rank == 0 and "STACKYARD_LOGS" in os.environ
        self._events: Any = None
        if rank == 0 and events_folder(tensorboard, rank):
            board = importlib.import_module("torch.utils.tensorboard")
            self._events = board.SummaryWriter(tensorboard)
        self._parts: dict[str, Any] = {}
        after, count = _measured() if device.startswith("cuda") else (0, 0)
        self.work_from = after - 1 if count else 0
        self._work_after, self._work_of, self._work_began = after, count, 0.0
        self._profile: Any = None
        self._file = open(os.path.join(folder, f"rank{rank}.jsonl"), "a", encoding="utf-8")
        self._write(
            event="start",
            rank=rank,
            world_size=world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            backend=backend,
            device=device,
            gpu=_uuid(device),
        )

    def step(self, step: int, loss: float) -> None:
        """Record that update `step` (from 1) is done; `loss` is the mean over the global batch."""
        if self._says and (step % 10 == 0 or step == 1):
            print(f"update {step} loss {float(loss):.4f}", flush=True)
        self._write(event="step", step=step, loss=float(loss))
        if self._events is not None:
            self._events.add_scalar("loss", float(loss), step)
            self._events.flush()
        self._tell_fused()
        self.watch_work(step)

    def watch_work(self, step: int) -> None:
        """Measure the GPU's work, where a launch asks for it; call it at the end of each update."""
        if self._work_of:
            try:
                self._measure_work(step)
            except Exception as error:  # a profiler that fails costs the figure, not the training
                self._work_of = 0
                print(f"the GPU's work is not measured: {error}", file=sys.stderr, flush=True)

    def _measure_work(self, step: int) -> None:
        """Record how long the GPU works in an update; a profiler watches some for that."""
        torch, last = importlib.import_module("torch"), self._work_after + self._work_of
        if step == self._work_after - 1:
            # The first update only prepares: that takes one rank longer than another, which waits.
            plan = torch.profiler.schedule(wait=0, warmup=1, active=self._work_of + 1)
            activities = [torch.profiler.ProfilerActivity.CUDA]
            self._profile = torch.profiler.profile(activities=activities, schedule=plan)
            self._profile.start()
        elif self._profile is not None and step < last:
            if step == self._work_after:
                torch.cuda.synchronize()
                self._work_began = time.perf_counter()
            self._profile.step()
        elif self._profile is not None:
            torch.cuda.synchronize()
            wall = (time.perf_counter() - self._work_began) / self._work_of
            self._profile.stop()
            spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            for event in self._profile.events():
                on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
                if on_gpu and not event.is_user_annotation:
                    span = event.time_range.start, event.time_range.end
                    spans[event.name.startswith("nccl")].append(span)
            self._profile = None
            if not spans[False]:
                raise RuntimeError("the profiler saw nothing that the GPU ran")
            all_of_it, own, sent = (
                covered(found) / 1e6 / self._work_of
                for found in (spans[False] + spans[True], spans[False], spans[True])
            )
            self._write(event="work", wall=wall, seconds=all_of_it, compute=own, communication=sent)

    def valid(self, step: int, loss: float) -> None:
        """Record a validation after update `step`; `loss` is the mean over all ranks."""
        if self._says:
            print(f"update {step} valid {float(loss):.4f}", flush=True)
        self._write(event="valid", step=step, loss=float(loss))

    def window(
        self,
        step: int,
        loss: float,
        *,
        seconds: float,
        tokens: float,
        peak_bytes: int,
        updates: Iterable[float] = (),
    ) -> None:
        """Record a bench's window: the updates up to `step` since the window before.

        Args:
            loss: mean over the window's updates and the global batch.
            seconds: wall time of the window, with the device synchronised at both ends.
            tokens: tokens that this rank processed.
            peak_bytes: peak GPU memory of tensors since the training began; 0 on CPUs.
            updates: seconds of each of the window's updates.
        """
        self._write(
            event="window", step=step, loss=float(loss), seconds=round(seconds, 6),
            tokens=float(tokens), peak_bytes=int(peak_bytes),
            updates=[round(one, 4) for one in updates],
        )  # fmt: skip
        self._tell_fused()

    def params(self, step: int, named: Iterable[tuple[str, Any]], group: str = "all") -> None:
        """Record a hash of the parameters after `step`.

        Ranks that give the same `group` must hold the same bits: data-parallel replicas give
        one group, tensor-parallel ranks give one group for the replicated parameters only.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(named, key=lambda pair: pair[0]):
            digest.update(name.encode())
            digest.update(repr(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().to("cpu").float().contiguous().numpy().tobytes())
        self._write(event="params", step=step, group=group, sha256=digest.hexdigest())

    def saved(self, step: int) -> None:
        """Record that this rank's part of the checkpoint of `step` is complete on disk."""
        self._write(event="saved", step=step)

    def loaded(self, step: int) -> None:
        """Record that training goes on from the checkpoint of `step`."""
        self._write(event="loaded", step=step)

    def end(self, step: int) -> None:
        """Record that this rank did all it was asked to and is about to exit with 0."""
        self._tell_fused()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            self._write(
                event="memory",
                allocated=torch.cuda.max_memory_allocated(),
                reserved=torch.cuda.max_memory_reserved(),
            )
        self._write(event="end", step=step)
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _tell_fused(self) -> None:
        """Record the state of the fused parts where it has changed."""
        parts = _fused()
        if parts != self._parts:
            self._parts = parts
            self._write(event="fused", parts=parts)

    def _write(self, **fields: Any) -> None:
        # One write of one short line: readers never see half a line of a live rank.
        self._file.write(json.dumps({**fields, "time": round(time.time(), 3)}) + "\n")
        self._file.flush()
