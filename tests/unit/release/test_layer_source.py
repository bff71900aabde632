"""Layers are fetched once, checked, and never kept when they are not what was signed."""

import contextlib
import errno
import hashlib
import os
from pathlib import Path

import pytest

from stackyard.release import layer_source
from stackyard.release.layer_source import LayerSource
from stackyard.release.spool import place_beside
from stackyard.scan.oci import Repository
from stackyard.system.errors import RegistryError, ReleaseError, StackyardError
from stackyard.system.files import new_file
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
                raise RegistryError("it broke off")
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
    with pytest.raises(RegistryError, match="it broke off"):
        list(found.read(DIGEST))
    assert not list((tmp_path / "layers").iterdir())


def test_a_file_of_another_length_is_fetched_anew(tmp_path):
    found, registry = source(tmp_path)
    found.path(DIGEST).write_bytes(b"cut")
    assert b"".join(found.read(DIGEST)) == DATA
    assert registry.asked == 1


def spoil(found):
    """Have a cached layer lose its bytes and keep its size, as after a power loss."""
    list(found.read(DIGEST))
    found.path(DIGEST).write_bytes(bytes(len(DATA)))


def test_a_damaged_copy_in_the_cache_is_told_once_and_fetched_anew(tmp_path):
    found, registry = source(tmp_path)
    spoil(found)
    # A part cannot be checked here: hosts check what they put together.
    assert b"".join(found.read(DIGEST, len(DATA) - 1)) == b"\0"
    with pytest.raises(ReleaseError, match="was damaged in this machine's cache") as caught:
        list(found.read(DIGEST))
    assert str(found.path(DIGEST)) in caught.value.why and "is gone now" in caught.value.why
    assert caught.value.hint.startswith("the same command again")
    assert not found.path(DIGEST).exists()
    assert b"".join(found.read(DIGEST)) == DATA and registry.asked == 2


def test_a_fetched_layer_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    found, _ = source(tmp_path)
    done, rename = [], Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: done.append("synced"))
    monkeypatch.setattr(Path, "replace", lambda *paths: done.append("named") or rename(*paths))
    list(found.read(DIGEST))
    assert done[:2] == ["synced", "named"]


@contextlib.contextmanager
def on_a_full_disk(folder):
    with new_file(folder) as part:
        part.file.close()
        part.file = open("/dev/full", "wb")  # noqa: PTH123, SIM115
        yield part


@pytest.mark.parametrize("piece", [10, 100_000])  # it fails at the end, or at once
def test_a_cache_without_room_is_told_with_its_folder(tmp_path, monkeypatch, piece):
    found, _ = source(tmp_path)
    monkeypatch.setattr(layer_source, "new_file", on_a_full_disk)
    monkeypatch.setattr(found, "_registry", Registry(DATA[:piece]))
    with pytest.raises(StackyardError, match=str(tmp_path / "layers")) as caught:
        list(found.read(DIGEST))
    assert caught.value.why == os.strerror(errno.ENOSPC)
    assert "make room there" in caught.value.hint and "XDG_CACHE_HOME" in caught.value.hint
