"""Observe the GPUs of a run over hosts, as `gpu_run` does those of this machine.

Owns what such a run can observe: there is no bare host to compare with, and memory is read by the
survey of hosts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stackyard.gpu.placement import NET, P2P, Gpu, NodePlacement, Placement
from stackyard.mesh.node_plan import NodePlan, StandingPlan, visible
from stackyard.mesh.nodes import Mesh
from stackyard.mesh.preflight import muster
from stackyard.mesh.spread import Spread
from stackyard.mesh.survey import HostFacts
from stackyard.system.errors import EngineError
from stackyard.validate import measure
from stackyard.validate.judge_gpu import FREED_BYTES, FREED_SECONDS, GpuObservation

NAME = "hosts"
NO_BARE = "the GPUs are on other hosts"


@dataclass(frozen=True, kw_only=True)
class HostGpus:
    """Hold the GPUs of a mesh over hosts."""

    spread: Spread

    @property
    def placement(self) -> Placement:
        """Return the placement that the hosts' plan stands for."""
        assert self.spread.plan is not None and self.spread.fabric is not None
        return placement_of(self.spread.plan, self.spread.facts, self.spread.fabric.why)

    def observed(self) -> GpuObservation:
        """Return the observation as known before the run."""
        drivers = {f.driver.version for f in self.spread.facts.values() if f.driver}
        return GpuObservation(
            placement=self.placement,
            driver=", ".join(sorted(drivers)),
            no_bare=NO_BARE,
            used_before=used_bytes(self.placement, self.spread.facts),
        )

    def takes(self, nodes: int, per_node: int) -> tuple[tuple[int, ...], ...]:
        """Return the indexes of the GPUs that the ranks of a layout compute on, by node."""
        return tuple(node.takes[:per_node] for node in self.placement.nodes[:nodes])

    def measured(self, running: Mesh, seen: GpuObservation | None, port: int) -> GpuObservation:
        """Measure bandwidth and speed between the hosts; a failure is an observation, too."""
        seen = seen or self.observed()
        try:
            per_node = min(len(node.takes) for node in self.placement.nodes)
            return replace(seen, measured=measure.in_mesh(running, per_node, port))
        except (EngineError, ValueError) as error:
            said = [error.what, error.why] if isinstance(error, EngineError) else [str(error)]
            return replace(seen, failed="; ".join(part for part in said if part))

    def freed(self, seen: GpuObservation | None) -> GpuObservation:
        """Ask the hosts, within bounds, until their GPUs hold no more than before the run."""
        seen = seen or self.observed()
        hosts, started = self.spread.hosts, time.monotonic()
        while True:
            facts = muster(hosts.links, hosts.failed, hosts.fleet).facts
            used, waited = used_bytes(seen.placement, facts), time.monotonic() - started
            held = [u for u, b in used.items() if b > seen.used_before.get(u, 0) + FREED_BYTES]
            if not held or waited > FREED_SECONDS:
                return replace(seen, used_after=used, freed_seconds=waited)
            time.sleep(0.5)


def placement_of(plan: StandingPlan, facts: Mapping[str, HostFacts], why: str) -> Placement:
    """Return how a plan spreads its ranks over the hosts' GPUs.

    Args:
        why: what NCCL would use between the hosts.
    """
    several = len({node.host for node in plan.nodes}) > 1
    return Placement(
        name=NAME,
        network=plan.network,
        nodes=tuple(_node(plan, node, facts[node.host]) for node in plan.nodes),
        transport=NET if several else P2P,
        env={},
        why=f"{plan.why}; {why}" if plan.why else why,
    )


def _node(plan: StandingPlan, node: NodePlan, here: HostFacts) -> NodePlacement:
    seen = {gpu for other in plan.nodes if other.host == node.host for gpu in other.gpus}
    there = tuple(gpu for gpu in here.gpus if gpu.index in seen)
    return NodePlacement(visible=there, takes=visible(plan, node), ipc="private", env={})


def used_bytes(placement: Placement, facts: Mapping[str, HostFacts]) -> dict[str, int]:
    """Return the bytes in use on each GPU of a placement, by UUID, as the hosts tell them."""
    here: dict[str, Gpu] = {g.uuid: g for one in facts.values() for g in one.gpus}
    return {
        gpu.uuid: here[gpu.uuid].memory_bytes - here[gpu.uuid].free_bytes
        for gpu in placement.gpus
        if gpu.uuid in here
    }
