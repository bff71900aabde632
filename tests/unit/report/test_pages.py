"""What a record says of its command, and the index of all pages."""

import json

import pytest

from stackyard import __version__
from stackyard.definitions.project import ROOT
from stackyard.report import pages
from tests.unit import reports


@pytest.fixture(autouse=True)
def without_git(monkeypatch):
    monkeypatch.setattr(pages, "revision", lambda root: {})


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("/opt/bin/invoke smoke toy --gpus 2", "invoke smoke toy --gpus 2"),
        ("invoke smoke --against /home/me/old.json", "invoke smoke --against old.json"),
        ("invoke certify --hosts=~/hosts.yml", "invoke certify --hosts=hosts.yml"),
        ("invoke up --env A=secret --env=KEY=hidden", "invoke up --env A=... --env=KEY=..."),
        ("invoke bench --env HOME", "invoke bench --env HOME"),
    ],
)  # fmt: skip
def test_a_command_is_shown_without_values_of_variables_and_without_folders(typed, shown, tmp_path):
    made = pages.made_by(tmp_path, typed.split())
    assert made == {"command": shown, "version": __version__, "commit": "", "dirty": False}


def test_a_record_its_page_and_the_index_are_written_together(tmp_path):
    made = pages.made_by(tmp_path, ["invoke", "smoke", "<toy>"])
    value = {**reports.good(), "made": made}
    pages.write(tmp_path, value, "reports/toy/cpu/smoke.json", "<html>the page</html>")
    assert json.loads((tmp_path / "reports/toy/cpu/smoke.json").read_text()) == value
    assert (tmp_path / "reports/toy/cpu/smoke.html").read_text() == "<html>the page</html>"
    index = (tmp_path / pages.INDEX).read_text()
    assert '<a href="toy/cpu/smoke.html">smoke of toy on cpu</a>' in index
    assert "invoke smoke &#39;&lt;toy&gt;&#39;" in index and "1 report," in index


def test_the_index_names_the_newest_first_and_passes_over_other_files(tmp_path):
    for name, year in (("old", 2020), ("new", 2030)):
        value = {**reports.good(), "started": f"{year}-01-01T00:00:00+00:00"}
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    (tmp_path / "prove.json").write_text('{"kind": "prove"}')
    (tmp_path / "half.json").write_text('{"kind": "smo')
    (tmp_path / "list.json").write_text("[]")
    index = pages.render_index(tmp_path)
    assert "2 reports" in index and index.index("new.html") < index.index("old.html")
    assert "prove" not in index and "half" not in index


def test_the_index_counts_the_gpus_of_a_report(tmp_path):
    devices = [{"name": name} for name in ("NVIDIA H200", "NVIDIA H100", "NVIDIA H200")]
    for name, gpus in (("gpus", {"devices": devices}), ("cpus", None)):
        (tmp_path / f"{name}.json").write_text(json.dumps({**reports.good(), "gpus": gpus}))
    path = ROOT / "docs/reports/2x-h200/certify/held.json"
    (tmp_path / "certified.json").write_text(path.read_text())
    index = pages.render_index(tmp_path)
    assert ">1 x NVIDIA H100, 2 x NVIDIA H200</td>" in index and ">CPU ranks</td>" in index
    assert ">1 x NVIDIA H200</td>" in index
