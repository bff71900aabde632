"""Prepare a run on GPUs, and observe the GPUs while it goes on.

Owns combining what `gpus` reads, `placement` decides and `access` hands over; and the two
observations that no training makes: the GPUs' bandwidth and speed, and that their memory is freed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from stackyard.definitions.spec import Base
from stackyard.gpu import access, doctor, gpus, placement
from stackyard.gpu.access import NodeHardware
from stackyard.gpu.placement import Gpu, GpuHost, Placement
from stackyard.mesh.nodes import Mesh
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError
from stackyard.validate import measure
from stackyard.validate.judge_gpu import FREED_BYTES, FREED_SECONDS, GpuObservation


@dataclass(frozen=True, kw_only=True)
class GpuPlan:
    """Hold the decisions that a command makes once, for all of its runs on GPUs.

    Attributes:
        chosen: the GPUs of every run; runs follow each other.
        way: how they get into containers (`access.choose_way`).
        settings: the caller's own NCCL settings.
        bare: measurements of the bare host on these GPUs; empty where it could not measure.
    """

    host: GpuHost
    chosen: tuple[Gpu, ...]
    nodes: int
    name: str
    way: str
    driver: access.DriverFiles
    settings: Mapping[str, str]
    bare: Mapping[str, Any] = field(default_factory=dict)
    no_bare: str = ""


def make_plan(engine: Engine, wanted: int, nodes: int, name: str, command: str) -> GpuPlan:
    """Decide about GPUs before anything is built or started.

    Raises:
        NothingToRunOn: too few GPUs are present, free and allowed, or the driver is incomplete.
        UsageError: the GPUs cannot be placed as asked; says why.
    """
    host = gpus.read_host(command)
    chosen = placement.choose_gpus(host, wanted, gpus.allowed(os.environ))
    plan = GpuPlan(
        host=host,
        chosen=chosen,
        nodes=nodes,
        name=name,
        way=access.choose_way(engine.info(), gpus.cdi_kinds()),
        driver=gpus.driver_files(),
        settings=gpus.caller_settings(os.environ),
    )
    place(plan, "check")
    if plan.way == access.DEVICES:
        access.access(plan.way, chosen, plan.driver, "")
    return plan


def require_fit(plan: GpuPlan, base: str, bases: Mapping[str, Base]) -> None:
    """Check that images on a base run on the plan's GPUs with this driver, as far as is known.

    Raises:
        NothingToRunOn: they do not; names what does not fit, and a base that does.
    """
    if base in bases:  # the builder reports an unknown base
        doctor.require_fit(plan.host.driver, plan.chosen, bases[base], bases.values())


def place(plan: GpuPlan, run: str) -> tuple[Placement, tuple[str, ...]]:
    """Return the placement of one run, and warnings about what slows it down.

    Raises:
        UsageError: the placement fails with the caller's settings; names the reason.
    """
    infiniband = bool(plan.host.infiniband.usable)
    found = placement.place(plan.chosen, plan.nodes, name=plan.name, infiniband=infiniband, run=run)
    env = {**placement.environment_of(found), **plan.settings}
    warnings = placement.require_sound(found, env)
    return found, tuple(dict.fromkeys([*found.warnings, *warnings]))


def with_bare_host(plan: GpuPlan) -> GpuPlan:
    """Return a plan with the bare host's measurements on its GPUs."""
    found, why = measure.on_host(plan.chosen, plan.settings)
    return replace(plan, bare=found, no_bare=why)


class GpuWatch(Protocol):
    """Observe the GPUs of a run, on this machine or on hosts."""

    def observed(self) -> GpuObservation:
        """Return the observation as known before the run."""

    def takes(self, nodes: int, per_node: int) -> tuple[tuple[int, ...], ...]:
        """Return the indexes of the GPUs that the ranks of a layout compute on, by node."""

    def measured(self, running: Mesh, seen: GpuObservation | None, port: int) -> GpuObservation:
        """Measure bandwidth and speed; a failure is an observation, too."""

    def freed(self, seen: GpuObservation | None) -> GpuObservation:
        """Wait, within bounds, until the GPUs hold no more than before the run."""


@dataclass(frozen=True, kw_only=True)
class GpuRun:
    """Hold one run's share of a plan.

    Attributes:
        before: bytes in use on each GPU before the run, by UUID.
    """

    plan: GpuPlan
    placement: Placement
    hardware: tuple[NodeHardware, ...]
    before: Mapping[str, int]
    used: Callable[[Sequence[Gpu]], Mapping[str, int]] = gpus.used_bytes

    def observed(self) -> GpuObservation:
        """Return the observation as known before the run."""
        return GpuObservation(
            placement=self.placement,
            driver=self.plan.host.driver,
            bare=self.plan.bare,
            no_bare=self.plan.no_bare,
            used_before=self.before,
        )

    def takes(self, nodes: int, per_node: int) -> tuple[tuple[int, ...], ...]:
        """Return the indexes of the GPUs that the ranks of a layout compute on, by node."""
        return tuple(node.takes[:per_node] for node in self.placement.nodes[:nodes])

    def measured(self, running: Mesh, seen: GpuObservation | None, port: int) -> GpuObservation:
        """Measure bandwidth and speed in this placement; a failure is an observation, too."""
        seen = seen or self.observed()
        try:
            per_node = len(self.placement.nodes[0].takes)
            return replace(seen, measured=measure.in_mesh(running, per_node, port))
        except (EngineError, ValueError) as error:
            said = [error.what, error.why] if isinstance(error, EngineError) else [str(error)]
            return replace(seen, failed="; ".join(part for part in said if part))

    def freed(self, seen: GpuObservation | None) -> GpuObservation:
        """Wait, within bounds, until the GPUs hold no more than before the run."""
        seen = seen or self.observed()
        started = time.monotonic()
        while True:
            used = self.used(self.placement.gpus)
            waited = time.monotonic() - started
            held = [u for u, count in used.items() if count > self.before.get(u, 0) + FREED_BYTES]
            if not held or waited > FREED_SECONDS:
                return replace(seen, used_after=dict(used), freed_seconds=waited)
            time.sleep(0.2)


def start_run(plan: GpuPlan, run: str, path: str) -> GpuRun:
    """Place one run of a plan, and read the memory in use before it.

    Args:
        path: LD_LIBRARY_PATH of the image.
    """
    found, _ = place(plan, run)
    hardware = access.hardware(
        found, plan.way, plan.driver, path, plan.settings, plan.host.infiniband.devices
    )
    before = gpus.used_bytes(found.gpus)
    return GpuRun(plan=plan, placement=found, hardware=hardware, before=before)
