"""What is not what it says is refused before any engine has it; what is missing is said plainly."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from stackyard.release.connection import CERTS, Patience
from stackyard.scan import oci
from stackyard.system import signing
from stackyard.system.errors import RegistryError, StackyardError
from tests.fleet.emulated import docker
from tests.release import driver
from tests.release.conftest import TWO
from tests.release.registry import registry
from tests.release.small import small_image

MB = 10**6


@pytest.fixture(scope="module")
def large():
    """An image of six layers of 8 MB that do not compress: engines are given it in parts."""
    with small_image(6, 8) as image:
        yield image


@pytest.fixture(scope="module")
def tiny():
    """An image for what is refused whatever its size is."""
    with small_image(2, 1) as image:
        yield image


@pytest.fixture(scope="module")
def published(make_site, large, tmp_path_factory):
    """A site with one release of the large image, for tests that leave its registry as it is."""
    site = make_site(tmp_path_factory.mktemp("published"), *TWO)
    return site, driver.publish(site.place, large, site.key, site.layers)


@pytest.fixture
def released(published, tmp_path):
    """The published release, before a publisher's folder and a cache that a test may spoil."""
    site, done = published
    own = dataclasses.replace(site, folder=tmp_path / "publisher", cache=tmp_path / "cache")
    shutil.copytree(site.folder, own.folder)
    shutil.copytree(site.cache, own.cache)
    yield own, done
    own.forget()


@pytest.fixture
def own_release(site, tiny):
    """A release in a repository that a test may spoil."""
    return site, driver.publish(site.place, tiny, site.key, site.layers)


def nothing_is_there(site) -> bool:
    return all(site.images(host) == {} for host in site.yard.hosts.values())


def why(done, code: int) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    error = json.loads(done.stdout)["error"]
    return f"{error['what']}\n{error['why']}\n{error['hint']}"


def test_a_signature_by_a_stranger(released):
    site, _ = released
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                    str(site.folder / "stranger")], check=True)  # fmt: skip
    site.signers.write_text(signing.signer_line(site.folder / "stranger", "x") + "\n")
    assert "not signed by anybody who may" in why(site.pull("accelerate", check=False), 1)
    assert nothing_is_there(site)


def test_no_list_of_signers(released):
    site, _ = released
    site.signers.unlink()
    assert "allowed_signers" in why(site.pull("accelerate", check=False), 2)


@pytest.mark.repeat  # tests/unit/release/test_verify.py refuses it
def test_a_tag_that_was_moved_to_another_release(own_release):
    site, done = own_release
    registry = site.asked()
    with small_image(1, 1) as other:
        second = driver.publish(site.place, other, site.key, site.layers)
    registry.put_manifest(done.name, registry.manifest(second.name))
    said = why(site.pull("accelerate", "--release", done.name, check=False), 1)
    assert "signed under another name" in said
    assert nothing_is_there(site)


def test_the_newest_tag_moved_back_to_an_older_release(own_release):
    site, first = own_release
    registry = site.asked()
    with small_image(2, 1) as other:
        second = driver.publish(site.place, other, site.key, site.layers)
        assert site.pull("accelerate")["release"] == second.name
    registry.put_manifest("accelerate-cpu-latest", registry.manifest(first.name))
    said = why(site.pull("accelerate", check=False), 1)
    assert f"newest release is {first.name}, but" in said and f"holds {second.name}" in said
    assert site.pull("accelerate", "--release", first.name)["release"] == first.name


@pytest.mark.repeat  # tests/unit/release/test_verify.py refuses it
def test_an_image_without_a_statement(own_release):
    site, done = own_release
    registry = site.asked()
    data = oci.image_manifest(
        oci.read_manifest(registry.manifest(done.name)).config,
        oci.read_manifest(registry.manifest(done.name)).layers, {"a": "b"},
    )  # fmt: skip
    registry.put_manifest("accelerate-1.0-cpu-r7", data)
    said = why(site.pull("accelerate", "--release", "accelerate-1.0-cpu-r7", check=False), 1)
    assert "no signed statement lies beside it" in said


def test_a_layer_that_was_changed_in_the_registry(site):
    with small_image(1, 1) as image:
        done = driver.publish(site.place, image, site.key, site.layers)
    digest = done.layers[0].digest.removeprefix("sha256:")
    (path,) = site.registry.files(f"*/blobs/sha256/*/{digest}/data")
    docker("exec", site.registry.container, "sh", "-c",
           f"printf X | dd of={path} bs=1 seek=100000 conv=notrunc 2> /dev/null")  # fmt: skip
    site.cache = site.folder / "elsewhere"
    assert "is not what was signed" in why(site.pull("accelerate", check=False), 1)
    assert nothing_is_there(site)


# Before the fifth layer comes, engines are given those below it.
@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.repeat), 4])
def test_a_layer_that_was_changed_on_the_way_is_refused_on_every_host(released, number):
    site, done = released
    path = site.layers / done.layers[number].digest.replace(":", "-")
    data = bytearray(path.read_bytes())
    data[100_000] ^= 1
    path.write_bytes(data)
    pulled = site.pull("accelerate", check=False)
    assert pulled.returncode == 1
    found = json.loads(pulled.stdout)["hosts"]
    assert {mark["state"] for mark in found.values()} == {"failed"}
    assert all("is not what was signed" in mark["why"] for mark in found.values())
    assert all("damaged in this machine's cache" in mark["hint"] for mark in found.values())
    assert nothing_is_there(site)
    # The parcel that was not what it said is gone, and so is the copy here: both come anew.
    assert not path.exists()
    assert {m["state"] for m in site.pull("accelerate")["hosts"].values()} == {"pulled"}


