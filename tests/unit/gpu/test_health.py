"""Health of GPUs: the real reader on a made-up NVML, and each check failing when it should."""

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stackyard.gpu import gpus, health
from stackyard.gpu.doctor import NOT_RUN, NOTE, OK, WRONG, Finding
from stackyard.gpu.health import HostHealth, Xid, examine, host_findings, merged, parse
from stackyard.inside import health as reader

STUB = Path(__file__).with_name("nvml_stub.c")
# nvml.h: NVML_ERROR_*.
NO_PERMISSION, NO_DRIVER, LOST, UNKNOWN = 4, 9, 15, 4711

# What a healthy pair of H200 answers: function, GPU, its arguments, code, values.
HEALTHY = """\
nvmlInit_v2 -1 -1 -1 0
nvmlDeviceGetCount_v2 -1 -1 -1 0 2
nvmlDeviceGetHandleByIndex_v2 -1 -1 -1 0
nvmlDeviceGetEccMode -1 -1 -1 0 1 1
nvmlDeviceGetTotalEccErrors -1 -1 -1 0 0
nvmlDeviceGetRemappedRows -1 -1 -1 0 0 0 0 0
nvmlDeviceGetCurrPcieLinkGeneration -1 -1 -1 0 5
nvmlDeviceGetMaxPcieLinkGeneration -1 -1 -1 0 5
nvmlDeviceGetCurrPcieLinkWidth -1 -1 -1 0 16
nvmlDeviceGetMaxPcieLinkWidth -1 -1 -1 0 16
nvmlDeviceGetCurrentClocksEventReasons -1 -1 -1 0 0
nvmlDeviceGetEnforcedPowerLimit -1 -1 -1 0 700000
nvmlDeviceGetPowerManagementDefaultLimit -1 -1 -1 0 700000
nvmlDeviceGetNvLinkState -1 -1 -1 0 1
nvmlDeviceGetNvLinkErrorCounter -1 -1 -1 0 0
nvmlDeviceGetUtilizationRates -1 -1 -1 0 98 41
nvmlDeviceGetPowerUsage -1 -1 -1 0 655000
nvmlDeviceGetMemoryInfo -1 -1 -1 0 150754820096 50754820096 100000000000
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    """Folders with the made-up library of a new driver and of an old one."""
    compiler = shutil.which("gcc")
    if not compiler:
        pytest.skip("there is no gcc, which compiles the made-up NVML")
    found = {}
    for name, words in (("new", []), ("old", ["-DOLD"])):
        folder = tmp_path_factory.mktemp(name)
        library = folder / "libnvidia-ml.so.1"
        flags = ["-Wall", "-Werror", "-shared", "-fPIC", *words]
        subprocess.run([compiler, *flags, "-o", library, STUB], check=True)
        found[name] = folder
    return found


@pytest.fixture
def ask(stubs, tmp_path, allow_processes):
    """Read this machine's GPUs as the made-up NVML shows them; later lines replace earlier ones."""

    def read(*changes, driver="new", command=health.COMMAND):
        plan = tmp_path / "plan"
        plan.write_text(HEALTHY + "".join(f"{line}\n" for line in changes))
        env = {"LD_LIBRARY_PATH": str(stubs[driver]), "NVML_STUB": str(plan)}
        return dataclasses.replace(gpus.read_health(env, command), log="", xids=(), whole_log=True)

    return read


def states(found, name, gpu=0):
    return [(one.state, one.what) for one in examine(found) if (one.name, one.gpu) == (name, gpu)]


def test_a_healthy_pair_is_read_whole(ask):
    found = ask()
    assert (found.driver, found.no_gpus, found.nvml, found.unread) == ("580.159.04", "", "", "")
    first, second = found.gpus
    assert (second.index, second.uuid, second.name) == (1, "GPU-1", "NVIDIA H200")
    assert (first.bus, second.bus) == ("00000000:3b:00.0", "00000000:3c:00.0")
    assert set(first.values) | set(first.unread) == {n for names, *_ in reader.CALLS for n in names}
    assert set(first.unread) == {"pages_pending"}  # GPUs with rows have no pages to retire
    assert [link.number for link in first.links] == list(range(18))
    assert {one.state for one in examine(found)} == {OK}
    shown = {one.name: one.what for one in merged(examine(found))}
    assert shown["nvlink"] == "GPU 0, 1: 18 links are active"
    assert shown["pcie"] == "GPU 0, 1: 16 lanes of generation 5, its best"


