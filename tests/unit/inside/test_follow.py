"""Following record files: every complete line once, with its launch and its file's name."""

import os
import threading
import time

import pytest

from stackyard.inside.follow import Follower, follow


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "one" / "record").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def followed(folder, capsys):
    follower = Follower(folder)

    def look():
        follower.look()
        return capsys.readouterr().out

    return look


def test_every_line_is_printed_once_with_its_launch_and_its_files_name(folder, followed):
    (folder / "one/record/rank1.jsonl").write_text('{"b": 1}\n')
    (folder / "one/record/rank0.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (folder / "two/record").mkdir(parents=True)
    (folder / "two/record/rank0.jsonl").write_text('{"c": 1}\n')
    assert followed() == (
        'one/rank0\t{"a": 1}\none/rank0\t{"a": 2}\none/rank1\t{"b": 1}\ntwo/rank0\t{"c": 1}\n'
    )
    assert followed() == ""


def test_a_line_that_is_not_complete_is_printed_when_it_is(folder, followed):
    path = folder / "one/record/rank0.jsonl"
    path.write_text('{"a": 1}\n{"a"')
    assert followed() == 'one/rank0\t{"a": 1}\n'
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert followed() == 'one/rank0\t{"a": 2}\n'


def test_other_files_are_left_alone(folder, followed):
    (folder / "one/record/notes.txt").write_text("x\n")
    (folder / "one/rank0.jsonl").write_text("x\n")
    assert followed() == ""


def test_a_folder_that_is_not_there_is_empty(tmp_path, capsys):
    Follower(tmp_path / "gone").look()
    assert capsys.readouterr().out == ""


def test_bytes_that_are_no_text_do_not_end_it(folder, followed):
    (folder / "one/record/rank0.jsonl").write_bytes(b"\xff\n{}\n")
    assert followed() == "one/rank0\t\ufffd\none/rank0\t{}\n"


def test_a_question_is_answered_after_what_was_there_before_it(folder, capsys):
    source, target = os.pipe()
    thread = threading.Thread(target=follow, args=(folder, source), daemon=True)
    thread.start()
    (folder / "one/record/rank0.jsonl").write_text("line\n")
    os.write(target, b"caught up 1\n")
    seen, end = "", time.monotonic() + 5
    while "caught up" not in seen and time.monotonic() < end:
        seen += capsys.readouterr().out
        time.sleep(0.01)
    assert seen == "one/rank0\tline\ncaught up 1\n"
    os.close(target)
    thread.join(timeout=5)
    assert not thread.is_alive()
    os.close(source)
