"""The record of a smoke: its keys, its figures, and that it is JSON whatever happened."""

import dataclasses
import json
import math
import runpy
from types import SimpleNamespace

import pytest

from stackyard.build.catalog import resolve
from stackyard.build.source.naming import DESPITE_LABEL, SOURCES_LABEL, sources_text
from stackyard.definitions.project import ROOT
from stackyard.report import figures, records, smokes
from stackyard.report.page import render_page
from stackyard.validate.checks import Check
from tests.unit import machines, reports, samples
from tests.unit.build.test_source_naming import ONE


def test_a_report_lies_by_stack_base_and_kind():
    assert records.path_of("toy", "cpu", "smoke", "json") == "reports/toy/cpu/smoke.json"


def test_the_keys_of_the_schema():
    assert list(reports.good()) == [
        "schema", "kind", "stack", "base", "outcome", "started", "seconds", "build_seconds", "run",
        "image", "host", "nodes", "checks", "diagnoses", "phases", "curves", "speeds",
        "commands", "last_lines",
    ]  # fmt: skip
    assert reports.good()["schema"] == "stackyard.report/2"


def test_a_good_smoke_is_said_in_full():
    found = reports.good()
    assert (found["stack"], found["base"], found["kind"]) == ("toy", "cpu", "smoke")
    assert (found["outcome"], found["run"]) == ("passed", "toy-1")
    assert (found["seconds"], found["build_seconds"]) == (12.35, 0.0)
    assert found["nodes"] == ["node1", "node2"]
    assert found["phases"] == [
        {"name": "find or build the image", "seconds": 0.0, "at": 0.0},
        {"name": "start nodes", "seconds": 0.5, "at": 0.0},
        {"name": "log in between nodes", "seconds": 0.25, "at": 0.5},
    ]
    assert [check["outcome"] for check in found["checks"]] == ["passed"] * 7
    assert found["commands"]["two"] == ["torchrun", "train.py"]


def test_the_image_is_said_with_its_packages_whoever_brought_them():
    assert reports.good()["image"] == {
        "id": "sha256:1234",
        "tags": ["stackyard/toy:cpu"],
        "recipe": "sha256:recipe",
        "size_bytes": 1_500_000_000,
        "fixes": ["alpha-old"],
        "packages": {
            "alpha": "1.2.0", "beta": "3.0", "gamma": "0.5", "numpy": "2.1.0", "torch": "2.0.0",
        },
    }  # fmt: skip


def test_there_is_a_curve_of_every_training():
    curves = reports.good()["curves"]
    assert list(curves) == ["one", "two", "two, killed", "two, resumed"]
    assert curves["two"][0] == [1, 2.95]
    assert curves["two, resumed"][0][0] == 21


def test_last_lines_are_kept_of_a_smoke_that_did_not_pass():
    assert reports.good()["last_lines"] == {}
    kept = reports.BROKEN["silent"]()["last_lines"]
    assert list(kept) == ["one", "two", "two, killed", "two, resumed"]
    assert set(kept.values()) == {"the last line"}


def test_a_known_failure_is_recognised_with_where_it_was_seen():
    (found,) = reports.BROKEN["recognised"]()["diagnoses"]
    assert (found["id"], found["where"], found["line"]) == ("oom", "two", 2)
    assert found["evidence"] == "rank 1: CUDA out of memory & more"
    assert (found["title"], found["remedy"]) == ("a GPU is out of memory", "a <smaller> batch")


def test_a_known_failure_is_recognised_in_the_words_of_a_check():
    (found,) = reports.BROKEN["silent"]()["diagnoses"]
    assert (found["id"], found["kind"], found["where"]) == ("missing", "consequence", "loss_falls")
    assert found["evidence"] == "two: rank 0 (node1) did not join within 90 s"


def test_what_was_meant_to_be_killed_is_not_diagnosed():
    killed = samples.killed(tail="out of memory")
    one = samples.training("one", 1, code=1)
    trainings = {"one": one, "two": killed}
    seen = samples.observation(trainings=trainings, killed=killed)
    assert reports.outcome(seen).verdict == "failed"
    assert reports.of(seen)["diagnoses"] == []


def test_a_failure_of_builds_is_not_recognised_in_a_training(monkeypatch):
    built = samples.failure(id="built", steps=("build",), any_of=("out of memory", "did not join"))
    monkeypatch.setattr(reports, "FAILURES", (built,))
    assert reports.BROKEN["recognised"]()["diagnoses"] == []


def test_nothing_is_recognised_in_a_smoke_that_passed():
    seen = samples.observation(resumed=samples.resumed(tail="out of memory"))
    assert reports.outcome(seen).verdict == "passed"
    assert reports.of(seen)["diagnoses"] == []


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("not finite", "failed"), ("silent", "failed"), ("failed", "failed"),
        ("recognised", "failed"),
        ("broken", "failed"), ("half", "failed"),
    ],
)  # fmt: skip
def test_every_kind_of_broken_smoke_is_strict_json_with_its_outcome(name, outcome):
    found = reports.BROKEN[name]()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["outcome"] == outcome


