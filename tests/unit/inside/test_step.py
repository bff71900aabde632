"""The process of a step: what it says comes in lines, and its whole group ends with it."""

import os
import selectors
import sys
import time

import pytest

from stackyard.inside import strays
from tests.unit import beside

StepProcess = sys.modules["step"].StepProcess
pytestmark = pytest.mark.usefixtures("allow_processes")
assert beside


@pytest.fixture
def start(tmp_path):
    """Start a shell line; what it said, and how it ended."""
    selector, started = selectors.DefaultSelector(), []

    def run(line, words=("sh", "-c"), over=lambda: None):
        said = []
        child = StepProcess([*words, line], str(tmp_path), os.environ, selector, said.append, over)
        started.append(child)
        return child, said

    def wait(child, seconds=10):
        end = time.monotonic() + seconds
        while child.poll() is None and time.monotonic() < end:
            for key, _ in selector.select(0.05):
                key.data()
        child.finish()
        assert selector.get_map() == {}
        return child.poll()

    run.wait, run.selector = wait, selector
    yield run
    for child in started:
        child.kill()
        child.finish()
    selector.close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("printf 'one\\ntwo\\n'; pwd > /dev/null", ["one", "two"]),
        ("printf 'out\\n'; printf 'err\\n' >&2", ["out", "err"]),
        ("printf '10%%\\r20%%\\r\\nend'", ["10%", "20%", "end"]),
        ("printf '\\377 x  \\n\\n \\n'", ["� x"]),
        ("printf half; sleep 0.2; printf ' line\\n'", ["half line"]),
    ],
)
def test_what_it_says_comes_in_lines(start, line, said):
    child, found = start(line)
    assert start.wait(child) == 0
    assert found == said


def test_its_last_words_are_not_lost_however_many(start):
    child, found = start("seq 20000; exit 3")
    assert start.wait(child) == 3
    assert found == [str(n) for n in range(1, 20001)]


def test_what_has_no_line_break_comes_in_pieces(start):
    child, found = start("head -c 9000 /dev/zero | tr '\\0' x")
    start.wait(child)
    assert [len(piece) for piece in found] == [4000, 4000, 1000]


def test_it_runs_in_its_folder(start, tmp_path):
    child, found = start("pwd -P")
    start.wait(child)
    assert found == [os.path.realpath(tmp_path)]


def test_all_that_it_started_is_killed_with_it(start):
    child, found = start("sleep 100 & echo $!; wait")
    while not found:
        child._hear()
        time.sleep(0.01)
    child.kill()
    assert start.wait(child) == -9
    end = time.monotonic() + 5
    while strays.running(int(found[0])) and time.monotonic() < end:
        time.sleep(0.01)
    assert not strays.running(int(found[0]))


def test_what_goes_on_in_its_output_is_not_waited_for(start):
    child, found = start("(sleep 0.3; echo late) & echo early")
    assert start.wait(child) == 0
    assert found == ["early"]


def test_a_program_that_is_not_there_is_an_error(start):
    with pytest.raises(FileNotFoundError):
        start("x", words=("no-such-program",))


def test_its_end_is_reported_once_by_the_kernel(start):
    over, end = [], time.monotonic() + 10
    child, _ = start("exit 3", over=lambda: over.append(child.poll()))
    while not over and time.monotonic() < end:
        for key, _ in start.selector.select(0.05):
            key.data()
    assert start.wait(child) == 3
    assert over == [3]


def test_a_command_that_cannot_be_killed_is_not_waited_for(start):
    child, _ = start("exec sleep 20")
    child.finish()
    assert child.poll() is None
