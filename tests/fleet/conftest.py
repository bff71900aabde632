"""Three emulated hosts that hold the images of all stacks, for all tests here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from stackyard import dockerfile
from stackyard.builder import Builder
from stackyard.engine import Engine
from stackyard.project import ROOT, load_project
from tests.fleet import emulated

STACKS = ("accelerate", "fairseq", "megatron")
NAMES = ("study", "train", "depot")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def images():
    """The stacks' images on the cpu base, built where they are not current."""
    with Engine() as engine:
        Builder(load_project(), engine, lambda stack, text: None).build_all(list(STACKS), "cpu")
    return [dockerfile.image_tag(stack, "cpu") for stack in STACKS]


@pytest.fixture(scope="session")
def three(images, tmp_path_factory):
    """Three hosts; their inventory is `folder / "hosts.yml"`."""
    folder = tmp_path_factory.mktemp("hosts")
    with emulated.hosts(NAMES, images, folder) as found:
        yield emulated.Yard(folder=folder, hosts={host.name: host for host in found})


@pytest.fixture
def yard(three):
    """The hosts as a test finds them: nothing runs there, before and after."""
    assert three.left() == {}
    yield three
    for host in three.hosts.values():
        host.mend()
    left = three.left()
    three.invoke("down", "--all", check=False)
    assert left == {}


def invoke(*words: str, cwd: Path = ROOT, check: bool = True, seconds: float = 240):
    """`invoke` as a user types it; what it printed and its exit code."""
    done = subprocess.run(
        [ROOT / ".venv/bin/invoke", *words], cwd=cwd, env=dict(os.environ), text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False,
    )  # fmt: skip
    if check and done.returncode:
        raise AssertionError(
            f"invoke {' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-2000:]}"
        )
    return done


def result(done) -> dict:
    """The JSON that a command printed."""
    found: dict = json.loads(done.stdout)
    return found
