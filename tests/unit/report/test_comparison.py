"""Two smokes held against each other: what is the same training, and who is suspected where not."""

import copy
import json
import math

import pytest

from stackyard.cli import tables
from stackyard.cli.steps import compare as cli_compare
from stackyard.definitions.project import ROOT
from stackyard.report import page
from stackyard.report.comparison import compare, moves, tolerance_of
from stackyard.report.comparison_view import comparison_lines, curve_rows
from stackyard.report.earlier import read_report
from stackyard.system.errors import UsageError
from tests.unit import reports
from tests.unit.lines import run
from tests.unit.report.test_page import Reader

INSTALLED = {"python": {"alpha": "1.2.0", "beta": "3.0"}, "debian": {"python3": "3.11.2-1"}}
RATES = {"one": {"updates_s": 10.0}, "two": {"updates_s": 20.0}}


@pytest.fixture
def two():
    """The same good smoke twice; a test changes one of them."""
    before = reports.good()
    before["image"]["installed"] = copy.deepcopy(INSTALLED)
    before["speeds"] = copy.deepcopy(RATES)
    return before, copy.deepcopy(before)


def set_loss(report, layout, update, loss):
    (point,) = [point for point in report["curves"][layout] if point[0] == update]
    point[1] = loss


def test_the_same_smoke_twice_is_the_same_training(two):
    found = compare(*two)
    assert (found["outcome"], found["why"], found["suspects"]) == ("passed", "", [])
    assert [curve["layout"] for curve in found["curves"]] == ["one", "two", "two, resumed"]
    assert {curve["outcome"] for curve in found["curves"]} == {"passed"}
    assert [curve["updates"] for curve in found["curves"]] == [40, 40, 20]
    assert found["size"]["difference"] == 0
    assert found["speeds"]["judged"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_one_altered_loss_parts_the_curve_and_is_named_with_its_update(two):
    before, after = two
    set_loss(before, "two", 17, 9.0)
    found = compare(before, after)
    assert found["outcome"] == "failed"
    assert "two: the losses part at update 17 (9 before, 2.15 now)" in found["why"]
    assert [c["layout"] for c in found["curves"] if c["outcome"] == "failed"] == ["two"]


@pytest.mark.parametrize(("gap", "outcome"), [(0.0009, "passed"), (0.0011, "failed")])
def test_the_tolerance_is_the_judges(two, gap, outcome):
    before, after = two
    set_loss(after, "one", 5, dict(before["curves"]["one"])[5] + gap)
    assert compare(before, after)["outcome"] == outcome


@pytest.mark.parametrize(("gap", "outcome"), [(0.0009, "passed"), (0.0011, "failed")])
def test_a_report_that_says_no_tolerance_is_held_to_the_usual_one(two, gap, outcome):
    for report in two:
        (parity,) = [c for c in report["checks"] if c["name"] == "parity"]
        parity["expected"] = {"updates": 40}
    set_loss(two[1], "one", 5, dict(two[0]["curves"]["one"])[5] + gap)
    assert compare(*two)["outcome"] == outcome


def test_a_layout_of_half_precision_has_its_own_tolerance(two):
    (parity,) = [c for c in two[1]["checks"] if c["name"] == "parity"]
    parity["expected"] = {
        "largest_difference": {"at_most": 0.001}, "updates": 40, "two": {"at_most": 0.02},
    }  # fmt: skip
    assert tolerance_of(two[1], "two, resumed") == 0.02
    assert tolerance_of(two[1], "one") == 0.001


def test_a_tolerance_is_read_from_a_report_of_the_first_schema(two):
    (parity,) = [c for c in two[1]["checks"] if c["name"] == "parity"]
    parity["expected"] = {"largest_difference": "<= 0.001", "updates": 40, "two": "<= 2e-02"}
    assert tolerance_of(two[1], "two, resumed") == 0.02
    assert tolerance_of(two[1], "one") == 0.001


COMMITTED = sorted((ROOT / "docs" / "reports").rglob("smoke*.json"))


def test_committed_reports_are_read_with_their_tolerance():
    assert COMMITTED
    for path in COMMITTED:
        report = read_report(path)
        (parity,) = [check for check in report["checks"] if check["name"] == "parity"]
        for layout in parity["measured"]:
            assert str(tolerance_of(report, layout)) in json.dumps(parity["expected"])


def test_the_first_update_beyond_is_where_they_part_and_the_worst_is_told_too(two):
    for update, loss in ((30, 9.0), (10, 4.0)):
        set_loss(two[1], "one", update, loss)
    (curve, *_) = compare(*two)["curves"]
    assert (curve["parts_at"], curve["at_update"], curve["largest_difference"]) == (10, 30, 7.5)


@pytest.mark.parametrize("loss", ["nan", "inf", math.nan])
def test_a_loss_that_is_no_number_parts_them(two, loss):
    set_loss(two[1], "one", 3, loss)
    found = compare(*two)
    assert (found["outcome"], found["curves"][0]["parts_at"]) == ("failed", 3)
    json.dumps({**found, "why": ""}, allow_nan=False)


def test_a_missing_update_is_no_pass(two):
    del two[1]["curves"]["one"][11]
    assert "one: update 12 is in one report only (39 compared)" in compare(*two)["why"]


def test_updates_beyond_the_judged_ones_are_as_they_happen(two):
    two[1]["curves"]["two"].append([41, 0.5])
    two[0]["curves"]["two"] += [[41, 7.5], [42, 7.5]]
    assert compare(*two)["outcome"] == "passed"


def test_a_layout_that_only_one_has_is_not_judged(two):
    two[1]["curves"]["three"] = two[1]["curves"].pop("one")
    found = compare(*two)
    assert found["outcome"] == "passed"
    assert [c["layout"] for c in found["curves"] if c["outcome"] == "not run"] == ["one", "three"]


def test_nothing_in_common_is_no_pass(two):
    two[1]["curves"] = {"other": two[1]["curves"]["one"]}
    assert compare(*two)["outcome"] == "not run"


def test_a_resume_that_broke_fails_and_one_that_was_broken_does_not(two):
    broken = next(c for c in two[1]["checks"] if c["name"] == "resume_equal")
    broken.update(outcome="failed", why="loss differs by 2")
    found = compare(*two)
    assert found["outcome"] == "failed"
    assert found["why"] == "resume: failed now, passed before: loss differs by 2"
    earlier = next(c for c in two[0]["checks"] if c["name"] == "resume_equal")
    earlier["outcome"] = "failed"
    assert (compare(*two)["outcome"], compare(*two)["resume"]["outcome"]) == ("passed", "not run")


def test_what_moved_is_suspected_only_where_something_is_wrong(two):
    before, after = two
    after["image"]["installed"]["python"] |= {"alpha": "1.10", "new": "1"}
    after["image"]["installed"]["debian"]["python3"] = "3.11.2-0"
    after["image"]["fixes"] = ["other"]
    after["commands"] = {**after["commands"], "two": ["torchrun", "other.py"]}
    fine = compare(before, after)
    assert fine["suspects"] == []
    assert fine["packages"]["python"]["moved"] == [
        {"name": "alpha", "from": "1.2.0", "to": "1.10", "way": "up"}
    ]
    set_loss(after, "one", 5, 9.0)
    assert compare(before, after)["suspects"] == [
        "alpha 1.2.0 -> 1.10", "new 1 is new", "python3 3.11.2-1 -> 3.11.2-0",
        "fix other is new", "fix alpha-old is gone", "the command of two",
    ]  # fmt: skip


def test_an_old_report_without_what_is_installed_says_so(two):
    before, after = two
    del before["image"]["installed"]
    before["image"]["packages"] |= {"alpha": "1.1.0", "torch": ""}
    found = compare(before, after)["packages"]
    assert found["from"] == "locked"
    assert found["why"].startswith("the earlier report does not tell what is installed")
    (moved,) = found["python"]["moved"]
    assert (found["debian"], moved["name"], moved["from"]) == (None, "alpha", "1.1.0")


@pytest.mark.parametrize(("rate", "says"), [(9.5, "as before"), (8.0, "slower"), (12.0, "faster")])
def test_speeds_are_told_by_layout_and_fail_nothing(two, rate, says):
    two[1]["speeds"]["one"]["updates_s"] = rate
    found = compare(*two)
    assert found["outcome"] == "passed"
    (one, _) = found["speeds"]["layouts"]
    assert (one["ratio"], one["says"]) == (rate / 10, says)


def test_speeds_of_different_machines_are_told_and_not_judged(two):
    two[1]["host"] = {**two[1]["host"], "cpus": "64"}
    two[1]["speeds"]["one"]["updates_s"] = 1.0
    found = compare(*two)["speeds"]
    assert not found["judged"]
    assert found["why"] == "not the same kind of machine: cpus 2 and 64"
    assert found["layouts"][0]["says"] == "not judged"


def test_a_report_without_speeds_says_so(two):
    del two[0]["speeds"]
    assert compare(*two)["speeds"]["why"] == "the earlier report does not tell a speed"


def test_moves_in_versions_that_no_standard_orders():
    assert moves({"vim": "2:9.0-1"}, {"vim": "2:9.0-2"})["moved"][0]["way"] == "to"


# For people


def test_the_lines_name_what_failed_and_the_suspects(two):
    two[1]["image"]["installed"]["python"]["alpha"] = "1.3.0"
    set_loss(two[1], "two", 40, 2.0)
    said = "\n".join(comparison_lines(compare(*two)))
    assert "Python packages that moved: alpha 1.2.0 -> 1.3.0" in said
    assert "failed: two: the losses part at update 40" in said
    assert "suspects: alpha 1.2.0 -> 1.3.0" in said


def test_where_nothing_moved_that_is_said(two):
    set_loss(two[1], "two", 40, 2.0)
    assert "no package, fix, command or machine moved" in comparison_lines(compare(*two))[-1]


def test_every_layout_has_its_row(two):
    two[0]["gpus"] = two[1]["gpus"] = {"measured": {"training": {"tokens_s": 5e5}}}
    rows = curve_rows(compare(*two))
    assert [row["layout"] for row in rows] == [
        "one", "two", "two, resumed", "GPT-2 small, tokens/s",
    ]  # fmt: skip
    assert rows[0]["parts"] == "nowhere"
    assert rows[0]["speed"] == "10 -> 10 (1.0), as before"
    assert tables.comparison_table(compare(*two)).row_count == 6


def test_a_page_shows_the_comparison(two):
    before, after = two
    set_loss(before, "one", 7, 9.0)
    after["against"] = compare(before, after)
    shown = Reader(page.render_page(after))
    assert shown.open == []
    assert "Against an earlier smoke" in shown.text
    assert "part at update 7" in shown.text


# Records, read again


def written(tmp_path, value):
    path = tmp_path / "old.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_report_is_read_again(tmp_path, two):
    assert read_report(written(tmp_path, two[0]), stack="toy") == two[0]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "reports").glob("2x*/*/smoke*.json")))
