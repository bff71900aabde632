"""A fourth stack, added to a copy of the tree by what the README says and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from stackyard.project import ROOT, load_project

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


@pytest.fixture(scope="module")
def again(copied):
    """The same stack smoked again, held against its own report of before; both records."""
    path = copied / "reports/ddp/cpu/smoke.json"
    before = json.loads(path.read_text())
    words = ["smoke", "ddp", "--gpus", "0", "--against", str(path), "--json"]
    (after,) = json.loads(run(copied, words))["reports"]
    return before, after


def test_a_smoke_is_the_same_training_as_its_own_earlier_report(copied, again):
    before, after = again
    found = after["against"]
    assert found["outcome"] == "passed"
    assert found["before"]["run"] == before["run"] != after["run"]
    layouts = load_layouts(copied)
    assert {curve["layout"] for curve in found["curves"]} >= layouts
    assert all(curve["updates"] >= 20 for curve in found["curves"])
    assert {row["layout"] for row in found["speeds"]["layouts"]} == layouts
    assert found["packages"]["from"] == "installed"
    assert found["packages"]["python"] == {"added": {}, "removed": {}, "moved": []}
    installed = after["image"]["installed"]
    assert installed["python"]["torch"] == after["image"]["packages"]["torch"]
    assert installed["debian"]["openssh-server"]
    page = (copied / "reports/ddp/cpu/smoke.html").read_text()
    assert "Against an earlier smoke" in page


def load_layouts(folder):
    smoke = load_project(folder).definitions.stacks["ddp"].smoke
    return {layout.name for layout in smoke.layouts}


def test_an_altered_loss_and_a_moved_package_are_named(copied, again, tmp_path):
    before, _ = again
    name = list(before["curves"])[-1]
    step = before["curves"][name][3][0]
    before["curves"][name][3][1] += 0.25
    before["image"]["installed"]["python"]["einops"] = "0.7.0"
    altered = tmp_path / "altered.json"
    altered.write_text(json.dumps(before))
    later = copied / "reports/ddp/cpu/smoke.json"
    done = subprocess.run(
        [INVOKE, "compare", str(altered), str(later)],
        cwd=copied, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"{name}: the losses part at update {step}" in done.stdout
    assert "suspects: einops 0.7.0 -> " in done.stdout


def test_a_report_of_another_stack_is_refused_before_anything_is_started(copied):
    report = copied / "reports/ddp/cpu/smoke.json"
    words = ["smoke", "fairseq", "--gpus", "0", "--against", str(report)]
    done = subprocess.run([INVOKE, *words], cwd=copied, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is of ddp, not of fairseq" in done.stderr
    assert "start nodes" not in done.stderr
