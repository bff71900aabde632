"""docs/schemas: made from what declares them, true of what is committed, as strict as readers."""

from __future__ import annotations

import copy
import functools
import json
import re

import pytest
import yaml

from stackyard.cli import schemas
from stackyard.cli.answers import ANSWERS
from stackyard.cli.program import collection
from stackyard.cli.steps import images
from stackyard.definitions.document import parse_document
from stackyard.definitions.project import ROOT, parse_settings
from stackyard.report import bench, comparison
from stackyard.system import process
from stackyard.system.errors import StackyardError, UsageError
from stackyard.validate.bench.judge import judge
from tests.schemas.published import refused
from tests.unit import benches, reports, templates
from tests.unit.cli.test_clusters import Warden
from tests.unit.lines import type_line
from tests.unit.mesh.test_hosts import WHOLE
from tests.unit.validate import test_prove as proofs

SITE = """\
slurm: {runtime: pyxis, partition: gpu, minutes: 90, lines: [--exclusive], binds: {/data: /mnt}}
kubernetes: {kind: job, apart: false, deadline_seconds: 60, labels: {queue: a}, cpu: 8}
"""
# What a reader says where a schema can say the same; all else are rules between values.
STRUCTURE = re.compile(
    r"must be (text|a mapping|a list|a whole number|true or false|a number|one word)($|;|, in)"
    r"|required key is missing|unknown key"
)
# Required in bases of packages, not in those of a host: the schema of both says less.
SOMETIMES = re.compile(r"provides\.\S+\.value: required key is missing")


def documents(name):
    """Committed files of a kind, by path; of files that users write, the samples of the tests."""
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(ROOT.glob(schemas.FILES[name].pattern))
    }
    if name == "stack":
        path = "examples/ddp/stack.yml"
        texts[path] = (ROOT / path).read_text(encoding="utf-8")
    return texts or {"hosts": {"hosts.yml": WHOLE}, "site": {"site.yml": SITE}}[name]


def problems(name, text):
    """What the reader of a kind of file holds against a text."""
    found = []
    top = parse_document(text, file="x", problems=found)
    if top is not None:
        schemas.FILES[name].read(top)
        top.done()
    return [f"{one.key}: {one.message}" for one in found]


def places(value, at=()):
    """Every place in a document, from the outside."""
    yield at
    inner = value.items() if isinstance(value, dict) else ()
    inner = list(enumerate(value))[:1] if isinstance(value, list) else inner
    for key, one in inner:
        yield from places(one, (*at, key))


def changed(document, at, change):
    """A copy of a document with one place changed."""
    made = copy.deepcopy(document)
    if not at:
        return change(made)
    outer = made
    for key in at[:-1]:
        outer = outer[key]
    new = change(outer[at[-1]])
    if new is Ellipsis:
        del outer[at[-1]]
    else:
        outer[at[-1]] = new
    return made


def wrong(document):
    """Copies of a document with one thing wrong, or at least different."""
    for at in places(document):
        value = functools.reduce(lambda outer, key: outer[key], at, document)
        if isinstance(value, dict):
            yield changed(document, at, lambda old: {**old, "unknwon": 1})
            yield changed(document, at, lambda old: {**old, "unknwon": {"a": 1}})
        if at:
            yield changed(document, at, lambda old: ...)
        for other in (None, 5, 0.5, True, "x", [], ["x"], [5], [{"x": 1}], {}, {"x": 1}):
            if at or isinstance(other, dict):
                yield changed(document, at, lambda old, other=other: other)


def test_schemas_are_as_files_reports_and_answers_are_declared():
    made = schemas.schema_files()
    there = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / schemas.FOLDER).rglob("*")
        if path.is_file()
    }
    assert sorted(there) == sorted(made)
    assert [path for path in made if made[path] != there[path]] == [], "scripts/schemas --write"


def test_every_command_has_an_answer():
    assert sorted(ANSWERS) == sorted(collection().task_names)


