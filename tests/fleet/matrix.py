"""The kill matrix of runs over hosts: end a training in every way, and see that nothing is left.

One cell is one attached `invoke run` in a mesh of its own over three hosts, and one thing killed
(or cut off) once its ranks make updates. Used by the tests here and by `benchmarks/run`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stackyard.definitions.project import ROOT
from tests.fleet.emulated import EmulatedHost, Yard

LEASE_SECONDS = 8.0
# The lease, the beat in which its end is noticed, and the killing and removing on a busy machine.
ALLOWED_SECONDS = LEASE_SECONDS + 4.0
START_SECONDS = 150.0
# What is frozen is lost: nothing of it has ended, and the run ends all the same. Only the
# controller's ssh is replaced within that time, and the run goes on.
HELPER = "helper stopped"
FREEZES = (
    "launcher stopped", "rank stopped", "supervisor stopped", "container paused",
    "first container paused", HELPER,
)  # fmt: skip
TARGETS = (
    "controller", "launcher", "agent", "rank", "container", "engine", "network", *FREEZES,
)  # fmt: skip
# What is seen in every run of the tests: a run whose controller dies, and one with a host that is
# cut off. Everything else that can be killed, in every stack, is repetition.
FIRST = {("fairseq", "controller"), ("fairseq", "network")}
EXAMPLES = {"fairseq": "gpt2-fsdp", "megatron": "gpt-tp", "accelerate": "llama-zero2"}
NODES = "study@train"
# A frozen part is named.
NAMED = {
    "launcher stopped": r"process \d+ on study is stopped for 8 s",
    "rank stopped": r"rank 1 \(train\) is stopped for 8 s",
    "supervisor stopped": "study on study does not answer",
    "container paused": "node train is gone: nothing was heard for 8 s",
    "first container paused": "contact was lost: study on study does not answer",
}


class Memory(Protocol):
    """Look at the memory of the GPUs that the hosts have, from outside of them."""

    def held(self) -> Mapping[str, int]:
        """Return the bytes in use beyond those of idle GPUs, by UUID."""

    def until_free(self) -> Mapping[str, int]:
        """Wait, within bounds, until nothing is held; return what is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranks:
    """Where the trainings run.

    Attributes:
        words: options of `invoke run` for it.
        values: of the examples, by stack.
        memory: of the GPUs; None for CPU ranks.
    """

    words: Sequence[str] = ("--gpus", "0")
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    memory: Memory | None = None


CPU = Ranks()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """What one cell came to.

    Attributes:
        seconds: from the kill until nothing of the run was left on any host, or until it went on
            without the helper; None: something was, or it did not.
        ended: until `invoke` had ended.
        held: bytes of GPU memory while it trained, by UUID; `held_after` when all had ended.
    """

    stack: str
    target: str
    seconds: float | None
    ended: float
    code: int | None
    left: dict[str, list[str]]
    said: str
    held: Mapping[str, int] = dataclasses.field(default_factory=dict)
    held_after: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def wrong(self) -> list[str]:
        """Return what should not be so; nothing of a cell that passed."""
        found = [] if self.seconds is not None else [f"left: {self.left}"]
        code = {HELPER: 130}.get(self.target, 1)
        if self.code == 0 if self.target == "controller" else self.code != code:
            found.append(f"invoke ended with {self.code}")
        if not re.search(NAMED.get(self.target, ""), self.said):
            found.append(f"it does not say {NAMED[self.target]!r}")
        # A look that does not see a training proves nothing afterwards.
        found += [f"no memory of {gpu} was held by the training, as it seems"
                  for gpu, held in self.held.items() if held <= 0]  # fmt: skip
        found += [
            f"{held} bytes of {gpu} are held" for gpu, held in self.held_after.items() if held
        ]
        return [f"{one}; it said: {self.said}" for one in found]


