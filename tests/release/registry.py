"""A real registry for the tests: Debian's docker-registry in a container, with TLS and passwords.

Its certificate is signed by an authority of the test's own, which lies where docker looks for it.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import ipaddress
import json
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stackyard.release.connection import CERTS
from tests.fleet.emulated import docker, machine_image, owned

LABEL = "stackyard-test-registry"
USER, PASSWORD = "publisher", "only-for-tests"
CONFIG = """
version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: /var/lib/registry}
  delete: {enabled: true}
  maintenance: {readonly: {enabled: READONLY}}
http:
  addr: :5000
  tls: {certificate: /keys/tls.crt, key: /keys/tls.key}
auth:
  htpasswd: {realm: tests, path: /tmp/htpasswd}
"""
START = (
    "htpasswd -Bbc /tmp/htpasswd $REGISTRY_TEST_USER $REGISTRY_TEST_PASSWORD 2> /dev/null;"
    " exec docker-registry serve /keys/config.yml"
)


def shape(container: str, megabits: int) -> None:
    """Limit what a container sends."""
    docker("exec", container, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
           "rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms")  # fmt: skip


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(subject: str, key, issuer: str, signer, *extensions) -> bytes:
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name(issuer))
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )  # fmt: skip
    for extension, critical in extensions:
        made = made.add_extension(extension, critical)
    return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def write_keys(folder: Path, address: str) -> None:
    """`ca.crt`, `tls.crt` and `tls.key` of a registry at an address."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    ca = _certificate("tests", authority, "tests", authority,
                      (x509.BasicConstraints(ca=True, path_length=0), True))  # fmt: skip
    (folder / "ca.crt").write_bytes(ca)
    (folder / "tls.crt").write_bytes(_certificate(address, own, "tests", authority, (names, False)))
    private = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "tls.key").write_bytes(private)


@dataclasses.dataclass(kw_only=True)
class RealRegistry:
    """A registry that runs.

    Attributes:
        host: its address and port, as in an image's name.
        folder: of its keys; `docker` in it is a docker configuration with a login.
    """

    container: str
    host: str
    folder: Path

    @property
    def address(self) -> str:
        """Where it is, without its port."""
        return self.host.partition(":")[0]

    def sent(self) -> int:
        """Bytes it has sent since it started, by its network interface."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(docker("exec", self.container, "cat", path))

    def received(self) -> int:
        """Bytes it has received."""
        path = "/sys/class/net/eth0/statistics/rx_bytes"
        return int(docker("exec", self.container, "cat", path))

    def shape(self, megabits: int) -> None:
        """Limit what it sends."""
        shape(self.container, megabits)

    def read_only(self, on: bool) -> None:
        """Start it again, taking nothing any more, or as before."""
        text = CONFIG.replace("READONLY", "true" if on else "false")
        (self.folder / "config.yml").write_text(text)
        docker("restart", "-t", "2", self.container)
        self.wait()

    def kill(self) -> None:
        """End it without a word."""
        docker("kill", self.container)

    def start(self) -> None:
        """Start it again."""
        docker("start", self.container)
        self.wait()

    def wait(self, seconds: float = 20) -> None:
        """Wait until it answers."""
        end = time.monotonic() + seconds
        while True:
            try:
                url = f"https://{self.host}/v2/"
                code = requests.get(url, verify=self.folder / "ca.crt", timeout=2).status_code
                if code == 401:
                    return
            except requests.RequestException:
                pass
            assert time.monotonic() < end, docker("logs", self.container)
            time.sleep(0.1)

    def files(self, pattern: str, *tests: str) -> list[str]:
        """Files of its store for which `tests` of find hold."""
        script = f"find /var/lib/registry -path '{pattern}' -type f {' '.join(tests)}"
        return docker("exec", self.container, "sh", "-c", script, check=False).split()


@contextmanager
def registry(
    folder: Path, network: str = "bridge", *, megabytes: int = 0
) -> Iterator[RealRegistry]:
    """Start a registry, with so much space for its store; nothing of it is left at the end."""
    image = machine_image()
    name = f"{LABEL}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yml").write_text(CONFIG.replace("READONLY", "false"))
    certs: Path | None = None
    store = ["--tmpfs", f"/var/lib/registry:size={megabytes}m"] if megabytes else []
    try:
        docker(
            "create", "--init", "--name", name, *owned(), *store, "--network", network,
            "--cap-add", "NET_ADMIN", "-e", f"REGISTRY_TEST_USER={USER}",
            "-e", f"REGISTRY_TEST_PASSWORD={PASSWORD}",
            "-v", f"{folder}:/keys:ro", image, "sh", "-c",
            f"while [ ! -e /keys/tls.key ]; do sleep 0.05; done; {START}",
        )  # fmt: skip
        docker("start", name)
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = docker("inspect", "--format", form, name)
        write_keys(folder, address)
        found = RealRegistry(container=name, host=f"{address}:5000", folder=folder)
        certs = CERTS / found.host
        certs.mkdir(parents=True, exist_ok=True)  # a killed session leaves its own
        shutil.copy(folder / "ca.crt", certs / "ca.crt")
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (folder / "docker").mkdir(exist_ok=True)
        text = json.dumps({"auths": {found.host: {"auth": login}}})
        (folder / "docker" / "config.json").write_text(text)
        found.wait()
        yield found
    finally:
        docker("rm", "-f", "-v", name, check=False)
        if certs is not None:
            shutil.rmtree(certs, ignore_errors=True)
