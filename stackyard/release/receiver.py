"""Run one host's part in a pull: receive the parcel, pass it on, and track its progress.

Owns the program that runs on the host as long as the pull (`owner.sh` and `relay.sh`, over the
host's link) and the meaning of its lines. It must not decide which host passes the parcel to which.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stackyard.mesh import owner
from stackyard.mesh.link import HostError, Link
from stackyard.release.parcel import Sendable
from stackyard.release.relay import Stop
from stackyard.system import process
from stackyard.system.archive import pack

SCRIPTS = {path.name: path for path in (owner.SCRIPT, Path(__file__).with_name("relay.sh"))}
START_SECONDS, END_SECONDS = 30.0, 10.0
OVER = ("held", "pulled", "failed")


@dataclass
class Progress:
    """Track the progress of one host.

    Attributes:
        state: `waiting`, `receiving`, `loading`, `loaded`, and in the end `held`, `pulled` or
            `failed`.
        why: the reason, where it failed; `hint` is what to do about it.
        at: bytes of the parcel that the host has; `moved` of them came in this pull.
        rate: recent bytes per second.
        digest: the registry's digest of the image, once the host's engine has recorded it.
    """

    state: str = "waiting"
    at: int = 0
    moved: int = 0
    size: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    why: str = ""
    hint: str = ""
    digest: str = ""
    started: float = field(default_factory=time.monotonic)
    changed: float = field(default_factory=time.monotonic)

    def reached(self, count: int) -> None:
        """Record that the host now has `count` bytes of the parcel."""
        now = time.monotonic()
        if count > self.at:
            self.rate = 0.5 * self.rate + 0.5 * (count - self.at) / max(now - self.changed, 0.2)
            self.moved += count - self.at
            self.at, self.changed = count, now
        if self.state == "receiving" and self.at >= self.size:
            self.become("loading")

    def become(self, state: str) -> None:
        """Enter a state of the pull, and note the time; the last ones also fix its seconds."""
        self.state, self.changed = state, time.monotonic()
        if state in OVER or state == "loaded":
            self.seconds = round(self.changed - self.started, 2)

    def fail(self, what: str, why: str = "", hint: str = "") -> None:
        """Enter the state `failed`, with the reason and what to do about it."""
        self.hint = hint
        self.why = f"{what}: {why.splitlines()[-1]}" if why else what
        self.become("failed")


class Receiver:
    """Drive a host that lacks the image.

    Attributes:
        stop: address at which the other hosts reach it, once started.
    """

    def __init__(self, link: Link, progress: Progress) -> None:
        self.link, self.progress = link, progress
        self.stop: Stop | None = None
        self._answers: dict[str, str] = {}
        self._said: list[str] = []
        self._serving = threading.Event()
        self._given = False
        self._process: process.Companion | None = None

    def start(self, files: Mapping[str, bytes], parcel: Sendable, address: str, port: int) -> None:
        """Send the host its keys and its plan, and start its server for the other hosts.

        Raises:
            HostError: the host lacks a program, or its server did not start.
        """
        scripts = {name: path.read_bytes() for name, path in SCRIPTS.items()}
        data = pack({**scripts, **files}, mode=0o600)
        self.progress.become("receiving")
        words = owner.own_words(len(data), parcel.name, self.link.host.engine)
        self._process = process.Companion(self.link.words(*words), on_line=self._heard, held=True)
        self._process.write(data)
        self._given = True
        until = time.monotonic() + START_SECONDS
        while not self._serving.wait(0.05) and self._process.running and time.monotonic() < until:
            pass
        self._require_started()
        name = self.link.host.name
        self.stop = Stop(name=name, address=address, port=port, user=self._answers["user"])

    def _require_started(self) -> None:
        name, told = self.link.host.name, self._answers
        if "user" in told and not {"sshd", "ssh"} <= set(told["programs"].split()):
            raise HostError(name, "it has no sshd or no ssh that could pass the image on",
                            hint="--via registry lets every host pull by itself")  # fmt: skip
        if self.progress.why:
            raise HostError(name, self.progress.why)
        missing = {"have", "user", "disk", "keys"} - told.keys()
        if missing or not self._serving.is_set():
            raise HostError(name, "it cannot take the image from other hosts",
                            why="\n".join(self._said))  # fmt: skip

    @property
    def free_bytes(self) -> int:
        """Return the free bytes of the file system that holds its user's cache."""
        return int(self._answers["disk"]) * 1024

    @property
    def running(self) -> bool:
        """Return whether the connection to the host is open."""
        return self._process is not None and self._process.running

    @property
    def said(self) -> str:
        """Return the last line of output that is no answer or event."""
        return self._said[-1] if self._said else ""

    def beat(self) -> None:
        """Signal that the pull is alive: after `LEASE_SECONDS` without, the host ends its part."""
        running = self._process
        if running is not None and self._given:
            running.write(b"\n")

    def route(self, files: Mapping[str, bytes]) -> None:
        """Send the host the files that name its successors.

        Raises:
            HostError: the host does not answer.
        """
        self.link.send(pack(files, mode=0o600), "timeout", "30", "tar", "-x", "-C", self.keys)

    @property
    def keys(self) -> str:
        """Return the folder of the host's keys."""
        return self._answers["keys"]

    def feed(self, start: int) -> process.Companion:
        """Open a stream to the host and its successors for the parcel from byte `start` on."""
        words = self.link.words("sh", f"{self.keys}/relay.sh", "receive", self.keys, str(start))
        return process.Companion(words, held=True)

    def end(self) -> None:
        """End the program on the host, which then removes its own files."""
        if self._process is not None:
            self._process.finish(END_SECONDS)
            self._process.end()
            self._process = None

    def _heard(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "at" and rest.isdecimal():
            self.progress.reached(int(rest))
        elif word == "failed":
            self.progress.fail(rest, self.said)
        elif line == "loaded":
            self.progress.reached(self.progress.size)
            self.progress.become("loaded")
        elif line == "serving":
            self._serving.set()
        elif read_answer(line, self._answers):
            if word == "have":
                self.progress.at = int(rest)
        else:
            self._said = [*self._said[-20:], line]


def read_answer(line: str, told: dict[str, str]) -> bool:
    """Record the answer that a line holds, if any; return whether it holds one."""
    words: Sequence[str] = line.split()
    match words:
        case ["program", name, _]:
            told["programs"] = f"{told.get('programs', '')} {name}"
        case ["disk", _, size, _, free, *_] if size.isdecimal() and free.isdecimal():
            told["disk"] = free
        case ["have", count] if count.isdecimal():
            told["have"] = count
        case ["user" | "keys" as what, value]:
            told[what] = value
        case _:
            return False
    told.setdefault("programs", "")
    return True
