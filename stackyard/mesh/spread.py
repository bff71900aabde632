"""Run a mesh of a smoke or bench over hosts, for as long as a command holds it.

Owns what such a mesh asks of hosts, and its removal. `mesh.runs` starts it as it starts any mesh on
hosts, and the test of a mesh (`mesh.nodes`) is that of one on this machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stackyard.gpu.infiniband import Fabric
from stackyard.mesh import nodes, runs, standing
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.node_plan import (
    MeshRequest,
    NodePlan,
    StandingPlan,
    fabric_of,
    node_environment,
)
from stackyard.mesh.nodes import Mesh, NodeSettings
from stackyard.mesh.preflight import Muster
from stackyard.mesh.runs import Reached, Say
from stackyard.mesh.standing import Standing
from stackyard.mesh.supervisor import Talk
from stackyard.mesh.survey import HostFacts
from stackyard.system.errors import StackyardError, UsageError

# Beats and their answers go through ssh; the removal of a mesh on hosts is not bound to 10 s.
LEASE_SECONDS = 15.0


@dataclass(kw_only=True)
class Spread:
    """Hold a mesh over hosts, from its plan to its removal.

    Attributes:
        plan: None until the hosts were asked.
    """

    hosts: Reached
    wanted: MeshRequest
    settings: NodeSettings
    say: Say
    plan: StandingPlan | None = None
    found: Muster | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Mesh]:
        """Start the nodes and join them; remove everything at the end, also after an error.

        Raises:
            NotReady: a host has a problem; nothing was started.
            MeshError, EngineError: a node did not come up.
        """
        run, _ = runs.up(
            self.hosts, self.wanted, self.say, owner=LEASE_SECONDS, smoke=self._settings
        )
        mesh = None
        try:
            mesh = self._mesh(run)
            yield mesh
        finally:
            self._remove(run, mesh)

    def _settings(self, plan: StandingPlan, found: Muster) -> NodeSettings:
        self.plan, self.found = plan, found
        return self.settings

    def _mesh(self, run: Standing) -> Mesh:
        plan = run.plan
        first = plan.nodes[0]
        engines = {node.name: self.hosts.links[node.host].engine for node in plan.nodes}

        def end_all() -> None:
            """Kill every node, as a run that has lost one of them is over."""
            with ThreadPoolExecutor(min(32, len(engines))) as pool:
                for name, container in run.containers.items():
                    pool.submit(engines[name].kill, container)

        talk = Talk(engines[first.name], run.containers[first.name], end_all)
        talk.send("attach")
        return Mesh(
            plan=plan.mesh(int(time.time())),
            containers=dict(run.containers),
            talk=talk,
            engines=engines,
            shared=f"{nodes.SHARED}/stackyard-{plan.run}",
            lease=LEASE_SECONDS,
            own={node.name: self._own(plan, node) for node in plan.nodes},
            asks=True,
        )

    def _own(self, plan: StandingPlan, node: NodePlan) -> dict[str, str]:
        """Return the variables that only this node's container has; those of all come first."""
        link = self.hosts.links[node.host]
        given = standing.access_of(plan, node, self.facts[node.host], link.engine)
        (named,) = (host.env for host in self.hosts.fleet.hosts if host.name == node.host)
        own = {**given.env, **node_environment(plan, self.facts, node), **named}
        return {name: value for name, value in own.items() if name not in self.settings.env}

    def _remove(self, run: Standing, mesh: Mesh | None) -> None:
        if mesh is not None:
            if mesh.lost:
                self._tell_left(run)
            else:
                with contextlib.suppress(StackyardError):
                    mesh.exec(mesh.head, ["rm", "-rf", mesh.shared], seconds=120)
            mesh.close()
        for host, error in standing.remove(self.hosts.links, run.plan.run)[1].items():
            self.say(f"{host}: its node ends by itself: {error.what}")

    def _tell_left(self, run: Standing) -> None:
        """Name what a mesh that lost a node leaves: its nodes are killed, so none removes it."""
        folder = self.hosts.fleet.folders.get(nodes.SHARED)
        place = f"{folder.source if folder else nodes.SHARED}/stackyard-{run.plan.run}"
        self.say(f"data and checkpoints stay, as a node was lost; on a host: sudo rm -r {place}")

    @property
    def fabric(self) -> Fabric | None:
        """Return the InfiniBand or RoCE ports between the hosts; None before they were asked."""
        if self.plan is None or self.found is None:
            return None
        return fabric_of(self.plan, self.found.facts)

    @property
    def facts(self) -> dict[str, HostFacts]:
        """Return what the hosts answered; empty before they were asked."""
        return dict(self.found.facts) if self.found else {}


def require_shared(fleet: Fleet) -> None:
    """Require a folder that all nodes share, for data and checkpoints.

    Raises:
        UsageError: the inventory has none.
    """
    folder = fleet.folders.get(nodes.SHARED)
    if folder is None or not folder.shared:
        raise UsageError(
            f"{fleet.source} has no folder {nodes.SHARED} that the hosts share",
            why="ranks of a smoke read data and checkpoints that others of them wrote",
            hint=f"folders: {{{nodes.SHARED}: {{path: /mnt/me, shared: true}}}}"
            " (docs/howto/hosts.md)",
        )
