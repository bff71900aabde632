"""Read the health of every host, and compare the clocks of all.

Owns what only several hosts, or their survey, can say of health: clocks and disks. `gpu.health`
judges the rest.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from stackyard.gpu import health
from stackyard.gpu.doctor import NOT_RUN, NOTE, OK, WRONG, Finding
from stackyard.gpu.health import HostHealth
from stackyard.mesh.link import Link, on_each
from stackyard.mesh.node_plan import DISK_BYTES, SKEW_SECONDS, SKEW_WARNING
from stackyard.mesh.survey import HostFacts

_START = 'command -v "$1" > /dev/null || { echo "there is no $1"; exit 0; }; exec "$@"'
SET_CLOCK = "set it (chrony, timedatectl set-ntp true)"


def examine(
    links: Mapping[str, Link], facts: Mapping[str, HostFacts]
) -> dict[str, tuple[Finding, ...]]:
    """Read the health of all hosts at the same time; return the findings of each."""
    return judge(read_all(links), facts)


def read_all(links: Mapping[str, Link], *, load: bool = False) -> dict[str, HostHealth]:
    """Read the health of all hosts at the same time; one that does not answer is unread.

    Args:
        load: only the utilization, power and memory of their GPUs.
    """
    found, failed = on_each(links, read_load if load else read)
    for name, error in failed.items():
        found[name] = HostHealth(unread=error.what.removeprefix(f"{name}: "))
    return found


def read(link: Link) -> HostHealth:
    """Read the health of one host, which needs python3 for it.

    Raises:
        HostError: the host does not answer in time.
    """
    return _read(link, health.COMMAND, health.SECONDS)


def read_load(link: Link) -> HostHealth:
    """Read the utilization, power and memory of the GPUs of one host, as `read` does."""
    return _read(link, health.LOAD_COMMAND, health.LOAD_SECONDS)


def _read(link: Link, command: Sequence[str], seconds: float) -> HostHealth:
    words = ("sh", "-c", _START, "sh", *command)
    return health.parse(link.send(health.PROGRAM, *words, seconds=seconds))


def judge(
    found: Mapping[str, HostHealth], facts: Mapping[str, HostFacts]
) -> dict[str, tuple[Finding, ...]]:
    """Return the findings of each host."""
    clocks = clock_findings(facts)
    return {
        name: (clocks[name], _disk(one), *health.host_findings(found[name]))
        for name, one in facts.items()
    }


def nvlinked(found: Mapping[str, HostHealth]) -> frozenset[str]:
    """Return the hosts of which two GPUs at least have an active NVLink."""
    return frozenset(
        name for name, one in found.items()
        if sum(any(link.active for link in gpu.links) for gpu in one.gpus) > 1
    )  # fmt: skip


def clock_findings(facts: Mapping[str, HostFacts]) -> dict[str, Finding]:
    """Compare each host's clock with the median of all hosts."""
    known = [one.skew for one in facts.values() if one.skew is not None]
    middle = statistics.median(known) if known else 0.0
    found = {}
    for name, one in facts.items():
        if one.skew is None:
            found[name] = Finding(name="clock", state=NOT_RUN, what="it reports no time")
            continue
        off = max(0.0, abs(one.skew - middle) - one.skew_error)
        state = WRONG if off > SKEW_SECONDS else NOTE if off > SKEW_WARNING else OK
        what = f"at least {off:.1f} s from the others'"
        if state == OK:
            what = f"no more than {SKEW_WARNING:.0f} s from the others', as far as can be seen"
        found[name] = Finding(name="clock", state=state, what=what,
                              hint="" if state == OK else SET_CLOCK)  # fmt: skip
    return found


def _disk(facts: HostFacts) -> Finding:
    free = facts.engine_free_bytes
    if free is None:
        return Finding(name="disk", state=NOT_RUN, what="its free space cannot be read")
    state = WRONG if free < DISK_BYTES else OK
    return Finding(name="disk", state=state, what=f"{free / 2**30:.1f} GiB are free where the"
                   " engine keeps containers",
                   hint="docker system df there" if state == WRONG else "")  # fmt: skip


def summary(findings: Sequence[Finding]) -> str:
    """Return a host's findings as one cell of a table."""
    counts = Counter(one.state for one in findings)
    shown = [f"{counts[state]} {state}" for state in (WRONG, NOT_RUN, NOTE) if counts[state]]
    return ", ".join(shown) or OK


def remarks(found: Mapping[str, Sequence[Finding]]) -> list[str]:
    """Return one line for each finding that is not `ok`, with all hosts that have it."""
    hosts: dict[Finding, list[str]] = {}
    for name, findings in found.items():
        for one in findings:
            if one.state != OK:
                hosts.setdefault(one, []).append(name)
    order = (WRONG, NOT_RUN, NOTE)
    return [
        f"{', '.join(names)}: {one.name} {one.state}: {one.what}"
        + (f"; {one.hint}" if one.hint else "")
        for one, names in sorted(hosts.items(), key=lambda item: order.index(item[0].state))
    ]


def appeared(before: Mapping[str, HostHealth], after: Mapping[str, HostHealth]) -> list[str]:
    """Return one line for each finding of hosts that a run did not find at its start.

    Notes are left out: power limits under load and corrected errors are no reason to stop.
    """
    new = {
        name: health.merged(
            finding for finding in health.appeared(before[name], one) if finding.state != NOTE
        )
        for name, one in after.items() if name in before
    }  # fmt: skip
    return remarks(new)
