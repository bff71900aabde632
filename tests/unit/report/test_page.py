"""The page of a report: complete, self-contained, and safe to open."""

import re
from html.parser import HTMLParser

import pytest

from stackyard.report import page
from stackyard.report.page import render_page
from tests.unit import reports

ALL = {"good": reports.good, **reports.BROKEN}
VOID = {"meta", "line", "polyline", "br"}


class Reader(HTMLParser):
    """Elements with their attributes, the text, and whether every element was closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open = [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("name", ALL)
def test_every_page_is_well_formed(name):
    assert Reader(render_page(ALL[name]())).open == []


@pytest.mark.parametrize("name", ALL)
def test_a_page_shows_every_check_with_its_outcome_and_reason(name):
    value = ALL[name]()
    page = Reader(render_page(value))
    for check in value["checks"]:
        assert check["name"] in page.text
        assert check.get("why", "") in page.text
    badges = [a["class"] for a in page.all("span") if a.get("class", "").startswith("badge ")]
    outcomes = [value["outcome"], *(check["outcome"] for check in value["checks"])]
    assert badges == [f"badge {outcome.replace(' ', '-')}" for outcome in outcomes]


def test_the_bound_stands_beside_each_measured_value():
    rows = {row["name"]: row for row in page.check_row(check_of("loss_falls"))["rows"]}
    assert rows["one, last/first"]["expected"] == "at most 0.7"
    assert rows["two, updates"] == {
        "name": "two, updates",
        "measured": "40",
        "expected": "at least 40",
    }
    assert rows["two, first"]["expected"] == ""
    rows = {row["name"]: row for row in page.check_row(check_of("world_size"))["rows"]}
    assert rows["two, rank 1"]["expected"] == "2"


def test_what_was_expected_and_not_measured_is_shown():
    rows = page.check_row(
        {"measured": {"left": 0}, "expected": {"left": 0, "within_seconds": 10.0}}
    )
    assert rows["rows"][-1] == {"name": "within_seconds", "measured": "", "expected": "10"}
    said = page.check_row({"measured": {"left": 0}, "expected": "nothing"})
    assert said["said"] == "nothing" and len(said["rows"]) == 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1234567, "1,234,567"), (0.00012345678, "0.000123457"), (True, "yes"), (["a", 2], "a, 2"),
        ({"at_least": 1e6}, "at least 1,000,000"), ({"at_most": 1e-3}, "at most 0.001"),
        ([{"a": None}], '[{"a": null}]'), ([], "none"), ({}, "none"),
    ],
)  # fmt: skip
def test_figures_are_words_with_separators(value, said):
    (row,) = page.check_row({"measured": {"figure": value}, "expected": {}})["rows"]
    assert row["measured"] == said


def test_a_check_without_a_figure_of_its_own_shows_the_first_bounded_one():
    check = {"name": "x", "measured": {"a": 1, "left": []}, "expected": {"left": {"at_most": 0}}}
    assert [row["figure"] for row in page.check_rows([check])] == ["left: none"]


def check_of(name):
    (found,) = (check for check in reports.good()["checks"] if check["name"] == name)
    return found


@pytest.mark.parametrize("name", ALL)
def test_a_page_draws_a_line_for_every_curve(name):
    value = ALL[name]()
    found = Reader(render_page(value))
    assert len(found.all("polyline")) >= len(value["curves"])
    assert all(curve in found.text for curve in value["curves"])


def test_a_line_has_a_point_for_every_update_and_for_every_difference():
    lines = Reader(render_page(reports.good())).all("polyline")
    assert [len(line["points"].split()) for line in lines] == [40, 40, 23, 20, 40, 20]


def test_the_kill_and_the_resume_are_marked():
    found = Reader(render_page(reports.good()))
    assert (
        found.text.count("killed after update 23") == found.text.count("goes on from update") == 2
    )
    assert "Difference" in found.text and "at most 0.001" in found.text
    assert "goes on from" not in Reader(render_page(reports.BROKEN["broken"]())).text


def test_bounds_that_the_first_schema_wrote_as_text_are_read_as_numbers():
    value = reports.good()
    for check in value["checks"]:
        if check["name"] in ("parity", "resume_equal"):
            check["expected"] = {"largest_difference": "<= 0.001"}
    found = Reader(render_page(value)).text
    assert "Difference" in found and found.count("at most 0.001") >= 3
    text = {"measured": {"ratio": 1.0}, "expected": {"1 GiB": ">= 0.95 of the bare host"}}
    assert page.check_row(text)["bounds"] == "1 GiB at least 0.95 of the bare host"


def with_own_bound():
    """Return a report with a layout that has a wider bound than the others."""
    value = reports.good()
    for check in value["checks"]:
        if check["name"] == "parity":
            check["expected"] = {**check["expected"], "two": {"at_most": 0.02}}
    return value


def test_a_layouts_own_bound_is_of_its_difference_alone():
    (parity,) = (c for c in with_own_bound()["checks"] if c["name"] == "parity")
    rows = {row["name"]: row["expected"] for row in page.check_row(parity)["rows"]}
    assert rows["two, largest_difference"] == "at most 0.02"
    assert "at_update" in str(rows) and rows["two, at_update"] == ""
    assert page.check_row(parity)["bounds"] == "at most 0.001, two at most 0.02"


def test_each_bound_has_a_line_of_its_own():
    found = Reader(render_page(with_own_bound()))
    assert len([line for line in found.all("line") if line.get("class") == "bound"]) == 2
    assert "two: at most 0.02" in found.text


def test_a_page_says_which_command_made_it():
    made = {"command": "invoke smoke toy", "version": "1.2", "commit": "c0ffee" * 6, "dirty": True}
    text = Reader(render_page({**reports.good(), "made": made})).text
    assert "invoke smoke toy" in text and "c0ffeec0ffee with uncommitted changes" in text


def test_points_that_are_no_numbers_are_left_out():
    lines = Reader(render_page(reports.BROKEN["not finite"]())).all("polyline")
    assert [len(line["points"].split()) for line in lines][:4] == [37, 37, 37, 37]
    assert not [line for line in lines if re.search("nan|inf", line["points"])]


@pytest.mark.parametrize("name", ALL)
def test_a_page_fetches_nothing(name):
    page = Reader(render_page(ALL[name]()))
    assert not {"script", "link", "img", "iframe", "object", "a"} & {
        tag for tag, _ in page.elements
    }
    for _, attributes in page.elements:
        assert not {"src", "href", "xlink:href", "action"} & set(attributes)
        assert "http" not in " ".join(value or "" for value in attributes.values())


def test_a_pages_style_fetches_nothing():
    text = render_page(reports.good())
    assert not re.search(r"@import|url\(|https?://", text)


def test_words_of_a_failure_are_text_and_never_markup():
    text = render_page(reports.BROKEN["failed"]())
    assert "<script" not in text and "<img" not in text and "<b>" not in text
    page = Reader(text)
    assert '<script>alert("x")</script> & more' in page.text
    assert "</pre><b>bold</b>" in page.text
    assert "--x=<img src=http://evil.example/x>" in page.text


def test_a_page_says_what_was_recognised_and_what_to_do():
    page = Reader(render_page(reports.BROKEN["recognised"]())).text
    for word in ("Recognised", "a GPU is out of memory", "two, line 2: rank 1: CUDA out of memory",
                 "something was written", "To do: a <smaller> batch",
                 "https://forge.example/1"):  # fmt: skip
        assert word in page
    assert "(cause)" not in page
    assert "(consequence)" in Reader(render_page(reports.BROKEN["silent"]())).text
    assert "Recognised" not in Reader(render_page(reports.good())).text


def test_a_page_says_what_ran():
    text = Reader(render_page(reports.good())).text
    for word in ("toy on cpu", "sha256:1234", "1.50 GB", "sha256:recipe", "alpha-old",
                 "torchrun train.py", "gamma==0.5", "start nodes", "0.50 s", "20.10"):  # fmt: skip
        assert word in text


def test_the_last_lines_are_on_the_page_of_a_failure_only():
    assert "last lines of two" in render_page(reports.BROKEN["silent"]())
    assert "last lines of" not in render_page(reports.good())


def test_a_very_long_word_of_a_command_is_cut():
    value = {**reports.good(), "commands": {"two": ["x" * 3000]}}
    assert "x" * 2000 + "..." in render_page(value)
    assert "x" * 2001 not in render_page(value)


GPUS = {
    "devices": [{"index": 0, "name": "NVIDIA H200"}, {"index": 1, "name": "NVIDIA H200"}],
    "driver": "580.159.04",
    "placement": "shared-ipc",
    "why": "NVLink between them",
    "warnings": ["slow <b>"],
    "settings": {"NCCL_CUMEM_ENABLE": "0"},
    "measured": {
        "allreduce": {str(2**30): {"busbw_gb_s": 320.0}},
        "training": {"tokens_s": 660_000.0},
    },
    "bare": {"allreduce": {str(2**30): {"busbw_gb_s": 330.0}}, "training": {"tokens_s": 661_000.0}},
    "no_bare": "",
}


def test_gpus_are_shown_with_what_they_were_measured_to_do():
    found = page.render_page({**reports.good(), "gpus": GPUS})
    for text in ("0: NVIDIA H200, 1: NVIDIA H200; driver 580.159.04", "shared-ipc", "320.0",
                 "330.0", "0.970", "660,000", "0.998", "slow &lt;b&gt;"):  # fmt: skip
        assert text in found


def test_without_a_bare_host_there_is_no_ratio():
    alone = {**GPUS, "bare": {}, "no_bare": "no torch on this host"}
    assert [row["ratio"] for row in page.speeds(alone)] == ["", ""]
    assert "no torch on this host" in page.render_page({**reports.good(), "gpus": alone})


def test_a_report_of_cpu_ranks_has_no_gpus():
    assert "<h2>GPUs</h2>" not in page.render_page(reports.good())
