"""Making a base out of a machine's files: reading its Python, finding files, streaming them."""

import dataclasses
import json
import os
import queue
import re
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stackyard.build import base_host
from stackyard.build.base_host_files import Rules
from stackyard.build.buildkit import Client
from stackyard.system.errors import EngineError, StackyardError
from stackyard.system.image import ImageInfo
from stackyard.system.lockfile import exclusive
from tests.unit import samples
from tests.unit.build.test_base_host_files import found


@pytest.fixture
def tree(tmp_path):
    """A small machine: folders below the test's own, which stands for /."""
    for name in ("env/lib/a.py", "env/lib/jax.py", "env/pip.conf", "usr/bin/tool", "usr/lib/x.a",
                 "usr/share/doc/tool/README", "usr/home/secret"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("12345")
    (tmp_path / "usr/bin/link").symlink_to("/nowhere")
    (tmp_path / "usr/empty").mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    os.mkfifo(tmp_path / "usr/fifo")
    return tmp_path


def chosen(tree, monkeypatch, *, behind=(), **changes):
    """What is carried, as the rules see it: paths from the tree on."""

    class Inside(Rules):
        def forbidden(self, root):
            return super().forbidden(root.removeprefix(str(tree)))

    declared = samples.carried(**{"paths": (f"{tree}/usr*", f"{tree}/bin"), **changes})
    there = found(prefixes=(f"{tree}/env",))
    names, size = base_host.collect(declared, there, Inside(declared.host, behind))
    return [name.removeprefix(f"{tree}/") for name in names if name.startswith(f"{tree}/")], size


def test_files_and_links_are_carried_after_their_folders(tree, monkeypatch):
    names, size = chosen(tree, monkeypatch, exclude=("*.a", f"{tree}/usr/share/doc"))
    assert names == [
        "usr", "usr/home", "usr/home/secret", "usr/bin", "usr/bin/link", "usr/bin/tool",
        "bin", "env", "env/lib", "env/lib/a.py", "env/lib/jax.py",
    ]  # fmt: skip
    assert size == 4 * 5 + len("/nowhere") + len("usr/bin")


def test_what_is_left_behind_never_or_excluded_is_not_carried(tree, monkeypatch):
    names, _ = chosen(tree, monkeypatch, behind=(f"{tree}/env/lib/jax.py",))
    assert "env/lib/jax.py" not in names
    assert "env/pip.conf" not in names
    assert "usr/lib" not in names  # nothing of it is carried
    assert "usr/fifo" not in names


def test_a_path_below_what_is_never_carried_is_not_followed(tree):
    declared = samples.carried(paths=("/root",))
    names, size = base_host.collect(declared, found(prefixes=()), Rules(declared.host, ()))
    assert (names, size) == ([], 0)


# The Python


@pytest.mark.usefixtures("allow_processes")
def test_the_python_on_the_path_is_asked_in_isolation(monkeypatch, tmp_path):
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/no/such/path")
    read = base_host.probe()
    assert read.version == ".".join(map(str, sys.version_info[:3]))
    assert read.environment["platform_system"] == "Linux"
    assert (read.torch, read.cuda) == ("", "")
    assert "No module named 'torch'" in read.why_no_torch


@pytest.mark.usefixtures("allow_processes")
def test_without_any_python_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackyardError, match="python3 does not answer") as caught:
        base_host.probe()
    assert "first on PATH" in caught.value.hint


# The whole


class Holding:
    """An engine with an image, or none."""

    def __init__(self, labels=None):
        self.labels, self.tagged = labels, []

    def image(self, name):
        if self.labels is None:
            return None
        return ImageInfo(id="sha256:1", tags=(name,), labels=self.labels, env=(), size=1, layers=())

    def data_folder(self):
        return "/no/such/folder"

    def tag(self, reference, name):
        self.tagged.append((reference, name))
        self.labels = self.labels or {}


# What is carried of the machine that runs the tests: every one has it, where everybody may read.
CARRIED = "/usr/bin/env"


