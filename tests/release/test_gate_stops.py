"""What must not be published stops the publication, and nothing is named."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.release.small import loaded, tar


@pytest.fixture
def refused(site, image):
    """Publishes a small image that says of itself that it is a stack's; why that was refused."""

    def publish(*layers: dict[str, bytes], env: tuple[str, ...] = ()) -> str:
        with loaded([tar(files) for files in layers], image("accelerate").labels, env) as planted:
            done = site.publish("accelerate", "--unproven", "--image", planted, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        assert site.asked().tags() == []
        return json.loads(done.stdout)["error"]["why"]

    return publish


def test_what_holds_no_secret_is_published(site, image):
    """The control: such an image is refused for what is planted in it, and for nothing else."""
    with loaded([tar({"etc/a.cfg": b"nothing"})], image("accelerate").labels) as clean:
        done = site.publish("accelerate", "--unproven", "--image", clean)
    assert done["name"] in site.tags()


def test_a_private_key_that_a_later_layer_deletes(refused):
    key = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    why = refused({"usr/share/notes.txt": key}, {"usr/share/.wh.notes.txt": b""})
    assert "/usr/share/notes.txt" in why


def test_a_token_in_a_file_and_one_in_the_environment(refused):
    token = "gh" + "p_" + "aB3dE5gH7jK9mN1pQ3sT5vX7zC9fG2hJ4kL6"
    why = refused({"etc/a.cfg": token.encode()}, env=(f"SERVICE_TOKEN={token[::-1]}",))
    assert "/etc/a.cfg" in why and "SERVICE_TOKEN" in why
    assert token not in why and token[::-1] not in why


def test_the_build_machine_s_own_certificate_authority(refused, site, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(site.registry.folder / "ca.crt"))
    ca = (site.registry.folder / "ca.crt").read_bytes()
    assert "/usr/local/share/own.pem" in refused({"usr/local/share/own.pem": ca})


def test_a_registry_s_login(refused):
    login = json.dumps({"auths": {"r.example": {"auth": "dXNlcjpodW50ZXIyLWFuZC1tb3Jl"}}})
    why = refused({"root/.docker/config.json": login.encode()})
    assert "/root/.docker/config.json" in why
