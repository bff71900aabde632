"""What a container sees of layers: read as streams, covered as an overlay covers."""

import hashlib
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackyard.scan.contents import LayerReader, merge
from stackyard.system.errors import EngineError, StackyardError
from tests.unit.layers import FOLDER, Forward, hard, image, layer, link, tar


def paths(contents):
    return sorted(contents.files)


def read(data, number=3):
    return LayerReader(number).read(Forward(data))


# One layer


def test_a_file_has_its_size_mode_time_and_digest():
    entry = layer(("./a/b", b"hello", 77)).files["a/b"]
    assert (entry.kind, entry.size, entry.mode, entry.mtime) == ("file", 5, 0o644, 77)
    assert entry.sha256 == hashlib.sha256(b"hello").hexdigest()


def test_an_empty_file_has_no_digest():
    assert layer(("a", b"")).files["a"].sha256 == ""


def test_kinds_are_told_apart():
    found = layer(("d", FOLDER), ("s", link("../x")), ("f", b"1"), ("h", hard("f")),
                  ("p", ("fifo", "")), ("c", ("device", "")))  # fmt: skip
    assert {path: entry.kind for path, entry in found.files.items()} == {
        "d": "directory", "s": "symlink", "f": "file", "h": "hardlink", "p": "fifo", "c": "device"
    }  # fmt: skip
    assert found.files["s"].link == "../x"


def test_a_hard_link_has_the_facts_of_its_file_and_takes_no_bytes():
    found = layer(("a", b"12345"), ("b", hard("./a")), ("c", hard("b")))
    assert [found.files[p].sha256 for p in "bc"] == [found.files["a"].sha256] * 2
    assert [found.files[p].link for p in "bc"] == ["a", "a"]
    assert found.size == 5
    contents = merge([found])
    assert [contents.files[p].bytes for p in "abc"] == [5, 0, 0]
    assert {held.origin for held in contents.files.values()} == {"a"}


@pytest.mark.parametrize(
    "path",
    ["with space/and\nline", "n" * 300 + "/" + "x" * 200, "umlaut-\u00e4", "raw-\udcff\udc80"],
)
def test_odd_names_are_kept(path):
    assert list(layer((path, b"1")).files) == [path]


@pytest.mark.parametrize("path", ["/a/b", "./a//b", "a/./b", "a/c/../b", "../../a/b"])
def test_a_path_has_one_spelling_and_stays_below_the_root(path):
    assert list(layer((path, b"1")).files) == ["a/b"]


def test_the_root_itself_is_no_file():
    assert dict(layer(("./", FOLDER), ("/", FOLDER)).files) == {}


def test_of_a_path_that_is_there_twice_the_last_counts():
    found = layer(("a", b"1"), ("b", b"1"), ("a", b"22"))
    assert (found.files["a"].size, list(found.files)) == (2, ["b", "a"])


def test_an_empty_layer_has_nothing():
    assert dict(read(tar()).files) == {} == dict(read(b"\0" * 1024).files)


def test_texts_of_metadata_are_kept_and_of_nothing_else():
    found = layer(
        ("s/a-1.dist-info/METADATA", "Name: a\r\nVersion: 1\r\n\r\nLong text\n"),
        ("s/a-1.dist-info/RECORD", b"\xff,,\n"),
        ("s/a-1.dist-info/licenses/LICENSE", "free"),
        ("s/b.egg-info/PKG-INFO", "Name: b\n"),
        ("var/lib/dpkg/status.d/c", "Package: c\n"),
        ("var/lib/dpkg/status.d/c.md5sums", "0"),
        ("usr/lib/os-release", "ID=x"),
        ("home/os-release", "ID=y"),
    )
    assert dict(found.texts) == {
        "s/a-1.dist-info/METADATA": "Name: a\nVersion: 1",
        "s/a-1.dist-info/RECORD": "\udcff,,\n",
        "s/b.egg-info/PKG-INFO": "Name: b\n",
        "var/lib/dpkg/status.d/c": "Package: c\n",
        "usr/lib/os-release": "ID=x",
    }


def test_the_stream_is_read_to_its_end():
    stream = io.BytesIO(tar(("a", b"1")) + b"\0" * 100_000)
    LayerReader(0).read(stream)
    assert stream.read() == b""