def test_the_light_mode_reads_what_changes_while_gpus_compute_and_nothing_else(ask):
    found = ask("nvmlDeviceGetPowerUsage 1 -1 -1 3", command=health.LOAD_COMMAND)
    first, second = found.gpus
    assert first.values == {
        "busy_percent": 98, "memory_busy_percent": 41, "power_mw": 655000, "power_limit_mw": 700000,
        "memory_bytes": 150754820096, "memory_free_bytes": 50754820096,
        "memory_used_bytes": 100000000000,
    }  # fmt: skip
    assert (first.unread, first.links, found.shm_bytes) == ({}, (), None)
    assert second.unread == {"power_mw": "not supported by this GPU or driver"}
    assert not second.waits


@pytest.mark.parametrize(
    ("busy", "power", "waits"),
    [(100, 655000, False), (100, 280000, True), (100, 280001, False), (95, 120000, True),
     (94, 120000, False)],
)  # fmt: skip
def test_a_gpu_that_is_busy_and_draws_little_power_waits(ask, busy, power, waits):
    changes = (f"nvmlDeviceGetUtilizationRates 0 -1 -1 0 {busy} 0",
               f"nvmlDeviceGetPowerUsage 0 -1 -1 0 {power}")  # fmt: skip
    found = ask(*changes, command=health.LOAD_COMMAND)
    assert [gpu.waits for gpu in found.gpus] == [waits, False]


BIG = 2**32 + 5  # a counter of 64 bits that was read as 32 would be 5


