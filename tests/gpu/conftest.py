"""What tests on real GPUs share: they need two of them, free, and an image built for them.

They are not part of the ordinary test command, which has no GPUs:

    STACKYARD_GPU_IMAGE=stackyard/megatron:cuda pytest tests/gpu -s
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from pathlib import Path

import pytest

from stackyard.build import choice
from stackyard.definitions.document import parse_document
from stackyard.definitions.project import ROOT, load_project
from stackyard.definitions.read.files import read_stack
from stackyard.system.engine import Engine
from stackyard.validate import gpu_run, smoke

EXAMPLE = ROOT / "examples" / "ddp"
FAULTS = ROOT / "tests" / "smoke" / "faults.py"


IMAGE = os.environ.get("STACKYARD_GPU_IMAGE", "")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not IMAGE:
                why = "needs two GPUs and STACKYARD_GPU_IMAGE, an image of megatron for them"
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def engine():
    with Engine() as held:
        yield held


@pytest.fixture(scope="session")
def built(engine):
    """An image that has what the example needs: torch and einops."""
    return choice.held_image(load_project(), engine, IMAGE, "megatron", "")


@pytest.fixture(scope="session")
def example():
    """The example's smoke on GPUs, with short limits."""
    problems = []
    top = parse_document((EXAMPLE / "stack.yml").read_text(), file="stack.yml", problems=problems)
    stack = read_stack(top, "ddp")
    assert not problems
    return dataclasses.replace(stack.gpu_smoke, start_seconds=40, stall_seconds=20)


@pytest.fixture(scope="session")
def bare(engine):
    """What the bare host measures: once, not for every fault."""
    made = gpu_run.with_bare_host(gpu_run.make_plan(engine, 2, 1, "", "pytest"))
    assert made.bare, f"nothing shows what a container costs: {made.no_bare}"
    return made.bare


@pytest.fixture
def plan(engine, bare):
    """Plan a run on two GPUs."""

    def make(nodes=1, name="", settings=None):
        made = gpu_run.make_plan(engine, 2, nodes, name, "pytest")
        return dataclasses.replace(made, settings={**made.settings, **(settings or {})}, bare=bare)

    return make


@pytest.fixture
def run(engine, built, example):
    """A whole smoke of the example, with a fault: its checks by name."""

    def go(made, *, fault="none", change=lambda started: started, declared=example):
        files = smoke.workload_files(EXAMPLE / "smoke")
        files["faults.py"] = FAULTS.read_bytes()
        program = ("/srv/smoke/faults.py", fault, *declared.program[1:])
        declared = dataclasses.replace(declared, program=program)
        name = f"gputest-{secrets.token_hex(4)}"
        env = dict(entry.split("=", 1) for entry in built.info.env if "=" in entry)
        started = change(gpu_run.start_run(made, name, env.get("LD_LIBRARY_PATH", "")))
        outcome = smoke.run_smoke(
            engine,
            declared,
            smoke.node_settings(built.info.id, declared, files, started),
            run=name,
            node_count=len(started.placement.nodes),
            image_env=env,
            gpu=started,
        )
        for check in outcome.checks:
            print(check.name, check.outcome, check.why or check.measured)
        return {check.name: check for check in outcome.checks}

    return go
