"""Completion: what a shell is offered at each place of a line, and the scripts that ask."""

import re
import subprocess
import sys

import pytest

from stackyard.cli import completion, program
from stackyard.definitions.project import ROOT
from tests.unit.lines import type_line

COMMANDS = program.collection().tasks


@pytest.fixture
def root(tmp_path):
    for name in ("bases/far.yml", "bases/near.yml", "toy/stack.yml", "fixes/a.yml"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "offered", "other"),
    [
        ("", {"build", "smoke"}, {"--version", "toy"}),
        ("sm", {"smoke"}, {"toy"}),
        ("--v", {"--version", "--help"}, {"smoke"}),
        ("build", {"toy", "smoke"}, {"--base"}),
        ("build toy", {"smoke"}, {"--base"}),
        ("build --ba", {"--base", "--json", "--help"}, {"smoke", "toy", "--gpus"}),
        ("show --b", {"--base"}, {"toy"}),
        ("build --base", {"far", "near"}, {"toy", "smoke"}),
        ("build --base ne", {"near"}, {"toy", "smoke"}),
        ("build --base near --", {"--source"}, {"near"}),
        ("base", {"far", "near"}, {"toy"}),
        ("publish toy --key", set(), {"toy", "smoke"}),
        ("up --name", set(), {"far"}),
        ("build toy smoke --g", {"--gpus"}, {"--source"}),
        ("data toy --no", {"--no-append-eod"}, {"--no-keep-blank"}),
    ],
)
def test_what_is_offered_fits_the_place(line, offered, other, root):
    found = set(completion.candidates(line.split(), COMMANDS, ["--version", "--help"], root))
    assert offered <= found and not other & found
    assert offered or not found


@pytest.mark.parametrize("line", ["build --ba", "build 'open --ba", "show --b"])
def test_an_unfinished_line_is_completed_and_not_refused(line, monkeypatch, capsys):
    assert type_line(monkeypatch, ["--complete", "--", "invoke", *line.split()]) == 0
    out, said = capsys.readouterr()
    assert "--base" in out.splitlines() and said == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell, monkeypatch, capsys):
    with pytest.raises(SystemExit) as left:
        program.program().run(["stackyard", "--print-completion-script", shell])
    assert not left.value.code
    assert re.search(r"stackyard .*--complete -- ", capsys.readouterr().out)


def test_bash_offers_what_is_found(allow_processes, capsys):
    with pytest.raises(SystemExit):
        program.program().run(["stackyard", "--print-completion-script", "bash"])
    script = f"""
stackyard() {{ {sys.executable} -c '
import sys
from stackyard.cli.program import program
program().run(["stackyard", *sys.argv[1:]])' "$@"; }}
{capsys.readouterr().out}
COMP_WORDS=(stackyard smoke --gp)
_complete_stackyard stackyard --gp smoke
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("--gpus\n", "")
