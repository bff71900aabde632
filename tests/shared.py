"""Fixtures that several folders of tests need: the engine, every stack's image.

A plugin (`tests/conftest.py` names it), so that a session makes each of them once.
"""

from __future__ import annotations

import hashlib
import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import testinfra
from testinfra.host import Host

from stackyard.build.builder import Builder, Built
from stackyard.definitions.project import load_project
from stackyard.system import cleanup
from stackyard.system.engine import Engine

BASE = "cpu"


def pytest_configure() -> None:
    """Let Ctrl-C through: a shell starts what is in the background with SIGINT ignored, and so
    would be every command that a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The container engine of this machine."""
    with Engine() as held:
        yield held


@pytest.fixture(scope="session")
def stack_images(engine: Engine) -> dict[str, Built]:
    """The current image of every stack, by name; what is missing is built at the same time.

    Tests start containers by id: another command may give an image's name to a later one.
    """
    project = load_project()
    builder = Builder(project, engine, lambda stack, text: print(f"{stack}: {text}"))
    stacks = sorted(project.definitions.stacks)
    return dict(zip(stacks, builder.build_all(stacks, BASE), strict=True))


def inside(container: str) -> Host:
    """A running container, for testinfra; each look is a `docker exec`."""
    return testinfra.get_host(f"docker://{container}")


def own_name(what: str) -> str:
    """A name for a stack or image of this session's own, which `name_is_left` can read."""
    place, pid, started = cleanup.owner().split(" ")
    return f"test-{what}-{_short(place)}-{pid}-{started}"


def name_is_left(name: str) -> bool:
    """Whether a name holds one of `own_name`, of a session of this machine that has ended."""
    found = re.search(r"test-[a-z-]+-([0-9a-f]{8})-(\d+)-(\d+)", name)
    if found is None:
        return False
    place, pid, started = found.groups()
    return (
        place == _short(cleanup.owner().split(" ")[0]) and cleanup.started_at(int(pid)) != started
    )


def _short(place: str) -> str:
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def until(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)
