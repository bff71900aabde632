"""Parcels: archives of known length that can be read from any place."""

import hashlib
import io
import json
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackyard.release import parcel
from stackyard.release.parcel import Parcel, lacking, make_parcel, path_of


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
        ([["a", "x", "c", "d"]], "bcd"),
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


BIG = {digest(data): data for data in (b"a" * 5000, b"b" * 512, b"c" * 700, b"d")}


def staged(monkeypatch, carried=tuple(BIG), stage_bytes=1500):
    monkeypatch.setattr(parcel, "STAGE_BYTES", stage_bytes)
    rootfs = {"type": "layers", "diff_ids": ["1", "2", "3", "4"]}
    config = json.dumps({"architecture": "amd64", "config": {"Cmd": ["x"]}, "rootfs": rootfs})
    sizes = tuple((name, len(BIG[name])) for name in carried)
    return Parcel(config=config.encode(), layers=tuple(BIG), carried=sizes)


def bytes_of(found):
    return b"".join(BIG[piece.digest] if piece.digest else piece.data for piece in found.pieces(0))


def test_where_a_layer_lies_is_known(monkeypatch):
    found = staged(monkeypatch)
    data = bytes_of(found)
    assert [(name, data[at : at + size]) for name, at, size in found.places()] == list(BIG.items())


def test_a_stage_is_an_archive_of_the_layers_so_far(monkeypatch):
    found = staged(monkeypatch)
    data = bytes_of(found)
    first, second = found.stages()
    assert (first.start, second.start) == (found.body, first.start + first.size)
    names = list(BIG)
    for stage, new, count in ((first, names[:1], 1), (second, names[1:3], 3)):
        inside = read_pieces(stage.head + data[stage.start : stage.start + stage.size])
        assert {path_of(n): BIG[n] for n in new}.items() <= inside.items()
        (entry,) = json.loads(inside["manifest.json"])
        assert entry["Layers"] == [path_of(n) for n in names[:count]]
        assert entry["Config"] == path_of(stage.image)
        config = inside[entry["Config"]]
        assert digest(config) == stage.image
        told = json.loads(config)
        assert told["rootfs"]["diff_ids"] == ["1", "2", "3", "4"][:count]
        assert told["config"] == {"Labels": {parcel.PARTIAL: "1"}}


def test_what_is_left_after_the_stages_is_the_image_s_own_archive(monkeypatch):
    found = staged(monkeypatch)
    data = bytes_of(found)
    last = found.stages()[-1]
    inside = read_pieces(data[: found.body] + data[last.start + last.size :])
    assert set(inside) == {"manifest.json", path_of(digest(found.config)), path_of(list(BIG)[3])}


def test_layers_that_hosts_have_are_in_the_stages_by_name_only(monkeypatch):
    found = staged(monkeypatch, tuple(BIG)[2:], 1)
    (only,) = found.stages()
    inside = read_pieces(only.head + bytes_of(found)[only.start : only.start + only.size])
    assert len(json.loads(inside["manifest.json"])[0]["Layers"]) == 3
    assert path_of(next(iter(BIG))) not in inside


def test_one_layer_or_small_ones_need_no_stage(monkeypatch):
    assert staged(monkeypatch, tuple(BIG)[3:], 1).stages() == []
    assert staged(monkeypatch, stage_bytes=10**6).stages() == []