@pytest.mark.parametrize(
    ("changes", "name", "state", "what"),
    [
        # nvmlDeviceGetTotalEccErrors: type 1 is uncorrected; counter 0 volatile, 1 aggregate.
        (["nvmlDeviceGetTotalEccErrors 0 1 0 0 1"], "memory errors", WRONG, "1 errors"),
        ([f"nvmlDeviceGetTotalEccErrors 0 1 0 0 {BIG}"], "memory errors", WRONG, f"{BIG} errors"),
        (["nvmlDeviceGetTotalEccErrors 0 1 1 0 1"], "memory errors", NOTE, "1 errors"),
        (["nvmlDeviceGetTotalEccErrors 0 0 0 0 9"], "memory errors", OK, "none"),
        (["nvmlDeviceGetEccMode 0 -1 -1 0 0 1"], "memory errors", NOTE, "ECC is off"),
        # As on real GPUs: what is not counted cannot be read.
        (["nvmlDeviceGetEccMode 0 -1 -1 0 0 1", "nvmlDeviceGetTotalEccErrors 0 1 0 3",
          "nvmlDeviceGetTotalEccErrors 0 1 1 3"], "memory errors", NOTE, "ECC is off"),
        (["nvmlDeviceGetEccMode 0 -1 -1 3"], "memory errors", NOT_RUN, "not supported"),
        (["nvmlDeviceGetTotalEccErrors 0 1 1 4"], "memory errors", NOT_RUN, "no permission"),
        (["nvmlDeviceGetTotalEccErrors 0 1 1 4", "nvmlDeviceGetTotalEccErrors 0 1 0 0 2"],
         "memory errors", WRONG, "2 errors"),
        (["nvmlDeviceGetRemappedRows 0 -1 -1 0 3 2 0 0"], "memory rows", OK, "5 replaced"),
        (["nvmlDeviceGetRemappedRows 0 -1 -1 0 0 1 1 0"], "memory rows", WRONG, "wait"),
        (["nvmlDeviceGetRemappedRows 0 -1 -1 0 0 1 0 1"], "memory rows", WRONG, "not be replaced"),
        (["nvmlDeviceGetRemappedRows 0 -1 -1 3"], "memory rows", NOT_RUN, "not supported"),
        (["nvmlDeviceGetRemappedRows 0 -1 -1 3",
          "nvmlDeviceGetRetiredPagesPendingStatus 0 -1 -1 0 0"], "memory rows", OK, "no page"),
        (["nvmlDeviceGetRemappedRows 0 -1 -1 3",
          "nvmlDeviceGetRetiredPagesPendingStatus 0 -1 -1 0 1"], "memory rows", WRONG, "pages"),
        (["nvmlDeviceGetCurrPcieLinkWidth 0 -1 -1 0 15"], "pcie", WRONG, "15 of 16 lanes"),
        (["nvmlDeviceGetCurrPcieLinkWidth 0 -1 -1 3"], "pcie", NOT_RUN, "width: not supported"),
        (["nvmlDeviceGetMaxPcieLinkWidth 0 -1 -1 3"], "pcie", NOT_RUN, "width: not supported"),
        (["nvmlDeviceGetMaxPcieLinkGeneration 0 -1 -1 3"], "pcie", NOT_RUN, "generation: not"),
        (["nvmlDeviceGetCurrPcieLinkGeneration 0 -1 -1 0 4"], "pcie", WRONG, "generation 4 of 5"),
        (["nvmlDeviceGetCurrPcieLinkGeneration 0 -1 -1 0 4",
          "nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 1"], "pcie", NOT_RUN, "an idle GPU"),
        (["nvmlDeviceGetCurrPcieLinkGeneration 0 -1 -1 0 4",
          "nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 3"], "pcie", NOT_RUN, "an idle GPU"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 1"], "clocks", OK, "(it is idle)"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 2"], "clocks", NOTE, "application"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 4"], "clocks", NOTE, "all the power"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 8"], "clocks", WRONG, "its hardware"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 16"], "clocks", NOTE, "sync boost"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 32"], "clocks", WRONG, "too hot"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 64"], "clocks", WRONG, "too hot"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 129"], "clocks", WRONG, "power brake"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 0 8589934592"], "clocks", NOTE,
         "not known here (0x200000000)"),
        (["nvmlDeviceGetCurrentClocksEventReasons 0 -1 -1 3"], "clocks", NOT_RUN, "not supported"),
        (["nvmlDeviceGetEnforcedPowerLimit 0 -1 -1 0 699000"], "power limit", NOTE, "699 W, 700 W"),
        (["nvmlDeviceGetEnforcedPowerLimit 0 -1 -1 0 665000"], "power limit", NOTE, "665 W"),
        (["nvmlDeviceGetEnforcedPowerLimit 0 -1 -1 0 664999"], "power limit", WRONG, "665 W"),
        (["nvmlDeviceGetEnforcedPowerLimit 0 -1 -1 3"], "power limit", NOT_RUN, "not supported"),
        (["nvmlDeviceGetNvLinkState 0 17 -1 0 0"], "nvlink", WRONG, "link 17 is down:"
         " 17 are active, 18 on its neighbours"),
        (["nvmlDeviceGetNvLinkState -1 17 -1 0 0"], "nvlink", NOTE, "17 of 18 links are active"),
        (["nvmlDeviceGetNvLinkState -1 17 -1 3"], "nvlink", OK, "17 links are active"),
        (["nvmlDeviceGetNvLinkState -1 -1 -1 0 0"], "nvlink", NOTE, "no link is joined"),
        (["nvmlDeviceGetNvLinkState -1 -1 -1 3"], "nvlink", NOT_RUN, "not supported"),
        (["nvmlDeviceGetNvLinkState 0 5 -1 999"], "nvlink", NOT_RUN, "link 5: unknown error"),
        # nvmlDeviceGetNvLinkErrorCounter: 0 replay, 1 recovery, 2 CRC flit, 3 CRC data, 4 ECC.
        (["nvmlDeviceGetNvLinkErrorCounter 0 3 0 0 1"], "nvlink errors", NOTE, "1 replay since"),
        (["nvmlDeviceGetNvLinkErrorCounter 0 3 1 0 1"], "nvlink errors", WRONG, "1 recovery since"),
        (["nvmlDeviceGetNvLinkErrorCounter 0 3 0 0 99"], "nvlink errors", NOTE, "99 replay"),
        (["nvmlDeviceGetNvLinkErrorCounter 0 3 0 0 99",
          "nvmlDeviceGetNvLinkErrorCounter 0 9 0 0 1"],
         "nvlink errors", WRONG, "100 replay since"),
        ([f"nvmlDeviceGetNvLinkErrorCounter 0 0 2 0 {BIG}",
          f"nvmlDeviceGetNvLinkErrorCounter 0 0 4 0 {BIG}"],
         "nvlink errors", NOTE, f"{BIG} crc_flit, {BIG} ecc_data since"),
        (["nvmlDeviceGetNvLinkErrorCounter 0 -1 -1 3"], "nvlink errors", NOT_RUN, "replay: not"),
    ],
)  # fmt: skip
def test_each_check_fails_when_it_should(ask, changes, name, state, what):
    found = ask(*changes)
    seen = states(found, name)
    assert [one for one, _ in seen][:1] == [state], seen
    assert what in seen[0][1]
    if all(line.split()[1] == "0" for line in changes):
        assert {one for one, _ in states(found, name, gpu=1)} == {OK}


