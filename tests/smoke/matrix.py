"""The kill matrix: end a real smoke in every way it can end, and look what is left 10 s later.

One cell is one `invoke smoke STACK --gpus 0`, trained until its ranks make updates, and then one
signal to one part of it (or its network cut). Used by the tests here and by
`benchmarks/kill_matrix.py`.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml
from docker.errors import APIError

from stackyard.definitions.project import ROOT
from stackyard.system.engine import NODE_LABEL, OWNER_LABEL, RUN_LABEL, Engine
from tests.leftovers import labelled
from tests.shared import until
from tests.trees import copy_tree

STACKS = ("accelerate", "fairseq", "megatron")
TARGETS = ("invoke", "launcher", "agent", "rank", "container")
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")
CUT = ("network", "cut")
# What is frozen is lost: the run ends, although nothing of it has ended.
FREEZES = (
    ("container", "pause"), ("first container", "pause"),
    ("launcher", "SIGSTOP"), ("rank", "SIGSTOP"), ("supervisor", "SIGSTOP"),
)  # fmt: skip
CELLS = (*((target, name) for target in TARGETS for name in SIGNALS), CUT, *FREEZES)
# What is seen in every run of the tests: each way to end once, beside the other stacks' runs. Of a
# network that is cut tests/fleet/test_kill_matrix.py tells: the same supervisor notices it.
FIRST = (
    ("accelerate", "invoke", "SIGINT"),
    ("fairseq", "rank", "SIGKILL"),
    ("megatron", "container", "pause"),
)
ALLOWED_SECONDS = 10.0
START_SECONDS = 150.0
MARK = "STACKYARD_KILL_MATRIX"
AGENTS = ("torchrun", "deepspeed.launcher.launch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """What one cell came to.

    Attributes:
        seconds: from the signal until nothing was left; None when something was, after 10 s.
        left: what was left then.
        code: exit code of `invoke`.
        said: what it said in the end.
    """

    stack: str
    target: str
    signal: str
    node: str
    seconds: float | None
    left: tuple[str, ...]
    code: int | None
    said: str


def endless_tree(folder: Path) -> Path:
    """A copy of the project whose smokes begin with the layout that goes on until it is killed."""
    tree = copy_tree(folder)
    for stack in STACKS:
        path = tree / "images" / stack / "stack.yml"
        value = yaml.safe_load(path.read_text())
        smoke = value["smoke"]
        first = smoke["resume"]
        smoke["layouts"] = {first: smoke["layouts"][first], **smoke["layouts"]}
        smoke["updates"] = 1000
        path.write_text(yaml.safe_dump(value, allow_unicode=True, sort_keys=False))
    return tree


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _where(test) -> list[int]:
    """Processes of this machine, containers' included, for which `test` holds."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if test(int(entry.name)):
                    found.append(int(entry.name))
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    return found


