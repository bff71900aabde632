"""What must not be published stops the publication, and nothing is named."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fleet.emulated import docker
from tests.release.conftest import image_tag

TAG = image_tag("accelerate")


@pytest.fixture
def planted(images, tmp_path):
    """Builds the image with some more steps; its name is given back at the end."""
    before = images["accelerate"]

    def plant(steps: str, files: dict[str, bytes]) -> None:
        context = tmp_path / "context"
        context.mkdir()
        for name, data in files.items():
            (context / name).write_bytes(data)
        (context / "Dockerfile").write_text(f"FROM {before}\n{steps}\n")
        subprocess.run(["/usr/bin/docker", "build", "-q", "-t", TAG, str(context)], check=True,
                       capture_output=True, env={**os.environ, "DOCKER_BUILDKIT": "0"})  # fmt: skip

    yield plant
    docker("tag", before, TAG)


def refused(site, *words: str) -> str:
    done = site.publish("accelerate", "--unproven", *words, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert site.tags() == []
    return json.loads(done.stdout)["error"]["why"]


def test_a_private_key_that_a_later_layer_deletes(site, planted):
    key = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    planted("COPY notes.txt /usr/share/notes.txt\nRUN rm /usr/share/notes.txt", {"notes.txt": key})
    assert "/usr/share/notes.txt" in refused(site)


def test_a_token_in_a_file_and_one_in_the_environment(site, planted):
    token = "gh" + "p_" + "aB3dE5gH7jK9mN1pQ3sT5vX7zC9fG2hJ4kL6"
    planted(f"COPY a.cfg /etc/a.cfg\nENV SERVICE_TOKEN={token[::-1]}", {"a.cfg": token.encode()})
    why = refused(site)
    assert "/etc/a.cfg" in why and "SERVICE_TOKEN" in why
    assert token not in why and token[::-1] not in why


def test_the_build_machine_s_own_certificate_authority(site, planted, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(site.registry.folder / "ca.crt"))
    ca = (site.registry.folder / "ca.crt").read_bytes()
    planted("COPY own.pem /usr/local/share/own.pem", {"own.pem": ca})
    assert "/usr/local/share/own.pem" in refused(site)


def test_a_registry_s_login(site, planted):
    login = json.dumps({"auths": {"r.example": {"auth": "dXNlcjpodW50ZXIyLWFuZC1tb3Jl"}}})
    planted("COPY config.json /root/.docker/config.json", {"config.json": login.encode()})
    assert "/root/.docker/config.json" in refused(site)
