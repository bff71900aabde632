"""Run `invoke certify` on hosts, from its arguments to the verdict.

Owns the meaning of its arguments, what is left out with a reason, and its output.
`validate.certify.search` certifies, `report.certify` makes the record.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from stackyard.cli import tables
from stackyard.cli.answer import EXIT_CODES
from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import CertifyRequest
from stackyard.cli.steps import fingerprints
from stackyard.cli.steps.hosts import load_fleet
from stackyard.cli.steps.run import wanted_of
from stackyard.cli.steps.run_job import caller_variables
from stackyard.definitions.project import Project, load_project
from stackyard.gpu.doctor import WRONG, Finding
from stackyard.mesh import host_health, runs, standing
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.link import cause
from stackyard.mesh.node_plan import MeshRequest, usable_gpus
from stackyard.mesh.preflight import Muster, muster
from stackyard.mesh.runs import Reached, reached
from stackyard.report import certify as report
from stackyard.report import junit, pages, records, vouch
from stackyard.report.shapes import CertifyReport
from stackyard.system.errors import ReleaseError, StackyardError
from stackyard.system.image import ImageInfo
from stackyard.validate.certify.play import Yard
from stackyard.validate.certify.search import Certified, nothing
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
    earlier = fingerprints.earlier(project, asked)
    if asked.junit:
        junit.require_place(Path(asked.junit))
    started, clock = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    with reached(fleet) as hosts:
        seen = _on_hosts(terminal, asked, project, hosts, wanted, earlier)
        info = _image(hosts, seen.image)
    value = report.certify_report(
        seen.found, seen.health, seen.unused, stack=wanted.stack, base=wanted.base,
        image=records.certified_image(seen.image, wanted.tag, info), run=wanted.run,
        hosts=asked.hosts,
        started=started.isoformat(timespec="seconds"), seconds=time.monotonic() - clock,
    )  # fmt: skip
    value["made"] = pages.made_by(project.root)
    path = report.path_of(wanted.run, "json")
    pages.write(project.root, value, path, report.render_page(value))
    if asked.junit:
        junit.write(Path(asked.junit), [value])
    _show(terminal, value, report.path_of(wanted.run, "html"))
    if info:
        vouch.write(project.root, value, info.layers, Path.home())
        try:
            terminal.text(vouch.told(project.root, value))
        except ReleaseError as error:  # so many hosts that it is too long
            terminal.note(f"{error.what}: {error.why}")
    return value, EXIT_CODES[value["outcome"]]


def _image(hosts: Reached, image: str) -> ImageInfo | None:
    """Return what a host says about an image; None where no host can be asked any more."""
    for link in hosts.links.values():
        with suppress(StackyardError):
            if image and (info := link.engine.image(image)) is not None:
                return info
    return None


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

    own = caller_variables(os.environ)
    if own:
        terminal.note(f"from your environment, for every rank: {', '.join(own)}")
    found = muster(hosts.links, hosts.failed, hosts.fleet)
    unused = _unused(hosts.fleet, found, wanted)
    links = {name: hosts.links[name] for name in found.facts if name in hosts.links}
    read = host_health.read_all(links)
    before = host_health.judge(read, found.facts)
    for name, findings in before.items():
        for one in findings:
            if one.state == WRONG:
                terminal.note(f"{name}: {one.name}: {one.what}")
    free = without_held(hosts, found, wanted.device)
    if not free.fleet.hosts:
        return _Seen(found=nothing(wanted.device), health=before, unused=unused, image="")
    mesh, _ = runs.up(free, wanted, say, owner=asked.lease)
    try:
        known = report.fingerprints_of(earlier, asked.against, mesh.plan.image) if earlier else {}
        with closing(standing.connect(free.links, mesh)) as talk:
            talk.send("attach")  # the lease of the mesh now needs beats of this command
            yard = Yard(
                hosts=free, mesh=mesh, talk=talk, device=wanted.device, updates=asked.updates,
                lease=asked.lease, hang_seconds=asked.hang, own=own,
                offer=runs.offer_of(mesh.plan, found.facts, host_health.nvlinked(read)),
                taken=frozenset().union(*(facts.ports for facts in found.facts.values())),
            )  # fmt: skip
            yard.prepare()
            baselines = list(project.definitions.baselines.values())
            certified = search(yard, baselines, known, lambda text: terminal.done(wanted.run, text))
    finally:
        for host, error in runs.down(free, mesh)[1].items():
            terminal.note(f"{host}: its node ends by itself: {error.what}")
    after = host_health.examine(links, found.facts)
    return _Seen(found=certified, health=_worst(before, after), unused=unused,
                 image=mesh.plan.image)  # fmt: skip


def without_held(hosts: Reached, found: Muster, device: str) -> Reached:
    """Return the hosts that can take part, each with the GPUs that nobody holds.

    A host that does not answer, or all of whose GPUs are held, is left out. Hosts without a driver
    stay: nothing can be certified as it was asked for. So do all where none answers.
    """
    every = {host.name for host in hosts.fleet.hosts}
    left = set(found.failed) if set(found.failed) < every else set()
    kept = []
    for host in hosts.fleet.hosts:
        facts = found.facts.get(host.name)
        if device == "cuda" and facts is not None and facts.driver is not None:
            usable, refused = usable_gpus(host, facts)
            if refused and usable:
                host = replace(host, gpus=",".join(str(gpu.index) for gpu in usable))
            elif refused:
                left.add(host.name)
        kept.append(host)
    return replace(hosts, fleet=replace(hosts.fleet, hosts=tuple(kept))).without(left)


def _unused(fleet: Fleet, found: Muster, wanted: MeshRequest) -> dict[str, str]:
    """Return why hosts and GPUs of the inventory cannot take part."""
    unused = {name: cause(name, error) for name, error in found.failed.items()}
    if wanted.device == "cuda":
        for host in fleet.hosts:
            if host.name in found.facts:
                refused = usable_gpus(host, found.facts[host.name])[1]
                unused |= {f"{host.name}:{index}": why for index, why in refused.items()}
    return unused


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
