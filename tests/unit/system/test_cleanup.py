"""What is undone when a process dies: told, taken back, and done by a warden."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stackyard.definitions.project import ROOT
from stackyard.system import cleanup, process, warden


class Told:
    def __init__(self):
        self.lines, self.finished = [], False

    def send(self, line):
        self.lines.append(json.loads(line))

    def finish(self):
        self.finished = True


def test_nothing_is_started_until_there_is_something_to_undo():
    with cleanup.guarded(lambda: pytest.fail("started")):
        pass


def test_what_is_made_and_undone_is_told_in_order():
    told = Told()
    with cleanup.guarded(lambda: told):
        with cleanup.undoing(cleanup.RUN, "a"):
            cleanup.promise(cleanup.PATH, "b")
        cleanup.kept(cleanup.PATH, "b")
        assert not told.finished
    assert told.finished
    assert told.lines == [["+", "run", "a"], ["+", "path", "b"], ["-", "run", "a"],
                          ["-", "path", "b"]]  # fmt: skip


def test_a_warden_that_is_gone_does_not_disturb():
    class Gone(Told):
        def send(self, line):
            raise BrokenPipeError

    with cleanup.guarded(Gone), cleanup.undoing(cleanup.RUN, "a"):
        pass


def test_a_temporary_folder_is_told_while_it_is_there():
    told = Told()
    with cleanup.guarded(lambda: told), cleanup.folder("test") as folder:
        assert folder.is_dir()
        assert told.lines == [["+", "path", str(folder)]]
    assert not folder.exists()
    assert told.lines[-1] == ["-", "path", str(folder)]


def test_an_owner_is_gone_only_when_its_process_is():
    mine = cleanup.owner()
    assert not cleanup.owner_is_gone(mine)
    place, pid, started = mine.split(" ")
    assert cleanup.owner_is_gone(f"{place} {pid} {int(started) + 1}")
    assert cleanup.owner_is_gone(f"{place} 4194304999 1")


@pytest.mark.parametrize("text", ["", "x", "elsewhere/pid:[1] 1 1", "  "])
def test_an_owner_of_another_machine_is_never_taken_for_gone(text):
    assert not cleanup.owner_is_gone(text)


def line(sign, kind, value):
    return json.dumps([sign, kind, value]).encode() + b"\n"


def test_what_was_taken_back_is_not_on_the_list():
    lines = [line("+", "path", "/a"), line("+", "run", "b"), line("-", "path", "/a"), b'["+", "ru']
    assert warden.read(lines) == [("run", "b")]


def test_processes_are_ended_before_what_they_make_is_removed(monkeypatch):
    done = []
    monkeypatch.setattr(warden, "end_group", done.append)
    monkeypatch.setattr(warden, "remove_run", done.append)
    monkeypatch.setattr(warden, "remove_image", done.append)
    monkeypatch.setattr(warden, "remove_path", lambda path: done.append(str(path)))
    warden.undo([("path", "/p"), ("image", "i"), ("run", "r"), ("group", "g")])
    assert done == ["g", "r", "i", "/p"]


def test_one_failure_keeps_nothing_else_from_being_undone(tmp_path, monkeypatch):
    def refuse(run):
        raise RuntimeError("no engine")

    monkeypatch.setattr(warden, "remove_run", refuse)
    (tmp_path / "left").mkdir()
    warden.undo([("run", "r"), ("path", str(tmp_path / "left"))])
    assert not (tmp_path / "left").exists()


def test_a_folder_is_removed_without_following_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("")
    (folder / "link").symlink_to(outside)
    warden.remove_path(folder)
    assert not folder.exists()
    assert (outside / "kept").exists()


def test_a_group_is_killed_only_if_it_is_still_the_same_process(allow_processes):
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    warden.end_group(f"{child.pid} 1")
    assert child.poll() is None
    warden.end_group(f"{child.pid} {cleanup.started_at(child.pid)}")
    assert child.wait(timeout=5) == -signal.SIGKILL


VICTIM = """
from stackyard.system import cleanup, process
with cleanup.guarded(process.Warden), cleanup.folder("victim") as folder:
    print(folder, flush=True)
    process.run(["sh", "-c", "echo $$; exec sleep 60"], on_line=lambda s: print(s, flush=True))
"""


def test_a_process_killed_outright_leaves_neither_folder_nor_child(allow_processes, tmp_path):
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)}, cwd=ROOT,
    )  # fmt: skip
    with victim:
        assert victim.stdout.readline().strip().startswith(str(tmp_path))
        child = int(victim.stdout.readline())
        assert alive(child)
        victim.kill()
        end = time.monotonic() + 10
        while (list(tmp_path.iterdir()) or alive(child)) and time.monotonic() < end:
            time.sleep(0.02)
    assert list(tmp_path.iterdir()) == []
    assert not alive(child)


def alive(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_a_warden_ends_with_an_empty_list_at_once(allow_processes):
    started = process.Warden()
    started.send(line("+", "path", "/nowhere"))
    started.send(line("-", "path", "/nowhere"))
    started.finish()
