"""Files brought to all hosts and back: only what changed, from node to node."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

FILE = 150_000


@pytest.fixture(scope="module")
def mesh(three):
    three.invoke("up", "fairseq", "--gpus", "0", "--name", "copies")
    for name, host in three.hosts.items():  # the volume of /data outlives clusters, others' too
        host.run("docker", "exec", f"stackyard-copies-{name}", "rm", "-rf", "/data/code")
    yield three
    three.invoke("down", "--name", "copies")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """60 MB in 400 files that do not compress."""
    folder = tmp_path_factory.mktemp("tree") / "code"
    for number in range(400):
        path = folder / f"part-{number % 20}" / f"file-{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(FILE))
    (folder / "link").symlink_to("part-0")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("not wanted there")
    return folder


def digest(folder):
    """One hash of every file below a folder, as `sha256sum` of each gives it."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and ".git" not in path.parts:
            line = f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
            found.update(line.encode())
    return found.hexdigest()


def digest_on(host, path):
    script = (
        f"cd {path} && find . -type f | sed 's|^./||' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    )
    return host.run("docker", "exec", f"stackyard-copies-{host.name}", "sh", "-c", script).split()[
        0
    ]


def test_a_tree_reaches_all_hosts_once_from_here(mesh, tree):
    said = json.loads(
        mesh.invoke(
            "sync", str(tree), "--to", "/data", "--checksum", "--name", "copies", "--json"
        ).stdout
    )
    moved = {(copy["source"], copy["target"]): copy for copy in said["copies"]}
    assert set(moved) == {("here", "study"), ("study", "train"), ("study", "depot")}
    assert {copy["files"] for copy in moved.values()} == {400}
    assert all(copy["bytes"] > 400 * FILE for copy in moved.values()), moved
    wanted = digest(tree)
    assert {digest_on(host, "/data/code") for host in mesh.hosts.values()} == {wanted}
    listed = mesh.hosts["depot"].run(
        "docker", "exec", "stackyard-copies-depot", "ls", "-A", "/data/code"
    )
    assert ".git" not in listed.split() and "link" in listed.split()


def test_a_second_sync_moves_only_what_changed(mesh, tree):
    (tree / "part-3" / "file-3.bin").write_bytes(os.urandom(FILE))
    said = json.loads(
        mesh.invoke("sync", str(tree), "--to", "/data", "--name", "copies", "--json").stdout
    )
    assert [copy["files"] for copy in said["copies"]] == [1, 1, 1]
    assert all(copy["bytes"] < 2 * FILE for copy in said["copies"])
    assert {digest_on(host, "/data/code") for host in mesh.hosts.values()} == {digest(tree)}


def test_what_is_on_one_host_only_is_warned_of_before_a_run(mesh, tree):
    script = "import os; print('rank', os.environ['RANK'])"
    (tree / "say.py").write_text(script)
    mesh.invoke("sync", str(tree), "--to", "/data", "--name", "copies")
    mesh.hosts["train"].run(
        "docker",
        "exec",
        "stackyard-copies-train",
        "sh",
        "-c",
        "echo '# other' >> /data/code/say.py",
    )
    words = ("run", "fairseq", "--launcher", "plain", "--name", "copies")
    done = mesh.invoke(*words, "--", "/data/code/say.py")
    differs = "train differs from study in /data/code/say.py; invoke sync brings"
    assert differs in done.stderr
    # The folder that it works in counts, too.
    done = mesh.invoke(*words, "--folder", "/data/code", "--", "say.py")
    assert differs in done.stderr


def test_files_come_back_from_each_host_into_a_folder_of_its_own(mesh, tmp_path):
    for name, host in mesh.hosts.items():
        host.run("docker", "exec", f"stackyard-copies-{name}", "sh", "-c",
                 f"mkdir -p /data/out && echo {name} > /data/out/name")  # fmt: skip
    mesh.invoke("sync", "/data/out", "--back", "--to", str(tmp_path), "--name", "copies")
    assert {n: (tmp_path / n / "out" / "name").read_text().strip() for n in mesh.hosts} == {
        name: name for name in mesh.hosts
    }
    one = ("--include", "study", "--to", str(tmp_path / "one"), "--name", "copies")
    mesh.invoke("sync", "/data/out", "--back", *one)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["out"]
    assert (tmp_path / "one" / "out" / "name").read_text().strip() == "study"


def test_a_shared_folder_is_written_once(mesh, tmp_path):
    (tmp_path / "one.txt").write_text("once")
    said = json.loads(
        mesh.invoke(
            "sync", str(tmp_path / "one.txt"), "--to", "/shared", "--name", "copies", "--json"
        ).stdout
    )
    assert [(copy["source"], copy["target"]) for copy in said["copies"]] == [("here", "study")]
    assert (mesh.folder / "shared" / "one.txt").read_text() == "once"


def test_a_place_that_would_be_gone_with_the_node_is_refused(mesh, tmp_path):
    done = mesh.invoke("sync", str(tmp_path), "--to", "/root/code", "--name", "copies", check=False)
    assert done.returncode == 2
    assert "/root/code is in no folder of the hosts" in done.stderr
