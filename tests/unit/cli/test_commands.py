"""The commands, but for their engine: reports on disk, and what is shown of them."""

import json

import pytest

from stackyard.build import builder
from stackyard.cli import commands
from stackyard.report import smokes
from stackyard.report.page import render_page
from tests.unit import reports


def test_a_report_is_written_as_json_and_as_a_page(tmp_path):
    value = reports.good()
    smokes.write_reports(tmp_path, value)
    folder = tmp_path / "reports" / "toy" / "cpu"
    assert sorted(path.name for path in folder.iterdir()) == ["smoke.html", "smoke.json"]
    assert json.loads((folder / "smoke.json").read_text()) == value
    assert (folder / "smoke.html").read_text() == render_page(value)
    assert commands.load_report(tmp_path, "toy", "cpu", "smoke") == value


@pytest.mark.parametrize("name", reports.BROKEN)
def test_a_report_of_any_smoke_can_be_written(tmp_path, name):
    smokes.write_reports(tmp_path, reports.BROKEN[name]())
    found = commands.load_report(tmp_path, "toy", "cpu", "smoke")
    assert found["outcome"] != "passed"


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_report_that_is_not_there_or_not_whole_is_none(tmp_path, text):
    if text is not None:
        path = tmp_path / "reports" / "toy" / "cpu" / "smoke.json"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert commands.load_report(tmp_path, "toy", "cpu", "smoke") is None


def test_a_step_on_one_line_is_without_its_mounts():
    step = "[text 1/2] RUN --mount=type=tmpfs,target=/mnt   --mount=type=x . build"
    assert builder.short(step) == "[text 1/2] RUN . build"
