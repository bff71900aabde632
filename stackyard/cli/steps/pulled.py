"""Show what became of a pull onto hosts, and refuse one that leads back.

Owns what pulls of images and of files have in common at their beginning and their end.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from stackyard.cli.console import Terminal
from stackyard.cli.options.releases import PullRequest
from stackyard.cli.release_view import pull_table, pulled_line
from stackyard.mesh.link import cause, remark
from stackyard.release.receiver import Progress
from stackyard.release.statement import later_revision
from stackyard.release.verify import Verified
from stackyard.system.errors import ReleaseError, StackyardError


def require_no_way_back(held: Mapping[str, list[str]], name: str) -> None:
    """Check that nobody holds a later release than the registry's newest.

    Args:
        held: names of releases, by who holds them.

    A user who may push can move a tag back to an older release, whose signature is still valid.

    Raises:
        ReleaseError: somebody does.
    """
    for who, tags in held.items():
        later = later_revision(name, tags)
        if later:
            raise ReleaseError(
                f"the registry's newest release is {name}, but {who} holds {later}",
                why="the tag was moved back, or later ones were removed",
                hint=f"if that was meant: --release {name}",
            )


def lost(host: str, error: StackyardError) -> Progress:
    """Return the progress of a host that cannot take part."""
    return Progress(state="failed", why=cause(host, error), hint=error.hint)


def told(
    found: Verified, progress: Mapping[str, Progress], fetched: int, seconds: float,
    given: PullRequest, terminal: Terminal,
) -> tuple[dict[str, Any], int]:  # fmt: skip
    """Show what became of a pull onto hosts; return the answer and the exit code."""
    entry = found.release
    failed = sorted(name for name, mark in progress.items() if mark.state == "failed")
    times = sorted(mark.seconds for mark in progress.values() if mark.state == "pulled")
    moved = sum(mark.moved for mark in progress.values())
    whole = entry.size * sum(mark.state in ("pulled", "held") for mark in progress.values())
    value = {
        "release": entry.name, "digest": entry.digest, "image_id": entry.image_id,
        "signer": found.signer, "proven": entry.proven, "seconds": round(seconds, 2),
        "p50_seconds": round(statistics.median(times), 2) if times else None,
        "p99_seconds": times[min(len(times) - 1, int(0.99 * len(times)))] if times else None,
        "from_registry_bytes": fetched, "saved_bytes": max(0, whole - fetched),
        "moved_bytes": moved,
        "hosts": {
            name: {"state": m.state, "seconds": m.seconds, "bytes": m.moved, "digest": m.digest,
                   "why": m.why, "hint": m.hint}
            for name, m in sorted(progress.items())
        },
    }  # fmt: skip
    terminal.text(pulled_line(value))
    terminal.table(pull_table(value))
    mended = [name for name in failed if progress[name].hint]
    for name in mended:
        terminal.text(remark(name, progress[name].why, progress[name].hint))
    if failed:
        after = "after that " if mended else ""
        terminal.text(f"{len(failed)} of {len(progress)} hosts do not have it: {', '.join(failed)};"
                      f" {after}the same command goes on where it was")  # fmt: skip
    return value, 1 if len(failed) > given.max_unavailable else 0