def test_counters_that_only_in_part_are_read_are_told_apart(ask):
    found = states(ask("nvmlDeviceGetNvLinkErrorCounter -1 -1 4 3"), "nvlink errors")
    assert found == [
        (OK, "no replay, no recovery, no crc_flit, no crc_data"),
        (NOT_RUN, "ecc_data: not supported by this GPU or driver"),
    ]


def test_an_older_driver_is_asked_by_its_own_name_for_reasons(ask):
    found = ask("nvmlDeviceGetCurrentClocksThrottleReasons -1 -1 -1 0 8", driver="old")
    assert found.gpus[0].values["clocks_event"] == 8
    found = ask("nvmlDeviceGetCurrentClocksThrottleReasons -1 -1 -1 0 8")
    assert found.gpus[0].values["clocks_event"] == 0


@pytest.mark.parametrize(
    ("change", "nvml"),
    [
        (f"nvmlInit_v2 -1 -1 -1 {LOST}", "the GPU has fallen off the bus"),
        (f"nvmlInit_v2 -1 -1 -1 {UNKNOWN}", "NVML's error 4711"),
        (f"nvmlDeviceGetCount_v2 -1 -1 -1 {UNKNOWN}", "NVML's error 4711"),
        ("nvmlDeviceGetCount_v2 -1 -1 -1 0 0", ""),
    ],
)
def test_an_nvml_that_does_not_answer_passes_nothing(ask, change, nvml):
    found = ask(change)
    assert (found.nvml, found.gpus) == (nvml, ())
    (check,) = examine(found)
    assert (check.state, check.what) == (NOT_RUN, nvml or "NVML names no GPU")


def test_a_machine_without_a_driver_has_no_checks_of_gpus(ask, monkeypatch):
    if Path(reader.DRIVER).exists():
        pytest.skip("this machine has a driver")
    found = ask(f"nvmlInit_v2 -1 -1 -1 {NO_DRIVER}")
    assert (found.no_gpus, examine(found)) == ("no NVIDIA driver is loaded", ())


@pytest.mark.parametrize(
    ("change", "state", "names"),
    [
        (f"nvmlDeviceGetHandleByIndex_v2 1 -1 -1 {LOST}", WRONG, {"gpu"}),
        (f"nvmlDeviceGetCurrPcieLinkWidth 1 -1 -1 {LOST}", WRONG, {"gpu"}),
        (f"nvmlDeviceGetHandleByIndex_v2 1 -1 -1 {NO_PERMISSION}", NOT_RUN,
         {"memory errors", "memory rows", "pcie", "clocks", "power limit", "nvlink"}),
    ],
)  # fmt: skip
def test_a_gpu_that_does_not_answer_passes_nothing(ask, change, state, names):
    found = [one for one in examine(ask(change)) if one.gpu == 1]
    assert ({one.state for one in found}, {one.name for one in found}) == ({state}, names)
    assert {one.state for one in examine(ask(change)) if one.gpu == 0} == {OK}


def test_what_a_run_leaves_is_found_by_what_was_there_before(ask):
    replayed = "nvmlDeviceGetNvLinkErrorCounter 0 3 0 0 1"
    before = ask("nvmlDeviceGetTotalEccErrors 0 1 1 0 3", replayed)
    assert health.appeared(before, before) == ()
    lost = f"nvmlDeviceGetHandleByIndex_v2 1 -1 -1 {LOST}"
    after = ask("nvmlDeviceGetTotalEccErrors 0 1 1 0 4", replayed, lost)
    shown = [(one.name, one.gpu, one.state) for one in health.appeared(before, after)]
    assert shown == [("gpu", 1, WRONG), ("memory errors", 0, NOTE)]
    assert [one.name for one in health.appeared(before, HostHealth(unread="gone"))] == ["health"]


def test_a_library_that_crashes_or_hangs_is_not_run(ask, monkeypatch):
    monkeypatch.setattr(health, "PROGRAM", b"import os; os.abort()")
    assert examine(ask())[0].state == NOT_RUN
    monkeypatch.setattr(health, "PROGRAM", b"import time; time.sleep(30)")
    monkeypatch.setattr(health, "SECONDS", 0.3)
    (check,) = examine(ask())
    assert (check.state, "ran past its limit" in check.what) == (NOT_RUN, True)


# The kernel log

START = "6,0,0,-;Linux version 6.1\n"
FALLEN = (
    "4,9,77,-;NVRM: Xid (PCI:0000:3c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off\n"
)


