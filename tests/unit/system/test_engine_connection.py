"""Connecting to an engine: who is refused, and what is said where none answers."""

import docker.errors
import pytest

from stackyard.system.engine import connection
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
