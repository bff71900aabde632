"""Parcels: archives of known length that can be read from any place."""

import hashlib
import io
import json
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackyard import parcel
from stackyard.parcel import Parcel, lacking, make_parcel, path_of


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


BLOBS = {digest(data): data for data in (b"first" * 300, b"x" * 1024, b"", b"last")}


def whole(found, start=0):
    return b"".join(
        BLOBS[piece.digest][piece.start : piece.start + piece.size] if piece.digest else piece.data
        for piece in found.pieces(start)
    )


def read_pieces(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def sample(carried=tuple(BLOBS)):
    sizes = tuple((name, len(BLOBS[name])) for name in carried)
    return Parcel(config=b'{"a": 1}', layers=tuple(BLOBS), carried=sizes)


def test_it_is_an_archive_that_an_engine_loads():
    found = read_pieces(whole(sample()))
    config = path_of(digest(b'{"a": 1}'))
    assert found[config] == b'{"a": 1}'
    assert {path_of(name): data for name, data in BLOBS.items()}.items() <= found.items()
    layers = [path_of(name) for name in BLOBS]
    assert json.loads(found["manifest.json"]) == [
        {"Config": config, "RepoTags": None, "Layers": layers}
    ]


def test_layers_that_are_there_are_named_and_do_not_travel():
    some = sample(tuple(BLOBS)[2:])
    found = read_pieces(whole(some))
    assert path_of(next(iter(BLOBS))) not in found
    assert len(json.loads(found["manifest.json"])[0]["Layers"]) == len(BLOBS)
    assert some.name != sample().name


@given(st.floats(0, 1))
def test_its_length_is_known_and_it_goes_on_at_any_place(share):
    found = sample()
    data = whole(found)
    assert len(data) == found.size
    start = int(share * len(data))
    assert whole(found, start) == data[start:]


LAYERS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("images", "lacks"),
    [
        ([], "abcd"),
        ([["a", "b"]], "cd"),
        ([["a"], ["a", "b", "c", "x"]], "d"),
        ([["b", "a"]], "abcd"),  # not one on the other as here
        ([["a", "b", "c", "d", "e"]], ""),
    ],
)
def test_an_engine_has_the_layers_that_an_image_of_its_begins_with(images, lacks):
    assert lacking(LAYERS, images) == set(lacks)


def test_a_parcel_carries_what_any_host_lacks():
    pairs = zip("1234", LAYERS, strict=True)
    layers = [{"digest": d, "diff_id": name, "size": 1} for d, name in pairs]
    found = make_parcel(b"{}", layers, [{"d"}, {"c", "d"}])
    assert found.carried == (("3", 1), ("4", 1))
    assert found.layers == ("1", "2", "3", "4")


def test_a_layer_longer_than_a_header_of_old_can_say_has_one():
    assert len(parcel._header("blobs/x", 20 * 2**30)) == parcel.BLOCK
