"""A bench: strict definitions, FLOPs, turns, and numbers out of records."""

import contextlib
import dataclasses
import operator
import runpy
import sys
from types import SimpleNamespace

import pytest

from stackyard.definitions.document import parse_document
from stackyard.definitions.project import ROOT, load_project
from stackyard.inside import stackyard_record
from stackyard.system.engine import ExecResult
from stackyard.system.errors import DefinitionError, EngineError, UsageError
from stackyard.validate.bench import flops, play, result
from stackyard.validate.bench.definition import Tolerance
from stackyard.validate.bench.plan import (
    WINDOW,
    as_smoke,
    choose_sides,
    rank_counts,
    read_counts,
    shortened,
)
from stackyard.validate.bench.read import load_bench, load_peaks, read_bench, read_peaks
from stackyard.validate.record import Work, take_line
from tests.unit import benches, samples
from tests.unit.benches import MODEL, PEAK, plan
from tests.unit.validate.test_training_at_once import Node

GOOD = """\
what: a toy
fused: [fast]
prepare: [prepare, "{data}"]
program: [train.py, "--record={record}"]
one_rank: {launcher: alone, args: [--one]}
sides:
  stock: {what: as it was, env: {FUSED: "0"}}
  ours: {what: ours}
  part: {what: one part, asked: true, against: ours, fused: []}
sizes:
  cpu: &size
    model: {layers: 2, width: 8, heads: 2, inner: 32, vocabulary: 100, context: 16}
    what: small
    same_loss: {curve: 0.1, end: 0.05}
    rows: 50
    batch: 4
    updates: 40
    warm: 20
    window: 10
    args: ["--width={width}"]
  cuda:
    model: {layers: 2, width: 8, heads: 2, inner: 32, vocabulary: 100, context: 16}
    what: small
    same_loss: {curve: 0.1, end: 0.05}
    rows: 50
    batch: 4
    updates: 40
    warm: 20
    window: 10
""".replace(" &size", "")


def read(text):
    problems = []
    top = parse_document(text, file="bench.yml", problems=problems)
    found = read_bench(top, "toy")
    return found, [str(problem) for problem in problems]


# Definitions


def test_a_good_definition_is_read_whole():
    found, problems = read(GOOD)
    assert problems == []
    assert [side.name for side in found.sides] == ["stock", "ours", "part"]
    assert (found.launcher, found.one_launcher, found.unit) == ("torchrun", "alone", "tokens")
    assert found.against(found.side("ours")) == "stock"
    assert found.against(found.side("part")) == "ours"
    assert [side.fused for side in found.sides] == [("fast",), ("fast",), ()]
    assert found.sizes["cpu"].model == MODEL


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  ours: {what: ours}", "  ours: {what: ours, arg: [x]}", "did you mean 'args'"),
        ("--width={width}", "--width={widht}", "did you mean 'width'"),
        ("--record={record}", "--record={recrd}", "did you mean 'record'"),
        ("against: ours", "against: our", "unknown side 'our'; did you mean 'ours'?"),
        (
            "stock: {what: as it was,",
            "stock: {what: as it was, asked: true,",
            "'stock' is the first",
        ),
        ("    updates: 40\n", "    updates: 45\n", "multiples of the window (10)"),
        ("    updates: 40\n", "    updates: 20\n", "at least 30 are needed"),
        ("heads: 2", "heads: 3", "must divide width"),
        ("curve: 0.1", "curve: 0", "must lie between 0 and 1"),
        ("batch: 4", "batch: 0", "must be at least 1"),
        ("{launcher: alone", "{launcher: alon", "did you mean 'alone'"),
        ("  cuda:\n", "  rocm:\n", "one entry for each of cpu, cuda"),
        ("same_loss:", "same_los:", "sizes.cpu.same_loss: required key is missing"),
        (
            "same_loss: {",
            "same_loss: {sides: {our: {curve: 1, end: 1}}, ",
            "sizes.cpu.same_loss.sides: unknown side 'our'",
        ),
        ("  part: {", "  Part: {", "lower-case letters, digits and dashes"),
        ('program: [train.py, "--record={record}"]', "program: []", "must not be empty"),
    ],
)
def test_a_wrong_definition_says_where_and_what(old, new, said):
    assert old in GOOD
    _, problems = read(GOOD.replace(old, new))
    assert any(said in problem for problem in problems), problems


