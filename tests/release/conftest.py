"""A registry, four emulated hosts with empty engines, and a publisher, once for all tests here.

Each test has a repository of its own in the registry, and a copy of the publisher's folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from stackyard.build.builder import Builder
from stackyard.definitions.project import ROOT, load_project
from stackyard.release.connection import PATIENT, Patience
from stackyard.release.credentials import Login
from stackyard.release.registry import Registry
from stackyard.scan import oci
from stackyard.system import signing
from stackyard.system.engine import Engine
from stackyard.system.image import ImageInfo
from tests.fleet import emulated
from tests.release.registry import PASSWORD, USER, RealRegistry, registry

STACKS = ("accelerate", "fairseq", "megatron")
NAMES = ("study", "train", "depot", "forge")
TWO = NAMES[:2]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@dataclasses.dataclass(kw_only=True)
class Site:
    """Everything that a publisher and a cluster have.

    Attributes:
        folder: the publisher's home: key, list of signers, login.
        cache: where this machine keeps layers; another one is another machine.
        project: the definitions that commands are run with.
        repository: its name in the registry.
    """

    folder: Path
    registry: RealRegistry
    yard: emulated.Yard
    cache: Path
    project: Path = ROOT
    repository: str = "team/stackyard"

    @property
    def place(self) -> str:
        """The repository."""
        return f"{self.registry.host}/{self.repository}"

    @property
    def signers(self) -> Path:
        """Whose releases are accepted."""
        return self.folder / "allowed_signers"

    @property
    def key(self) -> Path:
        """The publisher's key."""
        return self.folder / "publisher"

    @property
    def logins(self) -> Path:
        """Docker's configuration, with a login."""
        return self.folder / "docker"

    @property
    def layers(self) -> Path:
        """Where commands keep compressed layers."""
        return self.cache / "stackyard" / "layers"

    @property
    def environment(self) -> dict[str, str]:
        """What a command is run with."""
        own = {"DOCKER_CONFIG": str(self.logins), "HOME": str(self.folder),
               "XDG_CACHE_HOME": str(self.cache)}  # fmt: skip
        # What is known of vulnerabilities changes by the day: no test depends on it.
        indexes = {"PIP_AUDIT_OSV_URL": "http://127.0.0.1:9/", "STACKYARD_APT_SOURCES": os.devnull}
        return {**os.environ, **own, **indexes}

    def invoke(self, *words: str, check: bool = True, seconds: float = 300):
        """A command as a user types it."""
        done = subprocess.run(
            [ROOT / ".venv/bin/invoke", *words], cwd=self.project, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False,
            env=self.environment,
        )  # fmt: skip
        said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        assert not check or done.returncode == 0, f"invoke {' '.join(words)}: {said}"
        return done

    def publish(self, stack: str, *words: str, **more):
        """`invoke publish`; its JSON, or what it said where it may fail."""
        done = self.invoke("publish", stack, "--base", "cpu", "--to", self.place, "--json",
                           "--key", str(self.key), *words, **more)  # fmt: skip
        return json.loads(done.stdout) if more.get("check", True) else done

    def pull(self, stack: str, *words: str, **more):
        """`invoke pull` onto all hosts; its JSON, or what it said where it may fail."""
        done = self.invoke("pull", stack, "--base", "cpu", "--from", self.place, "--json",
                           "--signers", str(self.signers), "--hosts", self.yard.inventory,
                           *words, **more)  # fmt: skip
        return json.loads(done.stdout) if more.get("check", True) else done

    def tags(self) -> list[str]:
        """Tags in the registry that lead to an image."""
        found = self.asked().tags()
        return sorted(tag for tag in found if not tag.startswith("sha256-") and "-r" in tag)

    def asked(self, patience: Patience = PATIENT) -> Registry:
        """The registry, asked directly."""
        login = Login(user=USER, password=PASSWORD)
        return Registry(oci.parse_repository(self.place), login, patience=patience)

    def images(self, host: emulated.EmulatedHost) -> dict[str, str]:
        """Ids of a host's images by their names."""
        lines = host.run("docker", "images", "--no-trunc", "--format",
                         "{{.Repository}}:{{.Tag}} {{.ID}}").splitlines()  # fmt: skip
        return dict(line.split() for line in lines)

    def digests(self, host: emulated.EmulatedHost) -> set[str]:
        """Digests that a host's engine knows."""
        form = "{{.Digest}}"
        lines = host.run("docker", "images", "--digests", "--no-trunc", "--format", form)
        return set(lines.split()) - {"<none>"}

    def require_nothing_left(
        self, *hosts: emulated.EmulatedHost, parcels: bool = True, seconds: float = 10
    ) -> None:
        """See that a while after a pull nothing of it is on hosts: no key, server or process.

        Args:
            hosts: all where none is named.
            parcels: whether parcels count, too; a pull that broke off keeps its own for the next.
        """
        end = time.monotonic() + seconds
        for host in hosts or self.yard.hosts.values():
            while left := left_of_pulls(host, parcels=parcels):
                assert time.monotonic() < end, f"{host.name}: {left}"
                time.sleep(0.2)

    def forget(self) -> None:
        """Take everything from the hosts' engines, and what broke off from their caches."""
        self.require_nothing_left(parcels=False)
        for host in self.yard.hosts.values():
            host.run("sh", "-c", "docker rmi -f $(docker images -aq) > /dev/null 2>&1;"
                     " rm -rf /root/.cache/stackyard; true")  # fmt: skip


