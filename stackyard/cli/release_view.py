"""Render releases and pulls as tables and lines for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from stackyard.release.receiver import Progress

_COLOURS = {"pulled": "green", "held": "green", "failed": "red"}


def release_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the releases that a registry holds."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("release", "MB", "proven", "seen on", "signed by", "made", "digest"):
        table.add_column(name, justify="right" if name == "MB" else "left", overflow="fold")
    for row in rows:
        if row["believed"]:
            table.add_row(
                row["name"], f"{row['bytes'] / 1e6:.0f}", "yes" if row["proven"] else "no",
                escape("\n".join(seen_lines(row))), row["signer"], row["created"][:16],
                row["digest"][7:19],
            )  # fmt: skip
        else:
            table.add_row(row["name"], "", "", "", "[red]not believed[/]", "", "")
    return table


def refusal_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason why releases are not believed, and for refused evidence."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if not row["believed"]:
            names.setdefault(row["why"], []).append(row["name"])
    lines = [f"{', '.join(of)}: not believed: {why}" for why, of in names.items()]
    return [*lines, *(f"{r['name']}: {w}" for r in rows for w in r.get("evidence_refused", ()))]


def seen_lines(row: Mapping[str, Any]) -> list[str]:
    """Return a line for each hardware that a release has trained on, with the signer."""
    shows = [f"{one['hardware']}; {one['kind']} by {one['signer']}" for one in row["evidence"]]
    if row["needs_gpus"] and not any(one["on_gpus"] for one in row["evidence"]):
        shows.insert(0, "no smoke on GPUs from an accepted signer")
    if not shows and row.get("proven") and not row["needs_gpus"]:
        shows.append(f"CPU ranks; smoke by {row['signer']}")
    return list(dict.fromkeys(shows))


def progress_text(progress: Mapping[str, Progress]) -> str:
    """Return one line with the progress of all hosts, and the time left for the slowest."""
    parts, left = [], 0.0
    for name, mark in progress.items():
        if mark.state == "receiving":
            share = 100 * mark.at / max(mark.size, 1)
            parts.append(f"{name} {share:.0f} % {mark.rate / 1e6:.0f} MB/s")
            left = max(left, (mark.size - mark.at) / mark.rate if mark.rate else 0.0)
        else:
            parts.append(f"{name} {mark.state}")
    return f"{', '.join(parts)}" + (f"; {left:.0f} s left" if left else "")


def pulled_line(value: Mapping[str, Any]) -> str:
    """Return what a pull moved, and from where."""
    fetched, seconds = value["from_registry_bytes"], f"{value['seconds']:.1f} s"
    came = {name: mark["bytes"] for name, mark in value["hosts"].items() if mark["bytes"]}
    if not came and not fetched:
        return f"{value['release']}: nothing had to be moved, {seconds}"
    # A host gets whole layers, from here: what the registry did not send was here before.
    cached = " (this machine held the rest)" if max(came.values(), default=0) > fetched else ""
    return (
        f"{value['release']}: {fetched / 1e6:.0f} MB from the registry{cached},"
        f" {sum(came.values()) / 1e6:.0f} MB to {len(came)} hosts, {seconds}"
    )


def pull_table(value: Mapping[str, Any]) -> Table:
    """Return the table of a pull's result on each host."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("host", "state", "seconds", "MB", "digest", "why"):
        right = name in ("seconds", "MB")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for name, mark in value["hosts"].items():
        colour = _COLOURS.get(mark["state"], "yellow")
        table.add_row(
            name, f"[{colour}]{mark['state']}[/]", f"{mark['seconds']:.1f}",
            f"{mark['bytes'] / 1e6:.0f}", mark["digest"][7:19], mark["why"][:80],
        )  # fmt: skip
    return table
