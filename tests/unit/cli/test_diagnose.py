"""`invoke diagnose`: what a log shows."""

import io
import json
import sys

from stackyard.cli.steps import diagnose
from stackyard.definitions.load import load_failures
from stackyard.definitions.project import ROOT
from tests.unit.lines import run


def test_diagnose_names_the_failure_of_a_log(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_bytes(b"fine \xff\nOSError: [Errno 28] No space left on device\n")
    assert run(diagnose.diagnose, str(log)) == 0
    said = capsys.readouterr().out
    assert "recognised: a disk is full [disk-full]" in said
    assert "seen in line 2: OSError: [Errno 28] No space left on device" in said
    assert run(diagnose.diagnose, str(log), as_json=True) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["diagnoses"]] == ["disk-full"]


def test_diagnose_says_plainly_that_it_recognised_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"all is well\n")))
    assert run(diagnose.diagnose, "-") == 1
    said = capsys.readouterr().out
    assert said.startswith("nothing was recognised in -: ")
    assert f" {len(load_failures(ROOT))} failures are known" in said


def test_diagnose_says_that_a_log_is_not_there(capsys):
    assert run(diagnose.diagnose, "no/such/log") == 2
    assert "error: no/such/log cannot be read\n  No such file" in capsys.readouterr().err
