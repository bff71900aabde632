"""Show runs on hosts as labelled lines, one training bar and tables.

Owns the drawing. Every line names its node and rank. Of the bars of many ranks only the lowest
rank's is shown, redrawn in place in a terminal and printed every ten seconds elsewhere.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.markup import escape
from rich.table import Table

from stackyard.cli.console import Terminal
from stackyard.mesh.node_plan import StandingPlan
from stackyard.mesh.runs import INTERRUPTED

if TYPE_CHECKING:
    from rich.live import Live

    from stackyard.cli.answers import HostLoad

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
BAR_SECONDS = 10.0
KEPT = 400


class RunView:
    """Show the lines of one job as they come; a context manager, which removes the bar at the end.

    Args:
        log: a file that also gets every line.
        everything: show all lines of all ranks; else skip a line of another rank than 0 that some
            rank has printed recently.
    """

    def __init__(
        self,
        plan: StandingPlan,
        job: str,
        terminal: Terminal,
        *,
        everything: bool = False,
        log: Path | None = None,
    ) -> None:
        self._log = log
        self._file: TextIO | None = None
        self._width = max(len(name) for name in plan.names) + 4
        self._colour = {n: COLOURS[i % len(COLOURS)] for i, n in enumerate(plan.names)}
        self._terminal, self._job = terminal, job
        self._bars: dict[int, Mapping[str, Any]] = {}
        self._told = -BAR_SECONDS
        self._live: Live | None = None
        self._everything = everything
        self.kept: list[Mapping[str, Any]] = []

    def __enter__(self) -> RunView:
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._log.open("a", encoding="utf-8")
        if sys.stdout.isatty() and not self._terminal.json:
            from rich.console import Console
            from rich.live import Live

            self._terminal.rest()  # two blocks would draw over each other
            console = Console(highlight=False, soft_wrap=True)
            self._live = Live(console=console, transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._file is not None:
            self._to_log(self._file.close)

    def _to_log(self, write: Callable[[], object]) -> None:
        """Write to the log; where that fails, say so once and go on without it."""
        try:
            write()
        except OSError as error:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()
            with contextlib.suppress(OSError):
                self._terminal.note(f"{self._log} cannot be written any more: {error.strerror}")

    def _print(self, text: str) -> None:
        """Print a line; a full disk behind the output does not end the training."""
        try:
            print(text, flush=True)
        except BrokenPipeError:  # `| head`: who reads no more ends the command
            raise
        except OSError:
            pass

    def line(self, entry: Mapping[str, Any]) -> None:
        """Show one line of a rank, or of a launcher."""
        again = not self._everything and self._repeats(entry)
        self.kept = [*self.kept[-KEPT:], entry]
        if (file := self._file) is not None:
            self._to_log(lambda: file.write(f"{self._label(entry)} {entry['text']}\n"))
        self._terminal.tail = "\n".join(str(e["text"]) for e in self.kept[-200:])
        if self._terminal.json or again:
            return
        if self._live is None:
            self._print(f"{self._label(entry)} {entry['text']}")
            return
        colour = self._colour.get(str(entry["node"]), "white")
        label, text = escape(self._label(entry)), escape(str(entry["text"]))
        self._live.console.print(f"[{colour}]{label}[/] {text}", soft_wrap=True)

    def _repeats(self, entry: Mapping[str, Any]) -> bool:
        """Return whether another rank has printed the same line."""
        rank = entry.get("rank")
        return bool(rank) and any(
            e["text"] == entry["text"] and e.get("rank") not in (None, rank) for e in self.kept
        )

    def _label(self, entry: Mapping[str, Any]) -> str:
        rank = entry.get("rank")
        name = str(entry["node"]) if rank is None else f"{entry['node']} {rank}"
        return f"{name:<{self._width}}|"

    def bar(self, entry: Mapping[str, Any]) -> None:
        """Show the latest state of a progress bar."""
        self._bars[int(entry["rank"])] = entry
        if self._terminal.json:
            return
        first = self._bars[min(self._bars)]
        more = f"  (and {len(self._bars) - 1} more)" if len(self._bars) > 1 else ""
        text = f"{self._label(first)} {str(first['text']).strip()}{more}"
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif time.monotonic() - self._told >= BAR_SECONDS:
            self._told = time.monotonic()
            self._print(text)

    def step(self, what: str) -> None:
        """Show that the job has begun another of its steps."""
        if self._live is None:
            self._terminal.say(self._job, what)
        else:
            self._live.console.print(f"{self._terminal.clock} {self._job}: {what}", markup=False)


def runs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of runs on hosts, with the last job of each."""
    table = Table(title="runs", title_justify="left")
    for column in ("run", "stack", "nodes", "job", "ranks", "since", "state"):
        table.add_column(column, overflow="fold")
    for row in rows:
        nodes = ", ".join(f"{n} (gone)" if n in row["missing"] or n in row["lost"] else n
                          for n in row["nodes"])  # fmt: skip
        job = row["jobs"][-1] if row["jobs"] else None
        state = row["error"] or ("up" if job is None else _job_state(job))
        since = datetime.fromtimestamp(job["started"]).strftime("%d %b %H:%M:%S") if job else ""
        table.add_row(
            row["run"], f"{row['stack']} ({row['base']})", nodes, job["name"] if job else "",
            str(job["shown"].get("ranks", "")) if job else "", since, state,
        )  # fmt: skip
    return table


