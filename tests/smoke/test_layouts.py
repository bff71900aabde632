"""Layouts that grow with the number of GPUs, on as many CPU ranks."""

from __future__ import annotations

import dataclasses
import secrets

import pytest

from stackyard.definitions.project import ROOT, load_project
from stackyard.validate import smoke

pytestmark = pytest.mark.repeat  # CPU ranks are two in a smoke; two GPUs are what most have
STACKS = sorted(load_project().definitions.stacks)


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("stack", STACKS)
def test_they_have_the_losses_of_one_process(engine, stack_images, stack, ranks):
    """In fp32: CPU ranks have no fp16. Two containers, each with half of the ranks."""
    built = stack_images[stack]
    on_cpus, on_gpus = (built.image.stack.smoke_on(device, ranks) for device in ("cpu", "cuda"))
    layouts = tuple(
        dataclasses.replace(layout, fused=None)
        for layout in on_gpus.layouts
        if layout.tolerance is None
    )
    grown = [layout.name for layout in layouts if layout.ranks == ranks]
    resume = {"megatron": "pp-2"}.get(stack, grown[-1])
    declared = dataclasses.replace(
        on_cpus, layouts=layouts, resume=resume, start_seconds=240, stall_seconds=120
    )
    settings = smoke.node_settings(
        built.info.id, declared, smoke.workload_files(ROOT / "images" / stack / "smoke")
    )
    outcome = smoke.run_smoke(
        engine, declared, settings, run=f"test-{secrets.token_hex(4)}", node_count=2,
        image_env=built.info.environment,
    )  # fmt: skip
    assert [(check.name, check.why) for check in outcome.checks if check.outcome != "passed"] == []
    assert {"megatron": 4, "accelerate": 2, "fairseq": 1}[stack] == len(grown)