def test_losses_that_are_no_numbers_are_text():
    curve = dict(reports.BROKEN["not finite"]()["curves"]["two"])
    assert (curve[1], curve[30], curve[40]) == ("nan", "inf", "-inf")


@pytest.mark.parametrize(
    ("value", "written"), [(1.5, 1.5), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_number_that_json_lacks_is_written_as_text(value, written):
    assert records.as_json(value) == written


def test_a_check_says_why_only_where_there_is_something_to_say():
    check = Check(name="mesh", outcome="passed", measured=1, expected=2)
    wanted = {"name": "mesh", "outcome": "passed", "measured": 1, "expected": 2}
    assert records.check_value(check) == wanted
    failed = Check(name="mesh", outcome="failed", measured=1, expected=2, why="x")
    assert records.check_value(failed) == {**wanted, "outcome": "failed", "why": "x"}


@pytest.mark.parametrize(
    ("outcomes", "together"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "not run"], "not run"),
        (["not run", "failed"], "failed"),
    ],
)
def test_several_reports_have_the_worst_outcome(outcomes, together):
    found = records.together([{"outcome": outcome} for outcome in outcomes])
    assert found == {"outcome": together, "reports": [{"outcome": o} for o in outcomes]}


def test_no_report_at_all_is_no_pass():
    assert records.together([])["outcome"] != "passed"


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("mesh", "4 logins, 6 refused"),
        ("world_size", "4 trainings"),
        ("loss_falls", "2.95 to 1.00"),
        ("ranks_agree", "2 hashes"),
        ("parity", "differs by 0"),
        ("resume_equal", "differs by 0"),
        ("no_strays", "0 left"),
    ],
)
def test_each_check_has_one_figure_that_says_most(name, figure):
    (check,) = [check for check in reports.good()["checks"] if check["name"] == name]
    assert figures.figure(check) == figure


def test_a_layout_with_a_bound_of_its_own_has_a_figure_of_its_own():
    gaps = {"ddp": 1e-6, "fp16": 0.01}
    measured = {name: {"largest_difference": gap} for name, gap in gaps.items()}
    check = {"name": "parity", "measured": measured, "expected": {"fp16": {"at_most": 0.02}}}
    assert figures.figure(check) == "differs by 1e-06, fp16 by 0.01"


@pytest.mark.parametrize("name", reports.BROKEN)
def test_a_figure_of_any_check_is_text(name):
    for check in reports.BROKEN[name]()["checks"]:
        assert isinstance(figures.figure(check), str)
        if check["outcome"] == "not run":
            assert figures.figure(check) == ""


def test_the_figure_of_losses_is_the_references_not_one_that_trained_on_until_it_was_killed():
    judged = {"updates": 40, "first": 6.1, "last": 3.53}
    killed = {"updates": 45, "first": 6.1, "last": 3.35}
    for measured in ({"one": judged, "ddp-2": killed}, {"ddp-2": killed, "one": judged}):
        assert figures.figure({"name": "loss_falls", "measured": measured}) == "6.10 to 3.53"


def test_one_login_is_no_logins():
    measured = {"logins": ["node1>node1"], "refused": ["password", "unnamed"]}
    assert figures.figure({"name": "mesh", "measured": measured}) == "1 login, 2 refused"


def test_the_figure_of_steady_is_the_longest_pause_of_all_trainings():
    measured = {"a-1": {"seconds": 0.038, "at": 86}, "b-1": {"seconds": 6.6, "at": 150}}
    assert figures.figure({"name": "steady", "measured": measured}) == "longest pause 6.6 s"


def test_a_check_that_nobody_knows_has_no_figure():
    assert figures.figure({"name": "weather", "measured": {"rain": 1}}) == ""


def test_the_figures_of_gpu_runs_are_those_of_the_reports():
    found = runpy.run_path(str(ROOT / "scripts" / "gpu-figures"))
    for page in found["PAGES"]:
        old, new = found["renewed"](page)
        assert old == new, f"{page} differs from the reports; type: scripts/gpu-figures"


def test_a_smoke_over_hosts_has_figures_without_a_bare_host():
    found = runpy.run_path(str(ROOT / "scripts" / "gpu-figures"))
    path = ROOT / "tests/unit/reports/smoke-isolated.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    over = {**value, "gpus": {**value["gpus"], "placement": "hosts", "bare": {}}}
    was, cells = (
        [cell.strip() for cell in found["row"](path, one).split("|")] for one in (value, over)
    )
    assert was[5:7] == ["3.2 (0.010)", "172,353 (0.258)"]
    assert (cells[2], cells[5:7]) == ("2 (hosts)", ["3.2", "172,353"])
    unmeasured = {**over, "gpus": {**over["gpus"], "measured": {}}}
    assert [cell.strip() for cell in found["row"](path, unmeasured).split("|")][5:7] == ["", ""]