def test_every_report_that_was_kept_can_be_compared_with_itself(path):
    value = read_report(path)
    assert compare(value, value)["outcome"] == "passed"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": "stackyard.report/3"}, "written by a newer stackyard"),
        ({"schema": "x"}, "its schema is x"),
        ({"schema": None}, "its schema is None"),
        ({"kind": "bench"}, "its kind is bench"),
        ({"image": []}, "image is missing or not a dict"),
        ({"curves": {"one": 5}}, "its curves are not lists"),
        ({"curves": {"one": [[1, "x"]]}}, "its curves are not lists"),
        ({"checks": ["mesh"]}, "its checks are not"),
    ],
)
def test_what_is_no_report_is_refused_in_one_sentence(tmp_path, change, why):
    with pytest.raises(UsageError) as caught:
        read_report(written(tmp_path, {**reports.good(), **change}))
    assert why in caught.value.why


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match="is not JSON"):
        read_report(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.json cannot be read") as caught:
        read_report(tmp_path / "gone.json")
    assert caught.value.why == "No such file or directory"


def test_a_report_of_another_stack_is_refused_with_what_to_type(tmp_path, two):
    path = written(tmp_path, two[0])
    with pytest.raises(UsageError, match="is of toy, not of fairseq") as caught:
        read_report(path, stack="fairseq")
    assert f"invoke smoke toy --against {path}" in caught.value.hint


def test_a_folder_is_one_of_reports(tmp_path, two):
    folder = tmp_path / "toy" / "cpu"
    folder.mkdir(parents=True)
    (folder / "smoke.json").write_text(json.dumps(two[0]))
    assert read_report(tmp_path, stack="toy", base="cpu") == two[0]


# The commands


@pytest.mark.parametrize(("loss", "code"), [(None, 0), (9.0, 1)])
def test_compare_says_by_its_exit_code_whether_it_is_the_same_training(
    tmp_path, two, capsys, allow_processes, loss, code
):
    before = written(tmp_path, two[0])
    if loss:
        set_loss(two[1], "two", 12, loss)
    after = tmp_path / "new.json"
    after.write_text(json.dumps(two[1]))
    assert run(cli_compare.compare, str(before), str(after)) == code
    said = capsys.readouterr().out
    assert ("part at update 12" in said) is bool(loss)
    assert "comparison" in said


def test_one_report_does_not_stand_for_several_stacks(tmp_path, two):
    with pytest.raises(UsageError, match="is of toy alone, and 2 stacks will be smoked"):
        path = written(tmp_path, two[0])
        cli_compare.earlier_reports(str(path), None, ["fairseq", "toy"], "cpu", 0)


def test_without_against_nothing_is_read():
    assert cli_compare.earlier_reports("", None, ["toy"], "cpu", 0) == {}