def test_bytecode_says_what_source_it_was_made_of():
    head = b"\xa7\r\r\n" + bytes(4) + (77).to_bytes(4, "little") + (9).to_bytes(4, "little")
    by_hash = head[:4] + (1).to_bytes(4, "little") + head[8:]
    found = layer(("a.pyc", head + b"code"), ("b.pyc", by_hash), ("c.pyc", b"short"))
    assert [found.files[p].source for p in ("a.pyc", "b.pyc", "c.pyc")] == [(77, 9), None, None]


# Damage


WHOLE = tar(("a", b"x" * 3000), ("b" * 200, b"y" * 600), ("c", b"z"))


@pytest.mark.parametrize("cut", [0, 100, 512, 1000, 3584, 4096, 4700, len(WHOLE.rstrip(b"\0"))])
def test_a_layer_that_is_cut_off_is_an_error_that_names_it(cut):
    with pytest.raises(EngineError, match="layer 3 of the image cannot be read") as found:
        read(WHOLE[:cut])
    assert found.value.why


def test_a_damaged_header_is_not_taken_for_the_end():
    damaged = bytearray(tar(("a", b"1"), ("b", b"2")))
    damaged[1024 + 5] ^= 1
    with pytest.raises(EngineError, match="layer 3"):
        read(bytes(damaged))


def test_what_is_no_tar_is_an_error():
    with pytest.raises(EngineError, match="layer 3"):
        read(b"\x1f\x8b" + b"no tar at all" * 100)


@settings(max_examples=200)
@given(st.data())
def test_damage_anywhere_is_an_error_of_ours_or_harmless(data):
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(damaged))
    except StackyardError as error:
        assert "layer 3" in str(error)


# Layers over each other


def test_a_file_is_of_the_last_layer_that_brought_it():
    contents = image({"a": "1", "b": "1"}, {"a": "22"}, {})
    assert {p: (f.layer, f.bytes) for p, f in contents.files.items()} == {"a": (1, 2), "b": (0, 1)}


def test_a_whiteout_takes_a_file_away():
    assert paths(image({"d/a": "1", "d/b": "1"}, {"d/.wh.a": ""})) == ["d/b"]


def test_a_whiteout_takes_a_folder_away_with_all_that_is_in_it():
    below = [("d", FOLDER), ("d/e", FOLDER), ("d/e/f", b"1"), ("d2", b"1")]
    assert paths(image(below, {".wh.d": ""})) == ["d2"]


def test_a_whiteout_does_not_reach_its_own_layer_in_either_order():
    for members in ([("d/.wh.a", b""), ("d/a", b"22")], [("d/a", b"22"), ("d/.wh.a", b"")]):
        contents = image({"d/a": "1", "d/a/old": "1"}, members)
        assert [(p, f.bytes) for p, f in contents.files.items()] == [("d/a", 2)]


def test_an_opaque_folder_keeps_nothing_from_below_but_itself():
    below = [("d", FOLDER), ("d/a", b"1"), ("d/e/f", b"1"), ("x", b"1")]
    contents = image(below, [("d/new", b"1"), ("d/.wh..wh..opq", b"")])
    assert paths(contents) == ["d", "d/new", "x"]


def test_an_opaque_root_keeps_nothing():
    assert paths(image({"a": "1", "d/b": "1"}, {".wh..wh..opq": "", "c": "1"})) == ["c"]


def test_notes_of_aufs_are_no_files_and_hide_nothing():
    assert paths(image({"plnk": "1"}, {".wh..wh.plnk": "", "a": "1"})) == ["a", "plnk"]


def test_a_file_takes_the_place_of_a_folder_and_back():
    below = [("d", FOLDER), ("d/a", b"1")]
    assert paths(image(below, {"d": "now a file"})) == ["d"]
    assert paths(image(below, {"d": "now a file"}, {"d/b": "1"})) == ["d/b"]


def test_a_folder_over_a_folder_keeps_its_files():
    assert paths(image([("d", FOLDER), ("d/a", b"1")], [("d", FOLDER)])) == ["d", "d/a"]


def test_a_folder_takes_the_place_of_a_link():
    contents = image([("d", link("e")), ("e", FOLDER)], [("d", FOLDER), ("d/a", b"1")])
    assert contents.files["d"].entry.kind == "directory"


