"""The verdict, the record and the page of a bench; each check is shown failing."""

import json
import math
import runpy
from pathlib import Path

import pytest

from stackyard.build.catalog import resolve
from stackyard.definitions.project import ROOT
from stackyard.gpu.fused import Part
from stackyard.report.bench import bench_report
from stackyard.report.bench_page import SPENT, headings, render_page, rows, spent_rows, unwatched
from stackyard.validate.bench.definition import Tolerance
from stackyard.validate.bench.judge import judge
from stackyard.validate.bench.result import Seen
from tests.unit import benches, reports, samples
from tests.unit.benches import plan, with_rank, with_training
from tests.unit.report.test_page import Reader
from tests.unit.validate.test_judge_gpu import seen as observation

LOSSES = {10: 4.75, 20: 4.5, 30: 4.25, 40: 4.0}


def outcomes(seen, made=None):
    return {check.name: check for check in judge(made or plan(), seen)}


def test_a_good_bench_passes_every_check():
    found = outcomes(benches.seen(plan()))
    assert {name: check.outcome for name, check in found.items()} == {
        "trained": "passed", "own_device": "passed", "same_loss": "passed", "no_strays": "passed",
    }  # fmt: skip
    against = found["same_loss"].measured["ours-1-2.1"]["against"]
    assert against == "all 4 trainings of stock"
    assert found["same_loss"].measured["rounds"] == {"stock-1": 0.0, "stock-2": 0.0}


def drop(seen, *labels):
    played = tuple(one for one in seen.played if one.turn.label not in labels)
    return benches.dataclasses.replace(seen, played=played)


GOOD = benches.seen(plan())
TURN = plan().turns()[-1]
STRAY = {"pid": 7, "command": "python3 train.py"}


@pytest.mark.parametrize(
    ("seen", "check", "said"),
    [
        (with_training(GOOD, "ours-1-1.1", code=1), "trained",
         "ours-1-1.1: the launcher ended with exit code 1"),
        (with_training(GOOD, "ours-1-1.1", stopped="silent"), "trained", "ours-1-1.1: silent"),
        (with_rank(GOOD, "ours-2-1", 1, ended=None), "trained", "rank 1 (node2) stopped"),
        (with_training(GOOD, "ours-2-1", ranks={0: samples.rank(0, 2, losses=LOSSES)}), "trained",
         "rank 1 (node1) never joined"),
        (with_rank(GOOD, "ours-2-1", 1, windows={}), "trained", "no window after update 20"),
        (with_rank(GOOD, "ours-1-1.1", 0, losses={10: 4.0, 20: 3.0}), "trained", "update is 20"),
        (with_rank(GOOD, "ours-1-1.1", 0, losses={**LOSSES, 30: math.nan}), "trained",
         "not finite at update 30"),
        (with_rank(GOOD, "ours-1-1.1", 0, losses={**LOSSES, 40: 4.8}), "trained", "does not fall"),
        (drop(GOOD, "ours-2-2"), "trained", "did not run: ours-2-2"),
        (benches.dataclasses.replace(drop(GOOD, "ours-2-2"), left_out={TURN: "x failed"}),
         "trained", "ours-2-2 did not run: x failed"),
        (benches.dataclasses.replace(GOOD, broken="the node is gone"), "trained", "node is gone"),
        (with_rank(GOOD, "ours-2-1", 0, world_size=1), "own_device", "sees a world of 1, not 2"),
        (with_rank(GOOD, "ours-2-1", 0, device="cuda:0"), "own_device", "computes on cuda:0"),
        (with_rank(GOOD, "ours-1-1.1", 0, losses={**LOSSES, 30: 4.36}), "same_loss",
         "ours-1-1.1 differs from all 4 trainings of stock by 0.11 at update 30"),
        (with_rank(GOOD, "ours-1-1.1", 0, losses={**LOSSES, 40: 4.06}), "same_loss",
         "by 0.06 at the end"),
        (with_rank(GOOD, "ours-1-1.1", 0, losses={**LOSSES, 30: math.nan}), "same_loss",
         "by inf at update 30"),
        (with_rank(GOOD, "ours-1-1.1", 0, losses={10: 4.0}), "same_loss", "no losses in common"),
        (with_training(GOOD, "ours-1-1.1", strays={"node1": [STRAY]}), "no_strays",
         "ours-1-1.1, ours-1-1.2: node1 still runs 7: python3 train.py"),
    ],
)  # fmt: skip
def test_each_check_fails_and_says_why(seen, check, said):
    found = outcomes(seen)[check]
    assert found.outcome == "failed"
    assert said in found.why


