"""A smoke in one container: the layouts' ranks are the processes of one node."""

from __future__ import annotations

import dataclasses
import secrets
import time

import pytest

from stackyard.definitions.project import ROOT
from stackyard.mesh import certificates, nodes
from stackyard.validate import judge, smoke, training
from stackyard.validate.outcome import Observation
from stackyard.validate.training_log import TrainingPlan

TWO_RANKS = {"megatron": "dp-2", "accelerate": "zero-3", "fairseq": "ddp-2"}


def run(engine, built, declared, files):
    env = dict(entry.split("=", 1) for entry in built.info.env)
    settings = smoke.node_settings(built.info.id, declared, files)
    name = f"test-{secrets.token_hex(4)}"
    return smoke.run_smoke(engine, declared, settings, run=name, node_count=1, image_env=env)


@pytest.mark.repeat  # two ranks of one container are below; what is judged, in other smokes
def test_the_example_passes_in_one_container(engine, built, example):
    files = smoke.workload_files(ROOT / "examples" / "ddp" / "smoke")
    outcome = run(engine, built, example, files)
    assert [(check.name, check.why) for check in outcome.checks if check.outcome != "passed"] == []
    assert outcome.observation.trainings["ddp-2"].nodes == ("node1",)


@pytest.mark.repeat  # a bench starts ranks in one container, and the example by fairseq's launcher
@pytest.mark.parametrize("stack", ["accelerate", "megatron"])
def test_every_launcher_starts_two_ranks_in_one_container(engine, stack_images, stack):
    built, layout = stack_images[stack], TWO_RANKS[stack]
    declared = built.image.stack.smoke
    files = smoke.workload_files(ROOT / "images" / stack / "smoke")
    settings = smoke.node_settings(built.info.id, declared, files)
    run = f"test-{secrets.token_hex(4)}"
    alone = certificates.MeshPlan(run=run, nodes=("node1",), port=2222, seconds=600)
    plan = TrainingPlan(
        layout=declared.layout(layout),
        label=layout,
        save=f"{nodes.SHARED}/checkpoints",
        nodes=alone.nodes,
        per_node=2,
    )
    with nodes.running_mesh(engine, alone, settings, now=int(time.time())) as running:
        training.prepare(running, declared)
        seen = training.train(running, declared, plan, port=29500)
    seen = Observation(nodes=alone.nodes, environment={}, trainings={layout: seen})
    for check in (judge.world_size, judge.no_strays):
        result = check(declared, seen)
        assert (result.outcome, result.why) == ("passed", "")


@pytest.mark.repeat
@pytest.mark.parametrize("stack", TWO_RANKS)
def test_every_stack_passes_in_one_container(engine, stack_images, stack):
    """Parity, resume and the rest: with one layout of two ranks beside the reference."""
    built, layout = stack_images[stack], TWO_RANKS[stack]
    declared = built.image.stack.smoke
    kept = tuple(one for one in declared.layouts if one.name in (declared.reference, layout))
    declared = dataclasses.replace(declared, layouts=kept, resume=layout)
    outcome = run(engine, built, declared, smoke.workload_files(ROOT / "images" / stack / "smoke"))
    assert [(check.name, check.why) for check in outcome.checks if check.outcome != "passed"] == []
