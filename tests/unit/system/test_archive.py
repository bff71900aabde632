"""Small archives: the same bytes for the same files."""

import io
import tarfile

from stackyard.system.archive import pack


def test_the_same_files_give_the_same_bytes_in_any_order():
    assert pack({"a": b"1", "b": b"2"}) == pack({"b": b"2", "a": b"1"})


def test_files_come_out_as_they_went_in_and_belong_to_nobody_in_particular():
    long = "folder/" + "x" * 150
    data = pack({long: b"one", "ü": b""}, mode=0o600)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        assert [archive.extractfile(m).read() for m in members] == [b"one", b""]
    assert [(m.name, m.mode, m.uid, m.uname, m.mtime) for m in members] == [
        (long, 0o600, 0, "", 0), ("ü", 0o600, 0, "", 0),
    ]  # fmt: skip


def test_files_are_readable_by_all_unless_told_otherwise():
    with tarfile.open(fileobj=io.BytesIO(pack({"a": b""}))) as archive:
        assert archive.getmember("a").mode == 0o644
