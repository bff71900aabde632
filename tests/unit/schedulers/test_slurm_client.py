"""Slurm's commands, as they are called and as their answers are taken; nothing is started here."""

import pytest

from stackyard.schedulers import slurm_client
from stackyard.system import process
from stackyard.system.errors import CommandError, NothingToRunOn, StackyardError
from tests.unit.schedulers.test_slurm_state import RUNNING

GONE = "slurm_load_jobs error: Invalid job id specified"


def job(state, log="", code="0:0"):
    text = RUNNING.replace("JobState=RUNNING", f"JobState={state}").replace("=0:0 ", f"={code} ")
    return text.replace("/a folder/fairseq-12.log", log) if log else text


class Slurm:
    """Answers as Slurm would, in turn; the last answer of a command stays."""

    def __init__(self, answers):
        self.answers = {words: list(given) for words, given in answers.items()}
        self.called = []

    def run(self, argv, *, cwd=None, timeout=0.0, check=True, **_):
        self.called.append(tuple(argv))
        assert 0 < timeout <= 600
        key = next(words for words in self.answers if " ".join(argv).startswith(words))
        given = self.answers[key]
        code, output = given.pop(0) if len(given) > 1 else given[0]
        if check and code:
            raise CommandError("failed", code=code, why=output)
        return process.Finished(code=code, output=output)


@pytest.fixture
def slurm(monkeypatch):
    def make(missing=(), **answers):
        found = Slurm({words.replace("_", " "): given for words, given in answers.items()})
        monkeypatch.setattr(slurm_client.process, "run", found.run)
        monkeypatch.setattr(slurm_client.shutil, "which", lambda name: name not in missing)
        monkeypatch.setattr(slurm_client, "POLL_SECONDS", 0.0)
        return found

    return make


def test_submitting_gives_the_number(slurm, tmp_path):
    found = slurm(sbatch=[(0, "sbatch: a warning\n17")])
    assert slurm_client.submit(tmp_path) == "17"
    assert found.called == [("sbatch", "--parsable", "job.sh")]
    slurm(sbatch=[(0, "18;west")])
    assert slurm_client.submit(tmp_path) == "18"


@pytest.mark.parametrize("said", [(1, "Socket timed out on send/recv operation"), (0, "?")])
def test_a_job_that_slurm_took_without_saying_so_is_cancelled(slurm, tmp_path, said):
    jobs = f"16 /elsewhere\n17 {tmp_path}\n18 {tmp_path}/other\n"
    found = slurm(sbatch=[said], squeue=[(0, jobs)], scancel=[(0, "")])
    with pytest.raises(StackyardError):
        slurm_client.submit(tmp_path)
    assert [call for call in found.called if call[0] == "scancel"] == [("scancel", "17")]


