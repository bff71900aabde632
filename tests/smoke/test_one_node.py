"""A smoke in one container: the layouts' ranks are the processes of one node."""

from __future__ import annotations

import dataclasses
import secrets

import pytest

from stackyard import smoke
from stackyard.builder import Builder
from stackyard.project import ROOT, load_project


def run(engine, built, declared, files):
    env = dict(entry.split("=", 1) for entry in built.info.env)
    settings = smoke.node_settings(built.info.id, declared, files)
    name = f"test-{secrets.token_hex(4)}"
    return smoke.run_smoke(engine, declared, settings, run=name, node_count=1, image_env=env)


def test_the_example_passes_in_one_container(engine, built, example):
    files = smoke.workload_files(ROOT / "examples" / "ddp" / "smoke")
    outcome = run(engine, built, example, files)
    assert [(check.name, check.why) for check in outcome.checks if check.outcome != "passed"] == []
    assert outcome.observation.trainings["ddp-2"].nodes == ("node1",)


@pytest.mark.parametrize(
    ("stack", "layout"), [("megatron", "dp-2"), ("accelerate", "zero-3"), ("fairseq", "ddp-2")]
)
def test_every_launcher_starts_two_ranks_in_one_container(engine, stack, layout):
    """Parity, resume and the rest: with one layout of two ranks beside the reference."""
    built = Builder(load_project(), engine, lambda stack, text: None).build(stack, "cpu")
    declared = built.image.stack.smoke
    kept = tuple(one for one in declared.layouts if one.name in (declared.reference, layout))
    declared = dataclasses.replace(declared, layouts=kept, resume=layout)
    outcome = run(engine, built, declared, smoke.workload_files(ROOT / "images" / stack / "smoke"))
    assert [(check.name, check.why) for check in outcome.checks if check.outcome != "passed"] == []
