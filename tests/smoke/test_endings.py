"""Commands that are interrupted or cannot go on: bounded, said plainly, nothing left behind."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess

import pytest

from stackyard.definitions.project import ROOT
from tests.shared import own_name
from tests.trees import copy_tree, rename_stack

INVOKE = str(ROOT / ".venv" / "bin" / "invoke")


@pytest.fixture
def own_stack(tmp_path, engine):
    """A tree whose megatron has a name of its own: the real image must stay what it is."""
    tree, name = copy_tree(tmp_path), own_name("endings")
    rename_stack(tree, "megatron", name)
    yield tree, name
    engine.remove_image(f"stackyard/{name}:cpu")


@pytest.mark.repeat  # one beside others is interrupted in tests/images
def test_an_interrupted_build_ends_at_once_and_the_next_one_works(own_stack, engine):
    tree, name = own_stack
    # A lock nobody has built before, so that its step runs, however often this test did.
    with (tree / "images" / name / "cpu.lock").open("a") as lock:
        lock.write(f"# {secrets.token_hex(8)}\n")
    words = [INVOKE, "build", name, "--base", "cpu"]
    child = subprocess.Popen(
        words, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with child:
        for line in child.stdout:
            if "installing packages" in line:
                break
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=30) == 130
    assert engine.image(f"stackyard/{name}:cpu") is None
    again = subprocess.run(words, cwd=tree, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr


def test_a_build_step_that_fails_is_named_with_its_last_lines(own_stack):
    tree, name = own_stack
    path = tree / "images/fixes/deepspeed-numpy-layer-seed.yml"
    text = path.read_text()
    assert "count: 1" in text
    path.write_text(text.replace("count: 1", "count: 7"))
    done = subprocess.run(
        [INVOKE, "build", name, "--base", "cpu"],
        cwd=tree, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 4
    assert f"stackyard/{name}:cpu could not be built: [image" in done.stderr
    assert '"fix": "deepspeed-numpy-layer-seed"' in done.stderr
    assert "expected 7" in done.stderr
    assert f"invoke build {name} --base cpu" in done.stderr


@pytest.mark.parametrize(
    ("lock", "package", "said"),
    [
        pytest.param("{name}/cpu.lock", "einops", r"Hash mismatch for `einops==", id="wheel"),
        pytest.param("wheels/deepspeed.lock", "deepspeed", "DO NOT MATCH THE HASHES", id="source",
                     marks=pytest.mark.repeat),
    ],
)  # fmt: skip
def test_a_package_with_another_hash_than_the_lock_has_is_refused_before_any_is_installed(
    own_stack, engine, lock, package, said
):
    tree, name = own_stack
    path, wrong = tree / "images" / lock.format(name=name), "0" * 64
    found = re.compile(rf"^({package}==\S+) \\\n(?: .*\n)+", flags=re.M)
    text, count = found.subn(rf"\1 --hash=sha256:{wrong}\n", path.read_text())
    assert count == 1
    path.write_text(text)
    done = subprocess.run(
        [INVOKE, "build", name, "--base", "cpu"],
        cwd=tree, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 4
    assert re.search(rf"{said}(?s:.*){wrong}", done.stderr), done.stderr
    if package == "einops":  # uv's words for what it has done, in this order
        assert "Resolved" in done.stderr and "Installed" not in done.stderr
    assert engine.image(f"stackyard/{name}:cpu") is None


def test_without_an_engine_it_says_what_to_type(tmp_path):
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}
    done = subprocess.run(
        [INVOKE, "smoke", "--gpus", "0"], cwd=ROOT, capture_output=True, text=True, env=env,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 4
    assert "no container engine answers" in done.stderr
    assert "start the engine that DOCKER_HOST names" in done.stderr
    assert "Traceback" not in done.stderr
