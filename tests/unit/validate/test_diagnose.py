"""Known failures against real logs: each recognises its own, and nothing else's."""

import re
from pathlib import Path

import pytest

from stackyard.definitions.load import load_failures
from stackyard.definitions.project import ROOT
from stackyard.validate.diagnose import (
    EVIDENCE_LENGTH,
    MOST,
    diagnose,
    diagnose_all,
    diagnosis_text,
)
from stackyard.validate.diagnose import diagnosis_value as value
from tests.unit.samples import failure

FAILURES = load_failures(ROOT)
LOGS = {
    path.stem: path.read_text()
    for path in sorted((Path(__file__).parent.parent / "logs").glob("*.log"))
}
SICK = {name: text for name, text in LOGS.items() if not name.startswith("healthy.")}
HEALTHY = sorted(set(LOGS) - set(SICK))


def of(name):
    """The failure a log was captured for: its name up to the first dot."""
    return name.partition(".")[0]


def ids(text, failures=None):
    return [
        d.failure.id for d in diagnose(text, FAILURES.values() if failures is None else failures)
    ]


# The catalogue, against what was captured


@pytest.mark.parametrize("name", SICK)
def test_a_log_is_recognised_as_what_it_was_captured_for(name):
    assert ids(LOGS[name]) == [of(name)]


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_recognised_in_the_log_of_a_healthy_run(name):
    assert ids(LOGS[name]) == []


@pytest.mark.parametrize("name", SICK)
def test_what_else_a_log_shows_is_declared_to_follow_from_its_failure(name):
    shown = {one for one, failure in FAILURES.items() if ids(LOGS[name], [failure])}
    assert shown - {of(name)} <= set(FAILURES[of(name)].brings)


PATTERNS = [(f.id, pattern) for f in FAILURES.values() for pattern in (*f.any_of, *f.all_of)]


@pytest.mark.parametrize(("name", "pattern"), PATTERNS)
def test_every_pattern_was_seen_in_a_real_log(name, pattern):
    lines = [line for log, text in SICK.items() if of(log) == name for line in text.splitlines()]
    assert any(re.search(pattern, line) for line in lines)


def test_every_stack_has_a_healthy_log():
    assert {"healthy.fairseq", "healthy.megatron", "healthy.accelerate"} <= set(HEALTHY)


def test_every_log_is_in_the_table_that_says_how_it_was_captured():
    table = (Path(__file__).parent.parent / "logs" / "README.md").read_text()
    told = re.findall(r"^\| `([^`]+)\.log` \| \S", table, re.MULTILINE)
    assert sorted(told) == sorted(LOGS)


# The rules, on made-up failures

OOM = failure(id="oom", any_of=("out of memory",), brings=("peer",))
PEER = failure(id="peer", kind="consequence", any_of=("closed by peer",))
DISK = failure(id="disk", any_of=("No space left",))
SLOW = failure(id="slow", kind="remark", any_of=("via sockets",))
BOTH = failure(id="both", any_of=(), all_of=("chosen: tcp", "channel: tcp"))
KNOWN = (PEER, SLOW, OOM, DISK, BOTH)


def test_a_cause_hides_what_follows_from_it_whichever_came_first():
    assert ids("closed by peer\nout of memory", KNOWN) == ["oom"]
    assert ids("out of memory\nclosed by peer", KNOWN) == ["oom"]


def test_a_consequence_alone_is_shown():
    assert ids("closed by peer", KNOWN) == ["peer"]


def test_a_consequence_of_something_else_comes_after_the_cause():
    assert ids("closed by peer\nNo space left", KNOWN) == ["disk", "peer"]


def test_of_two_causes_the_earliest_comes_first_and_remarks_come_last():
    assert ids("via sockets\nNo space left\nout of memory", KNOWN) == ["disk", "oom", "slow"]
    assert ids("via sockets\nout of memory\nNo space left", KNOWN) == ["oom", "disk", "slow"]


def test_what_cannot_occur_in_a_step_is_not_recognised_there():
    built, ran = failure(id="built", steps=("build",)), failure(id="ran", steps=("run",))
    for step, found in (("build", ["built"]), ("run", ["ran"]), ("registry", [])):
        assert [d.failure.id for d in diagnose("No space left", [built, ran], step)] == found
    assert ids("No space left", [built, ran]) == ["built", "ran"]


