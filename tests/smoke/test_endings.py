"""Commands that are interrupted or cannot go on: bounded, said plainly, nothing left behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time

import pytest

from stackyard.engine import RUN_LABEL
from stackyard.project import ROOT
from tests.smoke.trees import copy_tree, rename_stack

INVOKE = str(ROOT / ".venv" / "bin" / "invoke")


def left(engine, before):
    """What carries a run's label now and did not before."""
    return sorted(set(engine.labelled(RUN_LABEL)) - before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_smoke_leaves_nothing(engine, number):
    before = set(engine.labelled(RUN_LABEL))
    child = subprocess.Popen(
        [INVOKE, "smoke", "fairseq", "--gpus", "0"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with child:
        for line in child.stdout:
            if "train one-process" in line:
                break
        assert left(engine, before)
        time.sleep(1)
        child.send_signal(number)
        output = child.stdout.read()
        assert child.wait(timeout=30) == 130, output
    assert "interrupted: everything of this run has been removed" in output
    assert left(engine, before) == []


def test_an_interrupted_build_ends_at_once_and_the_next_one_works(tmp_path):
    folder = copy_tree(tmp_path)
    slow = rename_stack(folder, "megatron", "slow")
    # A lock nobody has built before, so that its step runs, however often this test did.
    with (slow / "cpu.lock").open("a") as lock:
        lock.write(f"# {secrets.token_hex(8)}\n")
    child = subprocess.Popen(
        [INVOKE, "build", "slow", "--base", "cpu"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with child:
        for line in child.stdout:
            if "[packages 1/" in line:
                break
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert child.wait(timeout=30) == 130
        assert time.monotonic() - started < 15
    again = subprocess.run(
        [INVOKE, "build", "slow", "--base", "cpu"],
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    subprocess.run(["docker", "rmi", "-f", "stackyard/slow:cpu"], capture_output=True, check=True)


def test_a_build_step_that_fails_is_named_with_its_last_lines(tmp_path):
    folder = copy_tree(tmp_path)
    path = folder / "images/fixes/deepspeed-numpy-layer-seed.yml"
    text = path.read_text()
    assert "count: 1" in text
    path.write_text(text.replace("count: 1", "count: 7"))
    # Under a name of its own: the real image must stay what it is.
    rename_stack(folder, "megatron", "broken")
    done = subprocess.run(
        [INVOKE, "build", "broken", "--base", "cpu"],
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 4
    assert "stackyard/broken:cpu could not be built: [image" in done.stderr
    assert "fix deepspeed-numpy-layer-seed" in done.stderr
    assert "expected 7" in done.stderr
    assert "invoke build broken --base cpu" in done.stderr


def test_without_an_engine_it_says_what_to_type(tmp_path):
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}
    done = subprocess.run(
        [INVOKE, "smoke", "--gpus", "0"], cwd=ROOT, capture_output=True, text=True, env=env,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 4
    assert "no container engine answers" in done.stderr
    assert "invoke engine" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_node_that_is_killed_while_training_is_named(make_mesh, settings, example):
    import dataclasses
    import threading

    from stackyard import judge, nodes, training
    from stackyard.watch import TrainingPlan

    running = make_mesh()
    nodes.wait_reachable(running)
    plan = TrainingPlan(
        layout=example.layout("ddp-2"),
        label="killed-node",
        save=f"{nodes.SHARED}/c",
        nodes=running.plan.nodes,
    )
    endless = dataclasses.replace(example, updates=10**6, stall_seconds=10, start_seconds=30)
    first_loss = threading.Event()

    def kill():
        first_loss.wait(40)
        running.engine.kill(running.containers["node2"])

    killer = threading.Thread(target=kill)
    killer.start()
    started = time.monotonic()
    seen = training.train(running, endless, plan, port=29900, on_loss=lambda *_: first_loss.set())
    killer.join()
    assert time.monotonic() - started < 90
    observation = judge.Observation(
        nodes=running.plan.nodes, environment={}, trainings={"ddp-2": seen}
    )
    result = judge.loss_falls(endless, observation)
    assert result.outcome == "failed"
    assert "rank 1 (node2) stopped after update" in result.why