def test_differences_of_the_warm_up_do_not_count():
    seen = with_rank(GOOD, "ours-1-1.1", 0, losses={**LOSSES, 20: 4.9})
    assert outcomes(seen)["same_loss"].outcome == "passed"


def test_two_ranks_on_one_gpu_fail():
    made = plan(device="cuda")
    seen = benches.seen(made)
    assert outcomes(seen, made)["own_device"].outcome == "passed"
    wrong = with_rank(seen, "ours-2-1", 1, gpu="GPU-0")
    assert "two ranks compute on one GPU" in outcomes(wrong, made)["own_device"].why


def test_two_trainings_at_the_same_time_on_one_gpu_fail():
    made = plan(device="cuda")
    wrong = with_rank(benches.seen(made), "ours-1-2.2", 0, gpu="GPU-0")
    found = outcomes(wrong, made)["own_device"]
    assert found.outcome == "failed"
    assert found.why == "ours-1-2.1 and ours-1-2.2 computed on one GPU at the same time (GPU-0)"


def test_a_rank_that_does_not_name_its_gpu_fails():
    made = plan(device="cuda")
    wrong = with_rank(benches.seen(made), "ours-1-2.2", 0, gpu="")
    assert outcomes(wrong, made)["own_device"].why == "ours-1-2.2: rank 0 does not name its GPU"


def test_what_trainings_at_the_same_time_left_is_counted_once():
    left = {"node1": [STRAY, {**STRAY, "pid": 8}]}
    seen = with_training(GOOD, "ours-1-1.1", strays=left)
    found = outcomes(with_training(seen, "ours-1-1.2", strays=left))["no_strays"]
    assert found.measured["processes_left"] == 2


@pytest.mark.parametrize(("loss", "beyond"), [(4.36, 0.0), (4.3, 0.0), (4.45, 0.09), (4.47, 0.11)])
def test_losses_may_differ_from_the_range_of_the_other_sides_trainings(loss, beyond):
    """Stock spans 4.25 to 4.36 at update 30; the bound is 0.1."""
    seen = with_rank(GOOD, "stock-1-1.2", 0, losses={**LOSSES, 30: 4.36})
    seen = with_rank(seen, "ours-1-2.1", 0, losses={**LOSSES, 30: loss})
    found = outcomes(seen)["same_loss"]
    assert found.outcome == ("failed" if beyond > 0.1 else "passed")
    assert found.measured["ours-1-2.1"]["largest"] == pytest.approx(beyond)
    assert found.measured["rounds"]["stock-1"] == pytest.approx(0.11)


def test_a_loss_of_the_other_side_that_is_no_number_bounds_nothing():
    seen = with_rank(GOOD, "stock-1-1.2", 0, losses={**LOSSES, 30: math.inf})
    assert "by inf at update 30" in outcomes(seen)["same_loss"].why


def on_gpus(label="", updates=None, fused=None):
    """A bench on GPUs, every update timed; one training with other updates, or other parts."""
    made = plan(device="cuda")
    seen = benches.seen(made)
    for one in seen.played:
        seen = with_training(seen, one.turn.label, began=990.0)
        updates_of = updates if updates and one.turn.label == label else [0.2] * 40
        for number, rank in one.training.ranks.items():
            windows = {
                step: benches.dataclasses.replace(
                    w, updates=tuple(updates_of[step - 10 : step]), time=1000.0 + step
                )
                for step, w in rank.windows.items()
            }
            parts = {"fast": Part(state="off" if one.turn.side == "stock" else "ran")}
            if fused is not None and one.turn.label == label and number == one.turn.ranks - 1:
                parts = fused
            seen = with_rank(seen, one.turn.label, number, windows=windows, fused=parts)
    return made, seen


def test_a_steady_bench_whose_parts_run_passes():
    made, seen = on_gpus()
    found = outcomes(seen, made)
    assert (found["steady"].outcome, found["fused"].outcome) == ("passed", "passed")
    assert found["steady"].measured["ours-2-1"] == {"seconds": 0.0, "at": 40}
    assert found["fused"].measured["stock-1-1.1"] == {"rank 0": {"fast": "off"}}


