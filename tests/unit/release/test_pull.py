"""Pulls onto hosts: what hosts answer, and how it is shown."""

import errno
import io
import os
from types import SimpleNamespace

import pytest
from rich.console import Console

from stackyard.cli.release_view import (
    progress_text,
    pull_table,
    pulled_line,
    refusal_lines,
    release_table,
)
from stackyard.release import goods, pull
from stackyard.release.parcel import WholeFile
from stackyard.release.receiver import Progress, Receiver, read_answer
from stackyard.system.errors import StackyardError

SAID = """have 123
user ann
disk /dev/vda1 100 50 4711 52% /
program ssh /usr/bin/ssh
program sshd /usr/sbin/sshd
keys /dev/shm/stackyard-pull.x
"""


def test_a_host_s_answer_is_read():
    told = {}
    assert all(read_answer(line, told) for line in SAID.splitlines())
    assert told["keys"] == "/dev/shm/stackyard-pull.x"
    assert (told["have"], told["user"], told["disk"]) == ("123", "ann", "4711")
    assert told["programs"].split() == ["ssh", "sshd"]


@pytest.mark.parametrize(
    "line",
    ["disk", "disk a b c d", "have much", "sshd: bind to port 2222: refused", "user a b", "",
     "user"],
)  # fmt: skip
def test_other_lines_are_no_answer(line):
    told = {}
    assert not read_answer(line, told) and told == {}


def receiver():
    return Receiver(SimpleNamespace(host=SimpleNamespace(name="study")), Progress(size=100))


def heard(*lines):
    """A host in a pull that has said these lines."""
    found = receiver()
    found.progress.become("receiving")
    for line in lines:
        found._heard(line)
    return found


def test_a_host_that_has_all_bytes_loads_and_ends_loaded():
    assert heard(*SAID.splitlines(), "serving", "at 99").progress.state == "loading"
    mark = heard("have 10", "at 60", "at 100").progress
    assert (mark.state, mark.moved) == ("loading", 90)
    mark = heard("at 60", "loaded", "at 0").progress
    assert (mark.state, mark.moved) == ("loaded", 100)


def test_a_host_that_fails_says_why_with_its_last_words():
    mark = heard("no space left", "failed its engine did not take the image", "at 100").progress
    assert mark.state == "failed"
    assert mark.why == "its engine did not take the image: no space left"


@pytest.mark.parametrize("missing", ["have", "user", "disk", "keys"])
def test_a_shell_that_answers_otherwise_is_told(missing):
    lines = [line for line in SAID.splitlines() if not line.startswith(missing)]
    with pytest.raises(StackyardError, match="cannot take the image"):
        heard(*lines, "serving")._require_started()


def test_a_host_that_never_serves_is_told_with_what_it_said():
    with pytest.raises(StackyardError, match="cannot take the image") as caught:
        heard(*SAID.splitlines(), "sshd: bind: refused")._require_started()
    assert caught.value.why == "sshd: bind: refused"


def test_a_host_without_sshd_is_told():
    lines = [line for line in SAID.splitlines() if "sshd" not in line]
    with pytest.raises(StackyardError, match="no sshd"):
        heard(*lines, "serving")._require_started()


def test_a_wrong_signature_is_told_before_anything_is_sent():
    with pytest.raises(StackyardError, match="signature is wrong"):
        heard(*SAID.splitlines(), "failed its signature is wrong: x")._require_started()


