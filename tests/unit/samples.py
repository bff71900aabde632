"""Made-up values that tests start from: each is good, and a test changes one thing of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from stackyard.build.bundle import BundleIndex
from stackyard.definitions import load, lock
from stackyard.definitions.spec import (
    Base,
    Bootstrap,
    Common,
    Definitions,
    Fact,
    Failure,
    Fix,
    HostBase,
    Layout,
    Remedy,
    Replacement,
    Smoke,
    Stack,
    Wheel,
    Witness,
)
from stackyard.mesh.certificates import pairs
from stackyard.system.errors import DefinitionError
from stackyard.validate.outcome import Observation
from stackyard.validate.record import RankRecord, Training

NODES = ("node1", "node2")
UPDATES, SAVE_AT = 40, 20


# Definitions, as values.


def layout(name: str, ranks: int, **changes: Any) -> Layout:
    values: dict[str, Any] = {"args": (), "launcher": "torchrun", "options": {}}
    return Layout(name=name, ranks=ranks, **{**values, **changes})


def smoke(**changes: Any) -> Smoke:
    values: dict[str, Any] = {
        "launcher": "torchrun",
        "env": {},
        "prepare": ("prepare", "{text}", "{data}"),
        "program": ("train.py", "--data={data}"),
        "updates": UPDATES,
        "save_at": SAVE_AT,
        "reference": "one",
        "resume": "two",
        "tolerance": 1e-3,
        "start_seconds": 90,
        "stall_seconds": 60,
        "layouts": (layout("one", 1), layout("two", 2)),
    }
    return Smoke(**{**values, **changes})


def common(**changes: Any) -> Common:
    values: dict[str, Any] = {
        "system": ("openssh-server", "tini"),
        "build_system": ("g++",),
        "text_packages": ("fortunes",),
        "env": {"LANG": "C.UTF-8", "COLOUR": "common"},
    }
    return Common(**{**values, **changes})


def base(**changes: Any) -> Base:
    values: dict[str, Any] = {
        "name": "cpu",
        "summary": "a base made here",
        "reference": "stackyard/base:cpu",
        "device": "cpu",
        "python": "3.11",
        "platform": "linux/amd64",
        "distribution": "debian/bookworm",
        "entrypoint": ("/usr/bin/tini", "--"),
        "never_built": "",
        "bootstrap": Bootstrap(suite="bookworm", packages=("python3",), exclude=()),
        "torch": ("torch==2.0.0",),
        "torch_index": "https://torch.example/cpu",
        "provides": {},
        "facts": {},
        "env": {"OMP_NUM_THREADS": "1"},
    }
    return Base(**{**values, **changes})


def pulled(**changes: Any) -> Base:
    values: dict[str, Any] = {
        "name": "gpu",
        "summary": "a base pulled",
        "reference": "registry.example/torch:1",
        "device": "cuda",
        "python": "3.12",
        "bootstrap": None,
        "torch": (),
        "torch_index": "",
        "provides": {"Torch": Fact(value="2.1.0a0+nv", source="release notes")},
        "env": {},
    }
    return base(**{**values, **changes})


def carried(**changes: Any) -> Base:
    """A base out of a machine's own files, whose system packages are unpacked."""
    host: dict[str, Any] = {
        "paths": ("/usr", "/etc/ssl/certs"),
        "exclude": ("/usr/share/doc", "*.a"),
        "keep": ("libgcc.a",),
        "distributions": ("torch", "numpy"),
    }
    provides = {"Torch": ("2.11.0", "what it says"), "numpy": ("", "what it says")}
    values: dict[str, Any] = {
        "name": "far",
        "reference": "stackyard/base:far",
        "provides": {n: Fact(value=v, source=s) for n, (v, s) in provides.items()},
        "env": {"A": "1"},
        "host": HostBase(**{name: changes.pop(name, value) for name, value in host.items()}),
        "given_system": ("openssh-server", "g++"),
        "unpack": "debian/bookworm",
        "unpack_with": ("libwrap0",),
    }
    return pulled(**{**values, **changes})


def remedy(**changes: Any) -> Remedy:
    rule = Replacement(
        file="alpha/a.py", pattern="^old$", replacement="new", count=1, fixed="^new$"
    )
    values: dict[str, Any] = {
        "stage": "installed",
        "replace": (rule,),
        "add": {},
        "env": {},
        "build_env": {},
        "override": (),
        "exclude": (),
    }
    return Remedy(**{**values, **changes})


def fix(**changes: Any) -> Fix:
    values: dict[str, Any] = {
        "id": "alpha-old",
        "package": "alpha",
        "symptom": "old is old",
        "why": "nobody changed it",
        "upstream": "https://alpha.example/1",
        "versions": {"alpha": "==1.2.0"},
        "python": "",
        "devices": ("cpu", "cuda"),
        "remedy": remedy(),
        "witness": Witness(command=("true",), fails_with="old", seconds=60),
        "remove_when": "alpha says new",
    }
    return Fix(**{**values, **changes})


