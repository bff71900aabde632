"""Users' own fairseq: one real build of a dirty tree, and trees that are refused before one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stackyard.build import bundle_fetch, mirrors
from stackyard.build.locks import resolve
from stackyard.definitions import lock
from stackyard.definitions.project import ROOT, Project
from stackyard.system.engine import Engine
from tests.shared import own_name

pytestmark = pytest.mark.engine

TAG = f"stackyard/fairseq:{own_name('source')}"
NORM = "total_norm = total_norm.cuda().float() ** 2"
REPAIRED = "total_norm = total_norm.to(self.device).float() ** 2"
SEEN = """
import inspect, json, fairseq, fairseq.trainer, fairseq.models.distributed_fairseq_model as model
import fairseq.data.data_utils_fast, fairseq.libbleu
from importlib.metadata import requires
print(json.dumps({
    "edited": fairseq.EDITED, "trainer": inspect.getsource(fairseq.trainer),
    "model": inspect.getsource(model), "requires": requires("fairseq"),
}))
"""


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", str(folder), *who, *words], check=True,
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout.strip()


@pytest.fixture(scope="module")
def fork(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository made of the very sdist that the stack's build fetches."""
    base = project.definitions.bases["cpu"]
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    pin = lock.some_of(project.definitions.locks["images/wheels/fairseq.lock"], {"fairseq"})
    (address,) = resolve.find_sdists(pin, base, caller)
    folder = tmp_path_factory.mktemp("own") / "fairseq"
    folder.mkdir()
    subprocess.run(["tar", "-xz", "-C", str(folder), "--strip-components=1"], check=True,
                   input=bundle_fetch.download(address, caller))  # fmt: skip
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "as it was released")
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def invoke(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "invoke"), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=600, stdin=subprocess.DEVNULL)  # fmt: skip


def build(source: object, *words: str) -> subprocess.CompletedProcess[str]:
    return invoke("build", "fairseq", "--base", "cpu", "--source", str(source), *words)


def test_a_dirty_tree_is_built_with_the_fixes_that_it_lacks(fork: Path, engine: Engine) -> None:
    commit = git(fork, "rev-parse", "HEAD")
    before = engine.image("stackyard/fairseq:cpu")
    change(fork / "fairseq" / "trainer.py", NORM, REPAIRED)  # repaired already
    model = fork / "fairseq" / "models" / "distributed_fairseq_model.py"
    change(model, "import torch\n", "# moved\n# down\n\nimport torch\n")  # a line that moved
    with (fork / "fairseq" / "__init__.py").open("a") as file:
        file.write("EDITED = 7\n")
    try:
        done = build(fork, "--tag", TAG, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        (row,) = json.loads(done.stdout)["images"]
        (source,) = row["sources"]
        assert (source["commit"], source["dirty"]) == (commit, True)
        assert row["repaired_there"] == {"fairseq": ["fairseq-fsdp-cpu"]}
        info = engine.image(TAG)
        assert info is not None
        assert json.loads(info.labels["stackyard.sources"]) == [source]
        said = engine.run_once(info.id, ["python3", "-c", SEEN], seconds=60)
        seen = json.loads(said.splitlines()[-1])
        assert seen["edited"] == 7
        assert seen["trainer"].count(REPAIRED) == 1
        assert '[args.device_id] if device.type == "cuda" else None' in seen["model"]
        assert "hydra-core<1.4,>=1.0.7" in seen["requires"]  # repaired in its own metadata
        # Again: nothing changed. The stack's own image is what it was.
        again = build(fork, "--tag", TAG, "--json")
        assert json.loads(again.stdout)["images"][0]["made"] is False
        assert engine.image("stackyard/fairseq:cpu") == before
    finally:
        engine.remove_image(TAG)
        git(fork, "checkout", "-q", ".")


def test_a_tree_that_a_fix_conflicts_with_is_refused_before_a_build(fork: Path) -> None:
    change(fork / "fairseq" / "trainer.py", NORM, "total_norm = norm_of(total_norm)")
    git(fork, "commit", "-qam", "a norm of our own")
    git(fork, "tag", "conflict")
    git(fork, "reset", "-q", "--hard", "HEAD^")
    done = build(f"{fork}@conflict")
    assert done.returncode == 2
    assert "1 fix of this stack does not fit your fairseq" in done.stderr
    assert "fairseq/trainer.py: pattern matched 0 times, expected 1" in done.stderr
    assert f"--source {fork}@conflict --despite fairseq-fsdp-cpu" in done.stderr


@pytest.mark.repeat  # test_endings.py has a build that fails
def test_what_only_a_build_shows_is_refused_there(fork: Path, tmp_path: Path) -> None:
    """A small tree of another name, which no file says plainly: its wheel does."""
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\nsetup(name=''.join(['fair', 'play']), version='1')\n"
    )
    done = build(f"fairscale={tmp_path}")
    assert done.returncode == 4
    assert "the tree is that of fairplay, not of fairscale" in done.stderr
