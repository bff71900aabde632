"""Following record files: every complete line once, with its file's name, until told to stop."""

import threading
import time

import pytest

from stackyard.inside.follow import follow


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "record").mkdir()
    return tmp_path / "record"


def followed(folder, capsys):
    """What is printed when the stop file is there already."""
    stop = folder.parent / "stop"
    stop.touch()
    follow(folder, stop)
    return capsys.readouterr().out


def test_every_line_is_printed_with_its_files_name(folder, capsys):
    (folder / "rank1.jsonl").write_text('{"b": 1}\n')
    (folder / "rank0.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert followed(folder, capsys) == 'rank0\t{"a": 1}\nrank0\t{"a": 2}\nrank1\t{"b": 1}\n'


def test_a_line_that_is_not_complete_is_not_printed(folder, capsys):
    (folder / "rank0.jsonl").write_text('{"a": 1}\n{"a"')
    assert followed(folder, capsys) == 'rank0\t{"a": 1}\n'


def test_other_files_are_left_alone(folder, capsys):
    (folder / "notes.txt").write_text("x\n")
    assert followed(folder, capsys) == ""


def test_a_folder_that_is_not_there_is_empty(folder, capsys):
    assert followed(folder / "gone", capsys) == ""


def test_bytes_that_are_no_text_do_not_end_it(folder, capsys):
    (folder / "rank0.jsonl").write_bytes(b"\xff\n{}\n")
    assert followed(folder, capsys) == "rank0\t\ufffd\nrank0\t{}\n"


def test_lines_are_printed_as_they_come_and_the_last_before_it_stops(folder, capsys):
    stop, path = folder.parent / "stop", folder / "rank0.jsonl"
    path.write_text("one\nhal")
    thread = threading.Thread(target=follow, args=(folder, stop), daemon=True)
    thread.start()
    seen = ""
    end = time.monotonic() + 5
    while "one" not in seen and time.monotonic() < end:
        seen += capsys.readouterr().out
        time.sleep(0.01)
    assert seen == "rank0\tone\n"
    with path.open("a") as file:
        file.write("f\nlast\n")
    stop.touch()
    thread.join(timeout=5)
    assert capsys.readouterr().out == "rank0\thalf\nrank0\tlast\n"
