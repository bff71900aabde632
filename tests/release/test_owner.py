"""However a host's part in a pull is cut, nothing of it stays there: no key, no server, no process.

The real scripts run in a real shell. What they start on a host is a stand-in: these tests look at
who owns what, and `test_cuts.py` plays whole pulls.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stackyard.mesh import owner
from stackyard.release import receiver
from stackyard.system.archive import pack

LEASE = "2"
PARCEL = "0123"
KEYS = {"host_key": b"a private key\n", "sshd_config": b"", "plan": b"", "release.json": b"{}",
        "release.json.sig": b"", "signers": b"", "namespace": b"x", "next": b"b\n",
        "head-0": b"", "ssh_config": b""}  # fmt: skip
STAND_INS = {
    "sshd": '[ -e "$4" ] && exec sleep 600',
    "ssh": 'echo "$@" >> "$HOME/ssh"; exec sleep 600',
    "ssh-keygen": "echo somebody",
    "docker": 'echo "$@" >> "$HOME/docker"; if [ "$3" = load ]; then exec sleep 3; fi',
}
# A command of the start is one step; the test lets it go on, or cuts before it.
STEPPING = r"""
step() {
    [ "$BASHPID" = $$ ] || return 0
    case "${FUNCNAME[1]}" in own | host | authentic | note | main) ;; *) return 0 ;; esac
    printf . >&"$TOLD"; read -r -n 1 -u "$LET"
}
set -T; trap step DEBUG
"""
LOOSE_SECONDS = 10.0
WHOLE = 1000


class Host:
    """One host's part, in a shell here: its programs are stand-ins, its folder is real."""

    def __init__(self, folder: Path, shell: str, *, stepping: bool = False, plan: bytes = b""):
        self.mark = secrets.token_hex(8)
        programs = folder / "bin"
        if not programs.exists():
            programs.mkdir()
            for name, text in STAND_INS.items():
                (programs / name).write_text(f"#!/bin/sh\n{text}\n")
                (programs / name).chmod(0o755)
        self.over = threading.Event()
        self.home = folder / self.mark
        self.home.mkdir()
        scripts = {name: path.read_bytes() for name, path in receiver.SCRIPTS.items()}
        self.data = pack({**scripts, **KEYS, "plan": plan}, mode=0o600)
        words = list(owner.own_words(len(self.data), PARCEL, "/none"))
        words[0], words[4] = shell, LEASE
        if stepping:
            words[2] = STEPPING + words[2]
        told, let = os.pipe(), os.pipe()
        self.told, self.let = told[0], let[1]
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(self.home),
            "TOLD": str(told[1]), "LET": str(let[0]), "STACKYARD_TEST": self.mark,
        }  # fmt: skip
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, pass_fds=(told[1], let[0]), env=self.environment,
        )  # fmt: skip
        os.close(told[1])
        os.close(let[0])

    def give(self) -> None:
        """Give it its keys, and one line of life."""
        self.process.stdin.write(self.data + b"\n")
        self.process.stdin.flush()

    def keep_alive(self) -> None:
        """Send it a line several times a second, as a pull does every second, until it is cut."""

        def beat():
            with contextlib.suppress(OSError, ValueError):
                while not self.over.wait(0.2):
                    self.process.stdin.write(b"\n")
                    self.process.stdin.flush()

        threading.Thread(target=beat, daemon=True).start()

    def until_serving(self) -> None:
        """Read what it says until it takes logins."""
        for line in self.process.stdout:
            if line == b"serving\n":
                return
        raise AssertionError("it ended before it served")

    def steps(self, most: int) -> int:
        """Let so many commands of the start run; how many did before it waited for the pull."""
        for number in range(most):
            ready, _, _ = select.select([self.told], [], [], 2.0 if self.serves() else None)
            if not ready or os.read(self.told, 1) != b".":
                return number
            try:
                os.write(self.let, b"x")
            except BrokenPipeError:  # it was too slow for its lease
                return number
        return most

    def serves(self) -> bool:
        """Whether its stand-in for sshd runs."""
        return any((folder / "pid-keeper").exists() for folder in self.folders())

    def cut(self, how: str) -> None:
        """Cut it off, or send its owner a signal."""
        self.over.set()
        if how == "closed":
            self.process.stdout.close()
            self.process.stdin.close()
        elif how != "silent":
            self.process.send_signal(how)
        os.close(self.let)  # a shell that is stepped through goes on by itself

    def processes(self) -> list[str]:
        """What runs of it."""
        found = []
        for at in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (at / "environ").read_bytes():
                    found.append(f"{at.name} {(at / 'cmdline').read_bytes()[:80]!r}")
            except OSError:
                continue
        return found

    def folders(self) -> list[Path]:
        """Its folders of keys."""
        return [*Path("/dev/shm").glob(f"stackyard-pull.{self.process.pid}.*")]

    def left(self) -> list[str]:
        """What is left of it a while after the cut."""
        end = time.monotonic() + LOOSE_SECONDS
        while True:
            self.process.poll()
            found = [*map(str, self.folders()), *self.processes()]
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.3)

    def close(self) -> None:
        """Remove whatever is left."""
        self.over.set()
        self.process.kill()
        for line in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it ended since
                os.kill(int(line.split()[0]), signal.SIGKILL)
        for folder in self.folders():
            shutil.rmtree(folder)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        os.close(self.told)


