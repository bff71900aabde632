"""Files and folders are there whole or not at all, whatever happens while they are written."""

from pathlib import Path

import pytest

from stackyard.system import cleanup, files


class Left(Exception):
    pass


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_a_file_has_its_name_only_when_all_is_written(tmp_path):
    target = tmp_path / "a"

    def chunks():
        yield b"one"
        assert not target.exists()
        yield b"two"

    files.replace_file(target, chunks())
    assert (target.read_bytes(), names(tmp_path)) == (b"onetwo", ["a"])


@pytest.mark.parametrize("error", [Left, KeyboardInterrupt])
def test_what_breaks_off_leaves_the_old_file_and_no_part(tmp_path, error):
    target = tmp_path / "a"
    target.write_bytes(b"old")

    def chunks():
        yield b"new"
        raise error

    with pytest.raises(error):
        files.replace_file(target, chunks())
    assert (target.read_bytes(), names(tmp_path)) == (b"old", ["a"])


def test_a_new_file_that_is_not_kept_is_gone(tmp_path):
    with files.new_file(tmp_path) as part:
        part.file.write(b"x")
        assert part.path.parent == tmp_path
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_part(tmp_path):
    with pytest.raises(OSError, match="No space left"), files.new_file(tmp_path) as part:
        part.file.close()
        part.file = Path("/dev/full").open("wb")  # noqa: SIM115 new_file closes it
        part.file.write(b"x")
    assert list(tmp_path.iterdir()) == []


def test_two_at_the_same_time_do_not_meet(tmp_path):
    with files.new_file(tmp_path) as one, files.new_file(tmp_path) as two:
        for part, name in ((one, "one"), (two, "two")):
            part.file.write(name.encode())
            part.keep(tmp_path / name)
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["one", "two"]


def test_a_part_is_told_to_the_warden_before_it_is_there(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(cleanup, "promise", lambda kind, value: told.append((kind, value)))
    with files.new_file(tmp_path) as part:
        assert told == [("path", str(part.path))]


def test_only_texts_that_differ_are_written(tmp_path):
    assert files.replace_texts(tmp_path, {"a/b": "1", "c": "2"}) == ["a/b", "c"]
    assert files.replace_texts(tmp_path, {"a/b": "1", "c": "3"}) == ["c"]
    assert (tmp_path / "c").read_text() == "3"


def test_a_folder_has_its_name_only_when_all_is_in_it(tmp_path):
    with files.new_folder(tmp_path / "made") as part:
        (part / "x").write_text("1")
        assert part.parent.stat().st_mode & 0o077 == 0
        assert not (tmp_path / "made").exists()
    assert (names(tmp_path), names(tmp_path / "made")) == (["made"], ["x"])


def test_a_folder_that_breaks_off_leaves_nothing(tmp_path):
    with pytest.raises(Left), files.new_folder(tmp_path / "made"):
        raise Left
    assert names(tmp_path) == []


def test_a_folder_with_something_in_it_is_not_replaced(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("1")
    with pytest.raises(OSError), files.new_folder(tmp_path / "made") as part:
        (part / "x").write_text("1")
    assert names(tmp_path / "made") == ["mine"]
