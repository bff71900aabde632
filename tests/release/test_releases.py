"""All stacks: published, pulled onto hosts, upgraded, pruned; the same bytes everywhere."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json

import pytest

from stackyard.definitions.project import ROOT
from stackyard.release import statement as release
from stackyard.release.parcel import PARTIAL
from stackyard.release.recipe_record import PACKAGES
from stackyard.scan import oci
from tests.release import driver
from tests.release.conftest import NAMES, STACKS, TWO
from tests.release.small import loaded, random_layers

MB = 10**6
EVERY = [
    pytest.param(stack, marks=() if stack == "accelerate" else pytest.mark.repeat)
    for stack in STACKS
]


@pytest.fixture
def small(site):
    """Publishes small images, each on the one before, and gives their releases and ids."""
    with contextlib.ExitStack() as stack:
        layers = []

        def publish(megabytes: int = 2):
            layers.extend(random_layers(2, megabytes))
            image = stack.enter_context(loaded(layers))
            return driver.publish(site.place, image, site.key, site.cache), image

        yield publish


@pytest.fixture(scope="module", params=EVERY)
def proven_release(request, make_site, proven, compressed, tmp_path_factory):
    """A stack's own image, proven and published: the site, the stack, the id, what was said."""
    site = make_site(tmp_path_factory.mktemp("proven"), *TWO)
    site.cache = compressed
    image = proven(request.param)
    yield site, request.param, image, site.publish(request.param)
    site.forget()


def test_a_proven_image_comes_to_hosts_as_it_was_signed(proven_release, tmp_path):
    site, stack, image, done = proven_release
    assert done["proven"] and not done["again"]
    assert done["sent"] > 200 * MB
    assert site.tags() == sorted([done["name"], release_claim(done)])
    before = site.registry.sent()
    # The pull is started from another machine.
    site = dataclasses.replace(site, cache=tmp_path)
    pulled = site.pull(stack)
    assert pulled["release"] == done["name"] and pulled["signer"] == "publisher@site"
    assert {mark["state"] for mark in pulled["hosts"].values()} == {"pulled"}, pulled
    size = sum(layer["size"] for layer in done["layers"])
    assert pulled["from_registry_bytes"] == size
    assert site.registry.sent() - before < 1.1 * size
    for host in site.yard.hosts.values():
        names = site.images(host)
        assert names[f"stackyard/{stack}:cpu"] == image
        assert names[f"{site.place}:{done['name']}"] == image
        assert site.digests(host) == {done["digest"]}
    site.require_nothing_left()
    before = site.registry.sent()
    again = site.pull(stack)
    assert {mark["state"] for mark in again["hosts"].values()} == {"held"}
    assert again["from_registry_bytes"] == 0 and site.registry.sent() - before < MB
    ran = host.run("docker", "run", "--rm", "--entrypoint", "python3", f"stackyard/{stack}:cpu",
                   "-c", "import torch; print(torch.__version__)")  # fmt: skip
    assert ran.startswith("2.")


def release_claim(done):
    return f"{done['name']}-{done['digest'][7:19]}"


def test_what_lies_beside_an_image_is_what_the_statement_names(proven_release):
    site, stack, image, done = proven_release
    registry = site.asked()
    kinds, digests = {}, {}
    for entry in registry.referrers(done["digest"]):
        manifest = oci.read_manifest(registry.manifest(entry.digest))
        assert manifest.subject.digest == done["digest"]
        for layer in manifest.layers:
            title = layer.annotations[oci.TITLE]
            digests[title] = layer.digest
            assert registry.blob_size(layer.digest) == layer.size
            if layer.media_type != PACKAGES:  # as long as an image
                kinds[title] = registry.blob(layer)
    statement = json.loads(kinds["release.json"])
    named = {a["annotations"][oci.TITLE]: a["digest"] for a in statement["artifacts"]}
    assert named == {
        title: digest
        for title, digest in digests.items()
        if not title.startswith(("release.json", "evidence-"))
    }
    attested = {f"{name}.sigstore.json" for name in ("provenance", "test-result", "sbom")}
    assert {"sbom.cdx.json", "smoke.json", "sizes.json", f"images/{stack}/cpu.lock",
            "recipe.json", "Packages", "packages.tar.gz", *attested} <= set(named)  # fmt: skip
    assert statement["audit"]["outcome"] == "not run"
    bill = json.loads(kinds["sbom.cdx.json"])
    assert "torch" in {component["name"] for component in bill["components"]}
    assert json.loads(kinds["smoke.json"])["image"]["id"] == image
    for title in attested:
        envelope = json.loads(kinds[title])["dsseEnvelope"]
        made = json.loads(base64.b64decode(envelope["payload"]))
        assert made["subject"][0]["digest"]["sha256"] == done["digest"].removeprefix("sha256:")