@pytest.mark.parametrize(
    ("info", "takes"),
    [
        ({"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]]}, True),
        ({"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}, False),
        ({}, True),
    ],
)
def test_an_engine_with_containerd_s_store_gets_whole_parcels(info, takes):
    assert goods.takes_parts(info) is takes


class Host:
    """Takes whatever is sent, and counts the rounds in which something was."""

    running = True

    def __init__(self):
        self.progress, self.rounds = Progress(state="receiving", size=10), 0

    def beat(self):
        """It needs none."""

    def feed(self, start):
        self.rounds += 1
        return SimpleNamespace(write=lambda data: True, finish=lambda s: 0, end=lambda: None)


def failing(monkeypatch, blobs):
    """A pull onto one host, as far as the sending of the parcel; and that host."""
    monkeypatch.setattr(pull, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(pull, "STALL_SECONDS", 0.1)
    links = {"study": SimpleNamespace(host=SimpleNamespace(name="study"))}
    found = pull.Puller(links, {}, None, None, b"", blobs, lambda marks: None)
    host = Host()
    monkeypatch.setattr(found, "_start", lambda *_: found._receivers.update(study=host))
    monkeypatch.setattr(found, "_route", lambda names: True)
    monkeypatch.setattr(found, "_end", lambda: None)
    found.progress["study"] = host.progress
    whole = WholeFile(digest="sha256:1", size=10)
    brought = SimpleNamespace(ask=lambda link: True, pack=lambda lacking: whole)
    return lambda: found.pull(brought), host


def test_a_disk_that_fails_here_ends_a_pull_and_is_no_host_s_fault(monkeypatch):
    def blobs(digest, start):
        yield b"some"
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/home/ann/.cache/file")

    run, host = failing(monkeypatch, blobs)
    with pytest.raises(StackyardError, match="on this machine") as caught:
        run()
    assert "Input/output error: '/home/ann/.cache/file'" in caught.value.why
    assert host.rounds == 1 and "the way to it broke" not in host.progress.why


def test_bytes_that_were_there_do_not_count_as_moved():
    mark = Progress(at=100)
    mark.reached(150)
    mark.reached(150)
    assert (mark.at, mark.moved) == (150, 50)


def test_all_hosts_are_on_one_line_with_the_time_of_the_slowest():
    text = progress_text(
        {
            "a": Progress(state="receiving", at=50, size=100, rate=10e6),
            "b": Progress(state="loading"),
            "c": Progress(state="receiving", at=0, size=100_000_000, rate=10e6),
        }
    )
    assert text == "a 50 % 10 MB/s, b loading, c 0 % 10 MB/s; 10 s left"


def shown(table):
    out = io.StringIO()
    Console(file=out, width=140).print(table)
    return out.getvalue()


def test_a_pull_is_a_table_of_its_hosts():
    mark = {"seconds": 3.0, "bytes": 5e6, "digest": "sha256:0123456789abcdef", "why": ""}
    hosts = {"a": {**mark, "state": "pulled"}, "b": {**mark, "state": "failed", "why": "is down"}}
    value = {"release": "x-r1", "from_registry_bytes": 5e6, "seconds": 4, "hosts": hosts}
    text = shown(pull_table(value))
    assert "0123456789ab" in text and "is down" in text
    assert pulled_line(value) == "x-r1: 5 MB from the registry, 10 MB to 2 hosts, 4.0 s"
    cached = pulled_line({**value, "from_registry_bytes": 0})
    assert "0 MB from the registry (this machine held the rest), 10 MB to 2 hosts" in cached
    for one in hosts.values():
        one["bytes"] = 0
    held = pulled_line({**value, "from_registry_bytes": 0})
    assert held == "x-r1: nothing had to be moved, 4.0 s"


def test_releases_that_cannot_be_believed_say_why():
    good = {"name": "a-r1", "believed": True, "bytes": 1e6, "proven": False, "signer": "ann",
            "created": "2026-01-01T10:11:12", "digest": "sha256:0123456789abcdef",
            "needs_gpus": False, "evidence": []}  # fmt: skip
    refused = [{"name": f"b-r{n}", "believed": False, "why": "there is no file"} for n in (1, 2)]
    rows = [{**good, "evidence_refused": ["not signed"]}, *refused]
    text = shown(release_table(rows))
    assert "ann" in text and text.count("not believed") == 2
    assert "CPU ranks" not in text
    assert "CPU ranks; smoke by ann" in shown(release_table([{**good, "proven": True}]))
    said = ["b-r1, b-r2: not believed: there is no file", "a-r1: not signed"]
    assert refusal_lines(rows) == said
