"""One squashfs file of layers: what goes into it, and that it is whole or absent."""

import gzip
import io
import json
import shutil
import tarfile

import pytest

from stackyard.release import squashfs
from stackyard.scan.layer_stream import members
from stackyard.system.errors import NothingToRunOn, ReleaseError, StackyardError
from tests.unit.layers import FOLDER, Forward, hard, link, tar

# Writes what it reads, and how it was called.
PROGRAM = """#!/bin/sh
if [ "$1" = -version ]; then echo "mksquashfs version 4.5.1 (2022/03/17)"; exit 0; fi
cat > "$2"
echo "$SOURCE_DATE_EPOCH $*" > "$2.called"
"""


@pytest.fixture
def layers(tmp_path):
    """Write layers, the lowest first, each a list of members."""

    def write(*lists):
        paths = []
        for number, found in enumerate(lists):
            paths.append(tmp_path / f"layer{number}")
            paths[-1].write_bytes(gzip.compress(tar(*found)))
        return paths

    return write


def files(paths, variables=b""):
    """The files that mksquashfs is given: content, or kind and link, by path, in their order."""
    data = b"".join(squashfs.tree(paths, squashfs.contents_of(paths), variables))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {}
        for member in archive:
            assert member.name not in found, "mksquashfs takes each path once"
            if member.isreg():
                found[member.name] = archive.extractfile(member).read().decode()
            else:
                found[member.name] = member.type.decode(), member.linkname
        return found


def plain(paths):
    found = files(paths)
    assert found.pop(squashfs.ENVIRONMENT) == ""
    return found


def test_upper_layers_cover_lower_ones(layers):
    paths = layers(
        [("a", "low"), ("b", "low"), ("d", FOLDER), ("d/x", "low"), ("d/y", "low"), ("e/z", "low")],
        [("a", "high"), (".wh.b", ""), ("d/.wh.x", ""), ("e/.wh..wh..opq", ""), ("e/new", "high")],
    )
    assert plain(paths) == {
        "a": "high", "d": ("5", ""), "d/y": "low", "e/new": "high",
    }  # fmt: skip


def test_a_file_in_place_of_a_folder_hides_what_was_in_it(layers):
    paths = layers([("a", FOLDER), ("a/b", "low"), ("c", "low")], [("a", "high"), ("c", link("a"))])
    assert plain(paths) == {"a": "high", "c": ("2", "a")}


def test_names_of_one_content_stay_one_file(layers):
    paths = layers([("a", "same"), ("b", hard("a")), ("c", hard("b"))])
    assert plain(paths) == {"a": "same", "b": ("1", "a"), "c": ("1", "a")}


def test_a_hard_link_outlives_the_name_that_had_the_content(layers):
    paths = layers([("a", "old"), ("b", hard("a")), ("c", hard("a"))], [("a", "new")])
    assert plain(paths) == {"b": "old", "c": ("1", "b"), "a": "new"}


def test_an_upper_layer_may_link_to_a_file_below(layers):
    paths = layers([("a", "old")], [("b", hard("a"))])
    assert plain(paths) == {"a": "old", "b": ("1", "a")}


def test_an_empty_file_keeps_its_other_names(layers):
    assert plain(layers([("a", ""), ("b", hard("a"))])) == {"a": "", "b": ("1", "a")}


def test_devices_which_no_user_can_unpack_are_left_out(layers):
    paths = layers([("dev", FOLDER), ("dev/null", ("device", "")), ("dev/zero", hard("dev/null"))])
    assert plain(paths) == {"dev": ("5", "")}


def test_large_and_odd_sizes_come_through(layers):
    texts = {f"f{size}": "x" * size for size in (1, 511, 512, 513, 2**20, 2**20 + 1)}
    assert plain(layers([*texts.items()])) == texts


def test_modes_and_times_stay_as_bytecode_needs_them(layers):
    (path,) = layers([("a.py", "x", 123456)])
    pieces = squashfs.tree([path], squashfs.contents_of([path]), b"")
    found = {m.name: m for m, _ in members(Forward(b"".join(pieces))) if m}
    assert (found["a.py"].mtime, found["a.py"].mode) == (123456, 0o644)


def test_the_images_variables_replace_its_own_file(layers):
    paths = layers([("etc", FOLDER), ("etc/environment", "OLD=1\n")])
    assert files(paths, b"A=b c\n") == {"etc/environment": "A=b c\n", "etc": ("5", "")}


def test_variables_stand_on_a_line_each():
    assert squashfs.environment_text(["A=b c", "PATH=/x:/y"]) == b"A=b c\nPATH=/x:/y\n"


@pytest.mark.parametrize("wrong", ["A=b\nLD_PRELOAD=x", "A", "1A=b", "A-B=c", "=x", "A=\r"])
def test_a_variable_that_is_no_line_is_refused(wrong):
    with pytest.raises(ReleaseError, match="etc/environment"):
        squashfs.environment_text(["GOOD=1", wrong])


