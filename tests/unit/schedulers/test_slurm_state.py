"""What Slurm says, translated: answers of a real Slurm 22.05, and every state it can name."""

import pytest

from stackyard.schedulers.slurm_state import (
    ENDED,
    STATES,
    SiteFacts,
    choose,
    choose_for_file,
    parse_accounted,
    parse_job,
)
from stackyard.system.errors import StackyardError

# As `scontrol --oneliner show job` gave it.
RUNNING = (
    "JobId=12 JobName=fairseq UserId=trainer(1000) GroupId=trainer(1000) MCS_label=N/A"
    " Priority=4294901748 Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None"
    " Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:04"
    " TimeLimit=00:05:00 TimeMin=N/A Partition=train AllocNode:Sid=ctl:230 ReqNodeList=(null)"
    " ExcNodeList=(null) NodeList=node[1-2] BatchHost=node1 NumNodes=2 NumCPUs=2 NumTasks=2"
    " CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=2,mem=1000M,node=2,billing=2 Features=(null)"
    " Command=/a folder/JobState=x/job.sh WorkDir=/a folder StdErr=/a folder/fairseq-12.log"
    " StdIn=/dev/null StdOut=/a folder/fairseq-12.log Power="
)


def said(**changes):
    text = RUNNING
    for name, value in changes.items():
        before = next(part for part in text.split() if part.startswith(f"{name}="))
        text = text.replace(f" {before} ", f" {name}={value} ", 1)
    return parse_job(text)


def test_a_running_job_is_read():
    found = parse_job(RUNNING)
    assert (found.job_id, found.state, found.slurm, found.code) == (
        "12",
        "running",
        "RUNNING",
        None,
    )
    assert (found.nodes, found.log, found.reason) == ("node[1-2]", "/a folder/fairseq-12.log", "")
    assert not found.ended


@pytest.mark.parametrize(
    ("slurm", "code", "state", "number"),
    [
        ("COMPLETED", "0:0", "done", 0),
        ("FAILED", "137:0", "failed", 137),
        ("NODE_FAIL", "0:15", "failed", 143),
        ("TIMEOUT", "0:15", "failed", 143),
        ("CANCELLED", "0:15", "cancelled", 143),
        ("COMPLETING", "0:0", "ending", None),
        ("PENDING", "0:0", "waiting", None),
    ],
)
def test_states_and_codes_are_translated(slurm, code, state, number):
    found = said(JobState=slurm, ExitCode=code)
    assert (found.state, found.code, found.slurm) == (state, number, slurm)
    assert found.ended == (state in ENDED)


def test_the_reason_of_a_wait_is_kept():
    found = said(JobState="PENDING", Reason="Resources", NodeList="(null)")
    assert (found.state, found.reason, found.nodes) == ("waiting", "Resources", "")


def test_every_state_has_one_word():
    assert set(STATES.values()) == {"waiting", "running", "ending", "done", "failed", "cancelled"}


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id specified", "JobId=1"])
def test_what_is_not_a_job_is_said(text):
    with pytest.raises(StackyardError, match="not a job"):
        parse_job(text)


def test_a_state_that_is_not_known_is_no_success():
    with pytest.raises(StackyardError, match=r"unknown state of job .*: DANCING"):
        said(JobState="DANCING")


def test_accounting_is_read_without_its_steps():
    text = "12|CANCELLED by 1000|0:15|node[1-2]\n12.batch|CANCELLED|0:15|node1\n"
    found = parse_accounted(text)
    assert found is not None
    assert (found.state, found.code, found.nodes, found.log) == ("cancelled", 143, "node[1-2]", "")
    assert parse_accounted("") is None


# Which runtime a site has

PYXIS = "  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n  --container-mounts=SRC:DST\n"
PLAIN = "  --container             Path to OCI container bundle\n"
NOTHING = {"srun_help": PLAIN, "oci_conf": False, "programs": frozenset(), "namespaces": False}
APPTAINER = {"programs": frozenset({"apptainer"})}


@pytest.mark.parametrize(
    ("facts", "runtime", "words"),
    [
        ({"srun_help": PLAIN + PYXIS, **APPTAINER, "oci_conf": True}, "pyxis",
         "srun has --container-image"),
        ({**APPTAINER, "oci_conf": True}, "apptainer", "no --container-image (pyxis), but"),
        ({"oci_conf": True, "namespaces": True}, "oci", "has an oci.conf"),
        ({"oci_conf": True, "srun_help": ""}, "filesystem", "no namespaces"),
        ({"namespaces": True}, "filesystem", "an unpacked image"),
        ({}, "filesystem", "installed on the nodes themselves"),
    ],
)  # fmt: skip
def test_the_choice_of_a_runtime_says_why(facts, runtime, words):
    found = choose(SiteFacts(**{**NOTHING, **facts}))
    assert found.runtime == runtime
    assert words in found.why


BOTH = {"programs": frozenset({"apptainer", "enroot", "squashfuse"})}


@pytest.mark.parametrize(
    ("facts", "runtime", "words"),
    [
        ({"srun_help": PYXIS, "namespaces": True}, "pyxis", "it takes the file"),
        ({**BOTH, "namespaces": True, "oci_conf": True}, "squashfs", "squashfuse mounts the file"),
        ({"namespaces": True}, "squashfs", "unpack the file into their memory"),
        (BOTH, "enroot", "may make no namespaces, but enroot is there"),
        (APPTAINER, "apptainer", "apptainer is there"),
        ({}, "squashfs", "the nodes must allow what this machine does not"),
    ],
)
def test_the_choice_for_a_file_says_why(facts, runtime, words):
    found = choose_for_file(SiteFacts(**{**NOTHING, **facts}))
    assert (found.runtime, words in found.why) == (runtime, True), found.why