def test_a_later_update_that_pauses_fails():
    made, seen = on_gpus("ours-2-1", [0.2] * 24 + [6.2] + [0.2] * 15)
    found = outcomes(seen, made)["steady"]
    assert found.why == "ours-2-1: update 25 took 6.0 s more than its neighbours"
    _, within = on_gpus("ours-2-1", [9.0] * 10 + [0.2] * 14 + [1.1] + [0.2] * 15)
    assert outcomes(within, made)["steady"].outcome == "passed"


def test_updates_that_were_not_timed_are_not_called_steady():
    made = plan(device="cuda")
    found = outcomes(benches.seen(made), made)["steady"]
    assert found.outcome == "failed"
    assert "ours-2-1: its updates were not timed one by one" in found.why
    assert outcomes(Seen(run="x", broken="no engine"), made)["steady"].outcome == "not run"


@pytest.mark.parametrize(
    ("fused", "said"),
    [
        ({"fast": Part(state="fell back", why="no compiler")},
         "fell back to the package's own code: no compiler"),
        ({}, "did not run: nothing asked for it"),
    ],
)  # fmt: skip
def test_a_part_that_a_side_must_fuse_and_does_not_fails(fused, said):
    made, seen = on_gpus("ours-2-1", fused=fused)
    found = outcomes(seen, made)["fused"]
    said = f"ours-2-1: rank 1: the fused part 'fast' {said}"
    assert (found.outcome, found.why) == ("failed", said)
    assert outcomes(Seen(run="x", broken="no engine"), made)["fused"].outcome == "not run"


def test_gpus_hold_nothing_when_all_is_over():
    made = plan(device="cuda")
    found = outcomes(benches.seen(made, gpu=observation()), made)["freed"]
    assert (found.outcome, found.measured["freed_after_seconds"]) == ("passed", 0.3)
    held = observation(used_after={"GPU-00000000": 700 << 20, "GPU-00000001": 600 << 20})
    wrong = outcomes(benches.seen(made, gpu=held), made)["freed"]
    assert wrong.outcome == "failed"
    assert "100 MiB are still held on GPU-00000000" in wrong.why
    assert outcomes(benches.seen(made), made)["freed"].outcome == "not run"


def test_a_bench_that_never_began_passes_nothing():
    found = outcomes(Seen(run="toy-1", broken="the engine refused"))
    assert {name: check.outcome for name, check in found.items()} == {
        "trained": "failed", "own_device": "not run", "same_loss": "not run",
        "no_strays": "not run",
    }  # fmt: skip


def test_a_failed_training_is_not_compared_with():
    seen = GOOD
    for left, against in ((3, "all 3 trainings of stock"), (1, "stock-1-1.1"), (0, None)):
        for label in ("stock-1-1.1", "stock-1-1.2", "stock-1-2.1", "stock-1-2.2")[left:]:
            seen = with_training(seen, label, code=1)
        found = outcomes(seen)["same_loss"].measured.get("ours-1-2.2", {})
        assert found.get("against") == against


# The record and the page


def value(seen=GOOD, made=None, devices=()):
    made = made or plan()
    seen = benches.dataclasses.replace(seen, devices=devices)
    gpus = {
        "devices": [{"index": 0, "name": name} for name in devices],
        "driver": "580", "way": "<way>", "settings": {},
    }  # fmt: skip
    return bench_report(
        resolve(samples.definitions(), "toy", "cpu"),
        reports.INFO,
        made,
        seen,
        judge(made, seen),
        peaks=(benches.PEAK,),
        started="2030-01-02T03:04:05+00:00",
        seconds=12.3,
        host={"engine": "20.10"},
        gpus=gpus if devices else {},
        failures=reports.FAILURES,
    )


def test_a_record_is_plain_json_with_every_window_kept():
    found = value()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["schema"], found["kind"], found["outcome"]) == (
        "stackyard.bench/2",
        "bench",
        "passed",
    )
    assert [run["round"] for run in found["runs"]] == [1] * 6 + [2] * 6
    assert [run["label"] for run in found["runs"][:3]] == [
        "stock-1-1.1",
        "stock-1-1.2",
        "ours-1-1.1",
    ]
    assert [run["gpus"] for run in found["runs"]] == [[]] * 12
    assert [step for step, _ in found["runs"][0]["windows"]] == [10, 20, 30, 40]
    assert found["last_lines"] == {}


