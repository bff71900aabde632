"""Run `invoke certify` on hosts, from its arguments to the verdict.

Owns the meaning of its arguments, what is left out with a reason, and its output.
`validate.certify.search` certifies, `report.certify` makes the record.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stackyard.cli import tables
from stackyard.cli.answer import EXIT_CODES
from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import CertifyRequest
from stackyard.cli.steps.hosts import load_fleet
from stackyard.cli.steps.run import wanted_of
from stackyard.definitions.project import Project, load_project
from stackyard.gpu.doctor import WRONG, Finding
from stackyard.mesh import host_health, runs, standing
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.node_plan import MeshRequest, usable_gpus
from stackyard.mesh.preflight import Muster, muster
from stackyard.mesh.runs import Reached, reached
from stackyard.mesh.standing import Standing
from stackyard.report import certify as report
from stackyard.report import junit, pages
from stackyard.report.shapes import CertifyReport
from stackyard.system.errors import UsageError, shown
from stackyard.validate.certify.play import Yard
from stackyard.validate.certify.search import Certified
from stackyard.validate.certify.search import certify as search


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """Hold what was seen of the hosts.

    Attributes:
        unused: why hosts and GPUs that were asked for took no part, by name.
    """

    found: Certified
    health: Mapping[str, Sequence[Finding]]
    unused: Mapping[str, str]
    image: str


def certify(terminal: Terminal, asked: CertifyRequest) -> tuple[CertifyReport, int]:
    """Train on all hosts, alone and in groups, and name what is bad."""
    project = load_project()
    fleet = load_fleet(asked.hosts)
    # One container a host sees all of its GPUs; a GPU is then named by its host.
    fleet = replace(fleet, hosts=tuple(replace(host, nodes=1) for host in fleet.hosts))
    wanted = wanted_of(project, asked.mesh, fleet)
    earlier = _read(asked.against)
    if asked.junit:
        junit.require_place(Path(asked.junit))
    started, clock = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    with reached(fleet) as hosts:
        seen = _on_hosts(terminal, asked, project, hosts, wanted, earlier)
    value = report.certify_report(
        seen.found, seen.health, seen.unused, stack=wanted.stack, base=wanted.base,
        image=seen.image, tag=wanted.tag, run=wanted.run, hosts=asked.hosts,
        started=started.isoformat(timespec="seconds"), seconds=time.monotonic() - clock,
    )  # fmt: skip
    value["made"] = pages.made_by(project.root)
    path = report.path_of(wanted.run, "json")
    pages.write(project.root, value, path, report.render_page(value))
    if asked.junit:
        junit.write(Path(asked.junit), [value])
    _show(terminal, value, report.path_of(wanted.run, "html"))
    return value, EXIT_CODES[value["outcome"]]


def _read(path: str) -> str:
    """Read an earlier report; empty where none was named."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{shown(path)} cannot be read", why=str(error)) from error


def _on_hosts(
    terminal: Terminal,
    asked: CertifyRequest,
    project: Project,
    hosts: Reached,
    wanted: MeshRequest,
    earlier: str,
) -> _Seen:
    """Start a mesh on the hosts that answer, certify them, and take it down."""

    def say(text: str) -> None:
        terminal.say(wanted.run, text)

    found = muster(hosts.links, hosts.failed, hosts.fleet)
    unused = _unused(hosts.fleet, found, wanted)
    if set(found.failed) < {host.name for host in hosts.fleet.hosts}:
        hosts = hosts.without(set(found.failed))
    links = {name: hosts.links[name] for name in found.facts if name in hosts.links}
    before = host_health.examine(links, found.facts)
    for name, findings in before.items():
        for one in findings:
            if one.state == WRONG:
                terminal.note(f"{name}: {one.name}: {one.what}")
    mesh, _ = runs.up(hosts, wanted, say, owner=asked.lease)
    try:
        certified = _in_mesh(asked, project, hosts, mesh, found, wanted, earlier, terminal)
    finally:
        for host, error in runs.down(hosts, mesh)[1].items():
            terminal.note(f"{host}: its node ends by itself: {error.what}")
    after = host_health.examine(links, found.facts)
    return _Seen(found=certified, health=_worst(before, after), unused=unused,
                 image=mesh.plan.image)  # fmt: skip


def _unused(fleet: Fleet, found: Muster, wanted: MeshRequest) -> dict[str, str]:
    """Return why hosts and GPUs of the inventory cannot take part."""
    unused = {name: error.what.removeprefix(f"{name}: ") for name, error in found.failed.items()}
    if wanted.device == "cuda":
        for host in fleet.hosts:
            if host.name in found.facts:
                refused = usable_gpus(host, found.facts[host.name])[1]
                unused |= {f"{host.name}:{index}": why for index, why in refused.items()}
    return unused


def _in_mesh(
    asked: CertifyRequest,
    project: Project,
    hosts: Reached,
    mesh: Standing,
    found: Muster,
    wanted: MeshRequest,
    earlier: str,
    terminal: Terminal,
) -> Certified:
    known = report.fingerprints_of(earlier, asked.against, mesh.plan.image) if earlier else {}
    talk = standing.connect(hosts.links, mesh)
    try:
        talk.send("attach")  # the lease of the mesh now needs beats of this command
        yard = Yard(
            hosts=hosts, mesh=mesh, talk=talk, device=wanted.device, updates=asked.updates,
            lease=asked.lease, hang_seconds=asked.hang,
            taken=frozenset().union(*(facts.ports for facts in found.facts.values())),
        )  # fmt: skip
        yard.prepare()
        baselines = list(project.definitions.baselines.values())
        return search(yard, baselines, known, lambda text: terminal.done(wanted.run, text))
    finally:
        talk.close()


def _worst(
    before: Mapping[str, Sequence[Finding]], after: Mapping[str, Sequence[Finding]]
) -> dict[str, list[Finding]]:
    """Return the findings after the trainings, and what was wrong before and is not any more."""
    return {
        name: [*findings, *(one for one in before.get(name, ())
                            if one.state == WRONG and one not in findings)]
        for name, findings in after.items()
    }  # fmt: skip


def _show(terminal: Terminal, value: CertifyReport, page: str) -> None:
    terminal.table(tables.certify_table(value))
    for check in value["checks"]:
        why = f": {check['why']}" if check.get("why") else ""
        terminal.text(f"{check['name']} {check['outcome']}{why}")
    for line in value["to_do"]:
        terminal.text(f"to do: {line}")
    terminal.text(f"report in {page}")