def in_containers(ids: Iterable[str]) -> list[int]:
    """Host PIDs of the processes of some containers."""
    wanted = list(ids)
    return _where(
        lambda pid: (
            any(i in Path(f"/proc/{pid}/cgroup").read_text() for i in wanted)
            and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    )


def naming(text: str) -> list[int]:
    """Host PIDs of the processes whose environment holds a text."""
    return _where(lambda pid: text.encode() in Path(f"/proc/{pid}/environ").read_bytes())


def marked(token: str) -> list[int]:
    """Host PIDs of the processes that carry a cell's mark in their environment."""
    return naming(f"{MARK}={token}")


class Run:
    """One smoke under way."""

    def __init__(self, engine: Engine, tree: Path, stack: str) -> None:
        self.engine, self.stack, self.token = engine, stack, secrets.token_hex(8)
        self.scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=tree.parent))
        self.lines: list[str] = []
        self.run = ""
        self._training = threading.Event()
        self.child = subprocess.Popen(
            [ROOT / ".venv/bin/invoke", "smoke", stack, "--gpus", "0"],
            cwd=tree,
            env={**os.environ, MARK: self.token, "TMPDIR": str(self.scratch)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.child.stdout:
            self.lines.append(line)
            if "update 10/" in line:
                self._training.set()
        self._training.set()

    def wait_training(self) -> None:
        """Until the ranks make updates; learns the run's containers."""
        assert self._training.wait(START_SECONDS), "".join(self.lines[-30:])
        assert self.child.poll() is None, "".join(self.lines[-30:])
        found = self.engine._api.containers(filters={"label": OWNER_LABEL})
        mine = [c for c in found if c["Labels"][OWNER_LABEL].split()[1] == str(self.child.pid)]
        assert mine, f"it ended: {''.join(self.lines[-30:])}"
        self.run = mine[0]["Labels"][RUN_LABEL]
        self.nodes = {c["Labels"][NODE_LABEL]: c["Id"] for c in mine}

    def process(self, target: str, node: str) -> int:
        """The host PID of a part of the training."""
        # There is one launcher and one supervisor, and they are on the first node.
        where = self.nodes["node1" if target in ("launcher", "supervisor") else node]
        here = {pid: _command(pid) for pid in in_containers([where])}
        agents = [
            pid for pid, command in here.items()
            if any(word in command for word in AGENTS)
            and not command.startswith(("pdsh", "ssh", "sshd", "timeout", "bash", "sh "))
        ]  # fmt: skip
        if target == "agent":
            return agents[0]
        if target == "rank":
            return next(pid for pid in here if _parent(pid) in agents)
        supervisor = next(
            pid for pid, command in here.items()
            if "supervisor.py hold" in command and not command.startswith("sh ")
        )  # fmt: skip
        if target == "supervisor":
            return supervisor
        # Its other children are the agent beside it and the lines to the other nodes.
        return next(
            pid for pid, command in here.items()
            if _parent(pid) == supervisor and "agent.py" not in command
        )  # fmt: skip

    def hit(self, target: str, name: str, node: str) -> None:
        """Send one signal to one part, or cut a node off."""
        if target == "network":
            api = self.engine._api
            api.disconnect_container_from_network(self.nodes[node], f"stackyard-{self.run}")
        elif name == "pause":
            self.pause(self.nodes["node1" if target == "first container" else node])
        elif target == "container":
            self.engine._api.kill(self.nodes[node], signal=name)
        else:
            pid = self.child.pid if target == "invoke" else self.process(target, node)
            os.kill(pid, getattr(signal, name))

    def pause(self, container: str) -> None:
        """Freeze a container. runc gives up now and then while its processes are busy."""

        def is_frozen() -> bool:
            try:
                self.engine._api.pause(container)
            except APIError as error:
                if "unable to freeze" in str(error):
                    return False
                raise
            return True

        until(is_frozen, 20)

    def left(self) -> list[str]:
        """What there still is of this run."""
        pids = {*in_containers(self.nodes.values()), *marked(self.token)}
        processes = []
        for pid in pids:
            try:
                processes.append(f"process {pid}: {_command(pid)[:120]}")
            except OSError:
                continue
        files = [f"file {path.name}" for path in self.scratch.rglob("*")]
        return [*labelled(self.engine, f"{RUN_LABEL}={self.run}"), *processes, *files]

    def end(self) -> None:
        """Whatever happened: leave the machine as it was."""
        self.child.kill()
        self.child.wait()
        self._reader.join(timeout=10)
        self.child.stdout.close()
        if self.run:
            self.engine.remove_run(f"{RUN_LABEL}={self.run}")
        shutil.rmtree(self.scratch, ignore_errors=True)


def play(engine: Engine, tree: Path, stack: str, target: str, name: str, node: str) -> Cell:
    """Play one cell; nothing of it stays."""
    run = Run(engine, tree, stack)
    try:
        run.wait_training()
        run.hit(target, name, node)
        struck, seconds = time.monotonic(), None
        while time.monotonic() - struck <= ALLOWED_SECONDS:
            # A zombie is waited for by us only: it is no process that is left.
            code = run.child.poll()
            left = run.left()
            if not left:
                seconds = round(time.monotonic() - struck, 2)
                code = run.child.wait(timeout=10)
                break
            time.sleep(0.05)
        told = (" failed: ", " not run: ", "interrupted", "error: ")
        said = "".join(line for line in run.lines if any(word in line for word in told))
        return Cell(
            stack=stack, target=target, signal=name, node=node, seconds=seconds,
            left=tuple(left), code=code, said=said[:4000],
        )  # fmt: skip
    finally:
        run.end()


def play_all(
    engine: Engine, folder: Path, *, node: str, cells: Mapping[str, Sequence[tuple[str, str]]]
) -> list[Cell]:
    """Every stack's cells once; the stacks at the same time, so that runs end beside others."""
    tree = endless_tree(folder)
    found: list[Cell] = []
    broken: list[BaseException] = []

    def one(stack: str) -> None:
        try:
            for target, name in cells[stack]:
                cell = play(engine, tree, stack, target, name, node)
                print(f"{cell.stack} {target} {name} {node}: {cell.seconds} s {list(cell.left)}")
                found.append(cell)
        except BaseException as error:  # handed to the caller's thread
            broken.append(error)

    threads = [threading.Thread(target=one, args=(stack,)) for stack in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return found
