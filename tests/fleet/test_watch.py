"""`invoke status --watch` of a training over two hosts, whose GPUs a stand-in for python3 shows."""

from __future__ import annotations

import json
import os
import pty
import re
import secrets
import signal
import struct
import subprocess
import termios
from fcntl import ioctl

import pytest

from stackyard.definitions.project import ROOT
from tests.schemas.published import refused as unfit

UPDATES = 100000
# What the light mode of inside/health.py printed of two H100: one computes, one waits for it.
COMPUTES = {"busy_percent": 97, "memory_busy_percent": 29, "memory_bytes": 85520809984,
            "memory_free_bytes": 82955075584, "memory_used_bytes": 2565734400,
            "power_mw": 689808, "power_limit_mw": 700000}  # fmt: skip
WAITS = COMPUTES | {"busy_percent": 100, "power_mw": 121321}


def python3(*gpus):
    """A python3 that knows one program: it reads it, and prints these GPUs."""
    found = [{"index": index, "uuid": "", "name": "NVIDIA H100", "bus": "",
              "values": values, "unread": {}, "links": [], "lost": ""}
             for index, values in enumerate(gpus)]  # fmt: skip
    said = {"version": 1, "driver": "580", "no_gpus": "", "nvml": "", "gpus": found,
            "kernel": {"unread": "it was not asked", "whole": False, "xids": []},
            "shm_bytes": None}  # fmt: skip
    return (
        f"#!/bin/sh\n[ \"$*\" = '-I - --load' ] && cat > /dev/null && echo '{json.dumps(said)}'\n"
    )


@pytest.fixture
def trains(yard):
    """A mesh over two hosts, a training in it, and two GPUs on each host."""
    two, name = yard.only("study", "train"), f"watch-{secrets.token_hex(3)}"
    for host, gpus in (("study", (COMPUTES, COMPUTES)), ("train", (COMPUTES, WAITS))):
        place = "cat > /usr/local/bin/python3; chmod +x /usr/local/bin/python3"
        subprocess.run(["docker", "exec", "-i", two.hosts[host].container, "sh", "-c", place],
                       input=python3(*gpus), text=True, check=True)  # fmt: skip
    two.invoke("up", "accelerate", "--gpus", "0", "--name", name)
    more = ("--example", "ddp-tcp", "--set", f"updates={UPDATES}", "--detach")
    two.invoke("run", "accelerate", "--gpus", "0", "--name", name, *more)
    yield two, name
    two.invoke("down", "--name", name)
    for host in two.hosts.values():
        host.run("rm", "/usr/local/bin/python3")


def job_of(two, name, *more):
    value = json.loads(two.invoke("status", "--name", name, "--json", *more).stdout)
    (run,) = value["runs"]
    return value, run["jobs"][-1]


def watched(two, name, until):
    """`status --watch` in a terminal, until a text and then Ctrl-C; its output and exit code."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    words = ["status", "--watch", "--hosts", two.inventory, "--name", name]
    said = b""
    with subprocess.Popen([ROOT / ".venv/bin/invoke", *words], cwd=ROOT, stdin=subprocess.DEVNULL,
                          stdout=theirs, stderr=theirs, start_new_session=True,
                          env={**os.environ, "TERM": "xterm"}) as child:  # fmt: skip
        os.close(theirs)
        try:
            while part := os.read(ours, 65536):
                said += part
                if said.count(until) > 1:
                    child.send_signal(signal.SIGINT)
                    until = b"never"
        except OSError:
            pass  # the terminal's other end is closed
    os.close(ours)
    # Ctrl-C may cut the drawing of a table in the middle of a character.
    return said.decode(errors="replace"), child.returncode


def test_a_training_over_two_hosts_is_watched_with_the_gpus_of_both(trains):
    two, name = trains
    for _ in range(60):
        value, job = job_of(two, name, "--watch")
        if job["updates_per_second"]:
            break
    assert job["updates_per_second"] > 0, two.invoke("logs", "--name", name).stdout[-3000:]
    assert (job["shown"]["updates"], unfit("answers/status", value)) == (UPDATES, [])
    # Every tenth loss is printed.
    said = two.invoke("logs", "--name", name).stdout
    printed = [float(one) for one in re.findall(r"update \d+/\d+ loss ([0-9.]+)", said)]
    assert min(printed) - 0.2 < job["loss"] < max(printed)
    marks = {one["host"]: [gpu["waits"] for gpu in one["gpus"]] for one in value["gpus"]}
    assert marks == {"study": [False, False], "train": [False, True]}

    said, code = watched(two, name, b"updates/s")
    assert code == 0, said
    assert f"of {UPDATES:,}, loss " in said and " to go" in said
    assert "690 690 of 700" in said and "97 100!" in said

    two.invoke("stop", "--now", "--name", name)
    ended = two.invoke("status", "--watch", "--name", name).stdout
    assert ended.count("failed: it was") == 1, ended
