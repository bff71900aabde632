"""What every cluster asks of a job, and how a job that does not fit is refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from posixpath import normpath

from stackyard.launch import OPTIONS
from stackyard.launch.job import Job
from stackyard.system.errors import UsageError, shown

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def refuse(name: str, cluster: str, found: Sequence[str]) -> None:
    """Refuse a job for everything that was found, if anything was.

    Raises:
        UsageError: something was.
    """
    if found:
        raise UsageError(
            f"{shown(name)} cannot run on {cluster}: {len(found)} problem"
            f"{'s' if len(found) != 1 else ''}",
            why="\n".join(found),
            hint="change the job or the settings of the cluster as said above",
        )


def shape(job: Job, launchers: Collection[str]) -> Iterator[str]:
    """Say what is wrong with a job's nodes, device and launcher wherever it runs."""
    if job.nodes < 1 or job.per_node < 1:
        yield f"{job.nodes} nodes with {job.per_node} processes each: both must be at least 1"
    if job.device not in ("cpu", "cuda"):
        yield f"device {shown(job.device)!r}: cpu or cuda"
    if job.launcher not in launchers:
        yield f"launcher {shown(job.launcher)!r}: one of {', '.join(launchers)}"
    elif job.launcher == "alone" and job.ranks > 1:
        yield f"launcher alone: starts one process, not {job.ranks}; torchrun starts several"
    missing = [name for name in OPTIONS.get(job.launcher, ()) if name not in job.options]
    if job.ranks > 1 and missing:
        yield f"options: launcher {job.launcher} needs {', '.join(missing)}"
    if not is_absolute(job.folder):
        yield f"folder {shown(job.folder)!r}: an absolute path without `..`"


def is_absolute(path: str) -> bool:
    """Return whether a path is absolute, printable and has no `..`."""
    return path.startswith("/") and normpath(path) == path and path.isprintable()