def left_of_pulls(host: emulated.EmulatedHost, *, parcels: bool) -> list[str]:
    """List what pulls left on a host: folders with keys, parcels, processes that use them."""
    folders = "/root/.cache/stackyard/pull/*" if parcels else ""
    script = f"ls -d /dev/shm/stackyard-pull.* /tmp/stackyard-pull.* {folders} 2> /dev/null"
    found = host.run("sh", "-c", script, check=False).splitlines()
    return [*found, *host.processes("stackyard-pull.")]


def make_publisher(site: Site) -> None:
    """Give a site a publisher's key, whom everybody trusts, and its hosts the registry's CA."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "x", "-f",
                    str(site.key)], check=True)  # fmt: skip
    site.signers.write_text(f"{signing.signer_line(site.key, 'publisher@site')}\n")
    shutil.copytree(site.registry.folder / "docker", site.logins)
    for host in site.yard.hosts.values():
        certs = f"/etc/docker/certs.d/{site.registry.host}"
        emulated.docker("exec", host.container, "mkdir", "-p", certs)
        ca = site.registry.folder / "ca.crt"
        emulated.docker("cp", str(ca), f"{host.container}:{certs}/ca.crt")


@pytest.fixture(scope="session")
def image():
    """A stack's image on the cpu base, built where it is not current."""
    with Engine() as engine:
        builder = Builder(load_project(), engine, lambda stack, text: None)

        def built(stack: str) -> ImageInfo:
            return builder.build(stack, "cpu").info

        yield built


@pytest.fixture(scope="session")
def proven(image):
    """The id of a stack's image, which has a passed smoke and its evidence."""

    def seen(stack: str) -> str:
        found = image(stack).id
        path = ROOT / "reports" / stack / "cpu" / "smoke.json"
        report = json.loads(path.read_text()) if path.is_file() else {}
        shown = path.with_name("smoke.intoto.jsonl").is_file()
        if report.get("outcome") != "passed" or report["image"]["id"] != found or not shown:
            subprocess.run([ROOT / ".venv/bin/invoke", "smoke", stack, "--gpus", "0"], cwd=ROOT,
                           check=True, capture_output=True, timeout=300)  # fmt: skip
        return found

    return seen


@pytest.fixture(scope="session")
def programs():
    """What a user is told to have here: an ssh client, and what makes squashfs files."""
    packages = {"ssh": "openssh-client", "mksquashfs": "squashfs-tools"}
    missing = [package for name, package in packages.items() if shutil.which(name) is None]
    if missing:
        for words in (["update", "-q"], ["install", "-y", "-q", *missing]):
            subprocess.run(["apt-get", *words], check=True, capture_output=True)


@pytest.fixture(scope="session")
def hosts(programs, tmp_path_factory):
    """Four hosts whose engines hold nothing."""
    folder = tmp_path_factory.mktemp("hosts")
    with emulated.hosts(NAMES, [], folder) as found:
        yield emulated.Yard(folder=folder, hosts={host.name: host for host in found})


@pytest.fixture(scope="session")
def make_site(hosts, tmp_path_factory):
    """Give a site: a repository that is empty, a publisher's folder, some of the hosts."""
    with registry(tmp_path_factory.mktemp("registry"), hosts.network) as running:
        folder = tmp_path_factory.mktemp("publisher")
        first = Site(folder=folder, registry=running, yard=hosts, cache=folder)
        make_publisher(first)

        def make(place: Path, *names: str) -> Site:
            shutil.copytree(folder, place / "publisher")
            return dataclasses.replace(
                first, folder=place / "publisher", cache=place / "cache", yard=hosts.only(*names),
                repository=f"team/{secrets.token_hex(4)}",
            )  # fmt: skip

        yield make


@pytest.fixture(scope="session")
def compressed(tmp_path_factory):
    """Where publishers of real images keep compressed layers: a base's packages take seconds."""
    return tmp_path_factory.mktemp("compressed")


@pytest.fixture
def site(make_site, tmp_path):
    """An empty repository, two hosts with empty engines, a publisher with a key."""
    found = make_site(tmp_path, *TWO)
    yield found
    found.forget()
