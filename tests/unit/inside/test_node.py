"""A node between its start and sshd's: the environment of sessions, and the material it takes."""

import io
import os
import signal
import sys
import tarfile
import threading
import time

import pytest

from stackyard.inside import node
from stackyard.system.archive import pack


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, ""),
        ({"B": "2", "A": "1"}, 'SetEnv "A=1" "B=2"\n'),
        ({"A": "two words"}, 'SetEnv "A=two words"\n'),
        ({"A": 'say "x"'}, 'SetEnv "A=say \\"x\\""\n'),
        ({"A": "back\\slash"}, 'SetEnv "A=back\\\\slash"\n'),
        ({"A": ""}, 'SetEnv "A="\n'),
        ({"A": "two\nlines", "B": "car\rriage"}, ""),
        ({"1A": "x", "A.B": "x", "A-B": "x", "_A1": "x"}, 'SetEnv "_A1=x"\n'),
        ({"HOME": "/x", "PWD": "/x", "SHLVL": "1", "_": "x", "PATH": "/p"}, 'SetEnv "PATH=/p"\n'),
    ],
)
def test_sessions_get_the_containers_environment_on_one_line(environment, line):
    assert node.environment_line(environment) == line


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "ROOT", tmp_path / "stackyard")
    return node.ROOT


def install(monkeypatch, archive):
    """Install what arrives, with somebody waiting at the gate."""
    gate = node._gate()
    waiting = threading.Thread(target=lambda: os.close(os.open(gate, os.O_RDONLY)), daemon=True)
    waiting.start()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(archive)))
    node.install()
    waiting.join(timeout=5)
    assert not waiting.is_alive()


def test_material_arrives_whole_private_and_opens_the_gate(root, monkeypatch):
    install(monkeypatch, pack({"host_key": b"private", "port": b"2222\n"}, mode=0o600))
    mesh = root / "mesh"
    assert {p.name: p.read_bytes() for p in mesh.iterdir()} == {
        "host_key": b"private", "port": b"2222\n",
    }  # fmt: skip
    assert {p.stat().st_mode & 0o777 for p in mesh.iterdir()} == {0o600}
    assert mesh.stat().st_mode & 0o777 == 0o700
    assert not (root / "arriving").exists()


def test_the_gate_opens_also_for_a_node_that_waits_a_moment_later(root):
    gate = node._gate()

    def wait():
        time.sleep(0.05)
        os.close(os.open(gate, os.O_RDONLY))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    node._open_gate(gate)
    waiting.join(timeout=5)
    assert not waiting.is_alive()


def test_a_node_that_went_on_by_itself_needs_no_gate(root):
    gate = node._gate()
    (root / "sshd.pid").write_text("1")
    assert node._open_gate(gate, seconds=0) is None


def test_a_node_that_never_waits_is_said(root):
    with pytest.raises(SystemExit, match="does not wait for its material"):
        node._open_gate(node._gate(), seconds=0.02)


@pytest.mark.parametrize("name", ["../escape", "folder/key", ".hidden", "/etc/passwd"])
def test_a_member_that_is_no_plain_name_is_refused(root, monkeypatch, name):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack({name: b"x"}))))
    with pytest.raises(SystemExit, match="unexpected member"):
        node.install()
    assert not (root / "mesh").exists()


def test_a_link_is_refused(root, monkeypatch):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("key")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/shadow"
        archive.addfile(link)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(buffer.getvalue())))
    with pytest.raises(SystemExit, match="unexpected member 'key'"):
        node.install()


def test_a_second_installation_does_not_replace_the_first(root, monkeypatch):
    install(monkeypatch, pack({"port": b"1\n"}))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack({"port": b"2\n"}))))
    with pytest.raises(OSError, match="File exists"):
        node.install()
    assert (root / "mesh" / "port").read_bytes() == b"1\n"


@pytest.fixture
def forked(monkeypatch, root):
    """The process beside a node's program, without a fork: its clock, and what it killed."""
    root.mkdir()
    now, killed = [0.0], []
    monkeypatch.setattr(node, "JOINED", root / "joined")
    monkeypatch.setattr(node.os, "fork", lambda: 0)
    monkeypatch.setattr(node.os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(node.os, "_exit", lambda code: None)
    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now, killed


def test_a_node_that_nobody_joins_ends_its_container_after_its_time(forked):
    now, killed = forked
    node.end_unless_joined(30)
    assert killed == [(1, signal.SIGTERM)]
    assert 30 <= now[0] <= 31


def test_a_node_that_is_joined_stays(forked, root):
    (root / "joined").touch()
    node.end_unless_joined(30)
    assert forked[1] == []


def test_the_nodes_own_program_goes_on_beside_it(monkeypatch):
    monkeypatch.setattr(node.os, "fork", lambda: 7)
    monkeypatch.setattr(node.os, "_exit", lambda code: pytest.fail("ended"))
    assert node.end_unless_joined(0) is None
