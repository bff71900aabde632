"""Cuts at random points of publish and pull: never a wrong or half-visible image.

Twenty of them; CUTS_SEED plays others.

After each cut every name in the registry leads to a whole, signed image, every image on a host is
the one that was signed, and the repeat ends well and moves only what was missing.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from stackyard.definitions.project import ROOT
from stackyard.release import statement
from stackyard.release.parcel import PARTIAL, lacking, make_parcel
from stackyard.release.verify import verify_release
from stackyard.scan import oci
from tests.fleet.emulated import docker
from tests.release import driver
from tests.release.registry import shape
from tests.release.small import small_image

SEED = int(os.environ.get("CUTS_SEED", "20261121"))


def once(*chosen):
    """Ten numbers of cuts; all but those that are chosen are repetition."""
    return [pytest.param(n, marks=() if n in chosen else pytest.mark.repeat) for n in range(10)]


@pytest.fixture
def site(make_site, tmp_path):
    """Three hosts: one only gets, one passes on, one only gives."""
    found = make_site(tmp_path, "study", "train", "depot")
    yield found
    found.forget()


def start(site, *words):
    """A command that can be killed; its output goes to a file."""
    with (site.folder / "cut.log").open("w") as log:
        return subprocess.Popen(words, cwd=ROOT, env=site.environment, stdout=log, stderr=log,
                                stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip


def publishing(site, image):
    return [sys.executable, "-m", "tests.release.driver", site.place, image, str(site.key),
            str(site.cache / "spool")]  # fmt: skip


def pulling(site):
    return [str(ROOT / ".venv/bin/invoke"), "pull", "accelerate", "--base", "cpu", "--from",
            site.place, "--signers", str(site.signers), "--hosts", site.yard.inventory,
            "--json"]  # fmt: skip


def unshape(container):
    docker("exec", container, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)


def only_whole_images_have_names(site):
    """Every tag that names an image: all blobs there, a statement that can be believed."""
    registry = site.asked()
    for tag in registry.tags():
        manifest = registry.manifest(tag)
        assert manifest is not None, tag
        if b'"manifests"' in manifest:
            continue  # the list of artifacts
        read = oci.read_manifest(manifest)
        if read.artifact_type:
            assert not statement.is_release_tag(tag)
            continue  # a claim names no image
        for blob in (read.config, *read.layers):
            assert registry.blob_size(blob.digest) == blob.size, tag
        assert verify_release(registry, tag, site.signers).release.digest == oci.digest_of(manifest)


@pytest.fixture(scope="module")
def seconds():
    """How long one publication takes, by its kind; the cuts are within that time."""
    return {}


@pytest.mark.parametrize("number", once(1))  # the registry dies; the publisher dies
def test_a_publication_that_is_cut(site, seconds, number):
    chance = random.Random(SEED + number)
    spool = site.cache / "spool"
    if not seconds:
        with small_image(5, 6) as image:
            began = time.monotonic()
            assert start(site, *publishing(site, image)).wait(120) == 0
            seconds["whole"] = time.monotonic() - began
    with small_image(5, 6) as image:
        running = start(site, *publishing(site, image))
        time.sleep(chance.uniform(0.3, seconds["whole"]))
        if number % 2:
            os.killpg(running.pid, signal.SIGKILL)
        else:
            site.registry.kill()
            running.wait(120)
            site.registry.start()
        running.wait(120)
        only_whole_images_have_names(site)
        registry = site.asked()
        there = {path.name.replace("-", ":") for path in spool.glob("sha256-*")}
        held = {digest for digest in there if registry.has(digest)}
        done = driver.publish(site.place, image, site.key, spool)
        missing = sum(layer.size for layer in done.layers if layer.digest not in held)
        assert missing <= done.sent <= missing + 20_000
        only_whole_images_have_names(site)
        assert oci.digest_of(registry.manifest(done.name)) == done.digest


def parcel_bytes(site, host) -> int:
    script = "cat /root/.cache/stackyard/pull/* 2> /dev/null | wc -c"
    return int(host.run("sh", "-c", script) or 0) if host.up() else 0


def whole_images(host) -> list[str]:
    """Ids of a host's images. What a host without power left half done has no name and a label."""
    partial = host.run("docker", "images", "-q", "--no-trunc", "--filter", f"label={PARTIAL}")
    for image in partial.split():
        told = host.run("docker", "image", "inspect", "--format", "{{.RepoTags}}", image)
        assert told.strip() == "[]", told
    every = host.run("docker", "images", "-q", "--no-trunc")
    return [image for image in every.split() if image not in partial.split()]


