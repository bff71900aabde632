"""A user's tree over an installed package, on emulated hosts, in real runs."""

from __future__ import annotations

import json
import subprocess

import pytest

from stackyard.definitions.project import ROOT
from stackyard.system.engine import Engine

PLACE = "/root/my-fairseq"
SITE = "/usr/local/lib/python3.11/dist-packages"
REPAIRED, NORM = "total_norm.to(self.device).float() ** 2", "total_norm.cuda().float() ** 2"
# The edit, whose file it is, a compiled module of the image, a repair that only a copy has.
SEEN = f"""
import inspect, os, socket, fairseq, fairseq.trainer, fairseq.data.data_utils_fast as fast
print("SEEN", socket.gethostname(), fairseq.EDITED, os.path.realpath(fairseq.__file__),
      os.path.realpath(fast.__file__).startswith("{SITE}/fairseq/data/"),
      "{REPAIRED}" in inspect.getsource(fairseq.trainer),
      os.access("/srv/code/fairseq", os.W_OK), flush=True)
"""


@pytest.fixture(scope="module")
def tree(images, tmp_path_factory):
    """fairseq as a user has it: without what a build compiles, and with one thing not repaired."""
    folder = tmp_path_factory.mktemp("own") / "my-fairseq"
    folder.mkdir()
    with Engine() as engine:
        image = engine.image("stackyard/fairseq:cpu")
    pack = (
        "tar -c --exclude=*.so --exclude=__pycache__ --exclude=fairseq/examples fairseq fairseq_cli"
    )
    words = ["docker", "run", "--rm", "--entrypoint", "sh", image.id, "-c", f"cd {SITE} && {pack}"]
    packed = subprocess.run(words, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    trainer = folder / "fairseq" / "trainer.py"
    assert REPAIRED in trainer.read_text()
    trainer.write_text(trainer.read_text().replace(REPAIRED, NORM))
    with (folder / "fairseq" / "__init__.py").open("a") as file:
        file.write("EDITED = 1\n")
    return folder


def put(host, tree):
    """The tree, on a host."""
    words = ["tar", "-c", "-C", str(tree.parent), tree.name]
    packed = subprocess.run(words, check=True, capture_output=True).stdout
    words = ["docker", "exec", "-i", host.container, "tar", "-x", "-C", "/root"]
    subprocess.run(words, input=packed, check=True)


def on_all(mesh, *words):
    for host in mesh.hosts.values():
        host.run(*words)


@pytest.fixture(scope="module")
def mesh(three, tree):
    """A mesh over two hosts that have the tree."""
    two = three.only("study", "train")
    for host in two.hosts.values():
        put(host, tree)
    words = ["up", "fairseq", "--gpus", "0", "--name", "own", "--overlay", PLACE, "--json"]
    said = two.invoke(*words)
    mounts = json.loads(said.stdout)["mounts"]
    assert mounts == [{"package": "fairseq", "source": PLACE, "place": "/srv/code/fairseq"}]
    yield two
    two.invoke("down", "--name", "own", check=False)


def seen(mesh, *words):
    """What every node says that it imports, and what the run recorded."""
    done = mesh.invoke("run", "fairseq", "--name", "own", "--launcher", "each", "--json", *words,
                        "--", "python3", "-W", "ignore", "-c", SEEN, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    log = (ROOT / "reports" / "runs" / "own" / f"{record['name']}.log").read_text()
    lines = [line.split("SEEN ", 1)[1] for line in log.splitlines() if "SEEN " in line]
    return sorted(lines), record, done.stderr


def test_edits_show_compiled_modules_stay_and_fixes_are_in_copies(mesh):
    file = "/srv/code/fairseq/fairseq/__init__.py"
    lines, record, said = seen(mesh)
    assert lines == sorted(f"{name} 1 {file} True True False" for name in mesh.hosts)
    assert "your tree lacks 1 fix of the image" in said
    assert "fairseq-fsdp-cpu" in said
    (own,) = record["shown"]["own_code"]
    assert own.startswith(f"fairseq from {PLACE}, content sha256:")
    # An edit is in the next job; the tree itself is not repaired.
    on_all(mesh, "sed", "-i", "s/EDITED = 1/EDITED = 2/", f"{PLACE}/fairseq/__init__.py")
    lines, later, _ = seen(mesh)
    assert [line.split()[1] for line in lines] == ["2"] * len(mesh.hosts)
    assert later["shown"]["own_code"] != record["shown"]["own_code"]
    for host in mesh.hosts.values():
        assert NORM in host.run("grep", "total_norm =", f"{PLACE}/fairseq/trainer.py")


def refused(mesh, *words):
    done = mesh.invoke("run", "fairseq", "--name", "own", "--launcher", "each", *words, "--",
                        "true", check=False)  # fmt: skip
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_what_would_not_be_the_same_code_is_refused_before_the_run(mesh):
    train = mesh.hosts["train"]
    train.run("sh", "-c", f"echo '# other' >> {PLACE}/fairseq/__init__.py")
    text = refused(mesh)
    assert "on train is not the tree that study has" in text
    assert "invoke sync" in text
    train.run("sed", "-i", "/# other/d", f"{PLACE}/fairseq/__init__.py")
    on_all(
        mesh, "sed", "-i", "s/total_norm.cuda()/mine(total_norm)/", f"{PLACE}/fairseq/trainer.py"
    )
    text = refused(mesh)
    assert "1 fix of this stack does not fit /srv/code/fairseq" in text
    assert "--despite fairseq-fsdp-cpu" in text
    lines, record, _ = seen(mesh, "--despite", "fairseq-fsdp-cpu")
    assert [line.split()[4] for line in lines] == ["False"] * len(mesh.hosts)
    assert record["shown"]["own_code"][0].endswith("without fairseq-fsdp-cpu")


def test_a_mesh_that_is_up_or_a_host_without_the_tree_says_what_to_type(mesh):
    text = refused(mesh, "--overlay", "/root/elsewhere")
    assert "is up without /root/elsewhere for fairseq" in text
    other = ("up", "fairseq", "--gpus", "0", "--name", "other")
    done = mesh.invoke(*other, "--overlay", "/root/elsewhere", check=False)
    assert done.returncode == 3
    assert "it has no folder /root/elsewhere" in done.stderr
    done = mesh.invoke(*other, "--image", "stackyard/megatron:cpu", check=False)
    assert done.returncode == 3
    assert "is megatron on cpu, not fairseq on cpu" in done.stderr
