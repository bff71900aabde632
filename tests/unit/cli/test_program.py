"""The console script: the same commands, from any folder inside the checkout."""

import subprocess
import sys

import pytest

import tasks
from stackyard import __version__
from stackyard.cli import program
from stackyard.definitions.project import ROOT


@pytest.fixture
def typed(monkeypatch, capsys):
    """Type a line behind `stackyard`: the exit code, and what was said on both streams."""

    def type_(line, folder=ROOT):
        words = ["stackyard", *line.split()]
        monkeypatch.setattr(sys, "argv", words)
        monkeypatch.chdir(folder)
        try:
            program.program().run(words)
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        return code, *capsys.readouterr()

    return type_


def test_invoke_and_the_script_have_the_same_commands():
    assert sorted(tasks.namespace.tasks) == sorted(program.collection().tasks) != []


def test_it_says_its_version_and_its_commands_anywhere(typed, tmp_path):
    assert typed("--version", tmp_path)[:2] == (0, f"stackyard {__version__}\n")
    code, out, _ = typed("--list", tmp_path)
    assert code == 0 and "smoke" in out
    assert typed("smoke -h", tmp_path)[0] == 0
    code, out, _ = typed("--print-completion-script bash", tmp_path)
    assert code == 0 and "stackyard --complete" in out


@pytest.mark.parametrize("folder", [ROOT, ROOT / "docs", ROOT / "images" / "fixes"])
def test_it_works_in_every_folder_of_the_checkout(typed, folder):
    code, out, _ = typed("render --check", folder)
    assert (code, out) == (0, "every rendered file is as the definitions say\n")


def test_outside_it_says_which_files_it_looked_for(typed, tmp_path):
    code, out, said = typed("render --check", tmp_path)
    assert (code, out) == (2, "")
    assert said.splitlines() == [
        f"error: {tmp_path} is in no checkout of stackyard",
        "  neither it nor a folder above holds tasks.py, stackyard/__init__.py, images/common.yml",
        f"To go on: cd {ROOT}",
    ]


def test_another_checkout_is_not_taken_for_its_own(typed, tmp_path):
    for mark in program.MARKS:
        (tmp_path / mark).parent.mkdir(exist_ok=True)
        (tmp_path / mark).touch()
    code, _, said = typed("render --check", tmp_path)
    assert code == 2 and f"pip install -e {tmp_path}" in said


def test_wrong_input_is_refused_alike(typed):
    code, _, said = typed("bulid")
    assert code == 2 and "did you mean 'build'?" in said
    code, _, said = typed("--list-depth two --list")
    assert code == 2 and said.startswith("error: ") and "stackyard --help" in said


LIGHT = """
import subprocess
import sys
from stackyard.cli import program
program.collection().to_contexts()
def rooms():
    names = {name for name in sys.modules if name.startswith("stackyard.")}
    return sorted({name.split(".")[1] for name in names})
print(*rooms())
from stackyard.cli.steps import build
print(*rooms(), "rich" if "rich" in sys.modules else "")
"""
PULL = """
import sys
from stackyard.cli.steps import pull
print(*sorted({"cyclonedx", "jinja2", "stackyard.build.builder", "stackyard.release.candidate"}
      & set(sys.modules)))
"""


def test_a_command_does_not_wait_for_what_only_others_need(allow_processes):
    def loaded(script):
        words = [sys.executable, "-c", script]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True,
                              timeout=60)  # fmt: skip
        return done.stdout.splitlines()

    declared, build = loaded(LIGHT)
    assert declared.split() == ["cli", "system"]
    assert build.split() == ["build", "cli", "definitions", "launch", "system"]
    assert loaded(PULL) == [""]
