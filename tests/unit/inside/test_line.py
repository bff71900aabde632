"""One end of a line between nodes: whole lines come, and a line is lost for a reason."""

import os

import pytest

from tests.unit.beside import line


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_lines_come_whole(pipe):
    source, target = pipe
    end = line.Line("node2", source, target)
    os.write(target, b"beat\nlis")
    assert end.read() == ["beat"]
    os.write(target, b"t 1\n")
    assert end.read() == ["list 1"]


def test_a_closed_line_is_lost_at_once_and_says_what_was_said_last(pipe):
    source, target = pipe
    end = line.Line("node2", source, target)
    assert end.lost(60) == ""
    os.close(target)
    assert end.read() == []
    assert end.lost(60) == "its end of the line was closed"
    end.said = "Permission denied (publickey)."
    assert end.lost(60) == "Permission denied (publickey)."


def test_a_silent_line_is_lost_after_its_time(pipe, monkeypatch):
    end = line.Line("node2", *pipe)
    monkeypatch.setattr(line.time, "monotonic", lambda: end.heard + 6.1)
    assert end.lost(6) == "nothing was heard for 6 s"
    assert end.lost(7) == ""


def test_writing_to_nobody_closes_the_line(pipe):
    source, target = pipe
    os.close(source)
    end = line.Line("node2", source, target)
    end.write("beat")
    assert end.closed


def test_a_reader_that_is_stopped_stops_nobody_and_gets_all_when_it_goes_on(pipe):
    source, target = pipe
    end, long = line.Line("node2", source, target), "x" * 5000
    for _ in range(100):
        end.write(long)
    assert end.full and not end.closed
    other, got = line.Line("node1", source, target), []
    while len(got) < 100:
        got += other.read()
        end.flush()
    assert set(got) == {long} and not end.full