def test_a_controller_that_is_away_is_asked_again_for_a_job_that_it_may_have_taken(
    slurm, tmp_path, monkeypatch
):
    late, away = (1, "Socket timed out on send/recv operation"), (1, "Unable to contact")
    found = slurm(sbatch=[late], squeue=[away, (0, f"17 {tmp_path}")], scancel=[(0, "")])
    with pytest.raises(CommandError):
        slurm_client.submit(tmp_path)
    assert found.called[-1] == ("scancel", "17")
    slurm(sbatch=[late], squeue=[away])
    monkeypatch.setattr(slurm_client, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(StackyardError, match="did not say whether it took the job") as caught:
        slurm_client.submit(tmp_path)
    assert str(tmp_path) in caught.value.hint


def test_a_refusal_says_what_slurm_said(slurm, tmp_path):
    refusal = [(1, "sbatch: error: invalid partition specified: x")]
    slurm(sbatch=refusal, squeue=[(1, "slurm_load_jobs error")])
    with pytest.raises(CommandError) as caught:
        slurm_client.submit(tmp_path)
    assert "invalid partition" in caught.value.why
    slurm(sbatch=[(0, "nothing of use")], squeue=[(0, "")])
    with pytest.raises(StackyardError, match="named no job"):
        slurm_client.submit(tmp_path)


def test_without_slurm_it_says_where_to_go(monkeypatch):
    monkeypatch.setattr(slurm_client.shutil, "which", lambda name: None)
    with pytest.raises(NothingToRunOn, match="scontrol is not on this machine"):
        slurm_client.status("1")


@pytest.mark.parametrize("number", ["", "x", "1; rm", "-1", "--all", "1,2"])
def test_nothing_but_a_number_reaches_slurm(slurm, number):
    found = slurm(scontrol=[(0, RUNNING)])
    for call in (slurm_client.status, slurm_client.cancel):
        with pytest.raises(StackyardError, match="not the number"):
            call(number)
    assert found.called == []


def test_a_forgotten_job_is_looked_up_in_the_accounting(slurm):
    slurm(scontrol=[(1, GONE)], sacct=[(0, "12|FAILED|1:0|node[1-2]\n")])
    assert slurm_client.status("12").state == "failed"
    slurm(scontrol=[(1, GONE)], sacct=[(1, "accounting is disabled")])
    with pytest.raises(StackyardError) as caught:
        slurm_client.status("12")
    assert "NAME-12.log" in caught.value.hint


def test_a_controller_that_is_away_is_not_taken_for_a_forgotten_job(slurm):
    found = slurm(scontrol=[(1, "Unable to contact slurm controller")], sacct=[(0, "")])
    with pytest.raises(StackyardError, match="does not answer"):
        slurm_client.status("12")
    assert [call[0] for call in found.called] == ["scontrol"]


def test_what_follows_a_job_asks_a_controller_that_is_away_again(slurm):
    away = (1, "Unable to contact slurm controller (connect failure)")
    found = slurm(scontrol=[away, away, (0, job("RUNNING"))])
    assert slurm_client.status("12", patience=60).state == "running"
    assert len(found.called) == 3
    found = slurm(scontrol=[(1, GONE)], sacct=[(1, "accounting is disabled")])
    with pytest.raises(StackyardError, match="does not answer for job 12"):
        slurm_client.status("12", patience=60)
    assert len(found.called) == 2


def test_following_gives_every_line_once_until_the_job_has_ended(slurm, tmp_path, monkeypatch):
    log = tmp_path / "a log"
    chunks = [b"", b"one\ntw", b"o\n", b"three \xff\nend"]
    states = ["PENDING", "RUNNING", "RUNNING", "COMPLETED"]

    def status(job_id, patience):
        with log.open("ab") as file:
            file.write(chunks.pop(0))
        return slurm_client.parse_job(job(states.pop(0), str(log)))

    slurm(scontrol=[(0, "")])
    monkeypatch.setattr(slurm_client, "status", status)
    lines = []
    assert slurm_client.logs("12", True, lines.append).state == "done"
    assert lines == ["one", "two", "three �", "end"]


def test_a_log_is_read_once_without_following(slurm, tmp_path):
    log = tmp_path / "log"
    log.write_text("one\n")
    slurm(scontrol=[(0, job("RUNNING", str(log)))])
    lines = []
    assert slurm_client.logs("12", False, lines.append).state == "running"
    assert lines == ["one"]


def test_a_log_on_another_machine_is_said(slurm, tmp_path):
    slurm(scontrol=[(0, job("FAILED", str(tmp_path / "none")))])
    with pytest.raises(StackyardError) as caught:
        slurm_client.logs("12", True, print)
    assert "first of its nodes" in caught.value.why


def test_a_step_is_killed_by_its_name_and_the_others_are_not(slurm):
    steps = "17.batch batch\n17.3 ddp-2\n17.4 ddp-2-resumed\n"
    found = slurm(squeue=[(0, steps)], scancel=[(1, "it has ended")])
    slurm_client.kill_step("17", "ddp-2")
    assert found.called[1:] == [("scancel", "--signal=KILL", "17.3")]
    slurm(squeue=[(1, "Unable to contact slurm controller")])
    slurm_client.kill_step("17", "ddp-2")  # whoever kills a step asks again


def test_cancelling_waits_until_nothing_runs(slurm):
    states = ["RUNNING", "COMPLETING", "COMPLETING", "CANCELLED"]
    found = slurm(scontrol=[(0, job(state)) for state in states], scancel=[(0, "")])
    assert slurm_client.cancel("12").state == "cancelled"
    assert [call[0] for call in found.called] == ["scontrol", "scancel", *["scontrol"] * 3]


def test_cancelling_what_has_ended_does_nothing(slurm):
    found = slurm(scontrol=[(0, job("COMPLETED"))])
    assert slurm_client.cancel("12").state == "done"
    assert len(found.called) == 1


def test_a_node_that_does_not_let_go_is_an_error(slurm, monkeypatch):
    slurm(scontrol=[(0, job("RUNNING")), (0, job("COMPLETING"))], scancel=[(0, "")])
    monkeypatch.setattr(slurm_client, "CANCEL_SECONDS", 0.0)
    with pytest.raises(CommandError, match="is COMPLETING after"):
        slurm_client.cancel("12")


def test_looking_at_a_site_asks_slurm_and_the_kernel(slurm, tmp_path):
    (tmp_path / "oci.conf").write_text("")
    config = f"Configuration data\nSLURM_CONF              = {tmp_path}/slurm.conf\n"
    answers = {"scontrol": [(0, config)], "srun": [(0, "  --container  Path to OCI bundle")]}
    found = slurm(missing=("apptainer",), **answers, unshare=[(1, "")])
    assert slurm_client.detect().runtime == "oci"
    assert slurm_client.detect(file=True).runtime == "enroot"
    assert {call[0] for call in found.called} == {"scontrol", "srun", "unshare"}
    (tmp_path / "oci.conf").unlink()
    assert "users may make no namespaces" in slurm_client.detect().why
    slurm(missing=("apptainer",), **answers, unshare=[(0, "")])
    assert "users may make namespaces" in slurm_client.detect().why
    slurm(missing=("unshare",), **answers)
    assert slurm_client.detect().runtime == "apptainer"
