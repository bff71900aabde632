"""However a run ends, nothing of it is left 10 s later; and the rule is seen to be needed."""

from __future__ import annotations

import os
import subprocess

import pytest

from stackyard.engine import RUN_LABEL
from stackyard.project import ROOT, load_project
from tests.smoke import matrix

NAMED_LIKE_A_TRAINING = "/usr/bin/python3 -u -m deepspeed.launcher.launch torchrun fairseq-train"


@pytest.fixture(scope="module")
def bystanders():
    """A process of somebody else's, with the name that a clean-up by name would go for."""
    script = f'exec -a "{NAMED_LIKE_A_TRAINING}" sleep 3600'
    with subprocess.Popen(["bash", "-c", script]) as child:
        yield child
        child.kill()


@pytest.fixture(scope="module")
def cells(engine, bystanders, make_images, tmp_path_factory):
    before = set(engine.labelled(RUN_LABEL))
    folder = tmp_path_factory.mktemp("matrix")
    found = matrix.play_all(engine, folder, node="node2", cells=matrix.CHOSEN)
    assert bystanders.poll() is None
    assert set(engine.labelled(RUN_LABEL)) == before
    return {(cell.stack, cell.target, cell.signal): cell for cell in found}


@pytest.fixture(scope="module")
def make_images(engine):
    done = subprocess.run(
        [ROOT / ".venv/bin/invoke", "build", "--base", "cpu"], cwd=ROOT, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("stack", "target", "name"),
    [(stack, *cell) for stack, cells in matrix.CHOSEN.items() for cell in cells],
)
def test_nothing_is_left_ten_seconds_later(cells, stack, target, name):
    cell = cells[stack, target, name]
    assert cell.seconds is not None, (cell.left, cell.said)
    assert cell.code != 0


def test_what_happened_is_said(cells):
    said = {key[1:]: cell.said for key, cell in cells.items()}
    assert "is gone" in said["network", "cut"]
    assert "is gone" in said["container", "SIGKILL"]
    assert "interrupted: everything of this run has been removed" in said["invoke", "SIGTERM"]
    for target in ("launcher", "agent", "rank"):
        assert "failed" in said[target, "SIGKILL"]


def test_the_matrix_is_whole():
    assert set(matrix.STACKS) == set(load_project().definitions.stacks)
    assert len(matrix.CELLS) == 16
    assert {cell for cells in matrix.CHOSEN.values() for cell in cells} == set(matrix.CELLS)
    for cells in matrix.CHOSEN.values():
        assert {target for target, _ in cells} >= set(matrix.TARGETS)
        assert {name for _, name in cells} >= set(matrix.SIGNALS)


def test_what_is_left_is_seen(engine, tmp_path):
    """The look itself: a process with the mark, a file, and nothing once they are gone."""
    run = matrix.Run.__new__(matrix.Run)
    run.engine, run.token, run.run, run.nodes = engine, "look", "no-such-run", {}
    run.scratch = tmp_path
    assert run.left() == []
    (tmp_path / "stackyard-secrets-x").mkdir()
    with subprocess.Popen(["sleep", "60"], env={**os.environ, matrix.MARK: "look"}) as child:
        left = run.left()
        assert f"process {child.pid}: sleep 60 " in left
        assert "file stackyard-secrets-x" in left
        child.kill()