def test_the_benches_of_this_project_are_read_and_their_sides_can_be_played():
    for stack in load_project(locks_required=False).definitions.stacks:
        found = load_bench(ROOT, stack)
        for device in ("cpu", "cuda"):
            made = benches.make_plan(found, device, 2, rounds=1, updates=0, named=())
            for side in found.sides:
                assert as_smoke(made, side, 2).program


def test_a_stack_without_a_bench_says_which_file_is_missing(tmp_path):
    with pytest.raises(DefinitionError, match=r"images/toy/bench\.yml"):
        load_bench(tmp_path, "toy")


# FLOPs


def test_flops_of_a_token_are_those_of_its_matrices_and_of_causal_attention():
    attention, feed_forward = 4 * 8 * 8, 2 * 8 * 32
    multiplied = 2 * (attention + feed_forward) + 100 * 8
    assert flops.multiplied(MODEL) == multiplied
    scores = 6 * 2 * 8 * 16
    assert flops.flops_per_token(MODEL) == 6 * multiplied + scores


def test_fairseqs_model_has_the_flops_of_353_million_parameters():
    model = load_bench(ROOT, "fairseq").sizes["cuda"].model
    assert flops.multiplied(model) == 24 * 12 * 1024**2 + 50000 * 1024
    assert flops.flops_per_token(model) == pytest.approx(2.27e9, rel=1e-3)


def test_mfu_is_of_all_gpus_together():
    one = flops.mfu(MODEL, 1000.0, 1, PEAK)
    assert one == pytest.approx(1000.0 * flops.flops_per_token(MODEL) / PEAK.flops)
    assert flops.mfu(MODEL, 2000.0, 2, PEAK) == pytest.approx(one)
    assert flops.mfu(MODEL, 1000.0, 1, None) is None


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
    ],
)
def test_known_gpus_have_their_peak(name, tera):
    found, why = flops.find_peak([name, name], load_peaks(ROOT))
    assert found is not None and found.flops == pytest.approx(tera * 1e12)
    assert why == "" and found.source


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "compute on CPUs"),
        (["NVIDIA H100"], "no peak is known for NVIDIA H100;"),
        (["NVIDIA GH200 480GB"], "no peak is known for NVIDIA GH200"),
        (["NVIDIA H200", "NVIDIA A100-SXM4-40GB"], "the GPUs differ"),
    ],
)
def test_no_peak_is_ever_guessed(names, said):
    found, why = flops.find_peak(names, load_peaks(ROOT))
    assert found is None
    assert said in why


def test_a_peak_that_fits_every_gpu_is_refused():
    problems = []
    text = "peaks: [{names: [], flops: 0, source: nowhere}]"
    read_peaks(parse_document(text, file="peaks.yml", problems=problems))
    assert [problem.key for problem in problems] == ["peaks[0].names", "peaks[0].flops"]


# Turns


def test_sides_follow_each_other_at_each_count_in_every_round():
    assert [turn.label for turn in plan(2).turns()] == [
        "stock-1-1.1", "stock-1-1.2", "ours-1-1.1", "ours-1-1.2", "stock-2-1", "ours-2-1",
        "stock-1-2.1", "stock-1-2.2", "ours-1-2.1", "ours-1-2.2", "stock-2-2", "ours-2-2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("most", "counts"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8))]
)
def test_scaling_is_seen_at_powers_of_two_and_at_the_most(most, counts):
    assert rank_counts(most) == counts


def test_a_named_side_brings_what_it_is_held_against():
    assert [side.name for side in choose_sides(benches.bench(), ["part"])] == ["stock", "part"]
    assert [side.name for side in choose_sides(benches.bench(), [])] == ["stock", "ours"]


