"""Run smokes over hosts, and make what a bench over hosts shares with them: images and meshes.

Owns which image the hosts hold, and refusing options that are about this machine.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from stackyard.build.builder import Built
from stackyard.build.choice import Choice, held_image
from stackyard.cli.console import Terminal
from stackyard.cli.steps.hosts import load_fleet
from stackyard.definitions.project import Project
from stackyard.definitions.spec import Smoke
from stackyard.gpu import gpus
from stackyard.mesh import spread
from stackyard.mesh.hosts import Fleet, node_names
from stackyard.mesh.node_plan import MeshRequest
from stackyard.mesh.preflight import muster, plan_run
from stackyard.mesh.runs import Reached, reached
from stackyard.mesh.spread import Spread
from stackyard.report import smokes
from stackyard.report.shapes import SmokeReport
from stackyard.system.errors import UsageError
from stackyard.validate import smoke as smoking
from stackyard.validate.smoke import SmokeWatcher


def fleet_of(given: str, typed: str) -> Fleet:
    """Load the hosts of a smoke or bench: two nodes at least, and a folder that they share.

    Raises:
        UsageError: the hosts do not do.
    """
    fleet = load_fleet(given)
    count = sum(len(node_names(host)) for host in fleet.hosts)
    if count < 2:
        raise UsageError(
            f"{typed} --hosts needs two nodes, and {fleet.source} has {count}",
            hint=f"name another host, or {typed} without --hosts",
        )
    spread.require_shared(fleet)
    return fleet


def request_of(project: Project, chosen: Choice, stack: str, device: str) -> MeshRequest:
    """Return what the mesh of one stack's smoke or bench needs of its hosts."""
    one = replace(chosen, stacks=(stack,))
    return MeshRequest(
        run=f"{stack}-{secrets.token_hex(4)}",
        stack=stack,
        base=chosen.base.name,
        tag=one.tag,
        named=bool(chosen.image),
        device=device,
        images={},
        lease=spread.LEASE_SECONDS,
        keep_seconds=smoking.MESH_SECONDS,
        bases=project.definitions.bases,
    )


def image_of(project: Project, hosts: Reached, wanted: MeshRequest) -> Built:
    """Return the image that all hosts hold.

    Raises:
        NotReady: a host has a problem, such as another image; names every one.
        UsageError: the image is another stack's.
    """
    found = muster(hosts.links, hosts.failed, hosts.fleet)
    plan, _ = plan_run(hosts.links, hosts.fleet, found, wanted)
    engine = hosts.links[plan.nodes[0].host].engine
    return held_image(project, engine, wanted.tag, wanted.stack, wanted.base)


def smoke_each(
    project: Project,
    chosen: Choice,
    given: str,
    device: str,
    watched: Callable[[Built], SmokeWatcher],
    terminal: Terminal,
    typed: str,
) -> list[SmokeReport]:
    """Smoke stacks over hosts, one after another: they share the hosts.

    Raises:
        NotReady: a host has a problem; nothing was started.
        UsageError: the hosts do not do.
    """
    fleet = fleet_of(given, typed)
    with reached(fleet) as hosts:
        return [_smoke_one(project, chosen, hosts, stack, device, watched, terminal)
                for stack in chosen.stacks]  # fmt: skip


def _smoke_one(
    project: Project,
    chosen: Choice,
    hosts: Reached,
    stack: str,
    device: str,
    watched: Callable[[Built], SmokeWatcher],
    terminal: Terminal,
) -> SmokeReport:
    wanted = request_of(project, chosen, stack, device)
    built = image_of(project, hosts, wanted)
    declared = project.definitions.stacks[stack].smoke_on(device, chosen.gpus or 0)
    assert declared is not None, "the command line asked for a smoke that is not declared"
    folder = project.root / "images" / stack / "smoke"
    made = spread_of(hosts, wanted, built, declared, smoking.workload_files(folder), terminal)
    return smokes.smoke_on_hosts(project, made, declared, built, watched(built))


def spread_of(
    hosts: Reached,
    wanted: MeshRequest,
    built: Built,
    training: Smoke,
    files: Mapping[str, bytes],
    terminal: Terminal,
) -> Spread:
    """Return a mesh over hosts for a training, not started yet.

    Args:
        files: the training's own, by relative path.
    """
    caller = gpus.caller_settings(os.environ)
    settings = smoking.host_settings(built.info.id, training, files, caller)
    return Spread(
        hosts=hosts, wanted=wanted, settings=settings,
        say=lambda text: terminal.say(wanted.stack, text),
    )  # fmt: skip
