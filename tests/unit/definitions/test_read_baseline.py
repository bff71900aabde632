"""Baselines of GPUs: every wrong figure is a problem, and the committed ones are the reports'."""

import json
import statistics

import pytest

from stackyard.definitions.document import parse_document
from stackyard.definitions.load import load_definitions
from stackyard.definitions.project import ROOT
from stackyard.definitions.read.baseline import KINDS, check_gpus, read_baseline

GOOD = """\
gpus: [NVIDIA H200]
measures:
  - kind: allreduce_gb_s
    ranks: 2
    bytes: 1048576
    value: 330
    low: 320
    high: 340
    count: 3
    bound: 313.5
    source: [docs/reports/x.json]
    field: [a, b]
not_measured:
  matmul_bf16_tflop_s: nobody has
  memory_gb_s: nobody has
  peer_copy_gb_s: nobody has
  tokens_s: nobody has
"""


def read(text, name="h200"):
    problems = []
    top = parse_document(text, file=f"images/baselines/{name}.yml", problems=problems)
    found = read_baseline(top, name)
    top.done()
    return found, [f"{problem.key}: {problem.message}" for problem in problems]


def test_a_good_file_is_read():
    found, problems = read(GOOD)
    assert problems == []
    (one,) = found.measures
    assert (found.gpus, one.kind, one.ranks, one.bytes) == (
        ("NVIDIA H200",), "allreduce_gb_s", 2, 2**20,
    )  # fmt: skip
    assert (one.low, one.value, one.high, one.count, one.bound) == (320, 330, 340, 3, 313.5)
    assert set(found.not_measured) == set(KINDS) - {"allreduce_gb_s"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("gpus: [NVIDIA H200]", "gpus: []", "gpus: must not be empty"),
        ("gpus: [NVIDIA H200]\n", "", "gpus: required key is missing"),
        ("allreduce_gb_s", "allreduce", "measures[0].kind: unknown value 'allreduce'"),
        ("bytes: 1048576", "bytes: 0", "measures[0].bytes: must be positive"),
        ("kind: allreduce_gb_s", "kind: tokens_s", "measures[0].bytes: must be positive for"),
        ("ranks: 2", "ranks: 0", "measures[0].ranks: must be at least 1"),
        ("count: 3", "count: 0", "measures[0].count: must be at least 1"),
        ("value: 330", "value: 319.9", "measures[0].value: must lie between low and high"),
        ("value: 330", "value: 340.1", "measures[0].value: must lie between low and high"),
        ("value: 330", "value: nan", "measures[0].value: bound, low, value and high must be"),
        ("high: 340", "high: inf", "measures[0].value: bound, low, value and high must be"),
        ("low: 320", "low: -1", "measures[0].value: bound, low, value and high must be positive"),
        ("bound: 313.5", "bound: 320.1", "measures[0].bound: a GPU that was measured itself"),
        ("source: [docs/reports/x.json]", "source: []", "measures[0].source: must name"),
        ("  tokens_s: nobody has\n", "", "not_measured: tokens_s is neither measured nor named"),
        ("  tokens_s: nob", "  allreduce_gb_s: n\n  tokens_s: nob",
         "not_measured: allreduce_gb_s is both measured and named"),
        ("  tokens_s: nob", "  speed: n\n  tokens_s: nob", "not_measured: unknown kind 'speed'"),
        ("not_measured:", "  - kind: allreduce_gb_s\n    ranks: 2\n    bytes: 1048576\n"
         "    value: 1\n    low: 1\n    high: 1\n    count: 1\n    bound: 1\n    source: [x]\n"
         "    field: [a]\nnot_measured:", "measures: allreduce_gb_s of 2 ranks is given twice"),
    ],
)  # fmt: skip
def test_each_wrong_figure_is_a_problem(old, new, problem):
    assert old in GOOD
    _, problems = read(GOOD.replace(old, new, 1))
    assert any(said.startswith(problem) for said in problems), problems


def test_a_gpu_has_one_baseline():
    one, other = read(GOOD)[0], read(GOOD, "hopper")[0]
    (problem,) = check_gpus({"h200": one, "hopper": other})
    assert str(problem).endswith("NVIDIA H200 is in images/baselines/h200.yml, too")
    assert check_gpus({"h200": one}) == []


BASELINES = load_definitions(ROOT, locks_required=False).baselines
MEASURES = [(name, one) for name, found in BASELINES.items() for one in found.measures]


# Where a report names the models of its GPUs.
MODEL = {"smoke": ["gpus", "measured", "gpu"], "certify": ["hosts", "*", "gpus", "*", "model"]}


def read_all(found, words):
    """What lies at a place in a report; `*` is every element of a list."""
    if not words:
        return [found]
    word, *rest = words
    return [x for one in (found if word == "*" else [found[word]]) for x in read_all(one, rest)]


@pytest.mark.parametrize(
    ("name", "one"), MEASURES, ids=[f"{n}-{m.kind}-{m.ranks}-{m.bytes}" for n, m in MEASURES]
)
def test_committed_figures_are_those_of_the_reports(name, one):
    values = []
    for pattern in one.source:
        paths = sorted(ROOT.glob(pattern))
        assert paths, pattern
        for path in paths:
            report = json.loads(path.read_text())
            kind = report["kind"]
            assert set(read_all(report, MODEL[kind])) <= set(BASELINES[name].gpus)
            assert kind == "certify" or report["gpus"]["measured"]["ranks"] == 2
            values += read_all(report, one.field)
    assert (one.low, one.high, one.count) == (min(values), max(values), len(values))
    middle = statistics.median(values)
    assert one.value == pytest.approx(middle, rel=1e-4)
    wide = (one.high - one.low) / middle > 0.05
    assert one.bound == pytest.approx(0.95 * (one.low if wide else middle), rel=1e-3)


def test_h200_has_a_baseline():
    assert BASELINES["h200"].gpus == ("NVIDIA H200",)
    assert len(MEASURES) == 8