@pytest.fixture
def machine(monkeypatch, tmp_path, docker, allow_processes):
    """A base that fits this machine, whose python3 answers as one that has torch."""
    programs = tmp_path / "bin"
    programs.mkdir()
    answer = json.dumps(dataclasses.asdict(found(prefixes=("/opt/none-of-this-name",))))
    (programs / "python3").write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    (programs / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(base_host, "running_as_root", lambda: True)
    platform = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[os.uname().machine]
    return samples.carried(platform=platform, paths=(CARRIED,), given_system=())


def ensured(engine, base, docker):
    return base_host.ensure(engine, base, lambda: docker, lambda text: None)


def imports(tmp_path):
    """What the engine's client was told, a line for each base that was made."""
    told = tmp_path / "said"
    return told.read_text().splitlines() if told.exists() else []


def test_a_host_base_is_made_named_and_marked(machine, docker, tmp_path):
    engine = Holding()
    ensured(engine, machine, docker)
    (told,) = imports(tmp_path)
    assert told.startswith('import --change ENV A="1" --change ENV PATH="/usr/bin:/bin" --change ')
    assert re.search(r" --change LABEL stackyard\.host=[0-9a-f]{64} ", told)
    assert " --change LABEL stackyard.publish=never " in told
    with tarfile.open(tmp_path / "root.tar") as archive:
        files = [member.name for member in archive if not member.isdir()]
        assert files == [CARRIED[1:]]
        assert archive.extractfile(CARRIED[1:]).read() == Path(CARRIED).read_bytes()
    assert engine.tagged == [("sha256:abc", "stackyard/base:far")]


def test_a_host_base_that_is_current_is_not_made_again(machine, docker, tmp_path):
    ensured(Holding(), machine, docker)
    (told,) = imports(tmp_path)
    key = re.search(r"stackyard\.host=(\S+)", told)[1]
    ensured(Holding({"stackyard.host": key}), machine, docker)
    assert len(imports(tmp_path)) == 1
    ensured(Holding({"stackyard.host": "other"}), machine, docker)
    assert len(imports(tmp_path)) == 2


def test_without_room_nothing_is_imported(machine, docker, tmp_path, monkeypatch):
    monkeypatch.setattr(base_host, "free_bytes", lambda folder: 1)
    with pytest.raises(EngineError, match="the base takes"):
        ensured(Holding(), machine, docker)
    assert imports(tmp_path) == []


def test_a_machine_that_is_not_as_declared_is_refused(machine, docker, tmp_path, monkeypatch):
    bare = json.dumps(dataclasses.asdict(found(torch="", why_no_torch="No module named 'torch'")))
    (tmp_path / "bin/python3").write_text(f"#!/bin/sh\ncat <<'END'\n{bare}\nEND\n")
    with pytest.raises(StackyardError, match="has no torch"):
        ensured(Holding(), machine, docker)
    monkeypatch.setattr(base_host, "running_as_root", lambda: False)
    with pytest.raises(StackyardError, match="only root can read"):
        ensured(Holding(), machine, docker)
    assert imports(tmp_path) == []


def test_two_commands_make_a_base_one_after_the_other(machine, docker, tmp_path):
    said = queue.Queue()
    with ThreadPoolExecutor(1) as pool:
        with exclusive("base-far", lambda: None):
            second = pool.submit(base_host.ensure, Holding(), machine, lambda: docker, said.put)
            assert said.get(timeout=20) == "another command is making it: waiting"
            assert imports(tmp_path) == []
        second.result(20)
    assert len(imports(tmp_path)) == 1


def test_a_machine_that_lacks_what_the_base_is_said_to_have_is_refused(machine, docker, tmp_path):
    base = dataclasses.replace(machine, given_system=("no-package-of-this-name",))
    with pytest.raises(StackyardError, match="this machine lacks packages"):
        ensured(Holding(), base, docker)
    assert imports(tmp_path) == []


def test_only_root_can_make_one(monkeypatch):
    monkeypatch.setattr(base_host, "running_as_root", lambda: False)
    with pytest.raises(StackyardError, match="only root can read") as caught:
        base_host._require_machine(samples.carried())
    assert "invoke base far" in caught.value.hint


def test_another_platform_is_refused(monkeypatch):
    other = os.uname_result(("Darwin", "x", "1", "1", "arm64"))
    monkeypatch.setattr(base_host.os, "uname", lambda: other)
    with pytest.raises(
        StackyardError, match="far is for linux/amd64; this machine is Darwin arm64"
    ):
        base_host._require_machine(samples.carried())


def test_given_packages_must_be_there(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "g++").touch()
    (tmp_path / "g++.list").write_text(f"/.\n{tmp_path}/bin/g++\n{tmp_path}/lib/gone.so\n")
    (tmp_path / "openssh-client:amd64.list").write_text(f"/.\n{tmp_path}/bin/ssh\n")
    said = []
    given = samples.carried(given_system=("g++", "openssh-client"))
    base_host._require_given(given, said.append, tmp_path)
    assert said == [f"note: openssh-client is installed, but {tmp_path}/bin/ssh was removed"]
    with pytest.raises(StackyardError, match="this machine lacks packages") as caught:
        base_host._require_given(samples.carried(given_system=("g++", "g")), print, tmp_path)
    assert caught.value.what.endswith(" to have: g")
    assert "take them out of given_system" in caught.value.hint


# The stream


@pytest.fixture
def docker(tmp_path):
    """A client that keeps what it is given to import, and says an id."""
    program = tmp_path / "docker"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n'
        f'[ "$1" = import ] && cat > {tmp_path}/root.tar && echo sha256:abc\nexit 0\n'
    )
    program.chmod(0o755)
    return Client(path=str(program), buildx=False)


@pytest.mark.usefixtures("allow_processes")
def test_files_are_streamed_with_the_folders_of_every_root(docker, tmp_path):
    folder = tmp_path / "carried"  # not where the engine's client writes: tar minds a change
    folder.mkdir()
    file = folder / "with space\nand line"
    file.write_text("content")
    file.chmod(0o6755)
    made = base_host._import(docker, [str(folder), str(file)], ["ENV A=1", "CMD x"])
    assert made == "sha256:abc"
    with tarfile.open(tmp_path / "root.tar") as archive:
        listed = archive.getmembers()
    members = {member.name: member for member in listed}
    assert members["tmp"].mode == 0o1777
    assert members["root"].mode == 0o700
    assert len(members) == len(listed)  # no path twice
    assert members["usr/local"].mode == 0o755
    assert members[str(file)[1:]].size == 7
    assert members[str(file)[1:]].mode == 0o755
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["import --change ENV A=1 --change CMD x -"]


@pytest.mark.usefixtures("allow_processes")
def test_an_image_of_half_the_files_is_removed_again(docker, tmp_path):
    with pytest.raises(EngineError, match="could not be imported") as caught:
        base_host._import(docker, [str(tmp_path / "gone")], [])
    assert "gone" in caught.value.why
    assert (tmp_path / "said").read_text().splitlines()[-1] == "image rm sha256:abc"
