"""Health of hosts: their clocks beside each other, their disks, and what stands in the table."""

import dataclasses

import pytest

from stackyard.gpu import health
from stackyard.gpu.doctor import NOT_RUN, NOTE, OK, WRONG, Finding
from stackyard.gpu.health import HostHealth
from stackyard.mesh import host_health
from stackyard.mesh.host_health import clock_findings, judge, remarks, summary
from stackyard.mesh.link import HostError
from stackyard.mesh.node_plan import DISK_BYTES, SKEW_SECONDS, SKEW_WARNING
from tests.unit.machines import facts

HERE = HostHealth(no_gpus="none", shm_bytes=2**34)


def hosts(**skews):
    """Hosts whose clocks are read within a tenth of a second."""
    return {name: dataclasses.replace(facts(name), skew=skew) for name, skew in skews.items()}


@pytest.mark.parametrize(
    ("skew", "state"),
    [
        (0.0, OK),
        (SKEW_WARNING + 0.1, OK),
        (SKEW_WARNING + 0.2, NOTE),
        (-SKEW_WARNING - 0.2, NOTE),
        (SKEW_SECONDS + 0.1, NOTE),
        (SKEW_SECONDS + 0.2, WRONG),
        (None, NOT_RUN),
    ],
)
def test_a_clock_is_compared_with_those_of_the_others(skew, state):
    found = clock_findings(hosts(a=0.0, b=0.0, c=skew))
    assert (found["a"].state, found["c"].state) == (OK, state)
    assert bool(found["c"].hint) == (state in (NOTE, WRONG))


def test_a_controller_whose_own_clock_is_off_accuses_no_host():
    assert {one.state for one in clock_findings(hosts(a=900.0, b=900.1, c=899.9)).values()} == {OK}


@pytest.mark.parametrize(
    ("free", "state"), [(DISK_BYTES, OK), (DISK_BYTES - 1, WRONG), (None, NOT_RUN)]
)
def test_a_disk_is_judged(free, state):
    known = {"a": dataclasses.replace(facts("a"), engine_free_bytes=free)}
    found = {one.name: one.state for one in judge({"a": HERE}, known)["a"]}
    assert found == {"clock": OK, "disk": state, "/dev/shm": OK}


class Shell:
    """A link whose host runs what is sent to it on this machine."""

    def __init__(self, path=None, error=None):
        self.path, self.error = path, error

    def send(self, data, *words, seconds):
        from stackyard.system import process

        if self.error:
            raise self.error
        env = {"PATH": self.path} if self.path is not None else {}
        words = ("/bin/sh", *words[1:])
        return process.run(list(words), stdin=data, timeout=seconds, env=env).output


def test_a_host_is_read_by_the_same_program_over_its_login(allow_processes):
    found = host_health.read(Shell())
    assert found.unread == ""
    assert found.shm_bytes is not None


def test_the_load_of_gpus_is_read_by_the_light_mode(allow_processes):
    found = host_health.read_all({"a": Shell()}, load=True)["a"]
    assert (found.unread, found.shm_bytes, found.log) == ("", None, "it was not asked")


def test_a_host_without_python_or_an_answer_is_not_run_and_does_not_pass(allow_processes, tmp_path):
    links = {"a": Shell(path=str(tmp_path)), "b": Shell(error=HostError("b", "it is gone"))}
    found = host_health.examine(links, {name: facts(name) for name in links})
    shown = {name: [(f.what, f.hint) for f in one if f.name == "health"]
             for name, one in found.items()}  # fmt: skip
    hint = "it needs python3 (3.6 or newer) there"
    assert shown == {
        "a": [("its answer cannot be read: there is no python3", hint)],
        "b": [("it is gone", hint)],
    }
    assert {f.state for one in found.values() for f in one if f.name == "health"} == {NOT_RUN}


def test_a_table_counts_and_remarks_name_all_hosts_with_the_same_finding():
    slow = Finding(name="clocks", state=WRONG, what="too hot", hint="check fans")
    dark = Finding(name="xid errors", state=NOT_RUN, what="no log")
    fine = Finding(name="disk", state=OK, what="9 GiB")
    found = {"a": (dark, fine), "b": (slow, dark, fine), "c": (fine,)}
    assert [summary(one) for one in found.values()] == ["1 not run", "1 wrong, 1 not run", "ok"]
    assert remarks(found) == [
        "b: clocks wrong: too hot; check fans",
        "a, b: xid errors not run: no log",
    ]


def test_the_program_is_sent_whole():
    assert health.PROGRAM.startswith(b'"""Read the health of a machine')


def test_what_appears_in_a_run_is_said_once_for_all_hosts_and_what_was_there_is_not():
    def lost(*indexes):
        gpus = [health.GpuHealth(index=n, uuid="", name="H", bus="", values={}, unread={},
                                 lost="it does not answer", links=()) for n in indexes]  # fmt: skip
        return HostHealth(driver="1", gpus=tuple(gpus), whole_log=True)

    before = {"a": lost(), "b": lost(0), "c": HERE}
    after = {"a": lost(1), "b": lost(0), "c": HERE, "d": lost(1)}
    (line,) = [one for one in host_health.appeared(before, after) if " gpu wrong" in one]
    assert line.startswith("a: gpu wrong: GPU 1: it does not answer; reboot")
    assert host_health.appeared(before, before) == []


def test_notes_of_a_run_are_no_warnings(monkeypatch):
    found = [Finding(name="clocks", state=NOTE, what="held", gpu=0),
             Finding(name="pcie", state=WRONG, what="8 of 16 lanes", gpu=0)]  # fmt: skip
    monkeypatch.setattr(health, "appeared", lambda before, after: found)
    assert host_health.appeared({"a": HERE}, {"a": HERE}) == ["a: pcie wrong: GPU 0: 8 of 16 lanes"]
