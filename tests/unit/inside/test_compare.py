"""What a folder of a node holds: marks that tell one state of a file from another."""

import hashlib
import json
import os
import sys

import pytest

from stackyard.inside import compare


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Some files; what the program says of their folder."""
    for name, text in {
        "b.txt": "two",
        "a/x.py": "1",
        ".git/HEAD": "r",
        "__pycache__/x": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (100, 100))
    (tmp_path / "link").symlink_to("b.txt")
    (tmp_path / "broken").symlink_to("nowhere")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path), *words])
        compare.main()
        return json.loads(capsys.readouterr().out)

    return run


LINKS = {"link": "-> b.txt", "broken": "-> nowhere"}


def test_files_are_marked_by_size_and_time_and_links_by_where_they_point(said):
    assert said() == {"files": {**LINKS, "b.txt": "3 100", "a/x.py": "1 100"}, "more": 0}


def test_files_are_marked_by_their_content_when_that_is_asked_for(said):
    def digest(text):
        return hashlib.sha256(text).hexdigest()

    found = said("--content")["files"]
    assert found == {**LINKS, "b.txt": digest(b"two"), "a/x.py": digest(b"1")}


def test_a_large_folder_is_told_in_part_and_how_much_more_there_is(said, monkeypatch):
    monkeypatch.setattr(compare, "LIMIT", 1)
    found = said()
    assert (len(found["files"]), found["more"]) == (1, 3)


def test_a_file_that_cannot_be_read_is_told_as_that(said, monkeypatch):
    def refuse(path, *, content):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(compare, "mark", refuse)
    assert set(said()["files"].values()) == {"unreadable: Permission denied"}


def test_a_folder_that_is_not_there_holds_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path / "no")])
    compare.main()
    assert json.loads(capsys.readouterr().out) == {"files": {}, "more": 0}