def test_a_hard_link_outlives_the_name_it_was_made_of():
    contents = image([("a", b"12345"), ("b", hard("a"))], {".wh.a": ""})
    assert [(p, f.origin, f.layer) for p, f in contents.files.items()] == [("b", "a", 0)]


def test_a_hard_link_to_a_lower_layer_is_that_layers_file():
    contents = image({"a": "12345"}, [("b", hard("a"))])
    held = contents.files["b"]
    assert (held.layer, held.origin, held.entry.kind) == (0, "a", "hardlink")
    assert held.entry.sha256 == contents.files["a"].entry.sha256


def test_a_hard_link_to_nothing_is_kept_as_that():
    assert image([("b", hard("gone"))]).files["b"].entry.size == 0


def test_texts_are_of_the_layer_that_is_seen():
    name = "etc/os-release"
    contents = image({name: "ID=a"}, {name: "ID=b"})
    assert contents.text(name) == "ID=b"
    assert image({name: "ID=a"}, {"etc/.wh.os-release": ""}).text(name) is None


@pytest.mark.parametrize(
    ("members", "path", "real"),
    [
        ([("etc/os-release", link("../usr/lib/os-release"))], "etc/os-release",
         "usr/lib/os-release"),
        ([("lib", link("usr/lib"))], "lib/x/y", "usr/lib/x/y"),
        ([("a", link("/b")), ("b", link("c"))], "a/x", "c/x"),
        ([("a", link("b")), ("b", link("a"))], "a/x", "a/x"),
        ([("d/a", link("../../../e"))], "d/a", "e"),
        ([], "not/there", "not/there"),
    ],
)  # fmt: skip
def test_links_are_followed_below_the_root(members, path, real):
    assert image(members).real(path) == real


# The same by a naive model: folders as dicts, a layer applied name by name.

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
MEMBERS = st.one_of(
    st.tuples(PATHS, st.sampled_from([b"1", b"22", FOLDER, link("x")])),
    PATHS.map(lambda p: (f"{p.rpartition('/')[0]}/.wh.{p.rpartition('/')[2]}".lstrip("/"), b"")),
    st.one_of(st.just(""), PATHS).map(lambda p: (f"{p}/.wh..wh..opq".lstrip("/"), b"")),
)


def apply_to_tree(tree, members):
    """Apply one layer to nested dicts; a leaf is (layer, size); '' is a folder's own entry."""
    number, members = members
    for path, _ in members:
        *folders, name = path.split("/")
        if name.startswith(".wh."):
            here = tree
            for folder in folders:
                here = here.get(folder) if isinstance(here, dict) else None
            if isinstance(here, dict) and name == ".wh..wh..opq":
                for key in [key for key in here if key]:
                    del here[key]
            elif isinstance(here, dict):
                here.pop(name.removeprefix(".wh."), None)
    for path, content in members:
        *folders, name = path.split("/")
        if name.startswith(".wh."):
            continue
        here = tree
        for folder in folders:
            if not isinstance(here.get(folder), dict):
                here[folder] = {}
            here = here[folder]
        if content != FOLDER:
            here[name] = (number, len(content) if isinstance(content, bytes) else 0)
            continue
        if not isinstance(here.get(name), dict):
            here[name] = {}
        here[name][""] = (number, 0)
    return tree


def flat(tree, above=""):
    for name, below in tree.items():
        path = f"{above}/{name}".strip("/")
        if isinstance(below, dict):
            yield from flat(below, path)
        else:
            yield path, below


@settings(max_examples=300)
@given(st.lists(st.lists(MEMBERS, max_size=6, unique_by=lambda m: m[0]), max_size=4))
def test_layers_merge_as_a_naive_model_does(layers):
    """Layers as engines make them: each path once."""
    tree = {}
    for numbered in enumerate(layers):
        apply_to_tree(tree, numbered)
    contents = image(*layers)
    assert {p: (f.layer, f.bytes) for p, f in contents.files.items()} == dict(flat(tree))
    assert paths(contents) == list(contents.files)


def test_a_gnu_tar_is_read_as_well():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("long/" + "n" * 300)
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    assert list(read(buffer.getvalue()).files) == ["long/" + "n" * 300]
