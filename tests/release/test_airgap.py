"""Releases carried in a folder: installed by docker alone, and only as they were signed."""

from __future__ import annotations

import subprocess

import pytest

from tests.fleet.emulated import docker
from tests.release import driver
from tests.release.small import small_image

BIGGEST = "../blobs/sha256/$(ls -S ../blobs/sha256 | head -n 1)"


@pytest.fixture(scope="module")
def folder(make_site, tmp_path_factory):
    """A folder with a release, made where there is a network; its site, the image, the release."""
    site = make_site(tmp_path_factory.mktemp("carried"), "forge")
    with small_image(3, 2) as image:
        done = driver.publish(site.place, image, site.key, site.cache)
    out = site.folder / "carried"
    site.invoke("bundle", "accelerate", "--images", "--base", "cpu", "--from", site.place,
                "--signers", str(site.signers), "--out", str(out))  # fmt: skip
    return site, image, done


@pytest.fixture
def carried(folder):
    """A copy of the folder on a host that has no network but its engine."""
    site, _, done = folder
    host = site.yard.hosts["forge"]
    host.run("rm", "-rf", "/carried")
    docker("cp", str(site.folder / "carried"), f"{host.container}:/carried")
    docker("cp", str(site.signers), f"{host.container}:/own_signers")
    host.cut()
    yield site, host, done
    host.mend()
    site.forget()


def install(host, *words: str) -> tuple[int, str]:
    done = subprocess.run(["docker", "exec", host.container, "sh", "/carried/install.sh", *words],
                          capture_output=True, text=True, check=False)  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_carried_release_is_installed_without_a_network(carried, folder):
    site, host, done = carried
    _, image, _ = folder
    code, said = install(host, "/own_signers")
    assert code == 0, said
    assert f"{done.name}: signed by publisher@site" in said
    assert site.images(host) == {"stackyard/accelerate:cpu": image}
    code, said = install(host, "/own_signers")  # again: nothing to do, and no harm
    assert code == 0, said


def test_a_folder_s_own_list_of_signers_is_told_to_prove_nothing(carried):
    _, host, _ = carried
    code, said = install(host)
    assert code == 0 and "bundle's own allowed_signers" in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (f"printf X | dd of={BIGGEST} bs=1 seek=500000 conv=notrunc", "is not what was signed"),
        ("sed -i s/accelerate/megatron/ release.json", "is not signed by anybody"),
        ("rm release.json.sig", "is not signed by anybody"),
        (f"truncate -s 300000 {BIGGEST}", "is not what was signed"),
    ],
)
def test_what_was_changed_on_the_way_is_refused(carried, change, says):
    site, host, done = carried
    host.run("sh", "-c", f"cd /carried/{done.name} && {change} 2> /dev/null")
    code, said = install(host, "/own_signers")
    assert code == 1 and says in said, said
    assert site.images(host) == {}


def test_a_stranger_s_release_is_refused(carried):
    site, host, _ = carried
    script = (
        "ssh-keygen -q -t ed25519 -N '' -f /k; echo \"x $(cut -d ' ' -f 1,2 /k.pub)\" > /strangers"
    )
    host.run("sh", "-c", f"rm -f /k /k.pub; {script}")
    code, said = install(host, "/strangers")
    assert code == 1 and "is not signed by anybody" in said
    assert site.images(host) == {}
