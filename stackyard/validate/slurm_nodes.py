"""Say what is known of the nodes that Slurm gave a run, in the values of a run over hosts.

Owns that translation. It must not read anything: what nodes wrote is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stackyard.gpu.infiniband import Fabric
from stackyard.mesh.node_plan import NodePlan, StandingPlan, fabric_of
from stackyard.mesh.survey import HostFacts
from stackyard.validate.gpu_hosts import placement_of, used_bytes
from stackyard.validate.judge_gpu import GpuObservation
from stackyard.validate.slurm_plan import SlurmRun

NAME = "slurm"
NO_BARE = "the GPUs are on nodes of Slurm"
NETWORK = "the interface of each node that leads to the first one"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Hold the nodes that Slurm gave, as a run over hosts has its hosts.

    Attributes:
        machine: what a report says of the machine, of the first node.
    """

    plan: StandingPlan
    facts: Mapping[str, HostFacts]
    machine: Mapping[str, str]

    @property
    def fabric(self) -> Fabric:
        """Return the InfiniBand or RoCE ports between the nodes."""
        return fabric_of(self.plan, self.facts)

    @property
    def gpus(self) -> GpuObservation:
        """Return what is known of the GPUs before the trainings."""
        placed = placement_of(self.plan, self.facts, self.fabric.why)
        drivers = {one.driver.version for one in self.facts.values() if one.driver}
        return GpuObservation(
            placement=replace(placed, name=NAME),
            driver=", ".join(sorted(drivers)),
            no_bare=NO_BARE,
            used_before=used_bytes(placed, self.facts),
        )


def place(
    asked: SlurmRun, told: Sequence[Mapping[str, Any]], facts: Mapping[str, HostFacts]
) -> Placed:
    """Return the nodes as they describe themselves.

    Args:
        told: what `inside/image_digest.py` wrote in each node's image.
        facts: the survey of each node, by name.
    """
    plan = StandingPlan(
        run=asked.run, stack=asked.stack, base=asked.base, image=asked.image_id,
        nodes=tuple(_node(one, facts[str(one["host"])]) for one in told), why=NETWORK,
    )  # fmt: skip
    return Placed(plan=plan, facts=facts, machine=_machine(told[0], facts))


def _node(told: Mapping[str, Any], here: HostFacts) -> NodePlan:
    host, interface = str(told["host"]), str(told["interface"])
    # Where Slurm does not confine jobs to their GPUs (ConstrainDevices), all of the node are seen.
    own = set(filter(None, str(told.get("gpus", "")).split(",")))
    return NodePlan(
        name=host,
        host=host,
        address=next((i.address for i in here.interfaces if i.name == interface), ""),
        interface=interface,
        gpus=tuple(gpu.index for gpu in here.gpus if {str(gpu.index), gpu.uuid} & own)
        or tuple(gpu.index for gpu in here.gpus),
    )


def _machine(told: Mapping[str, Any], facts: Mapping[str, HostFacts]) -> dict[str, str]:
    memory = facts[str(told["host"])].memory_bytes / 2**30
    names = ("kernel", "cpus", "architecture")
    return {**{name: str(told[name]) for name in names}, "memory_gib": f"{memory:.1f}"}
