"""Show live progress on standard error and results on standard output.

Owns the terminal. In a terminal one live block shows each stack's phase, update and loss; elsewhere
every event is one plain line. Standard output carries results only, so that `--json` is clean.
rich is imported on first use, since a build that has nothing to do draws nothing.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stackyard.system.stream import Note, ToolLine

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

SPARKS = "▁▂▃▄▅▆▇█"
# One clock for all commands that a person typed in one line (`invoke engine smoke`).
STARTED = time.monotonic()


def spark(values: Sequence[float], width: int = 16) -> str:
    """Draw a curve as one line of text, from `width` evenly spaced values."""
    values = [value for value in values if math.isfinite(value)]
    if len(values) < 2:
        return ""
    picked = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(picked), max(picked)
    scale = (len(SPARKS) - 1) / ((high - low) or 1.0)
    return "".join(SPARKS[round((value - low) * scale)] for value in picked)


class Terminal:
    """Show one command's progress; a context manager, so that the live block always closes."""

    def __init__(
        self, *, json: bool = False, live: bool | None = None, verbose: bool = False
    ) -> None:
        self.json = json
        self.verbose = verbose
        # The last lines shown of a training, from which its failure is explained.
        self.tail = ""
        # What an interrupt leaves, as it is said then.
        self.interrupted = "everything of this run has been removed"
        self._lock = threading.Lock()
        self._live = sys.stderr.isatty() if live is None else live
        self._tasks: dict[str, Any] = {}
        self._said: dict[str, str] = {}
        self._curves: dict[tuple[str, str], list[float]] = {}

    @property
    def seconds(self) -> float:
        """Return the seconds since the program began."""
        return time.monotonic() - STARTED

    @property
    def clock(self) -> str:
        """Return the time since the program began, as lines begin with it."""
        return f"[{self.seconds:7.1f} s]"

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def rest(self) -> None:
        """Remove the live block; the next event of a stack draws it again."""
        if "_progress" in vars(self):
            self._progress.stop()

    @cached_property
    def _progress(self) -> Progress:
        """Create the live block."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
        from rich.table import Column

        class Clock(ProgressColumn):
            def render(column, task: object) -> str:
                return self.clock

        return Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[stack]:<10}"),
            BarColumn(bar_width=16),
            # It has what the others leave: a long text is cut, and breaks no line into two.
            TextColumn(
                "{task.description}",
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            Clock(),
            console=Console(stderr=True, highlight=False, soft_wrap=True),
            transient=True,
            expand=True,
        )

    def say(self, stack: str, text: str) -> None:
        """Show one event of a stack: a build step or a phase; lines of tools only if verbose."""
        if isinstance(text, ToolLine) and not self.verbose:
            return
        with self._lock:
            if self._live and isinstance(text, Note):
                self._stay(stack, text)
            elif self._live:
                self._show(stack, text)
            elif self._said.get(stack) != text:  # a download reports each second, moved or not
                self._said[stack] = text
                print(f"{self.clock} {stack}: {text}", file=sys.stderr, flush=True)

    def done(self, stack: str, text: str) -> None:
        """Print a line that stays, when a stack has finished something; its row goes until more."""
        with self._lock:
            if stack in self._tasks:
                self._progress.update(self._tasks[stack], visible=False)
            self._stay(stack, text)

    def _stay(self, stack: str, text: str) -> None:
        line = f"{self.clock} {stack}: {text}"
        if self._tasks:
            self._progress.console.print(line, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def loss(self, stack: str, label: str, step: int, total: int, loss: float) -> None:
        """Show one update of a training: drawn live, or every tenth as a plain line."""
        with self._lock:
            curve = self._curves.setdefault((stack, label), [])
            curve.append(loss)
            if self._live:
                self._show(stack, f"{label}  loss {loss:.3f} {spark(curve)}", step, total)
            elif step % 10 == 0 or step == total:
                text = f"{label}: update {step}/{total} loss {loss:.4f}"
                print(f"{self.clock} {stack}: {text}", file=sys.stderr, flush=True)

    def _show(self, stack: str, text: str, step: int = 0, total: int | None = None) -> None:
        self._progress.start()
        if stack not in self._tasks:
            self._tasks[stack] = self._progress.add_task("", stack=stack, total=None)
        description = text.replace("[", "\\[")
        if not step:
            self._progress.reset(
                self._tasks[stack], total=None, description=description, visible=True
            )
        else:
            self._progress.update(
                self._tasks[stack], description=description, completed=step, total=total,
                visible=True,
            )  # fmt: skip

    def note(self, text: str) -> None:
        """Print a remark that is no part of the result."""
        with self._lock:
            print(text, file=sys.stderr, flush=True)

    def table(self, table: RenderableType) -> None:
        """Print a result as a table, or as several, unless JSON was asked for."""
        from rich.console import Console

        if not self.json:
            self.rest()
            # Without a terminal rich would squeeze tables into 80 columns.
            width = None if sys.stdout.isatty() else 120
            Console(highlight=False, width=width).print(table)

    def text(self, text: str) -> None:
        """Print a result line, unless JSON was asked for."""
        if not self.json:
            self.rest()
            print(text, flush=True)
