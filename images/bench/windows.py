"""Measure a bench: record seconds, tokens, loss and memory of every few updates.

Owns when the clock is read: every STACKYARD_BENCH_WINDOW updates, with the device synchronised. In
between nothing waits for the device: losses stay on it, and its own events time each update. After
the last counted update a few more follow, in which a profiler watches the GPU. Used by every
program of `invoke bench`.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import torch
from stackyard_record import Recorder


class Windows:
    """Record the windows of one rank.

    Args:
        recorder: record that they are written to.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._every = int(os.environ["STACKYARD_BENCH_WINDOW"])
        self._cuda = torch.cuda.is_available()
        self._loss: Any = 0.0
        self._weight: Any = 0.0
        self._tokens: Any = 0.0
        self._peak = 0
        self.start()

    def start(self) -> None:
        """Start the clock at the first update."""
        self._began, self._marks = self._now(), [self._mark()]

    def look_at_memory(self) -> None:
        """Read the peak so far, for programs that reset it, before they do."""
        if self._cuda:
            self._peak = max(self._peak, torch.cuda.max_memory_allocated())

    def update(self, step: int, loss: Any, weight: Any, tokens: Any) -> None:
        """Record that update number `step` (from 1) is done.

        Args:
            loss: sum over the global batch, or over this rank's share; may lie on the device.
            weight: number to divide that sum by for the mean.
            tokens: tokens of this rank in this update.
        """
        if self._recorder.work_from and step > self._recorder.work_from:
            self._recorder.watch_work(step)  # these updates are not counted
            return
        self._loss, self._weight = self._loss + _wide(loss), self._weight + _wide(weight)
        self._tokens = self._tokens + _wide(tokens)
        self._marks.append(self._mark())
        if step % self._every:
            return
        now = self._now()
        self.look_at_memory()
        self._recorder.window(
            step,
            float(self._loss) / float(self._weight),
            seconds=now - self._began,
            tokens=float(self._tokens),
            peak_bytes=self._peak,
            updates=[self._between(*pair) for pair in itertools.pairwise(self._marks)],
        )
        self._recorder.watch_work(step)
        self._began, self._loss, self._weight, self._tokens = now, 0.0, 0.0, 0.0
        self._marks = self._marks[-1:]

    def _mark(self) -> Any:
        """Mark the end of the work given to the device so far; on CPU ranks, the present time."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, one: Any, other: Any) -> float:
        return float(one.elapsed_time(other)) / 1000 if self._cuda else float(other - one)

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def _wide(value: Any) -> Any:
    """Convert to double precision: sums of a window would lose digits in half or single."""
    return value.detach().double() if torch.is_tensor(value) else float(value)