def test_without_a_peak_mfu_is_null_and_the_record_says_why():
    found = value()
    assert [entry["mfu"] for entry in found["results"]] == [None] * 4
    assert found["peak"] is None and "CPUs" in found["no_mfu"]
    known = value(devices=("NVIDIA H200",))
    assert all(entry["mfu"] > 0 for entry in known["results"]) and known["no_mfu"] == ""


def test_losses_that_are_no_numbers_are_text_in_the_record():
    found = value(with_rank(GOOD, "ours-1-1.1", 0, losses={**LOSSES, 40: math.nan}))
    assert found["outcome"] == "failed"
    assert found["runs"][2]["losses"][-1] == [40, "nan"]
    json.dumps(found, allow_nan=False)


def test_a_failed_side_is_reported_with_its_last_lines_and_what_they_show():
    found = value(with_training(GOOD, "ours-1-1.1", code=1, tail="CUDA out of memory"))
    assert found["outcome"] == "failed"
    assert found["last_lines"] == {"ours-1-1.1": "CUDA out of memory"}
    assert [known["id"] for known in found["diagnoses"]] == ["oom"]
    assert found["runs"][2]["why"] == "exit code 1"


def test_the_table_has_a_row_for_each_side_and_count():
    found = rows(value())
    assert [row[:4] for row in found[:2]] == [
        ["stock", "1", "100", ""],
        ["ours", "1", "150", "1.500 of stock"],
    ]
    assert len(found) == 4
    assert all(len(row) == len(headings(value())) for row in found)


def test_a_row_tells_pauses_and_start_up_where_updates_were_timed():
    made, seen = on_gpus("ours-2-1", [0.2] * 24 + [6.2] + [0.2] * 15)
    found = value(seen, made=made)
    assert rows(found)[-1][-2:] == ["6.00 s", "18.2 s, 20.0 s"]
    assert rows(found)[-1][4] == "1.500 of stock"
    run = next(run for run in found["runs"] if run["label"] == "ours-2-1")
    assert run["pause"] == {"seconds": 6.0, "at": 25}
    assert run["start_seconds"] == {"1": 18.2, "10": 20.0}
    older = [{k: v for k, v in e.items() if k in ("side", "ranks", "speed", "ratio", "mfu",
              "peak_bytes", "scaling")} for e in found["results"]]  # fmt: skip
    assert rows({**found, "results": older})[-1][-2:] == ["", ""]


def test_the_time_of_an_update_is_told_beside_that_of_one_rank():
    made = plan(device="cuda", rounds=1)
    found = value(benches.watched(benches.seen(made)), made=made)
    assert found["results"][2]["spent"] == {
        "update": 0.5, "watched": 0.5, "compute": 0.32, "alone": 0.1, "idle": 0.08, "beside": 0.05,
    }  # fmt: skip
    told = spent_rows(found)
    assert told[0] == ["stock", "1", "400.0 ms", "400.0 ms", "300.0 ms", "0.0 ms", "100.0 ms",
                       "0.0 ms"]  # fmt: skip
    assert told[2] == ["stock", "2", "500.0 ms (+100.0)", "500.0 ms (+100.0)", "320.0 ms (+20.0)",
                       "100.0 ms (+100.0)", "80.0 ms (-20.0)", "50.0 ms (+50.0)"]  # fmt: skip
    page = Reader(render_page(found))
    assert all(cell in page.text for row in told for cell in (*row, *SPENT))
    # CPU ranks, and older reports, tell nothing of it.
    assert value()["results"][0]["spent"] is None and spent_rows(value()) == []
    spent = found["results"][2]["spent"]
    nothing = {**found, "results": [{**found["results"][2], "spent": dict.fromkeys(spent, -1e-7)}]}
    assert not any("-0.0" in cell for cell in spent_rows(nothing)[0])
    older = [{k: v for k, v in entry.items() if k != "spent"} for entry in found["results"]]
    assert spent_rows({**found, "results": older}) == []
    assert "time of an update" not in render_page(value())
    assert unwatched({**found, "gpus": {"driver": "580", "devices": []}}) == ""
    lost = {**found, "gpus": {"driver": "580", "devices": []},
            "results": [{**found["results"][0], "spent": None}, *older[1:]]}  # fmt: skip
    assert "not measured: stock on 1: " in unwatched(lost)
    assert unwatched(lost) in Reader(render_page(lost)).text


