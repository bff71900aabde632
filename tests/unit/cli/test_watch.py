"""`invoke status --watch`: what is looked at, how often, and what ends it; hosts are stand-ins."""

from __future__ import annotations

import contextlib
import json

import pytest

from stackyard.cli import command
from stackyard.cli.options.runs import StatusRequest
from stackyard.cli.steps import hosts as steps
from stackyard.cli.steps import watch
from stackyard.gpu.health import GpuHealth, HostHealth
from stackyard.mesh.link import HostError
from stackyard.mesh.runs import Reached
from stackyard.system.errors import Terminated
from tests.schemas.published import refused as unfit
from tests.unit.machines import fleet

VALUES = {"busy_percent": 100, "power_mw": 120500, "power_limit_mw": 700000,
          "memory_used_bytes": 2**33, "memory_bytes": 2**37}  # fmt: skip
GPU = GpuHealth(index=0, uuid="GPU-0", name="NVIDIA H200", bus="", values=VALUES)


class Host:
    """A link; what is done with it is counted."""

    renewed = 0

    def renew(self):
        self.renewed += 1


def row(**changes):
    return {"run": "demo", "stack": "fairseq", "base": "cpu", "image": "i", "nodes": ["a"],
            "hosts": ["a"], "missing": [], "lost": {}, "error": "", "until": 9, "jobs": [],
            **changes}  # fmt: skip


def job(state="running", update=3):
    return {"name": "lm-1", "state": state, "step": "train", "code": None, "reason": "",
            "started": 1.0, "ended": 2.0, "shown": {"updates": 10}, "update": update, "hang": "",
            "loss": 2.5, "updates_per_second": 2.0}  # fmt: skip


@pytest.fixture
def hosts(monkeypatch):
    """Three hosts, of which c does not answer; looks answer one by one, the last one again."""
    links = {"a": Host(), "b": Host()}
    gone = HostError("c", "it does not answer")
    known = Reached(fleet=fleet("a", "b", "c"), links=links, failed={"c": gone})
    asked, slept = [], []

    def read_all(links, *, load):
        assert load
        asked.append(sorted(links))
        return {name: HostHealth(gpus=(GPU,)) if name == "a" else HostHealth(no_gpus="no driver")
                for name in links}  # fmt: skip

    def make(*looks, sleep=slept.append):
        found = list(looks)
        monkeypatch.setattr(
            watch,
            "rows_of",
            lambda hosts, name: (
                [found.pop(0) if len(found) > 1 else found[0]] if found else [],
                {"c": gone},
            ),
        )
        monkeypatch.setattr(watch.time, "sleep", sleep)
        return links, asked, slept

    monkeypatch.setattr(watch, "load_fleet", lambda given: known.fleet)
    monkeypatch.setattr(watch, "reached", lambda fleet: contextlib.nullcontext(known))
    monkeypatch.setattr(watch.host_health, "read_all", read_all)
    return make


def run(*, as_json=False, **asked):
    request = StatusRequest(watch=True, **asked)
    return command.run(lambda terminal: watch.watch(terminal, request), as_json=as_json)


def test_json_is_one_look_at_runs_and_at_the_gpus_of_all_hosts(hosts, capsys):
    links, asked, slept = hosts(row(jobs=[job()]))
    assert run(as_json=True) == 0
    value = json.loads(capsys.readouterr().out)
    assert unfit("answers/status", value) == []
    assert (value["silent"], asked, slept) == (["c"], [["a", "b"]], [])
    first, *others = value["gpus"]
    assert [(one["host"], one["unread"]) for one in others] == [
        ("b", "no driver"), ("c", "it does not answer"),
    ]  # fmt: skip
    assert first == {"host": "a", "unread": "", "gpus": [{
        "index": 0, "name": "NVIDIA H200", "busy_percent": 100, "power_watts": 120.5,
        "power_limit_watts": 700.0, "memory_used_gib": 8.0, "memory_gib": 128.0, "waits": True,
        "unread": "",
    }]}  # fmt: skip
    assert [host.renewed for host in links.values()] == [1, 1]


def test_it_looks_until_no_job_runs_and_shows_each_look(hosts, capsys):
    states = [job(update=3), job(update=4), job("ended")]
    _, asked, slept = hosts(*(row(jobs=[one]) for one in states))
    assert run() == 0
    said = capsys.readouterr().out
    assert [said.count(f"update {n} of 10") for n in (3, 4)] == [1, 1]
    assert said.count("GPU 0: busy at little power") == len(asked) == 3
    assert slept == [watch.PRINT_SECONDS] * 2


def test_a_run_that_cannot_be_asked_is_looked_at_again(hosts):
    _, _, slept = hosts(row(error="node 1 does not answer"), row(jobs=[job("ended")]))
    assert run() == 0
    assert len(slept) == 1


def test_only_the_hosts_of_a_run_that_is_named_are_looked_at(hosts):
    _, asked, _ = hosts(row(jobs=[job("ended")]))
    assert run(name="demo") == 0
    assert asked == [["a"]]


def test_without_a_run_the_gpus_are_shown_once(hosts, capsys):
    hosts()
    assert run() == 0
    said = capsys.readouterr().out
    assert "no run is on these hosts" in said and "1 x NVIDIA H200" in said


@pytest.mark.parametrize(("signal", "code"), [(KeyboardInterrupt, 0), (Terminated, 130)])
def test_ctrl_c_is_its_usual_end_and_sigterm_is_not(hosts, signal, code):
    def sleep(seconds):
        raise signal

    hosts(row(jobs=[job()]), sleep=sleep)
    assert run() == code


def test_where_no_host_answers_status_says_so_and_fails(monkeypatch, capsys):
    gone = HostError("c", "there is no such host name", hint="`address:` in hosts.yml")
    known = Reached(fleet=fleet("c"), links={}, failed={"c": gone})
    monkeypatch.setattr(steps, "load_fleet", lambda given: known.fleet)
    monkeypatch.setattr(steps, "reached", lambda fleet: contextlib.nullcontext(known))
    assert command.run(lambda terminal: steps.status(terminal, StatusRequest()), as_json=False) == 1
    out, err = capsys.readouterr()
    assert out == "no host answers: which runs there are is not known\n"
    assert "c: there is no such host name; `address:` in hosts.yml" in err
