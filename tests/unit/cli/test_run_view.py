"""What a person sees of a run on hosts: labelled lines, one bar for all ranks, tables."""

import pytest
from rich.console import Console

from stackyard.cli import run_view
from stackyard.cli.console import Terminal
from stackyard.cli.run_view import RunView, hosts_table, loads_table, runs_table, span
from stackyard.mesh import runs
from tests.unit.machines import node, plan

MESH = plan(node("a"), node("study-2"))


@pytest.fixture
def view(capsys):
    """A view where there is no terminal; what it printed since it was last asked."""

    def make(**changes):
        terminal = Terminal(json=changes.pop("json", False), live=False)
        with RunView(MESH, "demo", terminal, **changes) as made:
            made.terminal = terminal
        made.printed = lambda: capsys.readouterr().out.splitlines()
        return made

    return make


@pytest.fixture
def clock(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(run_view.time, "monotonic", lambda: now[0])
    return now


def line(text, rank=0, name="a"):
    return {"node": name, "rank": rank, "text": text}


def test_a_line_says_which_node_and_rank_it_is_from(view):
    made = view()
    made.line(line("loss 3.1"))
    made.line(line("loss 3.1", None))
    made.line(line("[red]no markup[/]", 11, "study-2"))
    assert made.printed() == [
        "a 0        | loss 3.1", "a          | loss 3.1", "study-2 11 | [red]no markup[/]",
    ]  # fmt: skip


def test_in_a_terminal_no_second_block_is_drawn_beside_the_lines(view, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with Terminal(live=True) as terminal:
        terminal.say("toy", "log in")
        with RunView(MESH, "demo", terminal) as made:
            assert not terminal._progress.live.is_started
            made.step("train")
            made.line(line("loss 3.1"))
            assert not terminal._progress.live.is_started
        said = capsys.readouterr().out
        assert "demo: train" in said and "loss 3.1" in said
        terminal.say("toy", "remove nodes")
        assert terminal._progress.live.is_started


class Full:
    """A file on a full disk."""

    def __init__(self, taken=0):
        self.left = taken

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")

    def flush(self):
        self.write("")

    close = flush


@pytest.mark.parametrize("taken", [0, 2])  # full at the first line, or at the last flush
def test_a_log_on_a_full_disk_is_told_once_and_the_training_goes_on(taken, tmp_path, capsys):
    log = tmp_path / "demo.log"
    with RunView(MESH, "demo", Terminal(json=False, live=False), log=log) as made:
        made._file.close()
        made._file = Full(taken)
        made.line(line("loss 3.1"))
        made.line(line("loss 3.0"))
    out, err = capsys.readouterr()
    assert [text.partition("| ")[2] for text in out.splitlines()] == ["loss 3.1", "loss 3.0"]
    assert err == f"{log} cannot be written any more: No space left on device\n"


def test_an_output_on_a_full_disk_does_not_end_the_training(view, monkeypatch):
    made = view()

    def full(*given, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.print", full)
    made.line(line("loss 3.1"))


def test_who_reads_no_more_ends_the_command(view, monkeypatch):
    made = view()

    def gone(*given, **more):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    with pytest.raises(BrokenPipeError):
        made.line(line("loss 3.1"))


def test_what_several_ranks_say_alike_is_shown_once(view):
    made = view()
    for rank in range(4):
        made.line(line("starting", rank))
        made.line(line(f"rank {rank}", rank))
    made.line(line("starting", None))
    assert [text.partition("| ")[2] for text in made.printed()] == [
        "starting", "rank 0", "rank 1", "rank 2", "rank 3", "starting",
    ]  # fmt: skip
    assert len(made.kept) == 9


def test_what_a_rank_repeats_itself_and_all_of_rank_0_is_shown(view):
    made = view()
    for rank in (1, 1, 0, 0):
        made.line(line("loss 0.0", rank))
    assert len(made.printed()) == 4


def test_everything_is_shown_to_who_asks_for_it(view):
    made = view(everything=True)
    for rank in range(3):
        made.line(line("starting", rank))
    assert len(made.printed()) == 3


def test_the_last_lines_are_kept_for_who_explains_a_failure(view):
    made = view(json=True)
    for number in range(1000):
        made.line(line(f"line {number}"))
    assert made.printed() == []
    assert made.terminal.tail.splitlines() == [f"line {n}" for n in range(800, 1000)]
    assert len(made.kept) <= run_view.KEPT + 1


def test_a_bar_is_told_at_once_and_then_every_ten_seconds(view, clock):
    made = view()
    for second in range(25):
        clock[0] += 1
        made.bar(line(f" {second}%|#  | "))
    assert made.printed() == [f"a 0        | {n}%|#  |" for n in (0, 10, 20)]


def test_bars_of_several_ranks_are_one_the_lowest_ranks(view, clock):
    made = view()
    made.bar(line("10%", 2, "study-2"))
    clock[0] += 20
    made.bar(line("20%", 1))
    clock[0] += 20
    made.bar(line("30%", 2, "study-2"))
    assert made.printed() == [
        "study-2 2  | 10%", "a 1        | 20%  (and 1 more)",
        "a 1        | 20%  (and 1 more)",
    ]  # fmt: skip


def test_json_has_no_bars(view):
    made = view(json=True)
    made.bar(line("10%"))
    assert made.printed() == []


def shown(table):
    console = Console(width=200, color_system=None, record=True, quiet=False, file=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def run(**changes):
    return {"run": "demo", "stack": "fairseq", "base": "cpu", "nodes": ["a", "b"], "missing": [],
            "lost": {}, "error": "", "jobs": [], **changes}  # fmt: skip


def job(**changes):
    return {"name": "lm-1", "state": "ended", "step": "train", "code": 0, "reason": "",
            "started": 100.0, "ended": 130.0, "shown": {"ranks": 2}, **changes}  # fmt: skip


def training(**changes):
    return job(**{"state": "running", "code": None, "update": 1200, "loss": 3.25,
                  "updates_per_second": 2.5, "shown": {"updates": 10000}, **changes})  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "up"),
        ({"error": "a is gone"}, "a is gone"),
        ({"jobs": [job()]}, "done in 30 s"),
        ({"jobs": [job(state="running", code=None)]}, "train"),
        (
            {"jobs": [training()]},
            "update 1,200 of 10,000, loss 3.2500\n2.5 updates/s, 59 min to go",
        ),
        ({"jobs": [training(shown={})]}, "update 1,200, loss 3.2500 \n2.5 updates/s "),
        ({"jobs": [training(updates_per_second=None)]}, "update 1,200 of 10,000, loss 3.2500"),
        (
            {"jobs": [training(loss="nan")]},
            "update 1,200 of 10,000, loss nan \n2.5 updates/s, 59 min to go",
        ),
        ({"jobs": [training(loss=None, shown={})]}, "update 1,200 \n2.5 updates/s "),
        ({"jobs": [training(update=0)]}, "train "),
        ({"jobs": [training(hang="rank 1")]}, "does not get on: rank 1 \nupdate 1,200 of 10,000"),
        ({"jobs": [job(state="closing")]}, "closing"),
        ({"jobs": [job(code=3)]}, "failed: exit code 3"),
        ({"jobs": [job(code=None, reason="it was stopped")]}, "failed: it was stopped"),
        ({"jobs": [job(code=None, reason=runs.INTERRUPTED)]}, "interrupted; the mesh is still up"),
        ({"jobs": [job(code=1), job()]}, "done in 30 s"),
    ],
)
def test_a_runs_state_is_that_of_its_last_job(changes, state):
    text = shown(runs_table([run(**changes)]))
    assert all(line in text for line in state.split("\n"))
    assert ("updates/s" in text) == ("updates/s" in state)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1 h 30 min"),
     (129599, "35 h 59 min"), (129600, "1 d 12 h"), (8.64e6, "100 d 0 h")],
)  # fmt: skip
def test_a_time_to_go_is_said_in_the_units_that_matter(seconds, said):
    assert span(seconds) == said


