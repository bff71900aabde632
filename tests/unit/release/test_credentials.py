"""Logins at registries, as `docker login` keeps them."""

import base64
import json

import pytest

from stackyard.release.credentials import Login, find_login
from stackyard.system.errors import RegistryError

HOST, SECRET = "registry.example:5000", "n0t-a-w0rd"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Write docker's configuration; a helper is a program that answers."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(answer="", **config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        helper = tmp_path / "docker-credential-vault"
        helper.write_text(f"#!/bin/sh\ncat > /dev/null\n{answer}\n")
        helper.chmod(0o755)

    return write


def kept(**more):
    text = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    return {HOST: {"auth": text, **more}}


def test_a_login_is_found_for_its_registry_alone(store):
    store(auths=kept())
    found = find_login(HOST)
    assert found == Login(user="ann", password=SECRET)
    assert find_login("registry.example") is find_login("other.example:5000") is None


def test_an_identity_token_stands_for_name_and_password(store):
    store(auths=kept(identitytoken="t0ken"))
    found = find_login(HOST)
    assert found == Login(token="t0ken")


@pytest.mark.usefixtures("allow_processes")
def test_a_helper_is_asked(store):
    answer = json.dumps({"Username": "ann", "Secret": SECRET, "ServerURL": HOST})
    store(f"echo '{answer}'", credHelpers={HOST: "vault"})
    assert find_login(HOST) == Login(user="ann", password=SECRET)


@pytest.mark.usefixtures("allow_processes")
def test_a_helper_that_does_not_work_is_told(store):
    store("echo locked; exit 1", credHelpers={HOST: "vault"})
    with pytest.raises(RegistryError, match="credentials cannot be asked for") as caught:
        find_login(HOST)
    assert caught.value.hint.startswith("docker login")


def test_a_secret_is_not_shown_with_its_login():
    assert SECRET not in repr(Login(user="ann", password=SECRET, token=SECRET))
