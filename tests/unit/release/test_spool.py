"""An image out of an engine: whole or not at all, compressed once, read by several at once."""

import gzip
import hashlib
import io
import json
import os
import tarfile

import pytest

from stackyard.release.spool import Spool
from stackyard.system.chunks import fan_out
from stackyard.system.errors import EngineError


def tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            if isinstance(data, str):
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, data
                archive.addfile(info)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


LAYERS = [tar({"a": b"one" * 1000}), tar({"b": b"two"})]


def saved(layers=LAYERS, *, diff_ids=None, names=None, more=None):
    """What `docker save` gives; as pieces of odd lengths."""
    ids = diff_ids or [digest(layer) for layer in LAYERS]
    config = json.dumps({"rootfs": {"diff_ids": ids}}).encode()
    files = {f"{number}/layer.tar": layer for number, layer in enumerate(layers)}
    manifest = [{"Config": "c.json", "Layers": names or list(files)}]
    whole = tar({**files, **(more or {}), "c.json": config,
                 "manifest.json": json.dumps(manifest).encode()})  # fmt: skip
    return (whole[at : at + 777] for at in range(0, len(whole), 777))


def read_all(number):
    return lambda stream: hashlib.sha256(stream.read()).hexdigest()


def test_layers_are_compressed_in_order_and_read_by_all(tmp_path):
    spool = Spool(tmp_path / "spool")
    found = spool.save(saved(), {"one": read_all, "two": lambda n: lambda s: n})
    assert [layer.diff_id for layer in found.layers] == [digest(layer) for layer in LAYERS]
    assert [gzip.decompress(spool.path(layer).read_bytes()) for layer in found.layers] == LAYERS
    for layer in found.layers:
        data = spool.path(layer).read_bytes()
        assert (digest(data), len(data)) == (layer.digest, layer.size)
    assert found.read["one"] == [hashlib.sha256(layer).hexdigest() for layer in LAYERS]
    assert found.read["two"] == [0, 1]


def test_the_same_layers_have_the_same_digests_elsewhere(tmp_path):
    one, two = (Spool(tmp_path / name).save(saved(), {}) for name in "ab")
    assert one.layers == two.layers


def test_what_was_compressed_is_not_compressed_again(tmp_path, monkeypatch):
    spool = Spool(tmp_path)
    first = spool.save(saved(), {})
    monkeypatch.setattr(spool, "_compress", None)
    ids = [layer.diff_id for layer in first.layers]
    assert spool.save(saved(), {"one": read_all}, diff_ids=ids).layers == first.layers


ALIKE = [tar({"a": bytes(2**20) + last}) for last in (b"one", b"two")]
ALIKE_IDS = [digest(layer) for layer in ALIKE]


def test_a_layer_that_only_begins_like_one_of_another_image_is_not_taken_for_it(tmp_path):
    """Two bootstraps of a base differ in a few bytes far behind."""
    spool = Spool(tmp_path)
    for layer, diff_id in zip(ALIKE, ALIKE_IDS, strict=True):
        (found,) = spool.save(saved([layer], diff_ids=[diff_id]), {}, diff_ids=[diff_id]).layers
        assert (found.diff_id, gzip.decompress(spool.path(found).read_bytes())) == (diff_id, layer)


def test_layers_of_one_image_that_begin_alike_are_held_against_their_whole_digests(tmp_path):
    spool = Spool(tmp_path)

    def save():
        found = spool.save(saved(ALIKE, diff_ids=ALIKE_IDS), {}, diff_ids=ALIKE_IDS)
        assert [gzip.decompress(spool.path(layer).read_bytes()) for layer in found.layers] == ALIKE

    save()
    with pytest.raises(EngineError, match="is not the one that was kept"):
        save()
    save()


def test_a_file_that_is_not_whole_is_made_again(tmp_path):
    spool = Spool(tmp_path)
    layer = spool.save(saved(), {}).layers[0]
    spool.path(layer).write_bytes(b"cut")
    assert spool.save(saved(), {}).layers[0] == layer
    assert spool.path(layer).stat().st_size == layer.size


def test_a_layer_that_the_engine_holds_compressed_stays_as_it_is(tmp_path):
    packed = [gzip.compress(layer, mtime=0) for layer in LAYERS]
    spool = Spool(tmp_path)
    found = spool.save(saved(packed), {"one": read_all})
    assert [spool.path(layer).read_bytes() for layer in found.layers] == packed
    assert found.read["one"] == [hashlib.sha256(layer).hexdigest() for layer in LAYERS]


@pytest.mark.parametrize("packed", [False, True])
def test_an_image_that_is_only_read_leaves_nothing(tmp_path, packed):
    layers = [gzip.compress(layer, mtime=0) for layer in LAYERS] if packed else LAYERS
    found = Spool(tmp_path).save(saved(layers), {"one": read_all}, keep=False)
    assert [(layer.diff_id, layer.unpacked, layer.digest) for layer in found.layers] == [
        (digest(layer), len(layer), "") for layer in LAYERS
    ]
    assert found.read["one"] == [hashlib.sha256(layer).hexdigest() for layer in LAYERS]
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_occurs_twice_is_a_link_in_the_archive(tmp_path):
    names = ["0/layer.tar", "1/layer.tar", "2/layer.tar"]
    ids = [digest(LAYERS[0]), digest(LAYERS[1]), digest(LAYERS[0])]
    stream = saved(diff_ids=ids, names=names, more={"2/layer.tar": "../0/layer.tar"})
    assert [layer.diff_id for layer in Spool(tmp_path).save(stream, {}).layers] == ids


@pytest.mark.parametrize(
    "pieces",
    [
        lambda: iter([]),
        lambda: iter([b"no archive" * 100]),
        lambda: iter(list(saved())[:3]),
        lambda: iter(list(saved())[: len(list(saved())) // 2]),
        lambda: saved(diff_ids=[digest(b""), digest(LAYERS[1])]),
        lambda: saved(names=["9/layer.tar"]),
    ],
)
def test_what_is_no_whole_image_is_refused_and_nothing_half_is_kept(tmp_path, pieces):
    with pytest.raises(EngineError, match="no whole image"):
        Spool(tmp_path).save(pieces(), {})
    assert not list(tmp_path.glob(".part-*"))


def test_a_reader_that_fails_holds_nobody_up(tmp_path):
    def fails(stream):
        stream.read(3)
        raise RuntimeError("no")

    seen = []
    with pytest.raises(RuntimeError, match="no"):
        fan_out(io.BytesIO(b"x" * 50_000_000), [fails, lambda s: seen.append(len(s.read()))])
    assert seen == [50_000_000]


def test_old_layers_and_parts_of_the_dead_are_forgotten(tmp_path):
    spool = Spool(tmp_path)
    layer = spool.save(saved(), {}).layers[0]
    (tmp_path / ".part-1-1").write_bytes(b"")
    os.utime(tmp_path / ".part-1-1", (0, 2 * 86400))
    spool.forget_old(now=spool.path(layer).stat().st_mtime + 86400)
    assert spool.path(layer).exists() and not (tmp_path / ".part-1-1").exists()
    spool.forget_old(now=spool.path(layer).stat().st_mtime + 31 * 86400)
    assert not list(tmp_path.iterdir())