def _job_state(job: Mapping[str, Any]) -> str:
    if job["state"] == "running":
        return "\n".join(_progress(job))
    if job["state"] != "ended":
        return str(job["state"])
    if job["code"] == 0 and not job["reason"]:
        return f"done in {job['ended'] - job['started']:.0f} s"
    if job["reason"] == INTERRUPTED:
        return "interrupted; the mesh is still up"
    return f"failed: {job['reason'] or 'exit code ' + str(job['code'])}"


def _progress(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of what is known of a running job: step, update and loss, rate and time to go."""
    if job.get("hang"):
        yield f"does not get on: {job['hang']}"
    elif not job.get("update"):
        yield str(job["step"])
    if not job.get("update"):
        return
    total, rate = job["shown"].get("updates"), job.get("updates_per_second")
    of, loss = f" of {total:,}" if total else "", job.get("loss")
    yield f"update {job['update']:,}{of}" + ("" if loss is None else f", loss {float(loss):.4f}")
    if rate and not job.get("hang"):
        left = f", {span(max(0, total - job['update']) / rate)} to go" if total else ""
        yield f"{rate:.3g} updates/s{left}"


def span(seconds: float) -> str:
    """Return a time for people: its largest unit, and the next for hours and days."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    if hours < 36:
        return f"{int(hours)} h {int(minutes % 60)} min"
    return f"{int(hours / 24)} d {int(hours % 24)} h"


def loads_table(hosts: Sequence[HostLoad]) -> Table:
    """Return the table of what GPUs do: a row for each host, a value for each of its GPUs."""
    table = Table(title="GPUs (values in the order of their numbers)", title_justify="left")
    for column in ("host", "GPUs", "busy %", "power W", "memory GiB", "remarks"):
        table.add_column(column, overflow="fold")
    for host in hosts:
        gpus = host["gpus"]
        kinds = Counter(gpu["name"] for gpu in gpus)
        waiting = [gpu for gpu in gpus if gpu["waits"]]
        numbers = ", ".join(str(gpu["index"]) for gpu in waiting)
        lost = [f"GPU {gpu['index']}: {gpu['unread']}" for gpu in gpus if gpu["unread"]]
        waits = [f"GPU {numbers}: busy at little power, as one that waits"] if waiting else []
        table.add_row(
            host["host"],
            ", ".join(f"{count} x {name}" for name, count in kinds.items()),
            " ".join(_shown(gpu["busy_percent"]) + "!" * gpu["waits"] for gpu in gpus),
            _of([gpu["power_watts"] for gpu in gpus], [gpu["power_limit_watts"] for gpu in gpus]),
            _of([gpu["memory_used_gib"] for gpu in gpus], [gpu["memory_gib"] for gpu in gpus]),
            "; ".join(filter(None, [host["unread"], *waits, *lost])),
        )
    return table


def _of(values: Sequence[float | None], limits: Sequence[float | None]) -> str:
    """Return values, and the limit of all or of each."""
    if not values:
        return ""
    highest = " ".join(_shown(one) for one in limits) if len(set(limits)) > 1 else _shown(limits[0])
    return f"{' '.join(_shown(one) for one in values)} of {highest}"


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def hosts_table(answer: Mapping[str, Any]) -> tuple[Table, str]:
    """Return the table of the findings of `doctor --hosts`, one row per host, and a line below it.

    The line has the columns that are the same on all hosts that answer; empty where none is. A
    column that no host has a value for is in neither.
    """
    table = Table(title="hosts", title_justify="left")
    columns, rows = answer["columns"], answer["hosts"]
    # A host that does not answer has its name and the reason.
    known = [row for row in rows if set(columns) <= set(row)]
    silent = len(known) < len(rows)
    same = [
        column
        for column in columns
        if len(rows) > 1
        and column != "host"
        and len({str(row[column]) for row in known}) == 1
        and not (column == "engine" and silent)
    ]
    apart = [c for c in columns if c not in same and any(row.get(c, "") != "" for row in rows)]
    for column in apart:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in apart))
    told = [f"{column} {known[0][column]}" for column in same if known[0][column]]
    which = "the same on all hosts that answer" if silent else "the same on all hosts"
    which = known[0]["host"] if len(known) == 1 else which
    return table, f"{which}: {'; '.join(told)}" if told else ""
