"""However a run ends, nothing of it is left 10 s later; and the rule is seen to be needed."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest

from stackyard.definitions.project import load_project
from stackyard.system import cleanup
from tests.fleet import matrix as over_hosts
from tests.shared import until
from tests.smoke import matrix

NAMED_LIKE_A_TRAINING = "/usr/bin/python3 -u -m deepspeed.launcher.launch torchrun fairseq-train"
EVERY = [(stack, *cell) for cell in matrix.CELLS for stack in matrix.STACKS]
INTERRUPTED = "interrupted: everything of this run has been removed"
FAILED = r"loss_falls failed: .* was not trained: .* rank 1 \(node2\) stopped after update \d+"
LOST = f"node2 is gone: .*{FAILED.rpartition('.*')[2]}"
# What is said of it, and the exit code; by target, or by signal as well.
SAID = {
    ("invoke", "SIGINT"): (INTERRUPTED, 130),
    ("invoke", "SIGTERM"): (INTERRUPTED, 130),
    ("invoke", "SIGKILL"): ("", -signal.SIGKILL),
    "launcher": (FAILED, 1),
    "agent": (FAILED, 1),
    "rank": (FAILED, 1),
    "container": (LOST, 1),
    "network": (LOST, 1),
    ("container", "pause"): (LOST, 1),
    ("first container", "pause"): (r"the first node is gone: nothing was heard for \d+ s", 1),
    ("launcher", "SIGSTOP"): (r"process \d+ on node1 is stopped for 6 s", 1),
    ("rank", "SIGSTOP"): (r"rank 1 \(node2\) is stopped for 6 s", 1),
    ("supervisor", "SIGSTOP"): (r"the first node is gone: nothing was heard for \d+ s", 1),
}


@pytest.fixture(scope="module")
def bystanders():
    """A process of somebody else's, with the name that a clean-up by name would go for."""
    script = f'exec -a "{NAMED_LIKE_A_TRAINING}" sleep 3600'
    with subprocess.Popen(["bash", "-c", script]) as child:
        yield child
        child.kill()


def orphans(engine):
    """Runs of this machine whose owner has ended."""
    return {run for run, owner in engine.runs().items() if cleanup.owner_is_gone(owner)}


@pytest.fixture(scope="module")
def cells(request, engine, bystanders, stack_images, tmp_path_factory):
    """The cells that this session asks for, played at once: a run of each stack at a time."""
    wanted = {stack: [] for stack in matrix.STACKS}
    for item in request.session.items:
        if item.originalname == test_nothing_is_left_ten_seconds_later.__name__:
            wanted[item.callspec.params["stack"]].append(item.callspec.params["cell"])
    before = orphans(engine)
    folder = tmp_path_factory.mktemp("matrix")
    found = matrix.play_all(engine, folder, node="node2", cells=wanted)
    assert bystanders.poll() is None
    assert orphans(engine) <= before
    return {(cell.stack, cell.target, cell.signal): cell for cell in found}


@pytest.mark.bounded
@pytest.mark.parametrize(
    ("stack", "cell"),
    [
        pytest.param(
            stack, (target, name), id=f"{stack}-{target}-{name}",
            marks=() if (stack, target, name) in matrix.FIRST else pytest.mark.repeat,
        )
        for stack, target, name in EVERY
    ],
)  # fmt: skip
def test_nothing_is_left_ten_seconds_later(cells, stack, cell):
    found = cells[(stack, *cell)]
    assert found.seconds is not None, (found.left, found.said)
    said, code = SAID.get(cell) or SAID[cell[0]]
    assert re.search(said, found.said), found.said
    assert found.code == code, found.said


def test_the_matrix_is_whole():
    assert set(matrix.STACKS) == set(load_project().definitions.stacks)
    assert len(matrix.CELLS) == 21
    assert {stack for stack, *_ in matrix.FIRST} == set(matrix.STACKS)
    # Each way to end: by whoever typed it, by a process of the training, by a node.
    ways = {SAID.get(tuple(cell)) or SAID[cell[0]] for _, *cell in matrix.FIRST}
    assert ways == {(INTERRUPTED, 130), (FAILED, 1), (LOST, 1)}
    assert "network" in {target for _, target in over_hosts.FIRST}
    assert set(matrix.FIRST) <= set(EVERY)


def test_what_is_left_is_seen(engine, tmp_path):
    """The look itself: a process with the mark, a file, and nothing once they are gone."""
    run = matrix.Run.__new__(matrix.Run)
    run.engine, run.token, run.run, run.nodes = engine, "look", "no-such-run", {}
    run.scratch = tmp_path
    assert run.left() == []
    (tmp_path / "stackyard-secrets-x").mkdir()
    with subprocess.Popen(["sleep", "60"], env={**os.environ, matrix.MARK: "look"}) as child:
        # A program just started has neither a command nor an environment yet.
        until(lambda: f"process {child.pid}: sleep 60 " in run.left(), 5)
        left = run.left()
        assert "file stackyard-secrets-x" in left
        child.kill()