# Without power, without a network; below, without whoever pulls.
@pytest.mark.parametrize("number", once())
def test_a_pull_that_is_cut(site, number):
    chance = random.Random(SEED + 100 + number)
    with small_image(4, 18) as image:  # layers that engines are given before the rest is there
        done = driver.publish(site.place, image, site.key, site.folder / "spool")
        for host in site.yard.hosts.values():
            shape(host.container, 160)
        running = start(site, *pulling(site))
        time.sleep(chance.uniform(1.0, 8.0))
        victim = chance.choice(list(site.yard.hosts.values()))
        cut(site, ("controller", "registry", "host", "network")[number % 4], victim, running)
        for host in site.yard.hosts.values():
            assert set(whole_images(host)) <= {done_id(done, site)}
        layers = [{"digest": e.digest, "diff_id": e.diff_id, "size": e.size} for e in done.layers]
        config = site.asked().blob(
            oci.read_manifest(site.asked().manifest(done.name)).config
        )  # fmt: skip
        parcel = make_parcel(config, layers, [lacking([e.diff_id for e in done.layers], [])])
        had = {n: (done_id(done, site) in site.images(h).values(), parcel_bytes(site, h))
               for n, h in site.yard.hosts.items()}  # fmt: skip
        again = site.pull("accelerate")
        for name, mark in again["hosts"].items():
            assert mark["state"] in ("pulled", "held"), again
            there, have = had[name]
            assert mark["bytes"] == (0 if there else parcel.size - have)
        for host in site.yard.hosts.values():
            assert site.images(host)["stackyard/accelerate:cpu"] == done_id(done, site)
            assert len(set(site.images(host).values())) == 1  # stages are gone, too
            unshape(host.container)


PHASES = {
    "its keys come": "ls -d /dev/shm/stackyard-pull.*",
    "it takes logins": "pgrep -f 'sshd.*stackyard-pull[.]'",
    "the parcel comes": "find /root/.cache/stackyard/pull -size +1M | grep .",
    "the engine takes a part": "pgrep -f 'docker.*[l]oad'",
}
ONCE = ("the parcel comes", "the engine takes a part")


@pytest.mark.parametrize(
    "phase",
    [pytest.param(name, marks=() if name in ONCE else pytest.mark.repeat) for name in PHASES],
)
def test_hosts_keep_nothing_of_a_pull_that_is_killed_when(site, phase):
    with small_image(3, 12) as image:
        driver.publish(site.place, image, site.key, site.folder / "spool")
    for host in site.yard.hosts.values():
        shape(host.container, 80)
    running = start(site, *pulling(site))
    host = next(iter(site.yard.hosts.values()))
    while not host.run("sh", "-c", f"{PHASES[phase]} 2> /dev/null; true"):
        assert running.poll() is None
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    site.require_nothing_left(parcels=False)
    for host in site.yard.hosts.values():
        assert host.run("docker", "images", "-aq", "--filter", f"label={PARTIAL}") == ""
        unshape(host.container)


def done_id(done, site) -> str:
    manifest = site.asked().manifest(done.digest)
    return oci.read_manifest(manifest).config.digest


def cut(site, kind, victim, running):
    """Do it, let the command end, and put things right again."""
    if kind == "controller":
        os.killpg(running.pid, signal.SIGKILL)
    elif kind == "registry":
        site.registry.kill()
        running.wait(180)
        site.registry.start()
    elif kind == "host":
        docker("restart", "-t", "0", victim.container)
        victim.wait_engine()
        running.wait(180)
    else:
        victim.cut()
        try:
            site.require_nothing_left(victim, parcels=False)
        finally:
            running.wait(180)
            victim.mend()
    running.wait(180)
    site.require_nothing_left(parcels=False)