@pytest.fixture
def start(tmp_path):
    """Start hosts; what a failed test left of them is removed."""
    with contextlib.ExitStack() as hosts:

        def started(*words, **how):
            host = Host(tmp_path, *words, **how)
            hosts.callback(host.close)
            return host

        yield started


CUTS = [
    "silent",
    signal.SIGKILL,
    *(
        pytest.param(how, marks=pytest.mark.repeat)
        for how in ("closed", signal.SIGHUP, signal.SIGSTOP)
    ),
]


@pytest.mark.parametrize("how", CUTS)
def test_a_cut_at_every_step_of_the_start_leaves_nothing(start, how):
    def cut_after(count):
        host = start("bash", stepping=True)
        host.give()
        made = host.steps(count)
        # Without a folder there is nothing yet that a frozen process could leave.
        if count == WHOLE or (how == signal.SIGSTOP and not host.folders()):
            return made, []
        host.cut(how)
        return made, host.left()

    total, _ = cut_after(WHOLE)
    assert 30 < total < WHOLE
    with ThreadPoolExecutor(total) as pool:
        left = {count: found for count, found in pool.map(cut_after, range(total)) if found}
    assert left == {}


@contextlib.contextmanager
def passing_on(host):
    """Log in as the host before this one, and send nothing more."""
    keys = str(host.folders()[0])
    with subprocess.Popen(
        ["sh", f"{keys}/relay.sh", "receive", keys, "0"], stdin=subprocess.PIPE,
        start_new_session=True, env=host.environment,
    ) as receiving:  # fmt: skip
        try:
            until((host.home / "ssh").exists)
            yield
            receiving.wait(LOOSE_SECONDS)  # though its input stays open
        finally:
            receiving.kill()


def until(true):
    """Wait for something."""
    end = time.monotonic() + LOOSE_SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("how", CUTS)
def test_a_cut_while_the_parcel_comes_leaves_nothing(start, how):
    host = start("sh", plan=b"image 10 10 10\n")
    host.give()
    host.until_serving()
    host.keep_alive()
    with passing_on(host):
        host.cut(how)
    assert host.left() == []


@pytest.mark.parametrize("how", CUTS)
def test_a_cut_while_the_engine_takes_a_part_leaves_no_part(start, how):
    host = start("sh", plan=b"stage 0 0 0 sha256:part\n")
    host.give()
    host.until_serving()
    until((host.home / "docker").exists)
    host.cut(how)
    assert host.left() == []
    assert (host.home / "docker").read_text().endswith("rmi sha256:part\n")


def test_the_next_pull_removes_what_outlived_its_owner_and_nothing_else(start):
    lost, other = start("sh"), start("sh")
    for host in (lost, other):
        host.give()
        host.until_serving()
    for line in lost.processes():
        if "sleep" not in line:  # the server alone goes on
            os.kill(int(line.split()[0]), signal.SIGKILL)
    lost.process.wait()
    script = f"{owner.OWNER}left\n"
    named = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert named.stdout.split() == [str(folder) for folder in lost.folders()] != []
    other.keep_alive()
    third = start("sh")
    third.give()
    third.until_serving()
    assert lost.left() == []
    assert len(other.folders()) == 1 and other.process.poll() is None
    assert subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout == b""
