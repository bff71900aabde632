"""Releases carried in a folder: installed by docker alone, and only as they were signed."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.fleet.emulated import docker
from tests.release import driver
from tests.release.small import small_image


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
        ("printf X | dd of=image.tar bs=1 seek=500000 conv=notrunc", "is not what was signed"),
        ("sed -i s/accelerate/megatron/ release.json", "is not signed by anybody"),
        ("rm release.json.sig", "is not signed by anybody"),
        ("truncate -s 300000 image.tar", "is not what was signed"),
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


def test_the_archive_is_an_oci_image_layout_too(folder, tmp_path):
    site, _, done = folder
    archive = site.folder / "carried" / done.name / "image.tar"
    tree = tmp_path / "tree"
    tree.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)
    index = json.loads((tree / "index.json").read_text())
    (entry,) = index["manifests"]
    assert entry["digest"] == done.digest
    manifest = json.loads((tree / "blobs" / entry["digest"].replace(":", "/")).read_text())
    for blob in (manifest["config"], *manifest["layers"]):
        path = tree / "blobs" / blob["digest"].replace(":", "/")
        assert path.stat().st_size == blob["size"]
    assert json.loads((tree / "oci-layout").read_text())["imageLayoutVersion"] == "1.0.0"
