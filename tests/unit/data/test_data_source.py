"""Where text is cut, how bytes become documents, and what happens to lines that do not."""

import ctypes
import gzip
import importlib.util
import lzma
import pickle
import random
import sys

import pytest

from stackyard.definitions.project import ROOT


def _load():
    path = ROOT / "images" / "data" / "source.py"
    spec = importlib.util.spec_from_file_location("data_source", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["data_source"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


source = _load()


def zstd(data):
    """Compress as zstd does, in one frame."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compress.restype = library.ZSTD_compressBound.restype = ctypes.c_size_t
    room = ctypes.create_string_buffer(library.ZSTD_compressBound(ctypes.c_size_t(len(data))))
    made = library.ZSTD_compress(
        room, ctypes.c_size_t(len(room)), data, ctypes.c_size_t(len(data)), 3
    )
    return room.raw[:made]


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """The folder of the program, as Python itself finds the modules beside it."""
    monkeypatch.syspath_prepend(ROOT / "images" / "data")


def given(path):
    return source.Input(str(path), path.name)


def reader(**changed):
    return source.Reader(
        **{"encoding": "utf-8", "bad": "fail", "key": "", "keep_blank": False, **changed}
    )


def read(path, most=1 << 20, **changed):
    one = reader(**changed)
    lines = [
        line
        for chunk in source.chunks(given(path), most)
        for some in one.documents(chunk, chunk.data())
        for line in some
    ]
    return lines, one.counts


def write(path, data):
    path.write_bytes(data)
    return path


# cutting


@pytest.mark.parametrize("most", [1, 2, 3, 7, 64, 1000])
def test_every_line_is_in_one_chunk_whatever_its_size(tmp_path, most):
    rng = random.Random(most)
    lines = ["你好 " * rng.randrange(0, 9) + str(n) for n in range(200)]
    path = write(tmp_path / "t", "\n".join(lines).encode())
    assert read(path, most)[0] == lines
    joined = b"".join(chunk.data() for chunk in source.chunks(given(path), most))
    assert joined == path.read_bytes() + b"\n"


@pytest.mark.parametrize(("suffix", "opener"), [(".gz", gzip.open), (".xz", lzma.open)])
@pytest.mark.parametrize("most", [5, 100, 1 << 20])
def test_compressed_files_give_the_same_lines(tmp_path, suffix, opener, most):
    lines = [f"行 {n}" for n in range(100)]
    path = tmp_path / f"t{suffix}"
    with opener(path, "wb") as file:
        file.write("\n".join(lines).encode())
    assert read(path, most)[0] == lines
    assert list(source.chunks(given(path), most))[-1].read == path.stat().st_size


@pytest.mark.parametrize("most", [5, 100, 1 << 20])
@pytest.mark.parametrize("frames", [1, 3])
def test_so_does_zstd_in_one_frame_or_several(tmp_path, most, frames):
    lines = [f"行 {n}" for n in range(300)]
    parts = ["".join(f"{line}\n" for line in lines[n::frames]) for n in range(frames)]
    path = write(tmp_path / "t.zst", b"".join(zstd(part.encode()) for part in parts))
    assert read(path, most)[0] == "".join(parts).splitlines()
    assert list(source.chunks(given(path), most))[-1].read == path.stat().st_size


def test_zstd_of_far_more_text_than_bytes_is_read_in_pieces(tmp_path):
    path = write(tmp_path / "t.zst", zstd(b"a line\n" * 500_000))
    found = [len(chunk.text) for chunk in source.chunks(given(path), 1 << 20)]
    assert (sum(found), len(found)) == (3_500_000, 4)


@pytest.mark.parametrize("damage", [lambda whole: whole[:-9], lambda whole: b"x" + whole])
def test_damaged_zstd_is_named(tmp_path, damage):
    whole = zstd(random.Random(1).randbytes(300_000))
    path = write(tmp_path / "t.zst", damage(whole))
    with pytest.raises(source.Refused, match=r"t\.zst cannot be decompressed") as refused:
        read(path)
    assert refused.value.why in ("the file ends before its text does", "Unknown frame descriptor")


@pytest.mark.parametrize("name", ["t", "t.gz"])
def test_a_line_that_no_worker_can_hold_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(source, "LONGEST", 1 << 17)
    for size, accepted in (((1 << 17) - 9, True), (1 << 20, False)):
        text = b"one\n" + b"x" * size + b"\nlast\n"
        path = write(tmp_path / name, gzip.compress(text) if name.endswith("gz") else text)
        if accepted:
            assert len(read(path, 8)[0]) == 3
            continue
        with pytest.raises(source.Refused, match=f"{name} has no line end"):
            read(path, 8)


def test_a_compressed_file_that_is_cut_off_is_named(tmp_path):
    whole = gzip.compress(random.Random(1).randbytes(100_000))
    path = write(tmp_path / "t.gz", whole[:-200])
    with pytest.raises(source.Refused, match=r"t\.gz cannot be decompressed"):
        read(path)


def test_a_file_that_became_shorter_is_noticed(tmp_path):
    path = write(tmp_path / "t", b"one\ntwo\n")
    (chunk,) = source.chunks(given(path), 100)
    path.write_bytes(b"one\n")
    with pytest.raises(source.Refused, match="became shorter"):
        chunk.data()


# lines


def test_marks_ends_and_blank_lines(tmp_path):
    path = write(tmp_path / "t", b"\xef\xbb\xbfone\r\n\r\n \n\xe3\x80\x80\ntwo")
    lines, counts = read(path)
    assert lines == ["one", "two"]
    assert counts["blank lines"] == 3
    assert read(path, keep_blank=True)[0] == ["one", "", " ", "\u3000", "two"]


def test_other_encodings_are_read(tmp_path):
    path = write(tmp_path / "t", "你好\n世界\n".encode("gb18030"))
    assert read(path, encoding="gb18030")[0] == ["你好", "世界"]


@pytest.mark.parametrize("most", [1 << 20, 4])
def test_a_bad_line_is_named_by_file_line_and_byte(tmp_path, most):
    path = write(tmp_path / "t", b"one\ntwo\nth\xffree\nfour\n")
    with pytest.raises(source.Refused) as refused:
        read(path, most)
    assert "t, line 3 (byte 8) is not utf-8: byte 0xff at position 2" in str(refused.value)
    assert "--bad-lines skip" in refused.value.hint


def test_so_is_one_in_a_compressed_file(tmp_path):
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"one\n" * 50 + b"\0\n"))
    with pytest.raises(source.Refused, match=r"line 51 \(byte 200\) holds a NUL byte"):
        read(path, 10)


def test_bad_lines_are_skipped_or_replaced_when_asked(tmp_path):
    path = write(tmp_path / "t", b"one\nt\0wo\nth\xffree\nfour\n")
    lines, counts = read(path, bad="skip")
    assert lines == ["one", "four"]
    assert counts["bad lines"] == 2
    lines, counts = read(path, bad="replace")
    assert lines == ["one", "t\ufffdwo", "th\ufffdree", "four"]
    assert counts["bad lines"] == 2


def test_the_text_in_lines_of_json(tmp_path):
    path = write(tmp_path / "t", '{"text": "你好\\nworld", "id": 1}\n\n{"text": "two"}\n'.encode())
    assert read(path, key="text")[0] == ["你好\nworld", "two"]


@pytest.mark.parametrize(
    "line",
    [b"{", b"[1]", b'{"other": 1}', b'{"text": 1}', b'{"text": "a\\u0000b"}',
     b'{"text": "\\ud800"}',
     b'"text"', b"[" * 100_000],
)  # fmt: skip
def test_a_line_without_that_text_is_a_bad_line(tmp_path, line):
    path = write(tmp_path / "t", b'{"text": "one"}\n' + line + b"\n")
    with pytest.raises(source.Refused, match=r"line 2 \(byte 16\) is not JSON with a text"):
        read(path, key="text")
    assert read(path, key="text", bad="skip")[0] == ["one"]


def test_a_bad_line_is_named_where_lines_end_as_on_windows(tmp_path):
    path = write(tmp_path / "t", b'{"text": "one"}\r\n' * 100 + b"{\r\n")
    with pytest.raises(source.Refused, match=r"line 101 \(byte 1,700\) is not JSON"):
        read(path, key="text")
    assert read(path, key="text", bad="skip")[0] == ["one"] * 100


def test_a_refusal_comes_back_from_a_worker_as_it_was():
    sent = source.Refused("what", why="why", hint="hint")
    back = pickle.loads(pickle.dumps(sent))
    assert (back.what, back.why, back.hint) == ("what", "why", "hint")
