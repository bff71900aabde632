"""A running mesh for the tests here: the cheapest real thing, one for the whole session."""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

import pytest

from stackyard.definitions.document import parse_document
from stackyard.definitions.project import ROOT
from stackyard.definitions.read.files import read_stack
from stackyard.mesh import certificates, nodes
from stackyard.validate import smoke

EXAMPLE = ROOT / "examples" / "ddp"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def built(stack_images):
    """An image that has what the example needs: torch and einops."""
    return stack_images["megatron"]


@pytest.fixture(scope="session")
def example():
    """The example's smoke, as declared."""
    problems = []
    top = parse_document((EXAMPLE / "stack.yml").read_text(), file="stack.yml", problems=problems)
    stack = read_stack(top, "ddp")
    assert not problems
    return stack.smoke


@pytest.fixture(scope="session")
def settings(built, example):
    files = smoke.workload_files(EXAMPLE / "smoke")
    files["faults.py"] = (Path(__file__).parent / "faults.py").read_bytes()
    return smoke.node_settings(built.info.id, example, files)


@pytest.fixture
def make_mesh(engine, settings):
    """Start a mesh of two nodes; removed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def make():
            run = f"test-{secrets.token_hex(4)}"
            plan = certificates.MeshPlan(run=run, nodes=("node1", "node2"), port=2222, seconds=3600)
            running = nodes.running_mesh(engine, plan, settings, now=int(time.time()))
            return stack.enter_context(running)

        yield make


@pytest.fixture(scope="session")
def shared_mesh(engine, settings):
    """One reachable mesh for all tests that leave it as they found it."""
    run = f"test-{secrets.token_hex(4)}"
    plan = certificates.MeshPlan(run=run, nodes=("node1", "node2"), port=2222, seconds=3600)
    with nodes.running_mesh(engine, plan, settings, now=int(time.time())) as running:
        nodes.wait_reachable(running)
        yield running


@pytest.fixture(scope="session")
def image_env(built):
    return dict(entry.split("=", 1) for entry in built.info.env)
