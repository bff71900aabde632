"""What is shown of images: reports on disk, and the steps of builds."""

import json

import pytest

from stackyard.build import builder
from stackyard.cli.steps import images
from stackyard.report import smokes
from stackyard.report.page import render_page
from stackyard.system.errors import StackyardError
from tests.unit import reports
from tests.unit.lines import run


def test_a_report_is_written_as_json_and_as_a_page(tmp_path):
    value = reports.good()
    smokes.write_reports(tmp_path, value)
    folder = tmp_path / "reports" / "toy" / "cpu"
    assert sorted(path.name for path in folder.iterdir()) == ["smoke.html", "smoke.json"]
    assert json.loads((folder / "smoke.json").read_text()) == value
    assert (folder / "smoke.html").read_text() == render_page(value)
    assert images.load_report(tmp_path, "toy", "cpu", "smoke") == value


@pytest.mark.parametrize("name", reports.BROKEN)
def test_a_report_of_any_smoke_can_be_written(tmp_path, name):
    smokes.write_reports(tmp_path, reports.BROKEN[name]())
    found = images.load_report(tmp_path, "toy", "cpu", "smoke")
    assert found["outcome"] != "passed"


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_report_that_is_not_there_or_not_whole_is_none(tmp_path, text):
    if text is not None:
        path = tmp_path / "reports" / "toy" / "cpu" / "smoke.json"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert images.load_report(tmp_path, "toy", "cpu", "smoke") is None


def test_a_step_on_one_line_is_without_its_mounts():
    step = "[text 1/2] RUN --mount=type=tmpfs,target=/mnt   --mount=type=x . build"
    assert builder.short(step) == "[text 1/2] RUN . build"


def test_show_prints_every_value_with_its_origin(capsys):
    assert run(images.show, "fairseq", "cpu", as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tag"] == "stackyard/fairseq:cpu"
    assert found["packages"]["fairseq"]["from"] == "images/wheels/fairseq.yml"
    assert run(images.show, "fairseq", "cpu") == 0
    assert "stackyard/fairseq:cpu" in capsys.readouterr().out


def test_list_says_that_no_engine_answers(monkeypatch, capsys):
    def refuse():
        raise StackyardError("no container engine answers")

    monkeypatch.setattr(images, "Engine", refuse)
    assert run(images.list_images, as_json=True) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["engine"] is None
    assert "no container engine answers: what is built is not known" in err
