"""`--junit`: the checks of reports as CI systems read them."""

from __future__ import annotations

import os
from xml.etree import ElementTree

import pytest

from stackyard.report import junit
from stackyard.system.errors import UsageError
from tests.schemas import junit as schema
from tests.unit import reports
from tests.unit.report import test_certify

PROOFS = {
    "kind": "prove",
    "stack": "toy",
    "base": "cpu",
    "outcome": "failed",
    "started": "2030-01-02T03:04:05+00:00",
    "seconds": 4321.5,
    "proofs": [
        {"id": "good", "verdict": "proven", "with": {"code": 0, "seconds": 1.25},
         "without": {"code": 1, "seconds": 0.5}},
        {"id": "bad", "verdict": "not repaired", "why": "it fails <still>", "last_lines": "Oh & no",
         "with": {"code": 1, "seconds": 2}, "without": None},
    ],
}  # fmt: skip


def read(*values):
    return ElementTree.fromstring(junit.render(values))


@pytest.mark.parametrize("name", ["good", *reports.BROKEN])
def test_ci_systems_can_read_the_checks_of_a_smoke(name):
    value = reports.good() if name == "good" else reports.BROKEN[name]()
    assert schema.problems(junit.render([value, PROOFS])) == []
    suite = read(value)[0]
    assert (suite.get("name"), suite.get("time")) == ("smoke toy on cpu", "12.350")
    assert [(case.get("classname"), case.get("name")) for case in suite] == [
        ("toy", check["name"]) for check in value["checks"]
    ]
    for case, check in zip(suite, value["checks"], strict=True):
        tags = {"passed": [], "failed": ["failure"], "not run": ["skipped"]}
        assert [one.tag for one in case] == tags[check["outcome"]]
        assert all(one.get("message") == check["why"] for one in case)


@pytest.mark.parametrize("kind", test_certify.KINDS)
def test_ci_systems_can_read_the_checks_of_a_certification(kind):
    value = test_certify.record(test_certify.KINDS[kind])
    assert schema.problems(junit.render([value])) == []
    suite = read(value)[0]
    assert suite.get("name") == "certify accelerate on cuda"
    failed = [check["name"] for check in value["checks"] if check["outcome"] == "failed"]
    assert [case.get("name") for case in suite if case.find("failure") is not None] == failed
    assert bool(failed) == (value["outcome"] == "failed")
    assert len(suite) == len(value["checks"])


def test_a_failed_check_shows_its_figures():
    value = reports.good()
    value["checks"] = [
        {"name": "parity", "outcome": "failed", "measured": {"gap": 0.5},
         "expected": {"at_most": 0.001}, "why": "a gap & more"},
    ]  # fmt: skip
    failure = read(value).find("testsuite/testcase/failure")
    assert failure is not None and failure.get("message") == "a gap & more"
    assert '"gap": 0.5' in failure.text and '"at_most": 0.001' in failure.text


def test_a_proof_is_a_case_with_its_time_and_last_lines():
    good, bad = read(PROOFS)[0]
    assert (good.get("name"), good.get("time"), len(good)) == ("good", "1.750", 0)
    assert (bad[0].get("message"), bad[0].text) == ("not repaired: it fails <still>", "Oh & no")


def test_a_comparison_that_failed_is_a_case_of_its_own():
    value = {**reports.good(), "against": {"outcome": "failed", "why": "two parts at update 3"}}
    case = read(value)[0][-1]
    assert (case.get("name"), case[0].get("message")) == ("against", "two parts at update 3")


def test_characters_that_xml_cannot_hold_are_replaced():
    value = {**PROOFS, "proofs": [{**PROOFS["proofs"][1], "last_lines": "\x1b[31mred\x00\ud800"}]}
    assert read(value)[0][0][0].text == "\ufffd[31mred\ufffd\ufffd"


def test_an_earlier_result_is_never_taken_for_this_runs(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text("an earlier run's")
    junit.require_place(path)
    assert list(tmp_path.iterdir()) == []
    junit.write(path, [PROOFS])
    assert [one.name for one in tmp_path.iterdir()] == ["results.xml"]
    assert schema.problems(path.read_bytes()) == []


@pytest.mark.parametrize("name", ["no/such.xml", "", "pipe"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"--junit: .* cannot be written"):
        junit.require_place(tmp_path / name)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b' failures="1"', b' failures="2"', "failures is 2"),
        (b' failures="1"', b"", "<testsuite> lacks failures"),
        (b"<failure", b"<failure code='1'", "<failure> has code"),
        (b'time="4321.500"', b'time="4321.5 s"', "<testsuite> has time 4321.5 s"),
        (b"<testcase", b"<testcase outcome='good'", "<testcase> has outcome"),
    ],
)
def test_the_shape_refuses_what_ci_systems_would(old, new, said):
    data = junit.render([PROOFS])
    assert old in data
    assert said in schema.problems(data.replace(old, new))