def wheel(**changes: Any) -> Wheel:
    values: dict[str, Any] = {
        "package": "beta",
        "version": "3.0",
        "requires": ("setuptools==80.0.0",),
        "compiler": False,
        "torch": False,
        "env": {},
        "fixes": (),
    }
    return Wheel(**{**values, **changes})


def stack(**changes: Any) -> Stack:
    values: dict[str, Any] = {
        "name": "toy",
        "summary": "a toy",
        "packages": {"alpha": "1.2.0"},
        "builds": ("beta",),
        "system": ("rsync",),
        "compiler_at_run_time": "",
        "env": {"TOY": "1"},
        "fixes": ("alpha-old",),
        "imports": ("alpha",),
        "smoke": smoke(),
    }
    return Stack(**{**values, **changes})


def definitions(**changes: Any) -> Definitions:
    values: dict[str, Any] = {
        "common": common(),
        "bases": {"cpu": base(), "gpu": pulled()},
        "fixes": {"alpha-old": fix()},
        "wheels": {"beta": wheel()},
        "stacks": {"toy": stack()},
        "locks": locks(),
    }
    return Definitions(**{**values, **changes})


def locked(*pins: str) -> str:
    names = [pin.split("==") for pin in pins]
    entries = [
        lock.Locked(name=name, version=version, hashes=("sha256:" + "0" * 64,))
        for name, version in names
    ]
    return lock.render_lock(entries, inputs="sha256:" + "f" * 64, command="invoke lock")


def locks() -> dict[str, str]:
    return {
        "images/bases/cpu.lock": locked("torch==2.0.0", "numpy==2.1.0"),
        "images/toy/cpu.lock": locked("alpha==1.2.0", "gamma==0.5"),
        "images/wheels/beta.lock": locked("beta==3.0", "setuptools==80.0.0"),
    }


def manifest(**changes: Any) -> BundleIndex:
    values: dict[str, Any] = {
        "base": "far",
        "stacks": ("toy",),
        "python": "3.12",
        "platform": "linux/amd64",
        "locks": {},
        "packages": (),
        "files": {},
        "sizes": {},
    }
    return BundleIndex(**{**values, **changes})


def failure(**changes: Any) -> Failure:
    values: dict[str, Any] = {
        "id": "disk-full",
        "title": "a disk is full",
        "kind": "cause",
        "steps": ("build", "run"),
        "any_of": ("No space left",),
        "all_of": (),
        "cause": "something was written",
        "remedy": "remove something",
        "brings": (),
        "threads": (),
    }
    return Failure(**{**values, **changes})


# Definitions, as files.

FILES = {
    "images/common.yml": """\
system: [tini]
build_system: [g++]
text_packages: [fortunes]
env: {LANG: C.UTF-8}
""",
    "images/bases/cpu.yml": """\
name: cpu
summary: a base made here
device: cpu
python: "3.11"
platform: linux/amd64
distribution: debian/bookworm
bootstrap:
  suite: bookworm
  packages: [python3]
entrypoint: [/usr/bin/tini, --]
torch: ["torch==2.0.0"]
env:
  OMP_NUM_THREADS: "1"
""",
    "images/fixes/alpha-old.yml": """\
id: alpha-old
package: alpha
symptom: old is old
why: nobody changed it
upstream: https://alpha.example/1
applies_to:
  versions: {alpha: "==1.2.0"}
  devices: [cpu]
remedy:
  replace:
    - file: alpha/a.py
      pattern: '^old$'
      replacement: new
      count: 1
      fixed: '^new$'
witness:
  command: ["true"]
  fails_with: old
remove_when: alpha says new
""",
    "images/fixes/beta-build.yml": """\
id: beta-build
package: beta
symptom: beta does not build
why: it asks for a flag
upstream: https://beta.example/1
applies_to:
  versions: {beta: "==3.0"}
remedy:
  build_env: {BETA_FLAG: "1"}
witness:
  command: ["true"]
  fails_with: flag
remove_when: beta needs no flag
""",
    "images/limits/alpha-limit.yml": """\
id: alpha-limit
package: alpha
stacks: [toy]
symptom: it hangs
why: so it is
upstream: none found
applies_to:
  versions: {alpha: "==1.2.0"}
instead: another way
witness:
  command: [try]
  fails_with: hung
remove_when: alpha does not hang
""",
    "images/wheels/beta.yml": """\
package: beta
version: "3.0"
requires: ["setuptools==80.0.0"]
fixes: [beta-build]
""",
    "images/toy/stack.yml": """\
name: toy
summary: a toy
packages:
  alpha: "1.2.0"
  beta: "3.0"
builds: [beta]
fixes: [alpha-old]
imports: [alpha]
smoke:
  launcher: torchrun
  prepare: [prepare, "{text}", "{data}"]
  program: [train.py, "--data={data}"]
  updates: 40
  save_at: 20
  reference: one
  resume: two
  layouts:
    one: {ranks: 1}
    two: {ranks: 2}
""",
}


