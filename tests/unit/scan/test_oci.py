"""Manifests: the same bytes for the same content, and what is none is refused."""

import json

import pytest

from stackyard.scan import oci
from stackyard.system.errors import UsageError

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "host", "name"),
    [
        ("registry.example/team/yard", "registry.example", "team/yard"),
        ("localhost:5000/yard", "localhost:5000", "yard"),
        ("192.0.2.1:5000/a/b/c", "192.0.2.1:5000", "a/b/c"),
        ("[2001:db8::1]:5000/yard", "[2001:db8::1]:5000", "yard"),
    ],
)
def test_a_repository_is_a_host_and_a_name(text, host, name):
    found = oci.parse_repository(text)
    assert (found.host, found.name, str(found)) == (host, name, text)


@pytest.mark.parametrize(
    "text",
    ["", "yard", "team/yard", "registry.example", "registry.example/", "registry.example/Yard",
     "registry.example/a//b", "https://registry.example/yard", "registry.example/a b",
     "registry.example/yard:tag"],
)  # fmt: skip
def test_what_is_no_repository_is_refused_with_an_example(text):
    with pytest.raises(UsageError) as caught:
        oci.parse_repository(text)
    assert "registry.example" in caught.value.hint


def test_a_manifest_is_read_as_it_was_made():
    config = oci.described(oci.CONFIG, b"{}")
    layer = oci.described(oci.LAYER, b"layer", "name")
    subject = oci.described(oci.MANIFEST, b"image")
    data = oci.artifact_manifest("kind/x", [layer], subject, {"a": "b"})
    found = oci.read_manifest(data)
    assert found.layers == (layer,)
    assert found.subject == subject
    assert (found.artifact_type, found.annotations) == ("kind/x", {"a": "b"})
    image = oci.image_manifest(config, [layer], {})
    assert image == oci.image_manifest(config, [layer], {})
    assert oci.read_manifest(image).subject is None


def test_an_index_holds_each_artifact_once_in_one_order():
    one, two = oci.described(oci.MANIFEST, b"1"), oci.described(oci.MANIFEST, b"2")
    data = oci.referrers_index([two, one, two])
    assert data == oci.referrers_index([one, two])
    found = oci.read_index(data)
    assert len(found) == 2 and one in found and two in found


@pytest.mark.parametrize(
    "text",
    ["", "sha256:", DIGEST[:-1], f"{DIGEST}0", f"{DIGEST}/../x", f"{DIGEST}\n", f" {DIGEST}",
     DIGEST.upper(), "sha512:" + "0" * 128],
)  # fmt: skip
def test_a_digest_is_that_and_nothing_more(text):
    assert oci.is_digest(DIGEST) and not oci.is_digest(text)


def broken(**changes):
    value = {"schemaVersion": 2, "config": oci.described(oci.CONFIG, b"").value(), "layers": []}
    return json.dumps({**value, **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", broken(schemaVersion=1), broken(layers={}), broken(config=None),
     broken(config={"mediaType": "a", "digest": "sha256:1", "size": 1}),
     broken(config={"mediaType": "a", "digest": DIGEST, "size": -1}),
     broken(config={"mediaType": "a", "digest": DIGEST, "size": True}),
     broken(annotations=[]), broken(subject=3)],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(ValueError):
        oci.read_manifest(data)


def test_the_list_of_artifacts_has_a_tag_of_the_specification():
    assert oci.referrers_tag(DIGEST) == "sha256-" + "0" * 64