@pytest.mark.repeat  # tests/unit/cli/test_evidence.py has it with a registry in memory
def test_evidence_is_refused_unsigned_then_attached_and_shown_with_who_vouches(
    proven_release, tmp_path
):
    site, stack, image, done = proven_release
    file = tmp_path / "smoke.intoto.jsonl"
    value = json.loads((ROOT / "reports" / stack / "cpu" / file.name).read_text())
    file.write_text(json.dumps({**value, "signatures": []}))
    refused = site.publish(stack, "--evidence", str(file), check=False)
    assert refused.returncode == 1 and "is not signed" in refused.stderr
    site.invoke("evidence", str(file), "--sign", "--key", str(site.key))
    words = ["--to", site.place, "--signers", str(site.signers)]
    added = site.invoke("evidence", str(file), "--add", "--release", done["name"], *words, "--json")
    told = json.loads(added.stdout)
    assert (told["digest"], told["image_id"]) == (done["digest"], image)
    (one,) = site.pull(stack)["evidence"]
    assert (one["signer"], one["hardware"], one["kind"]) == ("publisher@site", "CPU ranks", "smoke")
    listed = site.invoke("releases", "--from", site.place, "--signers", str(site.signers), "--json")
    (row,) = json.loads(listed.stdout)["releases"]
    assert row["evidence"] == [one] and row["evidence_refused"] == []
    again = site.publish(stack, "--evidence", str(file))
    assert (again["name"], again["again"]) == (done["name"], True)
    assert again["evidence"][0]["image_id"] == image


def test_publishing_again_brings_nothing_and_takes_no_new_number(site, small):
    first, image = small()
    again = driver.publish(site.place, image, site.key, site.cache)
    assert (again.name, again.digest, again.sent) == (first.name, first.digest, 0)
    assert again.again


@pytest.mark.repeat  # tests/unit/release/test_publish.py has it with a registry in memory
def test_a_second_repository_of_a_registry_is_brought_no_layer_again(site, small):
    first, image = small()
    beside = dataclasses.replace(site, repository=f"{site.repository}-beside")
    before = site.registry.received()
    second = driver.publish(beside.place, image, site.key, site.cache)
    size = sum(layer.size for layer in first.layers)
    assert [layer.digest for layer in second.layers] == [layer.digest for layer in first.layers]
    assert second.sent < size / 10 and site.registry.received() - before < size / 10
    assert beside.pull("accelerate")["from_registry_bytes"] == size


def test_an_upgrade_moves_what_changed_to_four_hosts_and_old_releases_are_pruned(
    site, hosts, small
):
    site.yard, names = hosts.only(*NAMES), []
    site.cache = site.folder / "elsewhere"
    for number, megabytes in enumerate((8, 1, 1)):
        done, image = small(megabytes)
        names.append(done.name)
        pulled = site.pull("accelerate")
        assert 2 * megabytes * MB < pulled["from_registry_bytes"] < 2.3 * megabytes * MB
        assert not pulled["proven"]
        for host in site.yard.hosts.values():
            assert site.images(host)["stackyard/accelerate:cpu"] == image
            site.require_nothing_left(host)
        assert done.name.endswith(f"-r{number + 1}")
    listed = site.invoke("releases", "--from", site.place, "--signers", str(site.signers), "--json")
    rows = json.loads(listed.stdout)["releases"]
    assert [row["name"] for row in rows if row["believed"]] == names
    words = ["prune", "--hosts", site.yard.inventory, "--json"]
    dry = json.loads(site.invoke(*words, "--dry-run").stdout)
    assert dry["removed"] == {} and all(len(old) == 1 for old in dry["old"].values())
    site.invoke(*words)
    for host in site.yard.hosts.values():
        held = [name for name in site.images(host) if name.startswith(f"{site.place}:acc")]
        assert sorted(held) == sorted(f"{site.place}:{name}" for name in names[1:])


def test_what_a_host_without_power_left_half_done_is_pruned(site):
    host = site.yard.hosts["train"]
    change = f"--change 'LABEL {PARTIAL}=1'"
    host.run("sh", "-c", f"tar -c --files-from /dev/null | docker import {change} -")
    host.run("sh", "-c", "tar -c --files-from /dev/null | docker import - kept:1")
    site.invoke("prune", "--hosts", site.yard.inventory)
    assert set(site.images(host)) == {"kept:1"}


def test_an_older_release_is_had_by_its_name(site, small):
    first, image = small()
    small()
    pulled = site.pull("accelerate", "--release", first.name)
    assert (pulled["release"], pulled["digest"]) == (first.name, first.digest)
    assert release.is_release_tag(pulled["release"])
    for host in site.yard.hosts.values():
        assert site.images(host)["stackyard/accelerate:cpu"] == image


@pytest.mark.parametrize("via", ["registry", pytest.param("mirror", marks=pytest.mark.repeat)])
def test_hosts_pull_by_themselves_where_that_is_asked_for(site, small, via):
    done, image = small()
    words = ["--mirror", site.registry.host] if via == "mirror" else ["--via", "registry"]
    pulled = site.pull("accelerate", *words)
    require_no_logins(site)
    assert {mark["state"] for mark in pulled["hosts"].values()} == {"pulled"}
    for host in site.yard.hosts.values():
        assert site.images(host)["stackyard/accelerate:cpu"] == image
        assert site.digests(host) == {done.digest}


def require_no_logins(site):
    """A host's engine is given the caller's login with each pull, and keeps none."""
    for host in site.yard.hosts.values():
        assert not host.infra.file("/root/.docker/config.json").exists