def load(index, **changes):
    return {"index": index, "name": "NVIDIA H200", "busy_percent": 98, "power_watts": 655.2,
            "power_limit_watts": 700.0, "memory_used_gib": 93.1, "memory_gib": 140.4,
            "waits": False, "unread": "", **changes}  # fmt: skip


def test_gpus_of_a_host_stand_in_a_row_and_those_that_wait_are_marked():
    waits = load(1, busy_percent=100, power_watts=121.0, waits=True)
    dark = load(2, busy_percent=None, power_watts=None, memory_used_gib=None)
    lines = shown(loads_table([
        {"host": "a", "unread": "", "gpus": [load(0), waits, dark]},
        {"host": "b", "unread": "there is no python3", "gpus": []},
        {"host": "c", "unread": "", "gpus": [load(0, memory_gib=None), load(1, unread="lost")]},
    ])).splitlines()  # fmt: skip
    (a, b, c) = ([cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line)
    assert a == [
        "a", "3 x NVIDIA H200", "98 100! ?", "655 121 ? of 700", "93 93 ? of 140",
        "GPU 1: busy at little power, as one that waits",
    ]  # fmt: skip
    assert b == ["b", "", "", "", "", "there is no python3"]
    assert c[4:] == ["93 93 of ? 140", "GPU 1: lost"]


def test_nodes_that_are_gone_are_marked():
    text = shown(runs_table([run(missing=["a"], lost={"b": "silent"})]))
    assert "a (gone), b (gone)" in text


def test_hosts_are_shown_a_line_each_with_what_is_known():
    hosts = [{"host": "a", "engine": "29.0", "clock": "ok"},
             {"host": "b", "engine": "29.1", "clock": "+9.0 s"},
             {"host": "c", "engine": "does not answer"}]  # fmt: skip
    text = shown(hosts_table({"columns": ("host", "engine", "clock"), "hosts": hosts})[0])
    assert "29.1" in text and "does not answer" in text and "clock" in text


def test_what_is_the_same_on_all_hosts_is_said_once_below_their_table():
    same = {"engine": "29.0", "clock": "ok", "runs": ""}
    hosts = [{"host": name, "disk": f"{name} GiB", **same} for name in "ab"]
    answer = {"columns": ("host", "engine", "disk", "clock", "runs"), "hosts": hosts}
    table, below = hosts_table(answer)
    assert below == "the same on all hosts: engine 29.0; clock ok"
    assert [column.header for column in table.columns] == ["host", "disk"]
    away = {**answer, "hosts": [*hosts, {"host": "c", "engine": "does not answer"}]}
    table, below = hosts_table(away)
    assert below == "the same on all hosts that answer: clock ok"
    assert [column.header for column in table.columns] == ["host", "engine", "disk"]
    one = {**answer, "hosts": [hosts[0], away["hosts"][-1]]}
    table, below = hosts_table(one)
    assert below == "a: disk a GiB; clock ok"
    assert [column.header for column in table.columns] == ["host", "engine"]
    # Of a single host everything stands in its line; what nobody has is no column.
    table, below = hosts_table({**answer, "hosts": hosts[:1]})
    assert below == ""
    assert [column.header for column in table.columns] == ["host", "engine", "disk", "clock"]
    table, below = hosts_table({**answer, "hosts": away["hosts"][-1:] * 2})
    assert (below, [column.header for column in table.columns]) == ("", ["host", "engine"])
