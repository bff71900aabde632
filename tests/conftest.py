"""What all tests share: the order of files, the fuse of the fast tests, `--accept`."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ("tests.shared",)
TESTS = Path(__file__).resolve().parent
FUSED = (TESTS / "unit", TESTS / "golden")
# An example that takes long on a busy machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept",
        action="store_true",
        help="rewrite the files of tests/golden with what the code says now",
    )
    parser.addoption(
        "--first-variant",
        action="store_true",
        help="run each test with the first of its parameters, and none that starts programs",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files backwards with ORDER=reversed: no test may need another file's.

    First of all hooks, so that pytest still groups tests by the fixtures they share. Repetition
    may take longer than the limit of other tests: it builds whole images and trains on many hosts.
    """
    for item in items:
        if item.get_closest_marker("repeat") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(5400))
    if os.environ.get("ORDER") == "reversed":
        files = list(dict.fromkeys(item.path for item in items))
        items.sort(key=lambda item: -files.index(item.path))
    if config.getoption("--first-variant"):
        items[:], others = first_variants(items)
        config.hook.pytest_deselected(items=others)


def first_variants(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The first of each test's variants that is no repetition and starts no program; all others."""
    once = [
        item for item in items
        if not item.get_closest_marker("repeat") and "allow_processes" not in item.fixturenames
    ]  # fmt: skip
    first = {item.nodeid.partition("[")[0]: item for item in reversed(once)}
    chosen = set(first.values())
    return [i for i in items if i in chosen], [i for i in items if i not in chosen]


@pytest.fixture(scope="session", autouse=True)
def swept(request: pytest.FixtureRequest) -> None:
    """Remove what a killed session left, before the first test that is not a fast one."""
    paths = {item.path for item in request.session.items}
    if not all(any(path.is_relative_to(folder) for folder in FUSED) for path in paths):
        from tests import leftovers

        leftovers.sweep_all()


class Fuse:
    """Blows when a fast test starts a process or opens a connection."""

    def __init__(self) -> None:
        self.blown: list[str] = []

    def blow(self, what: str) -> None:
        self.blown.append(what)
        pytest.fail(self.message(), pytrace=False)

    def refuse(self, connection: socket.socket, to: object) -> None:
        connection.close()
        self.blow(f"connect to {to!r}")

    def message(self) -> str:
        return (
            f"a fast test tried to {'; '.join(self.blown)}: tests/unit and tests/golden start"
            " nothing and connect to nothing (fixtures allow_processes and allow_own_servers are"
            " for the few that must)"
        )


@pytest.fixture
def allow_processes() -> None:
    """For a fast test that has to start a process of its own (a fake program, a shell)."""


@pytest.fixture
def allow_own_servers() -> None:
    """For a fast test that talks to servers of its own, on the loopback interface."""


@pytest.fixture(autouse=True)
def fuse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fuse]:
    found = Fuse()
    if not any(request.path.is_relative_to(folder) for folder in FUSED):
        yield found
        return
    if "allow_processes" not in request.fixturenames:
        monkeypatch.setattr(
            subprocess.Popen, "__init__", lambda *a, **k: found.blow(f"start {_first(a, k)!r}")
        )
        # A Popen that never came to be is still finalised.
        monkeypatch.setattr(subprocess.Popen, "__del__", lambda *a: None)
    own_servers = "allow_own_servers" in request.fixturenames
    for name in ("connect", "connect_ex"):
        usual = getattr(socket.socket, name)

        def connect(mine: socket.socket, to: Any, usual: Callable[..., Any] = usual) -> Any:
            own = own_servers and isinstance(to, tuple) and to[0] == "127.0.0.1"
            return usual(mine, to) if own else found.refuse(mine, to)

        monkeypatch.setattr(socket.socket, name, connect)
    yield found
    # Code under test may have caught the failure, or met it in a thread.
    if found.blown:
        pytest.fail(found.message(), pytrace=False)


def _first(args: tuple[object, ...], named: dict[str, object]) -> object:
    return args[1] if len(args) > 1 else named.get("args")
