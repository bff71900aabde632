"""NVIDIA's image at first contact: locked, built on and trained in, by a stand-in in a registry.

What the stand-in has of the real image, and what it has not: tests/images/ngc/README.md. The base
has a name of this session's own, so that no image of a user is touched.
"""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from stackyard.definitions import lock
from stackyard.definitions.project import ROOT, load_project
from tests.fleet.emulated import docker
from tests.images import ngc
from tests.release.registry import registry
from tests.shared import own_name
from tests.trees import copy_tree

pytestmark = [pytest.mark.engine, pytest.mark.repeat]
BASE = own_name("ngc")
TAG = "25.12-py3"


def write_base(tree, reference):
    """Base `ngc` as it is declared, but for what the stand-in cannot be: see `tests/images/ngc`."""
    text = (tree / "images/bases/ngc.yml").read_text()
    for pattern, changed in (
        (r"^name: .*$", f"name: {BASE}"),
        (r"^reference: .*$", f"reference: {reference}"),
        (r"^python: .*$", 'python: "3.11"'),
        (r"^distribution: .*$", "distribution: debian/bookworm"),
        (r'^    value: "2\.10\.0a0.*$', f'    value: "{ngc.TORCH}"'),
    ):
        text, count = re.subn(pattern, changed, text, flags=re.MULTILINE)
        assert count == 1, pattern
    (tree / f"images/bases/{BASE}.yml").write_text(f'{text}env: {{OMP_NUM_THREADS: "1"}}\n')


@pytest.fixture(scope="module")
def place(engine, tmp_path_factory):
    """A registry with the stand-in in it, whose engine here does not hold it; its digest there."""
    made = ngc.make_image(engine)
    with registry(tmp_path_factory.mktemp("registry")) as running:
        reference = f"{running.host}/nvidia/pytorch:{TAG}"
        docker("tag", made, reference)
        said = docker("--config", str(running.folder / "docker"), "push", reference)
        digest = re.search(r"digest: (sha256:[0-9a-f]{64})", said)
        docker("image", "rm", reference)
        yield running, reference, digest[1]
        docker("image", "rm", reference, check=False)


@pytest.fixture(scope="module")
def tree(place, engine, tmp_path_factory):
    """A copy of the project whose base names that registry."""
    copied = copy_tree(tmp_path_factory.mktemp("tree"))
    write_base(copied, place[1])
    yield copied
    engine.remove_image(f"stackyard/fairseq:{BASE}")


@pytest.fixture(scope="module")
def invoke(place, tree):
    """A command as a user types it, logged in to the registry."""

    def run(*words, code=0):
        env = {**os.environ, "DOCKER_CONFIG": str(place[0].folder / "docker")}
        done = subprocess.run([ROOT / ".venv/bin/invoke", *words], cwd=tree, env=env, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=900,
                              check=False)  # fmt: skip
        assert done.returncode == code, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout if code == 0 else done.stderr

    return run


@pytest.fixture(scope="module")
def locked(invoke, tree):
    """The project's definitions after `invoke lock`."""
    invoke("lock", "fairseq", "--base", BASE)
    return load_project(tree).definitions


@pytest.fixture(scope="module")
def built(invoke, locked, engine):
    """The image of fairseq on the stand-in."""
    invoke("build", "fairseq", "--base", BASE)
    return engine.image(f"stackyard/fairseq:{BASE}")


def inside(built, *words):
    return docker(
        "run", "--rm", "--network", "none", "--entrypoint", words[0], built.id, *words[1:]
    )


def test_without_a_lock_nothing_is_pulled(invoke, tree, place, engine):
    assert not (tree / f"images/fairseq/{BASE}.lock").exists()
    said = invoke("build", "fairseq", "--base", BASE, code=2)
    assert f"fairseq has no lock on {BASE}" in said
    assert f"invoke lock fairseq --base {BASE}" in said
    assert engine.image(place[1]) is None


def test_the_lock_names_the_image_by_its_digest_in_the_registry(locked, place):
    text = locked.locks[f"images/bases/{BASE}.lock"]
    assert lock.locked_digest(text) == place[2]
    held = lock.versions(lock.parse_lock(text))
    assert {name: held[name] for name in ngc.HELD} == ngc.HELD


def test_a_stack_is_locked_against_what_the_image_holds(locked):
    base = lock.versions(lock.parse_lock(locked.locks[f"images/bases/{BASE}.lock"]))
    own = lock.versions(lock.parse_lock(locked.locks[f"images/fairseq/{BASE}.lock"]))
    replaced = {name for name in own if name in base}
    assert replaced == {"protobuf", "regex", "safetensors"}
    assert replaced <= set(locked.bases[BASE].replaceable)


def test_the_image_stands_on_that_very_image_and_leaves_it_whole(built, place):
    name = "org.opencontainers.image.base"
    assert built.labels[f"{name}.name"] == place[1]
    assert built.labels[f"{name}.digest"] == place[2]
    layers = json.loads(docker("image", "inspect", "-f", "{{json .RootFS.Layers}}", ngc.NAME))
    assert list(built.layers[: len(layers)]) == layers
    program = "import torch, numpy; print(torch.__version__, numpy.__version__, torch.__file__)"
    torch, numpy, file = inside(built, "python3", "-c", program).split()
    assert (torch, numpy) == (ngc.TORCH, ngc.HELD["numpy"])
    assert file.startswith("/usr/local/lib/python3.11/dist-packages/")
    assert f"torch=={ngc.TORCH}\n" in inside(built, "cat", "/etc/pip/constraint.txt")


def test_containers_start_through_nvidias_entrypoint(built):
    said = docker("run", "--rm", "--network", "none", built.id, "python3", "-c", "print('ran')")
    assert "== PyTorch ==" in said
    assert said.endswith("\nran")
    environment = inside(built, "env").splitlines()
    for line in ("NVIDIA_PYTORCH_VERSION=25.12", "PIP_CONSTRAINT=/etc/pip/constraint.txt"):
        assert line in environment


def test_a_smoke_passes(invoke, built, tree):
    answer = json.loads(invoke("smoke", "fairseq", "--gpus", "0", "--base", BASE, "--json"))
    (report,) = answer["reports"]
    assert (report["outcome"], report["image"]["id"]) == ("passed", built.id)
    assert (tree / f"reports/fairseq/{BASE}/smoke-cpu-ranks.json").is_file()