@pytest.mark.parametrize("name", schemas.FILES)
def test_every_committed_definition_fits_its_schema(name):
    found = documents(name)
    assert {
        path: refused(f"files/{name}", yaml.safe_load(text)) for path, text in found.items()
    } == {path: [] for path in found}


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.repeat)])
@pytest.mark.parametrize("name", schemas.FILES)
def test_a_schema_refuses_what_its_reader_refuses_and_nothing_else(name, count):
    text = max(documents(name).values(), key=len)  # it has the most keys
    before = problems(name, text)
    documents_ = list(wrong(yaml.load(text, yaml.CSafeLoader)))
    bad = []
    for document in documents_[:: max(1, len(documents_) // count)]:
        text = yaml.dump(document, Dumper=yaml.CSafeDumper)
        said = [one for one in problems(name, text) if one not in before]
        structure = [one for one in said if STRUCTURE.search(one) and not SOMETIMES.match(one)]
        held = refused(f"files/{name}", document)
        if (held and not said) or (structure and not held):
            bad.append((said, held))
    assert bad == []


def test_settings_fit_their_schema():
    assert refused("files/settings", parse_settings((ROOT / "stackyard.toml").read_text())) == []
    assert refused("files/settings", {"registry": "r", "default_bse": "cpu"})
    with pytest.raises(UsageError):
        parse_settings('default_bse = "cpu"')


def committed():
    # Those of hosts are what a test writes (tests/gpu/hosts.py), no command.
    commands = (ROOT / "docs" / "reports").glob("*/*/*.json")
    found = {path: "" for path in commands if path.parent.name != "hosts"}
    for path in found:
        found[path] = json.loads(path.read_text(encoding="utf-8"))["kind"]
    found |= dict.fromkeys((ROOT / "images").glob("*.proofs.json"), "proofs")
    return found | dict.fromkeys((ROOT / "images").glob("*/curve.json"), "curve")


def made_up():
    """Reports as the code makes them, by kind."""
    plan = benches.plan()
    seen = benches.seen(plan)
    of_bench = bench.bench_report(
        reports.resolve(reports.samples.definitions(), "toy", "cpu"), reports.INFO, plan, seen,
        judge(plan, seen), peaks=(), started="2030-01-02T03:04:05+00:00", seconds=1.0, host={},
        gpus={}, failures=(),
    )  # fmt: skip
    compared = reports.good()
    compared["against"] = comparison.compare(reports.not_finite(), compared)
    return {
        "smoke": [reports.good(), compared, *(one() for one in reports.BROKEN.values())],
        "bench": [of_bench],
        "template": [templates.report(templates.good())],
        "prove": [proofs.value(proofs.image(), word=word) for word in (0, 1)],
    }


def test_every_committed_report_fits_its_schema():
    found = committed()
    assert {"smoke", "bench", "template", "certify", "proofs", "curve"} == set(found.values())
    said = {
        path.relative_to(ROOT).as_posix(): refused(f"reports/{kind}", json.loads(path.read_text()))
        for path, kind in found.items()
    }
    assert said == {path: [] for path in said}


@pytest.mark.parametrize("kind", ["smoke", "bench", "template", "prove"])
def test_every_report_that_is_made_fits_its_schema(kind):
    for value in made_up()[kind]:
        assert refused(f"reports/{kind}", value) == []
        command = "bench" if kind == "template" else kind
        answer = {"outcome": value["outcome"], "reports": [value]}
        assert refused(f"answers/{command}", answer) == []


@pytest.mark.parametrize("kind", ["smoke", "bench", "template", "prove"])
def test_a_report_with_another_key_or_without_one_is_refused(kind):
    value = made_up()[kind][0]
    optional = {"smoke": {"speeds"}, "bench": {"available"}}.get(kind, set())
    assert refused(f"reports/{kind}", {**value, "unknwon": 1})
    for key in set(value) - optional:
        assert refused(f"reports/{kind}", {k: v for k, v in value.items() if k != key}), key
        other = 5 if isinstance(value[key], str) else "x"
        assert refused(f"reports/{kind}", {**value, key: other}), key


OLD = "docs/reports/baselines/h200/fairseq-smoke.json"
NEW = "docs/reports/2x-h100/fairseq/smoke.json"
LINES = [
    ("show fairseq --base cuda", 0),
    ("list", 0),
    ("render --check", 0),
    ("prove --page --check", 0),
    (f"compare {OLD} {NEW}", 0),
    (f"diagnose {ROOT}/tests/unit/logs/collective-timeout.nccl.log", 0),
    ("run accelerate --examples", 0),
    ("run accelerate --example gpt2-zero-3 --hosts a[1-2] --gpus 0 --write {folder}/copy", 0),
    ("export kubernetes fairseq --nodes 2 --gpus 0 --image r.example/i:1 --out {folder}/job"
     " -- true", 0),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code"), LINES, ids=[line.split()[0] for line, _ in LINES])
def test_what_a_command_prints_as_json_fits_its_schema(monkeypatch, capsys, tmp_path, line, code):
    monkeypatch.setattr(images, "Engine", no_engine)
    monkeypatch.setattr(process, "Warden", Warden)
    head, words, tail = line.format(folder=tmp_path).partition(" -- ")
    assert type_line(monkeypatch, f"{head} --json{words}{tail}") == code
    value = json.loads(capsys.readouterr().out)
    assert refused(f"answers/{line.split()[0]}", value) == []
    assert refused(f"answers/{line.split()[0]}", {**value, "unknwon": 1})


def no_engine():
    raise StackyardError("no container engine answers")


@pytest.mark.parametrize("line", ["show none", "bulid", "smoke --gpus two"])
def test_an_error_fits_its_schema(monkeypatch, capsys, line):
    assert type_line(monkeypatch, f"{line} --json") == 2
    value = json.loads(capsys.readouterr().out)
    assert refused("answers/error", value) == []
    assert refused("answers/show", value)
