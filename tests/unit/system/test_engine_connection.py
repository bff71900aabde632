"""Connecting to an engine, what is said where none answers, and its throw-away containers."""

from contextlib import nullcontext
from types import SimpleNamespace

import docker.errors
import pytest

from stackyard.system.engine import connection, containers
from stackyard.system.errors import EngineError


class Client:
    """The SDK's client of an engine with these components."""

    def __init__(self, *names):
        self.names, self.closed, self.api = names, False, None

    def version(self):
        return {"Components": [{"Name": name, "Version": "4.3.1"} for name in self.names]}

    def close(self):
        self.closed = True


def test_docker_is_taken(monkeypatch):
    client = Client("Engine", "containerd", "runc")
    monkeypatch.setattr(connection, "_connect", lambda *_: client)
    with connection.Connection():
        assert not client.closed
    assert client.closed


def test_podman_is_refused_by_name(monkeypatch):
    client = Client("Podman Engine", "Conmon", "OCI Runtime (crun)")
    monkeypatch.setattr(connection, "_connect", lambda *_: client)
    with pytest.raises(EngineError, match=r"the engine is podman 4\.3\.1, not Docker") as caught:
        connection.Connection()
    assert "rootless Docker" in caught.value.hint and client.closed


@pytest.mark.parametrize(
    ("why", "address", "hint"),
    [
        ("PermissionError(13, 'Permission denied')", "", "sudo usermod -aG docker"),
        ("FileNotFoundError(2, 'No such file or directory')", "", "sudo systemctl start docker"),
        ("FileNotFoundError(2, 'No such file or directory')", "unix:///x", "unset it"),
    ],
)
def test_where_no_engine_answers_the_remedy_fits_the_reason(monkeypatch, why, address, hint):
    def refuse(*_):
        raise docker.errors.DockerException(f"Error while fetching server API version: {why}")

    monkeypatch.setattr(connection, "_connect", refuse)
    if address:
        monkeypatch.setenv("DOCKER_HOST", address)
    else:
        monkeypatch.delenv("DOCKER_HOST", raising=False)
    with pytest.raises(EngineError, match="no container engine answers") as caught:
        connection.Connection()
    assert hint in caught.value.hint


def test_a_throw_away_container_that_is_interrupted_is_removed(monkeypatch):
    asked, removed = {}, []

    def run(image, words, **given):
        asked.update(given)
        raise KeyboardInterrupt

    engine = SimpleNamespace(
        _client=SimpleNamespace(containers=SimpleNamespace(run=run)), remove_run=removed.append
    )
    monkeypatch.setattr(containers.cleanup, "undoing", lambda *given: nullcontext())
    with pytest.raises(KeyboardInterrupt):
        containers.Containers.run_once(engine, "toy", ["true"], seconds=5)
    (label,) = removed
    key, _, run_name = label.partition("=")
    assert asked["labels"][key] == run_name
    # docker's other drivers keep no log that the SDK reads, as where daemon.json says `local`.
    assert asked["log_config"].type == "json-file"