class Attached:
    """One attached run under way."""

    def __init__(self, yard: Yard, stack: str, name: str, ranks: Ranks = CPU) -> None:
        self.name = name
        self.lines: list[str] = []
        self._training, self._broken = threading.Event(), False
        self.again = threading.Event()
        words = [
            "run", stack, *ranks.words, "--hosts", yard.inventory, "--name", name, "--example",
            EXAMPLES[stack], "--include", NODES, "--lease", f"{LEASE_SECONDS:g}", "--set",
            ",".join(("updates=20000", *filter(None, [ranks.values.get(stack)]))),
        ]  # fmt: skip
        self.child = subprocess.Popen(
            [ROOT / ".venv/bin/invoke", *words], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.child.stdout:
            self.lines.append(line)
            if re.search(r"update 10 |num_updates=10,", line):
                self._training.set()
            self._broken = self._broken or "the line to study is broken" in line
            if self._broken and re.search(r"update \d+ |num_updates=\d+,", line):
                self.again.set()
        self._training.set()

    def wait_training(self) -> None:
        """Until the ranks make updates."""
        assert self._training.wait(START_SECONDS), self.said
        assert self.child.poll() is None, self.said

    @property
    def said(self) -> str:
        """The last that it printed."""
        return "".join(self.lines[-25:])

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None when it runs on."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it, whatever it does."""
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        self._reader.join(timeout=10)
        self.child.stdout.close()


def play(yard: Yard, stack: str, target: str, ranks: Ranks = CPU) -> Cell:
    """One cell; the hosts are whole again afterwards."""
    run = Attached(yard, stack, f"cell-{secrets.token_hex(3)}", ranks)
    held: Mapping[str, int] = {}
    held_after: Mapping[str, int] = {}
    try:
        run.wait_training()
        if ranks.memory is not None:
            held = ranks.memory.held()
        struck(yard, run, target)
        started = time.monotonic()
        on_again = target == HELPER and run.again.wait(ALLOWED_SECONDS)
        went_on = time.monotonic() - started
        if target == HELPER:
            run.child.send_signal(signal.SIGINT)
        if target in ("engine", "network"):
            seconds, left = _until_silent(yard, ALLOWED_SECONDS)
        else:
            seconds, left = yard.until_gone(ALLOWED_SECONDS)
        code = run.wait(60)
        ended = time.monotonic() - started
        if target == "engine":
            yard.hosts["train"].start_engine()
        if target == "network":
            yard.hosts["train"].mend()
        if not left:
            # What an engine or a host that was away still has on its list goes when it is back.
            _, left = yard.until_gone(20)
        if ranks.memory is not None:
            held_after = ranks.memory.until_free()
    finally:
        run.close()
    whole = not left and seconds <= ALLOWED_SECONDS
    if target == HELPER:
        whole, seconds = not left and on_again, went_on
    return Cell(stack=stack, target=target, seconds=round(seconds, 1) if whole else None,
                ended=round(ended, 1), code=code, left=left, said=run.said,
                held=held, held_after=held_after)  # fmt: skip


def _until_silent(yard: Yard, seconds: float) -> tuple[float, dict[str, list[str]]]:
    """As `until_gone`, but by processes alone: an engine that is gone lists nothing."""
    started = time.monotonic()
    while True:
        left = {name: found for name, h in yard.hosts.items() if (found := h.of_containers())}
        waited = time.monotonic() - started
        if not left or waited > seconds:
            return waited, left
        time.sleep(0.1)


def struck(yard: Yard, run: Attached, target: str) -> None:
    """Kill or freeze the target."""
    first, second = yard.hosts["study"], yard.hosts["train"]
    if target == "controller":
        os.kill(run.child.pid, signal.SIGKILL)
    elif target == "launcher":
        first.kill(_launcher(first))
    elif target == "launcher stopped":
        first.kill(_launcher(first), "STOP")
    elif target == "rank stopped":
        second.kill(second.ranks()[0], "STOP")
    elif target == "supervisor stopped":
        first.kill(_supervisor(first), "STOP")
    elif target == "container paused":
        second.run("docker", "pause", f"stackyard-{run.name}-train")
    elif target == "first container paused":
        first.run("docker", "pause", f"stackyard-{run.name}-study")
    elif target == HELPER:
        os.kill(login(run, first), signal.SIGSTOP)
    elif target == "agent":
        second.kill(second.infra.process.get(pid=second.ranks()[0]).ppid)
    elif target == "rank":
        second.kill(second.ranks()[0])
    elif target == "container":
        second.run("docker", "kill", f"stackyard-{run.name}-train")
    elif target == "engine":
        second.kill(second.infra.process.get(comm="dockerd").pid)
    elif target == "network":
        second.cut()
    else:
        raise AssertionError(target)


def login(run: Attached, host: EmulatedHost) -> int:
    """The controller's own ssh to a host, which carries the engine's socket."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(parent) == run.child.pid and b"-N" in words and host.address.encode() in words:
            return int(entry.name)
    raise AssertionError(f"no ssh to {host.name}: {run.said}")


def _supervisor(host: EmulatedHost) -> int:
    """The supervisor of the one run whose first node is on this host."""
    (found,) = (
        found
        for found in host.infra.process.filter(comm="python3")
        if "supervisor.py hold" in found.args
    )
    return int(found.pid)


def _launcher(host: EmulatedHost) -> int:
    """The supervisor's child that is neither its agent nor its ssh: the job's launcher."""
    process = host.infra.process
    children = process.filter(ppid=_supervisor(host))
    launchers = [c for c in children if c.comm != "ssh" and "agent.py" not in c.args]
    assert len(launchers) == 1, children
    return int(launchers[0].pid)
