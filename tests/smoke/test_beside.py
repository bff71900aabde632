"""Commands beside each other: smokes, builds, and what a killed one leaves for the next."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time

import pytest

from stackyard import guard, nodes
from stackyard.engine import OWNER_LABEL, RUN_LABEL
from stackyard.project import ROOT
from tests.smoke import matrix
from tests.smoke.trees import copy_tree, rename_stack

INVOKE = str(ROOT / ".venv" / "bin" / "invoke")


def start(tree, *words, **env):
    return subprocess.Popen(
        [INVOKE, *words], cwd=tree, env={**os.environ, **env}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.fixture
def never_built(tmp_path):
    """A tree with a stack whose last build step nobody has run before."""
    tree = copy_tree(tmp_path)
    fresh = rename_stack(tree, "megatron", "fresh")
    with (fresh / "cpu.lock").open("a") as lock:
        lock.write(f"# {secrets.token_hex(8)}\n")
    yield tree
    subprocess.run(["docker", "rmi", "-f", "stackyard/fresh:cpu"], capture_output=True, check=False)


def test_two_smokes_of_one_stack_and_a_build_do_not_disturb_each_other(never_built):
    children = [
        start(ROOT, "smoke", "fairseq", "--gpus", "0"),
        start(ROOT, "smoke", "fairseq", "--gpus", "0"),
        start(never_built, "build", "fresh", "--base", "cpu"),
        start(never_built, "build", "fresh", "--base", "cpu"),
    ]
    said = [child.communicate(timeout=400)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0, 0], "\n".join(said)


def test_a_bootstrap_that_is_killed_leaves_nothing(tmp_path):
    tree, scratch, token = copy_tree(tmp_path), tmp_path / "scratch", secrets.token_hex(8)
    scratch.mkdir()
    base = tree / "images/bases/cpu.yml"
    text = base.read_text()
    assert "packages: [python3," in text
    base.write_text(text.replace("packages: [python3,", "packages: [hello, python3,"))
    marks = {matrix.MARK: token, "TMPDIR": str(scratch)}
    with start(tree, "build", "megatron", "--base", "cpu", **marks) as child:
        for line in child.stdout:
            if "bootstrapping" in line:
                break
        time.sleep(3)
        assert list(scratch.iterdir())
        assert len(matrix.marked(token)) > 2
        child.send_signal(signal.SIGKILL)
        end = time.monotonic() + 10
        while (matrix.marked(token) or list(scratch.iterdir())) and time.monotonic() < end:
            time.sleep(0.05)
        child.stdout.read()
    assert matrix.marked(token) == []
    assert list(scratch.iterdir()) == []


def test_what_is_left_when_even_the_warden_died_is_swept_by_the_next_run(engine):
    place, pid, started = guard.owner().split(" ")
    run = f"test-{secrets.token_hex(4)}"
    engine.create_network(
        f"stackyard-{run}",
        {RUN_LABEL: run, OWNER_LABEL: f"{place} {pid} {int(started) - 1}"},
        internal=True,
    )
    alive = f"test-{secrets.token_hex(4)}"
    engine.create_volume(f"stackyard-{alive}", {RUN_LABEL: alive, OWNER_LABEL: guard.owner()})
    try:
        swept = nodes.sweep(engine)
        assert swept[run] == ""
        assert alive not in swept
        assert engine.labelled(nodes.run_label(run)) == []
        assert engine.labelled(nodes.run_label(alive)) == [f"stackyard-{alive}"]
    finally:
        nodes.remove(engine, run)
        nodes.remove(engine, alive)


def test_a_mesh_whose_controller_falls_silent_ends_by_itself(make_mesh, monkeypatch):
    """Neither controller nor warden: only the lease."""
    running = make_mesh()
    running.lease.wait_joined()
    running.engine.exec(
        running.containers["node2"], ["sh", "-c", "nohup sleep 300 >/dev/null 2>&1 &"],
        seconds=10, control=False,
    )  # fmt: skip
    until = time.monotonic() + 5  # a process that is just being started has no words yet
    while [p["command"] for p in running.strays()["node2"]] != ["sleep 300"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    monkeypatch.setattr(running.lease._line, "send", lambda line: True)  # open, but silent
    end = time.monotonic() + 10
    while any(map(running.engine.running, running.containers.values())):
        assert time.monotonic() < end
        time.sleep(0.05)