def log(tmp_path, text):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kmsg").write_text(text)
    kernel = reader.read_kernel(str(tmp_path))
    return parse(json.dumps({
        "version": 1, "driver": "", "no_gpus": "", "nvml": "", "shm_bytes": None, "kernel": kernel,
        "gpus": [{"index": n, "uuid": "", "name": "", "bus": f"00000000:{0x3B + n:02x}:00.0",
                  "values": {}, "unread": {}, "links": [], "lost": ""} for n in range(2)],
    }))  # fmt: skip


def xids(found):
    return [one for one in examine(found) if one.name == "xid errors"]


@pytest.mark.parametrize(
    ("text", "state", "what", "gpu"),
    [
        (START, OK, "none since the host was started", None),
        (START + FALLEN, WRONG, "Xid 79, 1 times: the GPU has fallen off the bus", 1),
        (START + FALLEN * 3, WRONG, "Xid 79, 3 times", 1),
        (START + FALLEN.replace("3c", "99"), WRONG, "Xid 79 at 0000:99:00, 1 times", None),
        (START + FALLEN.replace("79", "31"), NOTE, "Xid 31, 1 times: a program failed on it", 1),
        (START + FALLEN.replace("79", "777"), NOTE, "Xid 777, 1 times: not known here", 1),
        (START + FALLEN.replace("PCI:", ""), WRONG, "Xid 79", 1),
        (START + "6,2,5,-;nvidia: Xid is only a word\n", OK, "none", None),
        (START.replace("6,0", "6,7"), NOT_RUN, "has lost its oldest lines", None),
        (START.replace("6,0", "6,7") + FALLEN, WRONG, "Xid 79", 1),
        ("", NOT_RUN, "the kernel log is empty here", None),
    ],
)
def test_xid_errors_are_read_where_the_kernel_log_is(tmp_path, text, state, what, gpu):
    found = xids(log(tmp_path, text))[0]
    assert (found.state, found.gpu) == (state, gpu)
    assert what in found.what
    assert found.state == OK or found.hint


def test_a_kernel_log_that_may_not_be_read_is_not_run(tmp_path):
    kernel = reader.read_kernel(str(tmp_path / "none"))
    found = dataclasses.replace(log(tmp_path, START), log=kernel["unread"])
    assert xids(found)[0].what == (
        "the kernel log cannot be read: /dev/kmsg: No such file or directory"
    )


def test_each_xid_with_a_remedy_names_one_gpu():
    hints = [hint for _, hint in health.XIDS.values()]
    assert all(hint.format(gpu=3) for hint in hints)
    assert not set(health.XIDS) & set(health.PROGRAMS)


# Its answer


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "it does not answer"),
        ("there is no python3", "its answer cannot be read: there is no python3"),
        ('{"version": 2}', "its answer has version 2, not 1"),
        ('{"version": 1}', "its answer cannot be read"),
        ("[1]", "its answer cannot be read: [1]"),
    ],
)
def test_an_answer_that_is_none_is_not_run(said, why):
    found = parse(said)
    (check,) = examine(found)
    assert (check.state, check.what[: len(why)]) == (NOT_RUN, why)
    assert [one.state for one in host_findings(found)] == [NOT_RUN]


def test_what_a_login_prints_is_passed_over(allow_processes):
    here = json.dumps(reader.read())
    assert parse(f"Welcome!\n{here}\nbye\n") == parse(here)


def test_one_finding_stands_for_all_gpus_with_the_same_result():
    found = [Finding(name="clocks", state=OK, what="fine", gpu=n) for n in (0, 2)]
    found.append(Finding(name="clocks", state=WRONG, what="slow", hint="-i {gpu}", gpu=1))
    shown = [(one.state, one.what, one.hint) for one in merged(found)]
    assert shown == [(OK, "GPU 0, 2: fine", ""), (WRONG, "GPU 1: slow", "-i 1")]


@pytest.mark.parametrize(("size", "state"), [(2**30, OK), (2**30 - 1, NOTE), (None, NOT_RUN)])
def test_shared_memory_of_a_host_is_judged(size, state):
    found = host_findings(HostHealth(no_gpus="none", shm_bytes=size))
    assert [(one.name, one.state) for one in found] == [("/dev/shm", state)]


def test_xids_without_a_gpu_keep_their_place_in_the_remedy():
    host = HostHealth(
        gpus=(health.GpuHealth(index=0, uuid="", name="", bus="00000000:3b:00.0", values={}),),
        xids=(Xid(bus="0000:99:00", number=48, count=1, text=""),),
    )
    assert "-i 0000:99:00" in merged(xids(host))[0].hint
