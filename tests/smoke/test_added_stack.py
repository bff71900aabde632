"""A fourth stack, added to a copy of the tree by what the README says and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from stackyard.project import ROOT

INVOKE = str(ROOT / ".venv" / "bin" / "invoke")


def blocks(readme):
    """Files that the README tells to write: a fenced block after a line naming `path`."""
    pattern = r"^`(images/ddp/[^`]+)`:\n\n```\w*\n(.*?)^```$"
    return dict(re.findall(pattern, readme, flags=re.MULTILINE | re.DOTALL))


def commands(readme):
    """The commands that the README's section on adding a stack tells to type."""
    section = readme.split("## Adding a stack", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^    invoke (.+?)(?:\s+#.*)?$", section, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree") / "stackyard"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    for path, text in blocks((ROOT / "README.md").read_text()).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder


def run(folder, words, timeout=600):
    done = subprocess.run(
        [INVOKE, *words], cwd=folder, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def test_the_readme_shows_the_example_as_it_is():
    shown = blocks((ROOT / "README.md").read_text())
    assert shown["images/ddp/stack.yml"] == (ROOT / "examples/ddp/stack.yml").read_text()
    train = (ROOT / "examples/ddp/smoke/train.py").read_text()
    assert shown["images/ddp/smoke/train.py"] == train


def test_a_stack_added_by_the_readme_is_built_and_passes(copied):
    typed = commands((ROOT / "README.md").read_text())
    assert typed == ["lock ddp", "smoke ddp --gpus 0"]
    for line in typed[:-1]:
        run(copied, line.split())
    answer = json.loads(run(copied, [*typed[-1].split(), "--json"]))
    assert answer["outcome"] == "passed"
    assert [report["stack"] for report in answer["reports"]] == ["ddp"]
    assert (copied / "images/ddp/cpu.Dockerfile").is_file()
    assert (copied / "reports/ddp/cpu/smoke.html").is_file()
