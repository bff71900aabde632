"""Check what every cluster requires of a job, and refuse a job that does not fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from posixpath import normpath

from stackyard.launch import OPTIONS
from stackyard.launch.job import Job
from stackyard.system.errors import UsageError, shown

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def refuse(name: str, cluster: str, found: Sequence[str]) -> None:
    """Refuse a job if any problem was found.

    Raises:
        UsageError: lists every problem.
    """
    if found:
        raise UsageError(
            f"{shown(name)} cannot run on {cluster}: {len(found)} problem"
            f"{'s' if len(found) != 1 else ''}",
            why="\n".join(found),
            hint="change the job or the settings of the cluster as said above",
        )


def shape(job: Job, launchers: Collection[str]) -> Iterator[str]:
    """Yield the problems of a job's nodes, device and launcher on any cluster."""
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
