"""One host in a pull: its part in passing the parcel on, and how far it is.

Owns the program that runs on the host as long as the pull (`owner.sh` and `relay.sh`, over the
host's link) and what its lines mean. It must not decide who passes the parcel to whom.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stackyard.mesh import owner
from stackyard.mesh.link import HostError, Link
from stackyard.release.parcel import Parcel
from stackyard.release.relay import Stop
from stackyard.system import process
from stackyard.system.archive import pack

SCRIPTS = {path.name: path for path in (owner.SCRIPT, Path(__file__).with_name("relay.sh"))}
START_SECONDS, END_SECONDS = 30.0, 10.0
OVER = ("held", "pulled", "failed")


@dataclass
class Progress:
    """How far one host is.

    Attributes:
        state: `waiting`, `receiving`, `loading`, `loaded`, and in the end `held`, `pulled` or
            `failed`.
        at: bytes of the parcel that are there; `moved` came in this pull.
        rate: bytes a second, lately.
        digest: the registry's digest of the image, once its engine knows it.
    """

    state: str = "waiting"
    at: int = 0
    moved: int = 0
    size: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    why: str = ""
    digest: str = ""
    started: float = field(default_factory=time.monotonic)
    changed: float = field(default_factory=time.monotonic)

    def reached(self, count: int) -> None:
        """So many bytes are there now."""
        now = time.monotonic()
        if count > self.at:
            self.rate = 0.5 * self.rate + 0.5 * (count - self.at) / max(now - self.changed, 0.2)
            self.moved += count - self.at
            self.at, self.changed = count, now
        if self.state == "receiving" and self.at >= self.size:
            self.become("loading")

    def become(self, state: str) -> None:
        """Enter a state."""
        self.state, self.changed = state, time.monotonic()
        if state in OVER or state == "loaded":
            self.seconds = round(self.changed - self.started, 2)

    def fail(self, what: str, why: str = "") -> None:
        """The host does not get the image."""
        self.why = f"{what}: {why.splitlines()[-1]}" if why else what
        self.become("failed")


class Receiver:
    """A host that lacks the image.

    Attributes:
        stop: where the others reach it, once it was started.
    """

    def __init__(self, link: Link, progress: Progress) -> None:
        self.link, self.progress = link, progress
        self.stop: Stop | None = None
        self._answers: dict[str, str] = {}
        self._said: list[str] = []
        self._serving = threading.Event()
        self._given = False
        self._process: process.Companion | None = None

    def start(self, files: Mapping[str, bytes], parcel: Parcel, address: str, port: int) -> None:
        """Give the host its keys and its plan, and have it take logins of the others.

        Raises:
            HostError: it lacks a program, or cannot.
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
        """Free where its user's cache is."""
        return int(self._answers["disk"]) * 1024

    @property
    def running(self) -> bool:
        """Whether contact with it stands."""
        return self._process is not None and self._process.running

    @property
    def said(self) -> str:
        """What it said last."""
        return self._said[-1] if self._said else ""

    def beat(self) -> None:
        """Let it know that the pull lives: it ends its part after `LEASE_SECONDS` without."""
        running = self._process
        if running is not None and self._given:
            running.write(b"\n")

    def route(self, files: Mapping[str, bytes]) -> None:
        """Tell it to whom it passes the parcel.

        Raises:
            HostError: it does not answer.
        """
        self.link.send(pack(files, mode=0o600), "timeout", "30", "tar", "-x", "-C", self.keys)

    @property
    def keys(self) -> str:
        """The folder of its keys."""
        return self._answers["keys"]

    def feed(self, start: int) -> process.Companion:
        """Something that takes the parcel from byte `start` on, for it and all behind it."""
        words = self.link.words("sh", f"{self.keys}/relay.sh", "receive", self.keys, str(start))
        return process.Companion(words, held=True)

    def end(self) -> None:
        """End its part: nothing of it is left on the host but what the engine has."""
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
    """Note what a line of the host's first ones says of it; whether it says something."""
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