def test_only_a_few_are_shown():
    many = [failure(id=f"f{number}", any_of=(f"error {number}",)) for number in range(9)]
    text = "\n".join(f"error {number}" for number in range(9))
    assert ids(text, many) == [f"f{number}" for number in range(MOST)]


def test_where_all_lines_are_needed_some_are_not_enough():
    assert ids("chosen: tcp", KNOWN) == []
    assert ids("channel: tcp\nchosen: tcp", KNOWN) == ["both"]


def test_where_all_and_one_of_several_are_needed_both_must_be_there():
    mixed = failure(id="mixed", any_of=("a1", "a2"), all_of=("b",))
    assert [ids(text, [mixed]) for text in ("a1", "b", "b a2")] == [[], [], ["mixed"]]


@pytest.mark.parametrize("text", ["", "\n\n", "all is well", "\x00\ufffd\r\r\n"])
def test_nothing_is_recognised_where_nothing_is(text):
    assert ids(text) == []


def test_the_evidence_is_the_first_line_that_shows_it_with_its_number():
    (found,) = diagnose("fine\n  node1: out of memory at 3  \nout of memory\n", KNOWN)
    assert (found.evidence, found.line) == ("node1: out of memory at 3", 2)


@pytest.mark.parametrize("patterns", [{"any_of": ("b", "a")}, {"any_of": (), "all_of": ("b", "a")},
                                      {"any_of": ("b",), "all_of": ("a",)}])  # fmt: skip
def test_of_several_lines_that_show_it_the_first_is_the_evidence(patterns):
    (found,) = diagnose("x\na\nb\na\n", [failure(**patterns)])
    assert (found.evidence, found.line) == ("a", 2)


def test_colours_and_rewritten_lines_do_not_hide_a_failure():
    text = "one\n 10%\r 20%\rout of \x1b[31mmemory\x1b[0m\r\n"
    (found,) = diagnose(text, KNOWN)
    assert (found.evidence, found.line) == ("out of memory", 2)


def test_a_pattern_is_sought_within_one_line():
    assert ids("out of\nmemory", [failure(any_of=(r"out of\smemory",))]) == []


def test_a_pattern_may_name_the_beginning_of_a_line():
    found = diagnose("x pdsh@a\npdsh@b\n", [failure(any_of=("^pdsh@",))])
    assert [d.evidence for d in found] == ["pdsh@b"]


@pytest.mark.parametrize("before", [0, 100, 5000])
def test_a_very_long_line_is_cut_around_what_was_found(before):
    (found,) = diagnose("x" * before + " out of memory " + "y" * 5000, KNOWN)
    assert "out of memory" in found.evidence
    assert len(found.evidence) <= EVIDENCE_LENGTH + len("......")


def test_texts_of_one_run_are_looked_at_together():
    found = diagnose_all({"ddp": "closed by peer", "tp": "x\nout of memory"}, KNOWN)
    assert [(d.failure.id, d.where, d.line) for d in found] == [("oom", "tp", 2)]


def test_of_causes_in_several_texts_those_of_the_first_text_come_first():
    texts = {"ddp": "x\nx\nNo space left", "tp": "out of memory"}
    assert [d.failure.id for d in diagnose_all(texts, KNOWN)] == ["disk", "oom"]


def test_a_failure_in_several_texts_is_shown_once_where_it_was_first():
    found = diagnose_all({"ddp": "fine", "tp": "out of memory", "pp": "out of memory"}, KNOWN)
    assert [d.where for d in found] == ["tp"]


def test_a_diagnosis_says_what_was_seen_where_why_and_what_to_do():
    (found,) = diagnose_all({"ddp": "out of memory"}, KNOWN)
    said = diagnosis_text(value(found))
    for word in (OOM.title, OOM.cause, OOM.remedy, "seen in ddp, line 1: out of memory", "[oom]"):
        assert word in said
    assert "consequence" not in said
    (peer,) = diagnose("closed by peer", KNOWN)
    assert "(consequence)" in diagnosis_text(value(peer))