class Tree:
    """A small valid project below `root`, with its locks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for path, text in FILES.items():
            self.write(path, text)
        found = load.load_definitions(root, locks_required=False)
        cpu, toy, beta = found.bases["cpu"], found.stacks["toy"], found.wheels["beta"]
        self._lock("images/bases/cpu.lock", "torch==2.0.0", lock.base_inputs(cpu))
        self._lock("images/toy/cpu.lock", "alpha==1.2.0", lock.stack_inputs(toy, cpu, found.fixes))
        pins = "beta==3.0 setuptools==80.0.0"
        self._lock("images/wheels/beta.lock", pins, lock.wheel_inputs(beta))

    def _lock(self, path: str, pins: str, inputs: str) -> None:
        entries = [
            lock.Locked(name=name, version=version, hashes=())
            for name, version in (pin.split("==") for pin in pins.split())
        ]
        self.write(path, lock.render_lock(entries, inputs=inputs, command="invoke lock"))

    def write(self, path: str, text: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    def change(self, path: str, old: str, new: str) -> None:
        """Replace text that is there exactly once."""
        text = (self.root / path).read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {path}"
        self.write(path, text.replace(old, new))

    def load(self) -> Definitions:
        return load.load_definitions(self.root)

    def problems(self) -> list[str]:
        """Every problem that loading reports, as a user reads it."""
        with pytest.raises(DefinitionError) as caught:
            self.load()
        return [str(problem) for problem in caught.value.problems]


# What a good smoke saw.


def losses(first: int = 1, last: int = UPDATES) -> dict[int, float]:
    """A loss that falls from 3 to about 1, the same at every update wherever it starts."""
    return {step: 3.0 - 2.0 * step / UPDATES for step in range(first, last + 1)}


def rank(number: int = 0, world: int = 1, **changes: Any) -> RankRecord:
    values: dict[str, Any] = {
        "rank": number,
        "world_size": world,
        "host": f"node{number + 1}",
        "pid": 100 + number,
        "backend": "gloo",
        "device": "cpu",
        "losses": losses(),
        "params": {(SAVE_AT, "all"): "a" * 64, (UPDATES, "all"): "b" * 64},
        "ended": UPDATES,
    }
    return RankRecord(**{**values, **changes})


def training(name: str = "two", nodes: int = 2, **changes: Any) -> Training:
    values: dict[str, Any] = {
        "ranks": {number: rank(number, nodes) for number in range(nodes)},
        "wanted": nodes,
        "code": 0,
        "stopped": "",
        "killed": False,
        "strays": {node: [] for node in NODES},
        "tail": "the last line",
        "seconds": 2.5,
        "command": ("torchrun", "train.py"),
        "nodes": NODES[:nodes],
    }
    return Training(layout=name, **{**values, **changes})


def changed(value: Training, number: int, **changes: Any) -> Training:
    """The same training with one rank changed."""
    ranks = {**value.ranks, number: dataclasses.replace(value.ranks[number], **changes)}
    return dataclasses.replace(value, ranks=ranks)


def killed(**changes: Any) -> Training:
    ranks = {
        number: rank(
            number,
            2,
            losses=losses(1, SAVE_AT + 3),
            params={(SAVE_AT, "all"): "a" * 64},
            saved=[SAVE_AT],
            ended=None,
        )
        for number in range(2)
    }
    return training(**{"ranks": ranks, "code": None, "killed": True, **changes})


def resumed(**changes: Any) -> Training:
    ranks = {
        number: rank(number, 2, losses=losses(SAVE_AT + 1), loaded=[SAVE_AT]) for number in range(2)
    }
    return training(**{"ranks": ranks, **changes})


def refusals() -> dict[str, dict[str, Any]]:
    denied = {"code": 255, "says": "root@node2: Permission denied (publickey)."}
    stranger = {"code": 255, "says": "Host key verification failed."}
    worked = {"code": 0, "says": ""}
    return {
        "control": dict(worked),
        "password": dict(denied),
        "foreign_key": dict(denied),
        "other_run": dict(denied),
        "impostor_control": dict(worked),
        "impostor": dict(stranger),
        "impostor_by_config": dict(stranger),
        "unnamed": dict(stranger),
    }


def observation(**changes: Any) -> Observation:
    environment = {"PATH": "/usr/bin", "NCCL_DEBUG": "WARN", "HOME": "/root"}
    session = {**environment, "HOME": "/elsewhere", "SSH_TTY": "x"}
    values: dict[str, Any] = {
        "nodes": NODES,
        "environment": environment,
        "pairs": pairs(NODES),
        "reach": {a: {b: {"code": 0, "says": "", "host": b} for b in NODES} for a in NODES},
        "sessions": {pair: dict(session) for pair in pairs(NODES)},
        "refusals": refusals(),
        "trainings": {"one": training("one", 1), "two": training()},
        "killed": killed(),
        "resumed": resumed(),
    }
    return Observation(**{**values, **changes})
