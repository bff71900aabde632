"""Layers are fetched once, checked, and never kept when they are not what was signed."""

import hashlib

import pytest

from stackyard.release.layer_source import LayerSource
from stackyard.release.spool import place_beside
from stackyard.scan.oci import Repository
from stackyard.system.errors import ReleaseError
from tests.unit.releases import PLACE

DATA = bytes(range(256)) * 5000
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


class Registry:
    """Gives a layer in pieces."""

    repository = PLACE

    def __init__(self, data=DATA, breaks=False):
        self.data, self.breaks, self.asked = data, breaks, 0

    def stream(self, digest):
        self.asked += 1
        for at in range(0, len(self.data), 100_000):
            if self.breaks and at > 500_000:
                raise ConnectionError
            yield self.data[at : at + 100_000]


def source(tmp_path, **changes):
    registry = Registry(**changes)
    return LayerSource(registry, tmp_path / "layers", {DIGEST: len(DATA)}), registry


def test_a_layer_is_fetched_once_and_then_read_from_here(tmp_path):
    found, registry = source(tmp_path)
    assert b"".join(found.read(DIGEST)) == DATA
    assert b"".join(found.read(DIGEST, 777_777)) == DATA[777_777:]
    assert (registry.asked, found.fetched) == (1, len(DATA))


def test_a_layer_that_came_from_a_repository_can_be_mounted_from_there(tmp_path):
    found, _ = source(tmp_path)
    list(found.read(DIGEST))
    other = Repository(host=PLACE.host, name="team/other")
    assert place_beside(tmp_path / "layers", DIGEST, other) == PLACE.name


@pytest.mark.parametrize("start", [1, 99_999, 100_000, 100_001, len(DATA)])
def test_it_is_given_from_a_place_on_also_while_it_comes(tmp_path, start):
    found, _ = source(tmp_path)
    assert b"".join(found.read(DIGEST, start)) == DATA[start:]


def test_what_is_not_what_was_signed_is_told_and_not_kept(tmp_path):
    found, _ = source(tmp_path, data=DATA[:-1] + b"x")
    with pytest.raises(ReleaseError, match="is not what was signed"):
        list(found.read(DIGEST))
    assert not list((tmp_path / "layers").iterdir())


def test_what_broke_off_is_not_kept(tmp_path):
    found, _ = source(tmp_path, breaks=True)
    with pytest.raises(ConnectionError):
        list(found.read(DIGEST))
    assert not list((tmp_path / "layers").iterdir())


def test_a_file_of_another_length_is_fetched_anew(tmp_path):
    found, registry = source(tmp_path)
    found.path(DIGEST).write_bytes(b"cut")
    assert b"".join(found.read(DIGEST)) == DATA
    assert registry.asked == 1