def test_a_layer_that_names_a_file_twice_is_refused(layers):
    with pytest.raises(ReleaseError, match="layer 0 names 'a' twice"):
        files(layers([("a", "1"), ("a", "2")]))


def test_a_layer_that_changed_meanwhile_is_refused(layers):
    paths = layers([("a", "1"), ("b", "2")])
    contents = squashfs.contents_of(paths)
    paths[0].write_bytes(gzip.compress(tar(("a", "1"))))
    with pytest.raises(ReleaseError, match="does not hold 'b'"):
        b"".join(squashfs.tree(paths, contents, b""))


# The file


@pytest.fixture
def program(tmp_path, monkeypatch, allow_processes):
    """Put another mksquashfs first on PATH."""

    def put(text=PROGRAM):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "mksquashfs").write_text(text)
        (folder / "mksquashfs").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    put()
    return put


def make(folder, paths):
    folder.mkdir(exist_ok=True)
    return squashfs.make(
        folder / "x.sqsh", paths, ["A=b"], release="x", image="sha256:1"
    )  # fmt: skip


def test_a_file_is_made_with_its_note(tmp_path, program, layers):
    folder = tmp_path / "out"
    found = make(folder, layers([("a", "1", 500), ("b", "2", 700)]))
    target = folder / "x.sqsh"
    assert found.bytes == target.stat().st_size and found.made_by == "mksquashfs 4.5.1"
    assert target.stat().st_mode & 0o777 == 0o644
    assert squashfs.read_note(target, "sha256:1") == found
    assert squashfs.is_whole(target, found)
    assert squashfs.read_note(target, "sha256:2") is None, "another image's"
    note = squashfs.note_path(target)
    said = json.loads(note.read_text())
    for old in ({**said, "contents": 1}, {k: v for k, v in said.items() if k != "contents"}):
        note.write_text(json.dumps(old))
        assert squashfs.read_note(target, "sha256:1") is None, "with devices"
    (called,) = [path for path in folder.iterdir() if path.name.endswith(".called")]
    epoch, source, place, *options = called.read_text().split()
    # Nothing of the moment, of this machine or of its user is in the file.
    assert (epoch, source) == ("700", "-") and tuple(options) == squashfs.OPTIONS
    assert place.startswith(str(folder / ".part-"))


def test_a_damaged_file_is_not_taken_for_whole(tmp_path, program, layers):
    found = make(tmp_path / "out", layers([("a", "1")]))
    target = tmp_path / "out" / "x.sqsh"
    data = target.read_bytes()
    target.write_bytes(data[:-1] + b"x")
    assert not squashfs.is_whole(target, found)
    target.write_bytes(data[:-1])
    assert not squashfs.is_whole(target, found)
    target.unlink()
    assert not squashfs.is_whole(target, found)
    assert squashfs.read_note(target, "sha256:1") == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"image": "sha256:1"}', "\0"])
def test_a_note_that_is_none_is_as_if_there_were_none(tmp_path, text):
    squashfs.note_path(tmp_path / "x.sqsh").write_text(text)
    assert squashfs.read_note(tmp_path / "x.sqsh", "sha256:1") is None


@pytest.mark.parametrize(
    "rest", ["exit 1", "head -c 10 > /dev/null; echo no space left; exit 1", "kill -9 $$"]
)
def test_where_the_program_fails_nothing_is_left(tmp_path, program, layers, rest):
    program(PROGRAM.replace('cat > "$2"', rest))
    paths = layers([(f"f{n}", "x" * 2**20) for n in range(3)])
    with pytest.raises(StackyardError, match="made no file") as caught:
        make(tmp_path / "out", paths)
    assert ("no space left" in caught.value.why) == ("space" in rest)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_fails_while_layers_are_read_leaves_nothing(tmp_path, program, layers):
    with pytest.raises(ReleaseError, match="twice"):
        make(tmp_path / "out", layers([("a", "1"), ("a", "2")]))
    assert [p.name for p in (tmp_path / "out").iterdir() if not p.name.endswith(".called")] == []


@pytest.mark.parametrize(
    ("said", "why"), [("version 4.4-git.1", "4.4-git.1 is too old"), ("nothing", "is too old")]
)
def test_a_program_that_reads_no_tar_is_told(program, said, why):
    program(f"#!/bin/sh\necho mksquashfs {said}\n")
    with pytest.raises(NothingToRunOn, match=why):
        squashfs.require_program()


def test_a_machine_without_the_program_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NothingToRunOn, match="mksquashfs is not on this machine") as caught:
        squashfs.require_program()
    assert "squashfs-tools" in caught.value.hint


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="squashfs-tools is not here")
def test_the_same_layers_give_the_same_bytes(tmp_path, layers, monkeypatch):
    paths = layers([("a", "1"), ("b/c", "2" * 10**6), ("d", hard("a"))], [("b/e", "3")])
    one = make(tmp_path / "one", paths)
    monkeypatch.setattr(squashfs, "OPTIONS", (*squashfs.OPTIONS, "-processors", "1"))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    two = make(tmp_path / "two", paths)
    assert one == two
