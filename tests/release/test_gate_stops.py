"""What must not be published stops the publication, and nothing is named."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.release.conftest import TWO
from tests.release.small import loaded, tar

TOKEN = "gh" + "p_" + "aB3dE5gH7jK9mN1pQ3sT5vX7zC9fG2hJ4kL6"


@pytest.mark.repeat  # a stack's own image is published in test_releases.py
def test_what_holds_no_secret_is_published(site, image, compressed):
    """The control: such an image is refused for what is planted in it, and for nothing else."""
    site.cache = compressed
    with loaded([tar({"etc/a.cfg": b"nothing"})], image("accelerate").labels) as clean:
        done = site.publish("accelerate", "--unproven", "--image", clean)
    assert done["name"] in site.tags()


@pytest.fixture(scope="module")
def why(make_site, image, tmp_path_factory):
    """Why an image was not published that holds every kind of secret and says it is a stack's."""
    site = make_site(tmp_path_factory.mktemp("refused"), *TWO)
    key = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    login = json.dumps({"auths": {"r.example": {"auth": "dXNlcjpodW50ZXIyLWFuZC1tb3Jl"}}})
    own = site.registry.folder / "ca.crt"
    layers = [
        tar({
            "usr/share/notes.txt": key, "etc/a.cfg": TOKEN.encode(),
            "usr/local/share/own.pem": own.read_bytes(),
            "root/.docker/config.json": login.encode(),
        }),
        tar({"usr/share/.wh.notes.txt": b""}),
    ]  # fmt: skip
    env = (f"SERVICE_TOKEN={TOKEN[::-1]}",)
    with (
        loaded(layers, image("accelerate").labels, env) as planted,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SSL_CERT_FILE", str(own))
        done = site.publish("accelerate", "--unproven", "--image", planted, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert site.asked().tags() == []
    return json.loads(done.stdout)["error"]["why"]


def test_a_private_key_that_a_later_layer_deletes_stops_it(why):
    assert "/usr/share/notes.txt" in why


def test_a_token_in_a_file_and_one_in_the_environment_stop_it_and_are_not_said(why):
    assert "/etc/a.cfg" in why and "SERVICE_TOKEN" in why
    assert TOKEN not in why and TOKEN[::-1] not in why


def test_the_build_machine_s_own_certificate_authority_stops_it(why):
    assert "/usr/local/share/own.pem" in why


def test_a_registry_s_login_stops_it(why):
    assert "/root/.docker/config.json" in why
