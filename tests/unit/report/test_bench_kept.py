"""What a bench saw is written although it does not come to its end."""

import json
from types import SimpleNamespace

import pytest

from stackyard.build.builder import Built
from stackyard.build.catalog import resolve
from stackyard.cli.console import Terminal
from stackyard.cli.steps import bench
from stackyard.cli.steps.bench_place import Place
from stackyard.report import pages
from stackyard.system.errors import EngineError
from tests.unit import benches, reports, samples


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyboardInterrupt(), "interrupted after 12 of 12 trainings"),
        (EngineError("the engine has gone"), "the engine has gone after 12 of 12 trainings"),
    ],
)
def test_a_bench_that_breaks_off_keeps_what_it_saw(monkeypatch, tmp_path, error, said):
    made = benches.plan()

    def played(watcher):
        watcher.so_far(benches.seen(made))
        raise error

    monkeypatch.setenv("HOME", str(tmp_path))  # no key of the developer's signs what is made up
    monkeypatch.setattr(bench, "load_peaks", lambda root: ())
    monkeypatch.setattr(pages, "revision", lambda root: {})
    image = resolve(samples.definitions(), "toy", "cpu")
    built = Built(image=image, tag="toy:cpu", info=reports.INFO, seconds=0.0, made=False)
    project = SimpleNamespace(root=tmp_path, definitions=samples.definitions())
    with pytest.raises(type(error)):
        place = Place(facts=lambda: {"engine": "20.10"}, play=played, gpus=dict)
        bench._bench_one(project, built, made, place, Terminal(live=False))
    value = json.loads((tmp_path / "reports/toy/cpu/bench.json").read_text(encoding="utf-8"))
    assert value["outcome"] == "failed"
    assert said in next(c["why"] for c in value["checks"] if c["name"] == "trained")
    assert len(value["runs"]) == 12 and value["host"] == {"engine": "20.10"}
