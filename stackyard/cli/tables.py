"""Render results as tables for people: images, plans, checks and phases of smokes, comparisons.

Owns which columns and rows a table has. It must not print: `cli.console` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from stackyard.gpu.doctor import Finding
from stackyard.report.comparison_view import curve_rows
from stackyard.report.figures import figure

STYLES = {"passed": "bold green", "failed": "bold red", "not run": "bold yellow"}


def image_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of stacks on bases: locked, built and proven; rows from `list_all`."""
    table = Table(title="images", title_justify="left")
    for column in ("stack", "base", "locked", "image", "size", "smoke"):
        table.add_column(column)
    for row in rows:
        size = f"{row['size_bytes'] / 1e9:.2f} GB" if row["size_bytes"] else ""
        proven = outcome_text(row["smoke"]) if row["smoke"] else ""
        locked = "yes" if row["locked"] else "no"
        cells = (row["stack"], row["base"], locked, row["image"] or "not built", size, proven)
        table.add_row(*cells)
    return table


def certify_table(report: Mapping[str, Any]) -> Table:
    """Return the table of certified hosts: GPUs by state, and why a host is bad."""
    table = Table(title=f"hosts {report['outcome']}", title_justify="left")
    for column in ("host", "state", "GPUs", "fingerprints", "why"):
        table.add_column(column, overflow="fold")
    for host in report["hosts"]:
        states = [gpu["state"] for gpu in host["gpus"]]
        counts = ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))
        bits = ", ".join(dict.fromkeys(gpu["fingerprint"] or "none" for gpu in host["gpus"]))
        whys = [host["why"], *(f"{g['name']}: {g['why']}" for g in host["gpus"] if g["why"])]
        table.add_row(host["host"], host["state"], counts, bits, "; ".join(filter(None, whys)))
    return table


def plan_table(found: Mapping[str, Any]) -> Table:
    """Return the table of one image's values and their origins, as from `show_value`."""
    table = Table(title=f"{found['stack']} on {found['base']}", title_justify="left")
    for column in ("what", "value", "from"):
        table.add_column(column, overflow="fold")
    for kind in ("facts", "environment", "provided", "packages"):
        for name, setting in found[kind].items():
            table.add_row(f"{kind}: {name}", setting["value"], setting["from"])
    for name, symptom in found["fixes"].items():
        table.add_row(f"fix: {name}", symptom.splitlines()[0][:100], f"images/fixes/{name}.yml")
    for name, reason in found["fixes_left_out"].items():
        table.add_row(f"fix left out: {name}", reason, f"images/fixes/{name}.yml")
    for name, version in found["built_here"].items():
        table.add_row(f"built here: {name}", version, f"images/wheels/{name}.yml")
    table.add_row("system packages", ", ".join(found["system"]) or "none beyond the base", "")
    table.add_row("compiler in the image", found["compiler_at_run_time"], "")
    table.add_row("Dockerfile", found["dockerfile"], found["tag"])
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return the table of `invoke doctor`'s findings, in the order of repair."""
    table = Table(title="this machine", title_justify="left")
    for column in ("what", "", "found", "what to do"):
        table.add_column(column, overflow="fold")
    styles = {"ok": "green", "note": "yellow", "wrong": "bold red", "not run": "bold yellow"}
    for finding in findings:
        state = f"[{styles[finding.state]}]{finding.state}[/]"
        table.add_row(finding.name, state, finding.what, finding.hint)
    return table


def outcome_text(outcome: str) -> str:
    """Return an outcome in its colour."""
    return f"[{STYLES.get(outcome, '')}]{outcome}[/]"


def smoke_table(reports: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of checks: one row per check, one column per stack."""
    table = Table(title="smoke", title_justify="left")
    table.add_column("check", style="bold")
    for report in reports:
        table.add_column(f"{report['stack']} on {report['base']}")
    names = list(dict.fromkeys(c["name"] for r in reports for c in r["checks"]))
    for name in names:
        table.add_row(name, *(_cell(report, name) for report in reports))
    table.add_section()
    table.add_row("verdict", *(outcome_text(report["outcome"]) for report in reports))
    return table


def _cell(report: Mapping[str, Any], name: str) -> str:
    check = next((c for c in report["checks"] if c["name"] == name), None)
    if check is None:
        return ""
    return f"{outcome_text(check['outcome'])} {figure(check)}"


def phase_table(reports: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of seconds per phase: two columns per stack, phases in their order."""
    table = Table(title="phases, seconds", title_justify="left")
    for report in reports:
        table.add_column(str(report["stack"]))
        table.add_column("s", justify="right", no_wrap=True)  # a narrow terminal cuts no number
    rows = max((len(report["phases"]) for report in reports), default=0)
    for row in range(rows):
        cells = []
        for report in reports:
            phases = report["phases"]
            known = row < len(phases)
            cells += [phases[row]["name"], f"{phases[row]['seconds']:.2f}"] if known else ["", ""]
        table.add_row(*cells)
    if not reports:
        return table
    table.add_section()
    totals = [f"{sum(p['seconds'] for p in report['phases']):.1f}" for report in reports]
    table.add_row(*(cell for total in totals for cell in ("total", total)))
    return table


def comparison_table(value: Mapping[str, Any]) -> Table:
    """Return the table of both smokes' layouts, side by side."""
    before, after = value["before"], value["after"]
    title = f"{after['stack']} on {after['base']}: {after['started']} against {before['started']}"
    table = Table(title=title, title_justify="left")
    for column in ("layout", "losses", "updates", "largest difference", "part at", "allowed",
                   "updates/s"):  # fmt: skip
        table.add_column(column, overflow="fold")
    for row in curve_rows(value):
        outcome = outcome_text(row["outcome"]) if row["outcome"] else ""
        table.add_row(row["layout"], outcome, row["updates"], row["difference"], row["parts"],
                      row["tolerance"], row["speed"])  # fmt: skip
    table.add_section()
    resume = value["resume"]
    said = f"{resume['before']} before, {resume['after']} now"
    table.add_row("resume", outcome_text(resume["outcome"]), "", said)
    table.add_row("comparison", outcome_text(value["outcome"]))
    return table


def outdated_table(found: Mapping[str, Any]) -> Table:
    """Return the table of one stack's newer upstream releases, from `outdated.outdated`."""
    table = Table(title=f"{found['stack']} on {found['base']}", title_justify="left")
    columns = ("package", "locked", "a lock now", "newest", "released", "asked for in", "fixes")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in found["packages"]:
        newest = f"[bold yellow]{row['newest']}[/]" if row["behind"] else row["newest"] or "?"
        moved = row["allowed"] if row["allowed"] != row["locked"] else ""
        lacking = ", ".join(row["fixes_not_covering"])
        lacking = lacking and f"not covered: {lacking}"
        asked = row["asked_in"] or "by others"
        day = row["released"]
        table.add_row(row["name"], row["locked"], moved, newest, day, asked, lacking)
    return table