def test_on_gpus_a_training_ends_after_the_updates_that_are_watched():
    made = plan(device="cuda", rounds=1)
    seen = benches.seen(made)
    assert outcomes(seen, made)["trained"].outcome == "passed"
    early = with_rank(seen, "ours-2-1", 1, ended=benches.UPDATES)
    assert "rank 1 (node2) ended at update 40" in outcomes(early, made)["trained"].why


@pytest.mark.parametrize(
    "found",
    [
        value(),
        value(devices=("NVIDIA H200",)),
        value(with_training(GOOD, "ours-1-1.1", code=1, tail="<b>")),
        value(Seen(run="toy-1", broken="x")),
    ],
)
def test_a_page_is_whole_and_shows_rows_and_checks(found):
    page = Reader(render_page(found))
    assert page.open == []
    for check in found["checks"]:
        assert check["name"] in page.text and check.get("why", "") in page.text
    for row in rows(found):
        assert all(cell in page.text for cell in row)
    assert not [a for _, a in page.elements if "src" in a or "href" in a]


def test_a_committed_report_becomes_a_row_for_each_side_and_count():
    figures = runpy.run_path(str(ROOT / "scripts" / "gpu-figures"))
    path = ROOT / "docs" / "reports" / "2x-h200" / "toy" / "bench.json"
    report = value(devices=("NVIDIA H200",))
    found = figures["bench_rows"](path, report, True)
    assert len(found) == 4
    assert figures["bench_rows"](path, report, False) == found[1::2]  # without what is compared to
    page = "({up}docs/reports/2x-h200/toy/bench.json)"
    start = f"| [toy]{page} | what ours is | cpu | 1 x NVIDIA H200 |"
    assert found[1].startswith(f"{start} passed | 150 words/s |")
    assert "| 1.50 of stock |" in found[1]
    report["checks"][0]["outcome"] = report["outcome"] = "failed"
    failed = figures["bench_rows"](path, report, True)
    assert failed[1].startswith(f"{start} failed: trained | 150 words/s |")


def test_the_first_page_shows_what_passed_on_the_machine_with_the_most_gpus():
    figures = runpy.run_path(str(ROOT / "scripts" / "gpu-figures"))
    reports = [
        (Path(name), {"gpus": {"devices": [None] * count}, "outcome": outcome})
        for name, count, outcome in (
            ("a/bench.json", 1, "passed"), ("b/bench.json", 2, "passed"),
            ("b/bench-fsdp.json", 2, "passed"), ("c/bench.json", 2, "failed"),
        )
    ]  # fmt: skip
    assert figures["main_reports"](reports) == [reports[1]]


def test_a_record_says_which_gpus_each_training_had_and_the_page_too():
    found = value(made=plan(device="cuda"), devices=("NVIDIA H200",) * 2)
    taken = {run["label"]: run["gpus"] for run in found["runs"] if run["round"] == 2}
    assert (taken["ours-1-2.1"], taken["ours-1-2.2"], taken["ours-2-2"]) == ([0], [1], [0, 1])
    page = render_page(found)
    assert "ours-1-2.2: ours on GPU 1, round 2" in page
    assert "as many trainings at the same time as there is room for" in page


def test_a_side_of_another_precision_has_bounds_of_its_own():
    seen = with_rank(GOOD, "ours-1-1.1", 0, losses={**LOSSES, 30: 4.36, 40: 4.06})
    wider = {"ours": Tolerance(curve=0.2, end=0.1)}
    made = plan()
    size = benches.dataclasses.replace(made.size, wider=wider)
    found = outcomes(seen, benches.dataclasses.replace(made, size=size))
    assert found["same_loss"].outcome == "passed"
    assert found["same_loss"].expected["ours"] == {
        "largest": {"at_most": 0.2},
        "end": {"at_most": 0.1},
    }
    assert found["same_loss"].expected["stock"] == {
        "largest": {"at_most": 0.1}, "end": {"at_most": 0.05},
    }  # fmt: skip
