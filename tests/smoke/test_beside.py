"""What a killed command leaves for the next: nothing, or what the next one sweeps."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess

import pytest

from stackyard.definitions.project import ROOT
from stackyard.mesh import nodes
from stackyard.system import cleanup
from stackyard.system.engine import OWNER_LABEL, RUN_LABEL
from tests.leftovers import labelled
from tests.shared import until
from tests.smoke import matrix
from tests.trees import copy_tree

INVOKE = str(ROOT / ".venv" / "bin" / "invoke")


def start(tree, *words, **env):
    return subprocess.Popen(
        [INVOKE, *words], cwd=tree, env={**os.environ, **env}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.bounded
def test_a_bootstrap_that_is_killed_leaves_nothing(tmp_path):
    tree, scratch = copy_tree(tmp_path), tmp_path / "scratch"
    scratch.mkdir()
    base = tree / "images/bases/cpu.yml"
    text = base.read_text()
    assert "packages: [python3," in text
    base.write_text(text.replace("packages: [python3,", "packages: [hello, python3,"))
    with start(tree, "build", "megatron", "--base", "cpu", TMPDIR=str(scratch)) as child:
        for line in child.stdout:
            if "bootstrapping" in line:
                break
        # Itself, its warden, and what unpacks the packages, whose variables are no caller's.
        until(lambda: list(scratch.iterdir()) and len(matrix.naming(str(scratch))) > 2)
        child.send_signal(signal.SIGKILL)
        until(lambda: not matrix.naming(str(scratch)) and not list(scratch.iterdir()), 10)
        child.stdout.read()


def test_what_is_left_when_even_the_warden_died_is_swept_by_the_next_run(engine):
    place, pid, started = cleanup.owner().split(" ")
    run = f"test-{secrets.token_hex(4)}"
    engine.create_network(
        f"stackyard-{run}",
        {RUN_LABEL: run, OWNER_LABEL: f"{place} {pid} {int(started) - 1}"},
        internal=True,
    )
    alive = f"test-{secrets.token_hex(4)}"
    engine.create_volume(f"stackyard-{alive}", {RUN_LABEL: alive, OWNER_LABEL: cleanup.owner()})
    try:
        swept = nodes.sweep(engine)
        assert swept.get(run, "") == ""  # another session may have been first
        assert alive not in swept
        assert labelled(engine, nodes.run_label(run)) == []
        assert labelled(engine, nodes.run_label(alive)) == [f"stackyard-{alive}"]
    finally:
        nodes.remove(engine, run)
        nodes.remove(engine, alive)


@pytest.mark.bounded
def test_a_mesh_whose_controller_falls_silent_ends_by_itself(make_mesh, monkeypatch):
    """Neither controller nor warden: only the lease."""
    running = make_mesh()
    running.talk.wait_joined(running.plan.nodes)
    running.engine.exec(
        running.containers["node2"], ["sh", "-c", "nohup sleep 300 >/dev/null 2>&1 &"],
        seconds=10, control=False,
    )  # fmt: skip
    # A process that is just being started has no words yet.
    until(lambda: [p["command"] for p in running.strays()["node2"]] == ["sleep 300"])
    monkeypatch.setattr(running.talk._line, "send", lambda line: True)  # open, but silent
    until(lambda: not any(map(running.engine.running, running.containers.values())), 10)
