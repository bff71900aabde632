"""What a person sees: lines, live curves, tables; and nothing but results on standard output."""

import io
import json
import math
import re
import time

import pytest
from rich.console import Console

from stackyard.cli import console, tables
from stackyard.report import records
from stackyard.system.stream import Note, ToolLine
from tests.unit import reports


def drawn(table, width=200):
    screen = Console(width=width, file=io.StringIO())
    screen.print(table)
    return screen.file.getvalue()


@pytest.mark.parametrize("values", [[], [1.0]])
def test_a_curve_of_less_than_two_points_is_nothing(values):
    assert console.spark(values) == ""


@pytest.mark.parametrize(
    ("values", "drawing"),
    [
        ([1.0, 2.0, 3.0, 4.0], "▁▃▆█"),
        ([4.0, 1.0], "██▁▁"),
        ([2.0, 2.0, 2.0, 2.0], "▁▁▁▁"),
    ],
)
def test_a_curve_is_drawn_between_its_own_lowest_and_highest(values, drawing):
    assert console.spark(values, width=4) == drawing


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_left_out_of_the_drawing(bad):
    assert console.spark([3.0, 2.0, bad, 1.0], width=3) == "█▅▁"
    assert console.spark([3.0, bad]) == ""


def test_a_nan_in_a_live_training_does_not_end_the_command(capsys):
    with console.Terminal(live=True) as terminal:
        for step, loss in enumerate([3.0, math.nan, 2.0], 1):
            terminal.loss("toy", "two", step, 40, loss)
        terminal.done("toy", "all done")
    assert "toy: all done" in capsys.readouterr().err


def test_without_a_terminal_every_event_is_one_line_on_standard_error(capsys):
    with console.Terminal(live=False) as terminal:
        terminal.say("toy", "starting [nodes]")
        terminal.done("toy", "all [done]")
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split("] ", 1)[1] for line in err.splitlines()] == [
        "toy: starting [nodes]", "toy: all [done]",
    ]  # fmt: skip


def test_without_a_terminal_the_same_event_again_is_no_line(capsys):
    with console.Terminal(live=False) as terminal:
        for stack, text in (("a", "loading"), ("b", "loading"), ("a", "loading"), ("a", "loaded"),
                            ("a", "loading")):  # fmt: skip
            terminal.say(stack, text)
    said = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["a: loading", "b: loading", "a: loaded", "a: loading"]


@pytest.mark.parametrize("live", [False, True])
def test_all_commands_and_phases_have_one_clock(monkeypatch, capsys, live):
    monkeypatch.setattr(console, "STARTED", time.monotonic() - 3600)
    for name in ("engine", "smoke"):
        with console.Terminal(live=live) as terminal:
            for phase in ("start", "train"):
                terminal.say(name, phase)
                text = drawn(terminal._progress) if live else capsys.readouterr().err
                assert re.search(rf"{name}.*{phase}" if live else rf"{name}: {phase}", text)
                assert re.search(r"\[ *36\d\d\.\d s\]", text)


@pytest.mark.parametrize("verbose", [False, True])
def test_lines_of_tools_are_shown_on_request_only(capsys, verbose):
    with console.Terminal(live=False, verbose=verbose) as terminal:
        terminal.say("toy", ToolLine("I: extracting archives..."))
    assert ("I: extracting archives..." in capsys.readouterr().err) == verbose


def test_without_a_terminal_every_tenth_update_and_the_last_is_a_line(capsys):
    with console.Terminal(live=False) as terminal:
        for step in range(1, 26):
            terminal.loss("toy", "two", step, 25, 2.0)
    said = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert said == [f"toy: two: update {step}/25 loss 2.0000" for step in (10, 20, 25)]


def test_in_a_terminal_what_is_done_stays(capsys):
    with console.Terminal(live=True) as terminal:
        terminal.say("toy", "a step with [brackets]")
        terminal.loss("toy", "two", 1, 40, 2.0)
        terminal.done("toy", "all [done]")
    assert "toy: all [done]" in capsys.readouterr().err


def test_the_row_of_what_has_ended_goes_until_it_goes_on():
    with console.Terminal(live=True) as terminal:
        terminal.say("toy", "train")
        terminal.done("toy", "smoke passed")
        assert "train" not in drawn(terminal._progress)
        terminal.say("toy", "publish")
        assert "publish" in drawn(terminal._progress)


def test_a_note_is_a_line_that_stays_and_no_row(capsys):
    with console.Terminal(live=True) as terminal:
        terminal.say("toy", "train")
        terminal.say("cpu", Note("the index is not carried"))
        assert "cpu" not in drawn(terminal._progress)
    assert "cpu: note: the index is not carried" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 120])
def test_rows_fit_narrow_terminals_with_name_and_clock(width):
    with console.Terminal(live=True) as terminal:
        terminal.say("accelerate", "a long text " * 20)
        (row,) = drawn(terminal._progress, width).splitlines()
    assert "accelerate" in row and row.rstrip().endswith(" s]") and "…" in row


def test_a_narrow_table_of_phases_cuts_no_number():
    phases = [{"name": "find or build the image", "seconds": 202.52}]
    made = [{**reports.good(), "stack": name, "phases": phases} for name in "abc"]
    assert drawn(tables.phase_table(made), 80).count("202.52") == 3


def test_results_go_to_standard_output_and_remarks_do_not(capsys):
    terminal = console.Terminal(live=False)
    terminal.text("a result [x]")
    terminal.note("a remark [y]")
    terminal.table(tables.phase_table([reports.good()]))
    out, err = capsys.readouterr()
    assert out.startswith("a result [x]\n")
    assert "start nodes" in out
    assert err == "a remark [y]\n"


def test_when_json_was_asked_for_nothing_else_is_on_standard_output(capsys):
    terminal = console.Terminal(json=True, live=False)
    terminal.text("a result")
    terminal.table(tables.smoke_table([reports.good()]))
    terminal.note("a remark")
    assert capsys.readouterr().out == ""


def test_the_smokes_table_has_a_row_a_check_and_a_column_a_stack():
    one, other = reports.good(), {**reports.good(), "stack": "ball", "outcome": "failed"}
    text = drawn(tables.smoke_table([one, other]))
    assert "toy on cpu" in text and "ball on cpu" in text
    for name in ("mesh", "world_size", "loss_falls", "ranks_agree", "parity", "resume_equal",
                 "no_strays", "verdict"):  # fmt: skip
        assert name in text
    assert "4 logins, 6 refused" in text
    assert "2.95 to 1.00" in text
    assert "4 trainings" in text
    assert "0 left" in text


@pytest.mark.parametrize("name", reports.BROKEN)
def test_every_kind_of_broken_smoke_can_be_shown(name):
    value = reports.BROKEN[name]()
    text = drawn(tables.smoke_table([value])) + drawn(tables.phase_table([value]))
    assert value["outcome"] in text


def test_phases_of_one_and_of_several_stacks_are_shown():
    one = reports.good()
    other = {**one, "stack": "ball", "phases": one["phases"][:1]}
    assert "0.50" in drawn(tables.phase_table([one]))
    text = drawn(tables.phase_table([one, other]))
    assert (
        "ball" in text and text.count("find or build the image") == 2 and text.count("log in") == 1
    )


def test_no_report_is_an_empty_table():
    assert tables.phase_table([]).row_count == 0
    assert drawn(tables.phase_table([])).strip() == ""


def test_several_reports_are_one_answer():
    answer = records.together([reports.good(), reports.BROKEN["failed"]()])
    assert answer["outcome"] == "failed"
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
