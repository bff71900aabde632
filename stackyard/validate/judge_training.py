"""Judge one training, whatever ran it: its end, losses, curve, and processes left behind.

Owns the messages that smokes, benches and comparisons share. Pure: it sees only what was recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stackyard.mesh.node import GRACE_SECONDS
from stackyard.validate.checks import Check, check, not_run
from stackyard.validate.record import Training

# At most this many processes of each node are named.
_NAMED = 5


def never_joined(training: Training) -> list[str]:
    """Name the ranks that recorded nothing, each with its node."""
    nodes, wanted = training.nodes, training.wanted
    return [
        f"rank {rank} ({nodes[rank * len(nodes) // wanted]}) never joined"
        for rank in range(wanted)
        if rank not in training.ranks
    ]


def unfinished(training: Training, updates: int) -> list[str]:
    """Say why a training did not end as it should; names the rank and its node."""
    if training.killed:  # on purpose, once every rank had got there
        return [
            f"rank {r.rank} ({r.host}) was killed after update {r.last} already"
            for r in training.ranks.values()
            if r.last < updates
        ]
    wrong = []
    if training.stopped:
        wrong.append(training.stopped)
    elif training.code not in (0, None):
        wrong.append(f"the launcher ended with exit code {training.code}")
    for record in training.ranks.values():
        if record.ended is None:
            wrong.append(f"rank {record.rank} ({record.host}) stopped after update {record.last}")
        elif record.ended != updates:
            wrong.append(f"rank {record.rank} ({record.host}) ended at update {record.ended}")
    return wrong


def not_finite(training: Training) -> str:
    """Name the first loss of any rank that is not finite; empty where all are."""
    bad = [(r.rank, r.host, s) for r in training.ranks.values()
           for s, v in sorted(r.losses.items()) if not math.isfinite(v)]  # fmt: skip
    if not bad:
        return ""
    rank, host, step = min(bad, key=lambda entry: entry[2])
    return f"the loss of rank {rank} ({host}) is not finite at update {step}"


def gaps(
    one: Mapping[int, float], other: Mapping[int, float], *, after: int = 0, last: int = 0
) -> dict[int, float]:
    """Return the absolute differences of two curves, at the updates that both have.

    A difference that is no number counts as infinite.

    Args:
        after: updates up to this one do not count.
        last: nor do those after this one; 0 for all.
    """
    found = {}
    for step in sorted(set(one) & set(other)):
        if step > after and (not last or step <= last):
            gap = abs(one[step] - other[step])
            found[step] = gap if math.isfinite(gap) else math.inf
    return found


def largest_gap(found: Mapping[int, float]) -> tuple[float, int]:
    """Return the largest of some differences and its update; twice 0 where there are none."""
    where = max(found, key=lambda step: found[step], default=0)
    return found.get(where, 0.0), where


def left_behind(groups: Mapping[str, Sequence[Training]], broken: str) -> Check:
    """Check that no process of any training is left on any node.

    Args:
        groups: trainings by name. Those that ran at the same time are one group and list the same
            processes, as a process cannot be assigned to one of them.
        broken: why trainings could not be started; empty if they could.
    """
    expected = {"processes_left": 0, "within_seconds": GRACE_SECONDS}
    if not groups:
        return not_run("no_strays", expected, broken or "nothing was trained")
    wrong, count = [], 0
    for name, trainings in groups.items():
        left = {
            (node, process["pid"]): f"{name}: {node} still runs {process['pid']}:"
            f" {process['command']}"
            for training in trainings
            for node, found in training.strays.items()
            for process in found
        }
        count += len(left)
        for node in dict.fromkeys(node for node, _ in left):
            wrong += [said for (on, _), said in left.items() if on == node][:_NAMED]
    measured = {"processes_left": count, "trainings": sum(map(len, groups.values()))}
    unseen = [f"{name}: {node} did not tell what is left"
              for name, trainings in groups.items()
              for node in dict.fromkeys(n for one in trainings for n in one.unseen)]  # fmt: skip
    if unseen and not wrong:
        return not_run("no_strays", expected, "; ".join(unseen), measured)
    return check("no_strays", measured, expected, wrong)