@pytest.mark.parametrize(
    "changes", [{"named": ["parts"]}, {"updates": 15}, {"updates": 20}, {"rounds": 0}]
)
def test_what_could_not_be_played_is_refused_before_anything_starts(changes):
    with pytest.raises(UsageError):
        plan(**changes)


def test_a_side_becomes_a_training_with_its_own_environment_and_arguments():
    made = plan(named=["part"])
    stock, part = made.sides
    one, two = as_smoke(made, stock, 1), as_smoke(made, part, 2)
    assert one.env == {"SIZE": "1", "FUSED": "0", WINDOW: "10"}
    assert (one.launcher, one.layouts[0].args) == ("alone", ("--one",))
    assert (two.launcher, two.layouts[0].args) == ("torchrun", ("--part",))
    assert two.args == ("--width=8",)
    assert two.prepare == ("prepare", "{data}", "100")
    assert two.program == ("train.py", "--record={record}")


def test_on_gpus_a_few_updates_follow_in_which_their_work_is_measured(monkeypatch):
    made = plan(device="cuda")
    one = as_smoke(made, made.sides[0], 2)
    assert (one.updates, one.save_at) == (benches.UPDATES + 4, benches.UPDATES + 4)
    monkeypatch.setenv(stackyard_record.WORK, one.env[stackyard_record.WORK])
    assert stackyard_record._measured() == (benches.UPDATES + 1, 3)
    off = dataclasses.replace(made.sides[0], env={stackyard_record.WORK: ""})
    monkeypatch.setenv(stackyard_record.WORK, as_smoke(made, off, 2).env[stackyard_record.WORK])
    assert stackyard_record._measured() == (0, 0)
    here = as_smoke(plan(), made.sides[0], 2)
    assert stackyard_record.WORK not in here.env and here.updates == benches.UPDATES


