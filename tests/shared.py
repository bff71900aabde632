"""Fixtures that several folders of tests need: the engine, every stack's image, one built again.

A plugin (`tests/conftest.py` names it), so that a session makes each of them once.
"""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import testinfra
from testinfra.host import Host

from stackyard.build.builder import Builder, Built
from stackyard.definitions.project import ROOT, load_project
from stackyard.system import cleanup
from stackyard.system.engine import Engine
from stackyard.system.image import ImageInfo
from tests.trees import copy_tree, rename_stack

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


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """An image that was built again under another name, by several commands at once.

    Attributes:
        codes: the exit codes of the command that was interrupted, and of those that were not.
        output: what they all said.
    """

    info: ImageInfo
    codes: tuple[int, int, int]
    output: str


@pytest.fixture(scope="session")
def rebuilt(
    engine: Engine, stack_images: dict[str, Built], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rebuilt]:
    """Megatron's own layers made again: a comment in its lock makes every step of them run.

    The command that began it is interrupted when two others have joined in.
    """
    folder, name = tmp_path_factory.mktemp("rebuilt"), own_name("rebuilt")
    tree = copy_tree(folder)
    with (rename_stack(tree, "megatron", name) / f"{BASE}.lock").open("a") as lock:
        lock.write(f"# Again, at {time.time_ns()}.\n")
    command = [ROOT / ".venv/bin/invoke", "build", name, "--base", BASE, "--verbose"]

    def start(output: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=tree, stdout=output, stderr=subprocess.STDOUT, text=True
        )

    path = folder / "output"
    with path.open("w") as output, start(subprocess.PIPE) as first:
        # BuildKit shows a step that is for several to the first of them.
        for line in first.stdout:
            if "installing packages" in line:
                break
        others = [start(output), start(output)]
        until(lambda: path.read_text().count("load remote build context") == len(others))
        first.send_signal(signal.SIGINT)
        said = first.stdout.read()
        codes = (first.wait(), *(other.wait(timeout=600) for other in others))
    info = engine.image(f"stackyard/{name}:{BASE}")
    said += path.read_text()
    assert info is not None, said
    yield Rebuilt(info=info, codes=codes, output=said)
    engine.remove_image(f"stackyard/{name}:{BASE}")


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
