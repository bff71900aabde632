"""A training that SIGTERM stops saves, goes on later, and ends as if it had not been stopped."""

from __future__ import annotations

import json
import random
import re
import secrets
import signal
import subprocess

import pytest

from stackyard.definitions.project import ROOT

UPDATES = 40
repeat = pytest.mark.repeat
CUT = ("--", "--use-sharded-state")
# Everything is cut over the ranks: parameters, gradients and optimizer state, or the layers.
TRAININGS = [
    pytest.param("accelerate", "gpt2-zero-3", (), id="zero-3"),
    pytest.param("accelerate", "gpt2-zero-2", (), id="zero-2"),
    pytest.param("fairseq", "gpt2-fsdp", CUT, id="fsdp"),
    pytest.param("megatron", "gpt2-345m-tp", (), id="megatron"),
]
SHARDED = {"gpt2-zero-3", "gpt2-zero-2", "gpt2-fsdp"}
_FAIRSEQ = re.compile(r" loss=([0-9.]+),.* num_updates=(\d+),")


@pytest.fixture
def two(yard):
    return yard.only("study", "train")


def losses(text):
    """Losses that were printed, by update."""
    own = {int(m[1]): float(m[2]) for m in re.finditer(r"update (\d+) loss ([0-9.]+)", text)}
    return own or {int(m[2]): float(m[1]) for m in _FAIRSEQ.finditer(text)}


def line(two, stack, example, save, more):
    setting = f"updates={UPDATES}"
    setting += ",log_every=1" if stack == "fairseq" else ""
    return ["run", stack, "--gpus", "0", "--example", example, "--set", setting, "--save", save,
            "--hosts", two.inventory, "--name", f"stop-{secrets.token_hex(3)}", *more]  # fmt: skip


def trained(words, stop_at=0):
    """Run a training, and send SIGTERM to the command at an update; its output and exit code."""
    said = []
    with subprocess.Popen(
        [ROOT / ".venv/bin/invoke", *words], cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as child:  # fmt: skip
        for text in child.stdout:
            said.append(text)
            if stop_at and max(losses(text), default=0) >= stop_at:
                child.send_signal(signal.SIGTERM)
                stop_at = 0
    return "".join(said), child.returncode


def stopped_and_resumed(two, stack, example, save, more):
    """Stop a training, and start it again from where it saved; the losses of the second start."""
    at = random.randint(8, 22)
    stopped, code = trained(line(two, stack, example, save, more), at)
    assert code == 130, stopped[-3000:]
    assert "it was stopped by SIGTERM; its ranks ended by themselves after" in stopped
    last = int(re.search(r"stopped by SIGTERM after update (\d+)", stopped)[1])
    assert at <= last < UPDATES
    assert two.left() == {}
    if example in SHARDED:
        # One rank cannot read what two have cut.
        alone = line(two.only("study"), stack, example, save, more)
        refused, code = trained(alone)
        assert code == 2 and "is cut over 2 ranks, and 1 would start" in refused, refused[-2000:]
    resumed, code = trained(line(two, stack, example, save, more))
    assert code == 0, resumed[-3000:]
    first = min(losses(resumed))
    assert last < first <= last + 10, (last, sorted(losses(resumed)))
    assert max(losses(resumed)) == UPDATES
    return losses(resumed)


def test_a_training_that_was_stopped_goes_on(two):
    save = f"/shared/stop-{secrets.token_hex(3)}"
    stopped_and_resumed(two, "fairseq", "gpt2-fsdp", save, CUT)


@repeat  # of that, beside a training that nothing stops, which tests/smoke has for smokes
@pytest.mark.parametrize(("stack", "example", "more"), TRAININGS)
def test_a_training_that_was_stopped_ends_at_the_loss_of_one_that_was_not(
    two, stack, example, more
):
    save = f"/shared/stop-{secrets.token_hex(3)}"
    resumed = stopped_and_resumed(two, stack, example, save, more)
    whole, code = trained(line(two, stack, example, f"{save}-whole", more))
    assert code == 0, whole[-3000:]
    assert resumed[UPDATES] == pytest.approx(losses(whole)[UPDATES], abs=1e-3)
    if stack == "accelerate":
        assert (two.shared / save.removeprefix("/shared/") / "model/model.safetensors").is_file()


@pytest.mark.repeat  # a run without a standing mesh saves above
def test_a_stopped_training_of_a_standing_mesh_saves_and_now_does_not_wait(two):
    name = f"stop-{secrets.token_hex(3)}"
    mesh = ("--gpus", "0", "--name", name)
    two.invoke("up", "accelerate", *mesh)
    try:
        more = ("--example", "gpt2-zero-2", "--set", "updates=100000", "--save", f"/shared/{name}")
        words = ("run", "accelerate", *mesh, "--detach", *more)
        two.invoke(*words)
        _until_it_trains(two, name)
        found = json.loads(two.invoke("stop", "--name", name, "--json").stdout)
        said = two.invoke("logs", "--name", name).stdout[-3000:]
        assert "its ranks ended by themselves after" in found["reason"], said
        assert list((two.folder.parent / "shared" / name).glob("update-*/pytorch_model"))
        two.invoke(*words)
        _until_it_trains(two, name)
        found = json.loads(two.invoke("stop", "--now", "--name", name, "--json").stdout)
        assert found["reason"] == "it was stopped"
    finally:
        two.invoke("down", "--name", name)


def _until_it_trains(two, name):
    for _ in range(100):
        if losses(two.invoke("logs", "--name", name).stdout):
            return
    raise AssertionError("it does not train")


def test_the_same_failure_is_not_tried_a_third_time(two):
    path = two.folder.parent / "shared" / "fails.py"
    path.write_text("import os\nraise RuntimeError(f'batch 3 is empty, seen by {os.getpid()}')\n")
    name = f"stop-{secrets.token_hex(3)}"
    words = ("run", "fairseq", "--gpus", "0", "--name", name, "--restarts", "5")
    program = ("--launcher", "plain", "--", "/shared/fails.py")
    done = two.invoke(*words, *program, check=False)
    assert done.returncode == 1
    assert done.stderr.count("it failed: starting again on study, train") == 1
    assert "not started again: it failed twice for the same reason" in done.stderr
    assert two.left() == {}


@repeat  # restarts on the hosts that are left: test_runs
def test_a_sharded_training_that_loses_a_node_goes_on_with_as_many_ranks(two):
    save = f"/shared/stop-{secrets.token_hex(3)}"
    more = ("--restarts", "1")
    words = line(two, "accelerate", "gpt2-zero-3", save, more)
    words[words.index("--set") + 1] += ",save_every=10"
    name, said = words[words.index("--name") + 1], []
    with subprocess.Popen(
        [ROOT / ".venv/bin/invoke", *words], cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as child:  # fmt: skip
        for text in child.stdout:
            again = any("starting again" in old for old in said)
            if not again and max(losses(text), default=0) >= 30:
                two.hosts["train"].run("docker", "kill", f"stackyard-{name}-train", check=False)
            said.append(text)
    whole = "".join(said)
    assert child.returncode == 0, whole[-3000:]
    assert "train lost: starting again on study, train (1 of 1 restarts)" in whole
    assert "is done: 2 ranks" in whole
    _, _, after = whole.partition("starting again")
    assert min(losses(after)) > 20, "it went on from a checkpoint"
