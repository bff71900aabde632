"""Decide whether a run that failed is started again, and on which hosts.

Owns the reasons against another start. Pure: what was seen is an argument; `cli.steps.run` starts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stackyard.system.errors import UsageError

# A rank's own words follow these, which say which rank was seen first and where.
_RANK = re.compile(r"^rank \d+ \([^)]*\) ended(?: after update \d+)?: ")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Describe how a job failed, without what differs between two starts by chance.

    Attributes:
        update: the last update that was recorded; None where the program records none.
    """

    update: int | None
    reason: str


def failure_of(job: Mapping[str, Any], lost: str = "") -> Failure:
    """Return the failure of a job by its record.

    Args:
        lost: why contact with the job was lost; empty if it was not.
    """
    reason = lost or str(job.get("reason") or f"exit code {job.get('code')}")
    return Failure(update=job.get("update"), reason=_NUMBER.sub("N", _RANK.sub("", reason)))


def why_not(failures: Sequence[Failure]) -> str:
    """Return why a job is not started again after its last failure; empty if it may be."""
    if failures.count(failures[-1]) < 2:
        return ""
    at = failures[-1].update
    where = "twice" if at is None else f"twice after update {at}"
    return f"it failed {where} for the same reason"


def hosts_left(
    hosts: Sequence[str], away: Collection[str], answer: Collection[str], shards: int | None
) -> tuple[tuple[str, ...], str]:
    """Return the hosts of the next start, or the reason against one.

    A checkpoint that is cut over the ranks is only read by as many: then the hosts of lost nodes
    must take part again.

    Args:
        away: hosts of nodes that were lost.
        answer: those of them that answer.
        shards: ranks that the newest checkpoint is cut over; None if any number can read it.
    """
    gone = [host for host in hosts if host in away]
    left = tuple(host for host in hosts if host not in away)
    if not gone or (shards is None and left):
        return left, ""
    if shards is not None and set(gone) <= set(answer):
        return tuple(hosts), ""
    if not left:
        return (), "no host is left"
    missing = ", ".join(host for host in gone if host not in answer)
    return (), f"its checkpoint is cut over {shards} ranks, which need {missing}, too"


def require_shards(save: str, shards: int | None, ranks: int) -> None:
    """Require that as many ranks start as the newest checkpoint is cut over.

    Raises:
        UsageError: fewer or more would start.
    """
    if shards is not None and shards != ranks:
        raise UsageError(
            f"the newest checkpoint in {save} is cut over {shards} ranks, and {ranks} would start",
            why="every rank reads its own part of weights or optimizer state, and none converts it",
            hint=f"start {shards} ranks, or name another folder by --save",
        )
