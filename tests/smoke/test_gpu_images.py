"""Images for GPUs, tried where there is none: facts, sizes, and a smoke on CPU ranks."""

from __future__ import annotations

import itertools
import json
import secrets

import pytest

from stackyard.build.builder import Builder
from stackyard.definitions.project import ROOT, load_project
from stackyard.validate import smoke

pytestmark = pytest.mark.repeat
PROJECT = load_project()
STACKS = sorted(PROJECT.definitions.stacks)
BASE = PROJECT.definitions.bases["cuda"]
# What an engine has to fetch and unpack in one piece, and what a whole image may weigh.
LAYER_BYTES, IMAGE_BYTES, OWN_BYTES = 2.0e9, 5.6e9, 0.2e9
SAYS = """
import json, shutil, sysconfig, torch
print(json.dumps({
    "cuda": torch.version.cuda,
    "architectures": torch._C._cuda_getArchFlags(),
    "compiler": bool(shutil.which("gcc")),
    "headers": sysconfig.get_path("include"),
}))
"""


@pytest.fixture(scope="module")
def images(engine):
    """Every stack's image on the base, by the stack's name."""
    builder = Builder(PROJECT, engine, lambda stack, text: print(f"{stack}: {text}"))
    return dict(zip(STACKS, builder.build_all(STACKS, BASE.name), strict=True))


def test_the_image_is_what_its_base_states(engine, images):
    said = engine.run_once(images["fairseq"].info.id, ["python3", "-c", SAYS], seconds=300)
    found = json.loads(said.splitlines()[-1])
    assert found["cuda"] == BASE.facts["cuda"].value
    assert found["architectures"] == BASE.facts["architectures"].value
    assert found["compiler"]
    header = f"{found['headers']}/Python.h"
    assert engine.run_once(images["fairseq"].info.id, ["ls", header], seconds=60).strip() == header


def test_no_layer_is_more_than_2_gb_and_stacks_share_most(engine, images):
    steps = {}
    for name, built in images.items():
        found = engine.history(built.info.id)
        steps[name] = [(step["CreatedBy"], step["Size"]) for step in reversed(found)]
        assert max(size for _, size in steps[name]) <= LAYER_BYTES, name
        assert built.info.size <= IMAGE_BYTES, name
    together = zip(*steps.values(), strict=False)
    alike = itertools.takewhile(lambda same: len(set(same)) == 1, together)
    shared = sum(same[0][1] for same in alike)
    for name, built in images.items():
        assert built.info.size - shared <= OWN_BYTES, name


@pytest.mark.parametrize("stack", STACKS)
def test_cpu_ranks_pass_the_smoke_in_the_image_for_gpus(engine, images, stack):
    built = images[stack]
    declared = built.image.stack.smoke_on("cpu")
    settings = smoke.node_settings(
        built.info.id, declared, smoke.workload_files(ROOT / "images" / stack / "smoke")
    )
    outcome = smoke.run_smoke(
        engine,
        declared,
        settings,
        run=f"test-{secrets.token_hex(4)}",
        image_env=dict(entry.split("=", 1) for entry in built.info.env),
    )
    assert [(check.name, check.why) for check in outcome.checks if check.outcome != "passed"] == []