def test_updates_that_are_watched_are_in_no_window(monkeypatch):
    """The profiler starts at the end of the last update that counts."""
    cuda = SimpleNamespace(is_available=lambda: False)
    torch = SimpleNamespace(cuda=cuda, is_tensor=lambda value: False)
    for name, module in (("torch", torch), ("stackyard_record", stackyard_record)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv(WINDOW, "10")
    said = []
    recorder = SimpleNamespace(
        work_from=20, watch_work=lambda step: said.append(step),
        window=lambda step, loss, **more: said.append((step, loss, more["tokens"])),
    )  # fmt: skip
    found = runpy.run_path(str(ROOT / "images/bench/windows.py"))["Windows"](recorder)
    for step in range(1, 25):
        found.update(step, 3.0, 1.0, 5.0)
    assert said == [(10, 3.0, 50.0), 10, (20, 3.0, 50.0), 20, 21, 22, 23, 24]
    recorder.work_from = 0
    said.clear()
    found.update(25, 3.0, 1.0, 5.0)
    found.update(30, 3.0, 1.0, 5.0)
    assert said == [(30, 3.0, 10.0), 30]


# Numbers


def test_the_time_of_an_update_is_computing_communicating_and_idle():
    made = plan(device="cuda", rounds=1)
    seen = benches.watched(benches.seen(made))
    lines = {(line.side, line.ranks): line.spent for line in result.lines(made, seen)}
    # A window of 10 updates takes 4 s on one rank and 5 on each of two.
    one, two = lines["stock", 1], lines["stock", 2]
    assert (one.update, one.watched, one.compute) == pytest.approx((0.4, 0.4, 0.3))
    assert (one.alone, one.idle, one.beside) == pytest.approx((0.0, 0.1, 0.0))
    assert (two.update, two.watched, two.compute) == pytest.approx((0.5, 0.5, 0.32))
    assert (two.alone, two.idle, two.beside) == pytest.approx((0.1, 0.08, 0.05))
    assert two.compute + two.alone + two.idle == pytest.approx(two.update)
    lost = benches.with_rank(seen, "stock-2-1", 1, work=None)
    found = {(line.side, line.ranks): line.spent for line in result.lines(made, lost)}
    assert found["stock", 2] is None and found["stock", 1] == one
    # A profiler makes updates longer: parts are of those that it watched.
    slow = Work(wall=1.5, seconds=0.9, compute=0.9, communication=0.0)
    busy = benches.with_rank(seen, "stock-2-1", 1, work=slow)
    found = {(line.side, line.ranks): line.spent for line in result.lines(made, busy)}["stock", 2]
    assert (found.update, found.watched, found.idle) == pytest.approx((0.5, 1.0, 0.34))
    broken = benches.with_rank(seen, "stock-1-1.1", 0, work=slow)
    broken = benches.with_training(broken, "stock-1-1.1", code=1)
    assert {(n.side, n.ranks): n.spent for n in result.lines(made, broken)}["stock", 1] == one
    # Updates that prepare do not count.
    ranks = next(one for one in seen.played if one.turn.label == "stock-2-1").training.ranks
    windows = {
        step: dataclasses.replace(one, seconds=50.0 if step <= made.size.warm else 3 + step / 10)
        for step, one in ranks[0].windows.items()
    }
    for number in ranks:
        seen = benches.with_rank(seen, "stock-2-1", number, windows=windows)
    found = {(line.side, line.ranks): line.spent for line in result.lines(made, seen)}["stock", 2]
    assert found.update == pytest.approx(0.65)  # the median of windows of 6 s and 7 s


def test_a_window_takes_as_long_as_its_slowest_rank():
    made = plan()
    seen = benches.with_rank(
        benches.seen(made),
        "stock-2-1",
        1,
        windows={20: benches.Window(seconds=8.0, tokens=400.0, peak_bytes=1)},
    )
    training = seen.find("stock", 2)[0].training
    assert result.window_speeds(training) == {20: 800.0 / 8.0}


def test_windows_of_the_warm_up_do_not_count_and_the_median_does():
    seen = benches.seen(plan())
    assert result.speed(seen.find("stock", 1)[0].training, benches.WARM) == 100.0
    assert result.speed(seen.find("stock", 1)[0].training, benches.UPDATES) is None


def timed(*windows, began=100.0, **changes):
    """A training of one rank whose updates take these seconds, window by window."""
    found, now, step = {}, began + 5.0, 0
    for updates in windows:
        now, step = now + sum(updates), step + len(updates)
        found[step] = benches.Window(
            seconds=sum(updates), tokens=100.0, peak_bytes=1, updates=tuple(updates), time=now
        )
    ranks = {0: samples.rank(0, 1, windows=found)}
    return samples.training(ranks=ranks, wanted=1, began=began, **changes)


EVEN = [1.0] * 10
PAUSED = [*EVEN[:4], 7.0, *EVEN[:5]]


def test_the_mean_counts_pauses_and_leaves_out_the_start_up():
    found = timed([5.0, *EVEN[:9]], EVEN, PAUSED, EVEN, EVEN)
    assert result.speed(found, 10) == 10.0
    assert result.mean_speed(found) == pytest.approx(400.0 / 46.0)
    assert result.mean_speed(timed(EVEN)) is None
    # Windows of another length: those count that begin after the start-up.
    assert result.mean_speed(timed(*[[1.0] * 4] * 3, [2.0] * 4)) == pytest.approx(100.0 / 8.0)


def test_the_start_up_is_told_up_to_the_first_and_the_tenth_update():
    found = timed([5.0, *EVEN[:9]], EVEN)
    assert (result.started(found, 1), result.started(found, 10)) == (10.0, 19.0)
    assert result.started(timed([5.0, *EVEN[:4]], EVEN[:5]), 10) == 19.0
    assert result.started(timed(EVEN, began=0.0), 1) is None
    assert result.started(timed(EVEN), 11) is None


@pytest.mark.parametrize(
    ("windows", "pause"),
    [
        ([EVEN, PAUSED], (6.0, 15)),
        ([PAUSED, EVEN], (0.0, 20)),  # in the start-up
        ([EVEN, [*EVEN[:9], 3.0], EVEN], (2.0, 20)),
        ([EVEN, [3.0, *EVEN[:9]]], (2.0, 11)),
        ([EVEN, EVEN, [*EVEN[:9], 3.0]], (2.0, 30)),  # with neighbours on one side alone
        ([EVEN, [*EVEN[:5], 7.0, 7.0, *EVEN[:3]]], (6.0, 17)),  # two do not hide each other
        ([EVEN], None),
    ],
)
def test_the_longest_pause_is_that_of_an_update_among_its_neighbours(windows, pause):
    assert result.longest_pause(timed(*windows)) == pause


def test_an_update_takes_as_long_as_on_its_slowest_rank():
    one, other = timed(EVEN).ranks[0], timed(PAUSED).ranks[0]
    found = samples.training(ranks={0: one, 1: other}, wanted=2)
    assert result.update_seconds(found) == {**dict.fromkeys(range(1, 11), 1.0), 5: 7.0}


def test_a_line_has_the_worst_start_up_and_pause_and_the_ratio_of_means():
    made = plan(1, rounds=1)
    seen = benches.seen(made)
    for label, windows in (("stock-1-1", [EVEN, EVEN]), ("ours-1-1", [EVEN, PAUSED])):
        found = timed(*windows)
        seen = benches.with_training(seen, label, ranks=found.ranks, began=found.began)
    lines = {line.side: line for line in result.lines(made, seen)}
    assert lines["ours"].mean_ratio == pytest.approx(10.0 / 16.0)
    assert (lines["ours"].first, lines["ours"].tenth, lines["ours"].pause) == (6.0, 15.0, 6.0)


def test_a_training_that_lost_a_rank_has_no_speed():
    found = benches.seen(plan()).find("ours", 2)[0].training
    alone = benches.dataclasses.replace(found, ranks={0: found.ranks[0]})
    assert result.speed(alone, benches.WARM) is None


def test_lines_have_ratio_scaling_and_the_highest_peak():
    lines = {(line.side, line.ranks): line for line in result.lines(plan(), benches.seen(plan()))}
    assert lines["ours", 1].ratio == pytest.approx(1.5)
    assert lines["stock", 1].ratio == 1.0
    assert lines["ours", 2].speed == pytest.approx(2 * 150.0 / 1.25)
    assert lines["ours", 2].scaling == pytest.approx(1 / 1.25)
    assert lines["ours", 2].peak_bytes == 40001
    assert len(lines["ours", 2].speeds) == 2


def test_a_failed_training_gives_no_speed_and_no_ratio():
    seen = benches.seen(plan())
    for label in ("stock-1-1.1", "stock-1-2.2"):
        seen = benches.with_training(seen, label, code=1)
    lines = {(line.side, line.ranks): line for line in result.lines(plan(), seen)}
    assert lines["stock", 1].speed is None
    assert lines["ours", 1].ratio is None
    assert lines["stock", 2].scaling is None


def test_a_window_is_read_from_the_record_with_its_loss():
    ranks = {}
    line = (
        '{"event": "window", "step": 10, "loss": 2.5, "seconds": 1.5, "tokens": 320.0,'
        ' "peak_bytes": 7, "updates": [1.0, 0.5], "time": 1.0}'
    )
    record, kind = take_line(ranks, 0, line)
    assert kind == "window"
    window = benches.Window(seconds=1.5, tokens=320.0, peak_bytes=7, updates=(1.0, 0.5), time=1.0)
    assert record.windows == {10: window}
    assert record.losses == {10: 2.5}
    assert take_line(ranks, 0, line.replace('"seconds": 1.5, ', "")) is None
    take_line(ranks, 0, line.replace('"updates": [1.0, 0.5], ', ""))
    assert record.windows[10].updates == ()  # of before they were told


@pytest.mark.parametrize(
    ("ranks", "available", "expected"),
    [
        (1, 1, [[(0,)], [(0,)]]),
        (1, 2, [[(0,), (1,)], [(0,), (1,)]]),
        (2, 2, [[(0, 1)], [(0, 1)]]),
        (2, 4, [[(0, 1), (2, 3)], [(0, 1), (2, 3)]]),
        (2, 3, [[(0, 1)], [(0, 2)], [(1, 2)]]),
        (2, 5, [[(0, 1), (2, 3)], [(0, 4), (1, 2)]]),
        (3, 8, [[(0, 1, 2), (3, 4, 5)], [(0, 6, 7), (1, 2, 3)]]),
    ],
)
def test_a_round_takes_all_gpus_and_what_is_left_over_moves_on(ranks, available, expected):
    made = plan(available, device="cuda", counts=(ranks,), rounds=len(expected), named=["stock"])
    found = [[made.gpus(turn) for turn in group] for group in made.groups()]
    assert found == expected
    for group in found:
        taken = [gpu for gpus in group for gpu in gpus]
        assert len(set(taken)) == len(taken) == available // ranks * ranks


HERE = SimpleNamespace(plan=SimpleNamespace(nodes=("node1",), run="r"), shared="/shared")


def test_trainings_at_the_same_time_share_no_gpu_port_folder_or_label():
    made = plan(4, device="cuda")
    smokes = as_smoke(made, made.sides[0], 2)
    group = next(group for group in made.groups() if group[0].ranks == 2)
    starts = [play.start(made, smokes, turn, HERE, 29500 + n) for n, turn in enumerate(group)]
    assert [one.plan.label for one in starts] == ["stock-2-1.1", "stock-2-1.2"]
    assert [one.plan.gpus for one in starts] == [((0, 1),), ((2, 3),)]
    assert [one.smoke.env["CUDA_VISIBLE_DEVICES"] for one in starts] == ["0,1", "2,3"]
    for own in ("port", "plan.folder", "plan.save"):
        assert len({operator.attrgetter(own)(one) for one in starts}) == 2


def test_trainings_at_the_same_time_leave_the_cores_to_each_other():
    made = plan(2)
    smokes = as_smoke(made, made.sides[0], 1)
    beside, alone = made.turns()[0], plan(1).turns()[0]
    assert play.start(made, smokes, beside, HERE, 1).smoke.env["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in play.start(made, smokes, alone, HERE, 1).smoke.env
    own = benches.dataclasses.replace(smokes, env={"OMP_NUM_THREADS": "3"})
    assert play.start(made, own, beside, HERE, 1).smoke.env["OMP_NUM_THREADS"] == "3"


def test_over_hosts_trainings_follow_each_other_and_fill_one_node_after_another():
    made = plan(4, device="cuda", nodes=2)
    assert [[turn.ranks for turn in group] for group in made.groups()][:3] == [[1], [1], [2]]
    names = ("a", "b")
    assert [made.spread(ranks, names) for ranks in (1, 2, 4)] == [
        (("a",), 1), (("a",), 2), (names, 2),
    ]  # fmt: skip
    assert {made.gpus(turn) for turn in made.turns()} == {()}


@pytest.mark.parametrize(("ranks", "counts"), [(4, (3,)), (5, ())])
def test_ranks_that_do_not_fill_whole_nodes_are_refused(ranks, counts):
    with pytest.raises(UsageError, match="cannot be spread over 2 nodes evenly"):
        plan(ranks, device="cuda", counts=counts, nodes=2)


def test_cpu_ranks_take_no_gpus():
    made = plan(2)
    assert {made.gpus(turn) for turn in made.turns()} == {()}


def test_a_rounds_speed_is_the_mean_of_its_trainings():
    made = plan(device="cuda")
    seen = benches.with_rank(
        benches.seen(made),
        "stock-1-1.2",
        0,
        windows={30: benches.Window(seconds=8.0, tokens=400.0, peak_bytes=1)},
    )
    lines = {(line.side, line.ranks): line for line in result.lines(made, seen)}
    assert lines["stock", 1].speeds == (75.0, 100.0)
    assert lines["stock", 1].speed == 87.5
    assert lines["stock", 2].scaling == pytest.approx(2 * 80.0 / (2 * 87.5))


def test_a_round_of_which_one_training_failed_has_no_speed():
    seen = benches.with_training(benches.seen(plan()), "stock-1-1.2", code=1)
    lines = {(line.side, line.ranks): line for line in result.lines(plan(), seen)}
    assert lines["stock", 1].speeds == (100.0,)


def test_only_the_numbers_of_ranks_that_are_asked_for_are_played_and_scaling_needs_one():
    made = plan(4, counts=read_counts("4,2", 4))
    assert [turn.ranks for turn in made.turns() if turn.round == 1] == [2, 2, 2, 2, 4, 4]
    lines = result.lines(made, benches.seen(made))
    assert [line.scaling for line in lines] == [None] * 4
    assert all(line.speed for line in lines)
    assert plan(4, counts=read_counts("", 4)).counts == (1, 2, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("two", "'two' is no number of ranks"),
        ("1,", "'' is no number of ranks"),
        ("0", "'0' is no number of ranks"),
        ("-1", "'-1' is no number of ranks"),
        ("1,8", "8 ranks are more than the 4 there are"),
        ("2,1,2", "2 is said twice"),
    ],
)
def test_counts_that_cannot_be_played_say_why_and_what_to_type(text, said):
    with pytest.raises(UsageError) as caught:
        read_counts(text, 4)
    assert said in caught.value.why
    assert caught.value.hint == "--counts 1,2,4"


def test_what_ends_earlier_ends_in_the_middle_of_the_curve():
    size = load_bench(ROOT, "megatron").sizes["cuda"]
    strict = size.bounds("plain")
    assert strict.end < strict.curve
    assert shortened(size, 2 * size.updates).bounds("plain") == strict
    for side in ("plain", "deepspeed"):
        most = size.bounds(side).curve
        assert shortened(size, 50).bounds(side) == Tolerance(curve=most, end=most)


class Refusing(Node):
    """A mesh in which trainings end well, until its engine refuses: after so many of them."""

    def __init__(self, labels, most):
        super().__init__(dict.fromkeys(labels, 0))
        self.prepared, self._most = [], most

    def wait_joined(self, names, ended):
        pass

    def expect(self, seconds):
        pass

    def exec(self, container, argv, **more):
        self.prepared.append(argv[0])
        return ExecResult(code=0, output="{}")

    def send(self, do, **values):
        if do == "start" and len(self.ended) >= self._most:
            raise EngineError("docker exec failed", why="the engine has gone")
        super().send(do, **values)


def test_what_was_played_stays_when_the_engine_refuses_in_the_middle(monkeypatch):
    made, told = plan(), []
    mesh = Refusing([turn.label for turn in made.turns()], most=4)
    monkeypatch.setattr(play.nodes, "running_mesh", lambda *_, **__: contextlib.nullcontext(mesh))
    seen = play.run_bench(
        None, made, None, run="toy-1", watcher=play.BenchWatcher(so_far=told.append)
    )
    assert seen.broken == "docker exec failed: the engine has gone"
    assert [len(one.played) for one in told] == [2, 4]
    assert seen.played == told[-1].played
    assert [one.training.failed for one in seen.played] == [False] * 4
    assert {one.turn.label for one in seen.played} == set(mesh.ended[:4])
    assert mesh.prepared == ["python3", "prepare"]  # a login, then the data


def test_a_bench_is_played_to_its_end_in_its_order(monkeypatch):
    made, told = plan(), []
    labels = [turn.label for turn in made.turns()]
    mesh = Refusing(labels, most=len(labels))
    monkeypatch.setattr(play.nodes, "running_mesh", lambda *_, **__: contextlib.nullcontext(mesh))
    seen = play.run_bench(
        None, made, None, run="toy-1", watcher=play.BenchWatcher(so_far=told.append)
    )
    assert (seen.broken, seen.left_out) == ("", {})
    assert [one.turn.label for one in seen.played] == labels
    assert [phase.name for phase in seen.phases][:2] == ["start the node", "prepare data"]
    assert seen.phases[-1].name == "remove the node"