def test_there_is_no_such_release(released):
    site, done = released
    said = why(site.pull("accelerate", "--release", "accelerate-9-cpu-r1", check=False), 2)
    assert done.name in said


def test_a_registry_whose_certificate_cannot_be_trusted(released):
    site, _ = released
    certs = CERTS / site.registry.host / "ca.crt"
    kept = certs.read_bytes()
    certs.unlink()
    try:
        require_useless(site, "cannot be trusted")
    finally:
        certs.write_bytes(kept)


def test_a_registry_that_wants_a_login(released):
    site, _ = released
    shutil.rmtree(site.logins)
    require_useless(site, "docker login")


def require_useless(site, says):
    assert says in why(site.pull("accelerate", check=False), 4)
    assert says in why(site.invoke("releases", "--from", site.place, "--json", check=False), 4)


def test_a_registry_that_is_down(published):
    site, _ = published
    nobody = dataclasses.replace(site.registry, host=f"{site.registry.address}:1")
    with (
        dataclasses.replace(site, registry=nobody).asked(Patience(tries=1)) as asked,
        pytest.raises(RegistryError, match="does not answer") as caught,
    ):
        asked.tags()
    assert caught.value.exit_code == 4


def test_a_registry_that_takes_nothing(site, tiny):
    site.registry.read_only(True)
    try:
        with pytest.raises(RegistryError, match="refused") as caught:
            driver.publish(site.place, tiny, site.key, site.layers)
    finally:
        site.registry.read_only(False)
    assert "read-only" in caught.value.hint
    done = driver.publish(site.place, tiny, site.key, site.layers)
    assert done.name == "accelerate-1.0-cpu-r1"


def test_a_registry_that_runs_out_of_space(site, published, large, tmp_path):
    """25 MB for 50. What came in vain (at most that) may stay: with its disk full to the last byte
    distribution 2.8 does not find the upload that it is asked to forget."""
    first, _ = published
    with registry(tmp_path / "full", site.yard.network, megabytes=100) as full:
        place, ballast = f"{full.host}/team/stackyard", "/var/lib/registry/ballast"
        docker("exec", full.container, "dd", "if=/dev/zero", f"of={ballast}", "bs=1M", "count=75")
        with pytest.raises(StackyardError) as caught:
            driver.publish(place, large, site.key, first.layers, Patience(tries=1))
        assert "space left" in caught.value.hint, caught.value.why
        assert not full.files("*/_manifests/tags/*accelerate*")
        docker("exec", full.container, "rm", ballast)
        # A full disk may leave links to blobs empty: one is emptied here, of those that came whole.
        if links := full.files(link := "*/_layers/sha256/*/link", "-size", "+0"):
            docker("exec", full.container, "truncate", "--size=0", links[0])
        there = [path.split("/")[-2] for path in full.files(link, "-size", "+0")]
        done = driver.publish(place, large, site.key, first.layers)
        assert done.name == "accelerate-1.0-cpu-r1"
        missing = sum(e.size for e in done.layers if e.digest.removeprefix("sha256:") not in there)
        assert 0 < missing <= done.sent < missing + 20_000


def test_two_publishers_at_once_take_different_numbers(site):
    with small_image(2, 1) as one, small_image(2, 1) as two, ThreadPoolExecutor(2) as pool:
        work = [pool.submit(driver.publish, site.place, image, site.key, site.layers)
                for image in (one, two)]  # fmt: skip
        found = [future.result() for future in work]
    assert len({done.name for done in found}) == 2
    registry = site.asked()
    for done in found:
        assert oci.digest_of(registry.manifest(done.name)) == done.digest


def test_a_host_that_is_down_is_named_and_may_be_accepted(own_release):
    site, _ = own_release
    text = (site.yard.folder / "hosts.yml").read_text()
    # At the registry's address nobody takes logins.
    gone = f"hosts:\n  gone: {{address: {site.registry.address}}}\n"
    (site.yard.folder / "more.yml").write_text(text.replace("hosts:\n", gone))
    words = ["pull", "accelerate", "--base", "cpu", "--from", site.place, "--signers",
             str(site.signers), "--json", "--hosts", f"{site.yard.folder}/more.yml"]  # fmt: skip
    done = site.invoke(*words, check=False)
    assert done.returncode == 1
    found = json.loads(done.stdout)["hosts"]
    assert found.pop("gone")["state"] == "failed"
    assert {mark["state"] for mark in found.values()} == {"pulled"}
    assert site.invoke(*words, "--max-unavailable", "1").returncode == 0


def test_a_host_without_room_is_told_before_anything_travels(released):
    site, done = released
    host = site.yard.hosts["train"]
    host.run("sh", "-c", "mkdir -p /root/.cache/stackyard && mount -t tmpfs -o size=20m none"
             " /root/.cache/stackyard")  # fmt: skip
    try:
        pulled = site.pull("accelerate", check=False)
    finally:
        host.run("umount", "/root/.cache/stackyard")
    found = json.loads(pulled.stdout)["hosts"]
    assert pulled.returncode == 1 and "are free" in found.pop("train")["why"]
    assert {mark["state"] for mark in found.values()} == {"pulled"}
    assert sum(layer.size for layer in done.layers) > 40 * MB
    # No keys are left where nothing was served.
    assert host.infra.file("/dev/shm").listdir() == []
