"""A fourth stack, added to a copy of the tree by what its tutorial says and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stackyard.definitions.project import ROOT
from tests import tutorials
from tests.shared import own_name

INVOKE = str(ROOT / ".venv" / "bin" / "invoke")
NAME = own_name("added")  # in place of the tutorial's `ddp`, which a user may have added as well
PAGE = tutorials.FOLDER / "own-stack.md"


def blocks(page):
    """Files that the tutorial tells to write: a fenced block after a line naming `path`."""
    pattern = r"^`(images/ddp/[^`]+)`:\n\n```\w*\n(.*?)^```$"
    return dict(re.findall(pattern, page, flags=re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def copied(tmp_path_factory, engine):
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
    for path, text in blocks(PAGE.read_text()).items():
        target = folder / path.replace("/ddp/", f"/{NAME}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("name: ddp\n", f"name: {NAME}\n"))
    yield folder
    engine.remove_image(f"stackyard/{NAME}:cpu")


def run(folder, words, timeout=600):
    done = subprocess.run(
        [INVOKE, *words], cwd=folder, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def test_the_tutorial_shows_the_example_as_it_is():
    shown = blocks(PAGE.read_text())
    assert shown["images/ddp/stack.yml"] == (ROOT / "examples/ddp/stack.yml").read_text()
    train = (ROOT / "examples/ddp/smoke/train.py").read_text()
    assert shown["images/ddp/smoke/train.py"] == train


def test_a_stack_added_by_the_tutorial_is_built_and_passes(copied):
    typed = [one.words.removeprefix("invoke ") for one in tutorials.of_engine(PAGE.name)]
    assert typed == ["lock ddp", "smoke ddp --gpus 0"]
    first, last = ([NAME if word == "ddp" else word for word in line.split()] for line in typed)
    run(copied, first)
    answer = json.loads(run(copied, [*last, "--json"]))
    assert answer["outcome"] == "passed"
    assert [report["stack"] for report in answer["reports"]] == [NAME]
    assert (copied / f"images/{NAME}/cpu.Dockerfile").is_file()
    assert (copied / f"reports/{NAME}/cpu/smoke.html").is_file()


# Groups of tests play smokes beside each other, too, and a smoke over Slurm's nodes is held
# against one over hosts.
@pytest.mark.repeat
def test_smokes_of_one_stack_do_not_disturb_each_other(copied, tmp_path):
    report = copied / f"reports/{NAME}/cpu/smoke.json"
    earlier = Path(shutil.copy(report, tmp_path))
    words = [INVOKE, "smoke", NAME, "--gpus", "0", "--against", str(earlier), "--json"]
    how = {"cwd": copied, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = [subprocess.Popen(words, **how) for _ in range(2)]
    ended = [(*child.communicate(timeout=300), child.returncode) for child in children]
    assert [code for *_, code in ended] == [0, 0], ended
    records = [json.loads(output)["reports"][0] for output, *_ in ended]
    assert len({record["run"] for record in [json.loads(earlier.read_text()), *records]}) == 3
    assert [record["against"]["outcome"] for record in records] == ["passed"] * 2


def test_an_altered_loss_and_a_moved_package_are_named(copied, tmp_path):
    later = copied / f"reports/{NAME}/cpu/smoke.json"
    before = json.loads(later.read_text())
    assert before["image"]["installed"]["debian"]["openssh-server"]
    name = list(before["curves"])[-1]
    step = before["curves"][name][3][0]
    before["curves"][name][3][1] += 0.25
    before["image"]["installed"]["python"]["einops"] = "0.7.0"
    altered = tmp_path / "altered.json"
    altered.write_text(json.dumps(before))
    done = subprocess.run(
        [INVOKE, "compare", str(altered), str(later)],
        cwd=copied, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"{name}: the losses part at update {step}" in done.stdout
    assert "suspects: einops 0.7.0 -> " in done.stdout


def test_a_report_of_another_stack_is_refused_before_anything_is_started(copied):
    report = copied / f"reports/{NAME}/cpu/smoke.json"
    words = ["smoke", "fairseq", "--gpus", "0", "--against", str(report)]
    done = subprocess.run([INVOKE, *words], cwd=copied, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"is of {NAME}, not of fairseq" in done.stderr
    assert "start nodes" not in done.stderr