def test_cpu_ranks_in_an_image_for_gpus_take_the_place_of_no_report_of_gpus():
    record = reports.of(samples.observation(), samples.base(device="cuda"))
    assert record["ranks"] == "cpu"
    assert records.path_of_report(record, "json") == "reports/toy/cpu/smoke-cpu-ranks.json"
    record["hosts"] = {"network": "", "nccl": "", "hosts": []}
    assert records.path_of_report(record, "json") == "reports/toy/cpu/smoke-cpu-ranks-hosts.json"
    over = {**reports.good(), "hosts": record["hosts"]}
    assert records.path_of_report(over, "json") == "reports/toy/cpu/smoke-hosts.json"
    on_gpus = {**over, "gpus": {"placement": "hosts"}}
    assert records.path_of_report(on_gpus, "json") == "reports/toy/cpu/smoke-hosts.json"
    on_slurm = {**over, "slurm": {"job": "17", "runtime": "oci"}}
    assert records.path_of_report(on_slurm, "json") == "reports/toy/cpu/smoke-slurm.json"
    assert "on cpu, CPU ranks" in render_page(record)
    assert "ranks" not in reports.good()


def test_an_image_names_what_the_recipe_counts_of_its_base():
    labels = {"stackyard.base.digest": "sha256:layers", "stackyard.packages": "sha256:index"}
    info = dataclasses.replace(reports.INFO, labels=labels)
    value = records.image_value(resolve(samples.definitions(), "toy", "cpu"), info)
    assert value["base"] == {"digest": "sha256:layers", "packages": "sha256:index"}
    assert "base" not in reports.good()["image"]


def test_a_smoke_of_users_own_source_says_so_and_has_a_file_of_its_own():
    labels = {**reports.INFO.labels, SOURCES_LABEL: sources_text([ONE]), DESPITE_LABEL: "alpha-old"}
    info = dataclasses.replace(reports.INFO, labels=labels)
    value = records.image_value(resolve(samples.definitions(), "toy", "cpu"), info)
    (found,) = value["sources"]
    assert (found["commit"], found["dirty"], found["digest"]) == (ONE.commit, False, ONE.digest)
    assert value["despite"] == ["alpha-old"]
    record = {**reports.good(), "image": value}
    assert records.path_of_report(record, "json") == "reports/toy/cpu/smoke-src-0123456789ab.json"
    assert records.path_of_report(reports.good(), "json") == "reports/toy/cpu/smoke.json"
    text = render_page(record)
    assert ONE.commit in text
    assert "Fixes left out: alpha-old" in text


def test_the_figure_of_fused_parts_names_those_that_ran_anywhere():
    measured = {"one": {"rank 0": {"b": "ran", "a": "off"}}, "two": {"rank 0": {"a": "ran"}}}
    assert figures.figure({"name": "fused", "measured": measured}) == "a, b ran"
    nothing = {"one": {"rank 0": {}}}
    assert figures.figure({"name": "fused", "measured": nothing}) == "nothing ran"


def test_the_hosts_of_a_run_are_told_with_their_links_image_and_gpus():
    made = machines.plan(
        machines.node("a-1", "a", address="10.0.0.1", interface="eth0", gpus=(1,)),
        machines.node("b", address="10.0.0.2", interface="eth0", gpus=(0,)), why="10.0.0.0/24",
    )  # fmt: skip
    facts = {"a": machines.gpu_facts("a", 1), "b": machines.gpu_facts("b", 2)}
    spread = SimpleNamespace(plan=made, facts=facts, fabric=SimpleNamespace(why="sockets"))
    found = smokes.hosts_value(spread)
    assert (found["network"], found["nccl"]) == ("10.0.0.0/24", "sockets")
    first, second = found["hosts"]
    assert (first["name"], first["nodes"], first["image"]) == ("a", ["a-1"], machines.IMAGE)
    assert (first["address"], first["interface"], first["mbit_s"]) == ("10.0.0.1", "eth0", 1000)
    assert [gpu["index"] for gpu in first["gpus"]] == [1]
    assert (second["driver"], [gpu["uuid"] for gpu in second["gpus"]]) == ("580.159.04", ["GPU-0"])


def test_a_run_whose_hosts_were_not_asked_names_none():
    spread = SimpleNamespace(plan=None, fabric=None, facts={})
    assert smokes.hosts_value(spread) == {"network": "", "nccl": "", "hosts": []}


def test_a_page_shows_the_hosts_of_a_run_and_none_without():
    value = reports.good()
    assert "Hosts</h2>" not in render_page(value)
    host = {"name": "study", "nodes": ["study"], "image": "sha256:0123456789abcdef",
            "address": "10.0.0.5", "interface": "ib0", "mbit_s": 0, "driver": "", "gpus": [],
            "ports": ["mlx5_0:1 InfiniBand 400 Gbit/s active"]}  # fmt: skip
    value["hosts"] = {"network": "10.0.0.0/24", "nccl": "", "hosts": [host]}
    text = render_page(value)
    for word in ("study", "10.0.0.5", "mlx5_0:1 InfiniBand", "0123456789ab", "CPU ranks"):
        assert word in text
