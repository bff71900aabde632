"""Several hosts on one machine with GPUs: containers with an engine, an sshd and some of its GPUs.

    python -m tests.gpu.hosts start FOLDER study=0 train=1 both=0,1 [--images TAG,TAG]
    python -m tests.gpu.hosts inventory FOLDER study train     the path of a hosts.yml of these
    python -m tests.gpu.hosts launchers FOLDER --base BASE     every launcher, users' programs
    python -m tests.gpu.hosts matrix FOLDER STACK --base BASE  the kill matrix, with GPU memory
    python -m tests.gpu.hosts certify FOLDER CASE --base BASE  one case of CASES
    python -m tests.gpu.hosts stop FOLDER
    python -m tests.gpu.hosts image                            make the hosts' own image; its name

`start` does nothing where these hosts run already. STACKYARD_TEST_MACHINE names the image of the
hosts themselves, where it cannot be built. Reports go to `reports/hosts` and `reports/certify`; a
cell or launcher that passed is not run again. `study` and `train` are the hosts of the kill matrix,
`both` has two GPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stackyard.build import recipe
from stackyard.definitions.project import ROOT
from stackyard.gpu import access, gpus
from stackyard.gpu.placement import Gpu
from stackyard.system.engine import Engine
from stackyard.system.lockfile import exclusive
from tests.fleet import emulated, matrix, programs
from tests.fleet.emulated import Yard
from tests.fleet.planted import planted, with_variables

STATE = "state.json"
# NVLink multicast must stay off where GPUs are shared with other virtual machines.
DEFAULTS = """  env:
    NCCL_NVLS_ENABLE: "0"
    TORCH_SYMM_MEM_DISABLE_MULTICAST: "1"
    NVSHMEM_DISABLE_NVLS: "1"
"""
TWO = ("study", "train")
# A configuration of one's own, below the hosts' folder.
OWN_YAML = "own.yaml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launched:
    """Hold a short training over two hosts.

    Attributes:
        words: of `invoke run STACK`.
        said: how often its ranks say what; empty for an example.
    """

    stack: str
    words: Sequence[str]
    said: Mapping[str, int] = dataclasses.field(default_factory=dict)


# By launcher a small example, then users' own programs and files (tests/fleet/programs.py), which
# are in /shared on all hosts.
LAUNCHED = {
    "torchrun": Launched(stack="fairseq", words=("--example", "lm-ddp")),
    "deepspeed": Launched(stack="megatron", words=("--example", "gpt-tp")),
    "accelerate": Launched(stack="accelerate", words=("--example", "llama-zero2")),
    "plain": Launched(stack="accelerate", words=("--example", "ddp-tcp")),
    "own-test": Launched(
        stack="accelerate", said={"Num processes: 2": 1},
        words=("--launcher", "accelerate", "--folder", "/shared", "--", "accelerate", "test"),
    ),
    "own-accelerate": Launched(
        stack="accelerate", said={"of 2 by MULTI_": 2},
        words=("--launcher", "accelerate", "--accelerate-config", OWN_YAML, "--folder", "/shared",
               "--", "own.py"),
    ),
    "own-deepspeed": Launched(
        stack="accelerate", said={"stage 2 of 2 ranks": 2},
        words=("--launcher", "deepspeed", "--", "/shared/ds.py", "--deepspeed",
               "--deepspeed_config", "/shared/ds.json"),
    ),
    "own-trainer": Launched(
        stack="accelerate", said={"of 2 deepspeed True": 2},
        words=("--launcher", "torchrun", "--", "/shared/hf.py", *programs.TRAINER_WORDS,
               "--deepspeed", "/shared/trainer.json"),
    ),
}  # fmt: skip
# Examples of the full size would spend a cell on saving and loading gigabytes.
REDUCED = {"fairseq": "size=reduced"}
FREE_SECONDS = 10.0
REPORTS = ROOT / "reports"


# ------------------------------------------------------------------------------------- hosts


def token_of(folder: Path) -> str:
    """Return what everything of the hosts of a folder is found by."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]


def load(folder: Path) -> Yard:
    """Return the running hosts of a folder."""
    state = json.loads((folder / STATE).read_text())
    found = emulated.ready(state["hosts"], folder, token_of(folder), DEFAULTS)
    return Yard(folder=folder, hosts={host.name: host for host in found})


def gpus_of(folder: Path) -> dict[str, list[int]]:
    """Return the numbers of each host's GPUs."""
    found: dict[str, list[int]] = json.loads((folder / STATE).read_text())["hosts"]
    return found


def options(numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the options of `docker run` that give a host some GPUs of this machine."""
    if not numbers:
        return ()
    there = {gpu.index: gpu for gpu in gpus.read_host().gpus}
    chosen = [there[number] for number in numbers]
    given = access.access(access.DEVICES, chosen, gpus.driver_files(), "")
    devices = [word for node in given.devices for word in ("--device", node)]
    binds = [w for at, real in given.binds.items() for w in ("-v", f"{real}:{at}:ro")]
    # Nodes on GPUs lock memory, which a host can give them only as far as it may itself.
    return (*devices, *binds, "--ulimit", "memlock=-1:-1")


def start(folder: Path, wanted: Mapping[str, Sequence[int]], images: Sequence[str]) -> None:
    """Start hosts, unless these run already."""
    state = {"hosts": {name: list(own) for name, own in wanted.items()}, "images": list(images)}
    if (folder / STATE).exists() and json.loads((folder / STATE).read_text()) == state:
        try:
            load(folder)
        except AssertionError as error:
            print(f"the hosts are gone, they are started anew: {str(error)[:300]}", flush=True)
        else:
            print("the hosts run already", flush=True)
            return
    stop(folder)
    folder.mkdir(parents=True)
    with exclusive(emulated.LABEL, lambda: None):
        machine = emulated.machine_image(python=True)
        emulated.begin(
            {name: options(own) for name, own in wanted.items()}, images, folder, token_of(folder),
            machine, devices=emulated.FEW_DEVICES,
        )  # fmt: skip
    (folder / STATE).write_text(json.dumps(state))
    yard = load(folder)
    if set(TWO) <= set(wanted):
        yard.only(*TWO)
    for name, own in wanted.items():
        require_gpus(yard, name, own)
        print(f"{name}: {yard.hosts[name].address}, GPUs {list(own) or 'none'}", flush=True)


def require_gpus(yard: Yard, name: str, numbers: Sequence[int]) -> None:
    """Fail unless a host sees its own GPUs, and no others."""
    if not numbers:
        return
    there = {gpu.index: gpu.uuid for gpu in gpus.read_host().gpus}
    words = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
    seen = set(yard.hosts[name].run(*words).split())
    wanted = {there[number] for number in numbers}
    assert seen == wanted, f"{name} sees {seen}, it was given {wanted}"


def stop(folder: Path) -> None:
    """Remove hosts and their folder."""
    emulated.end(token_of(folder))
    shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------------- what runs


def invoke(*words: str, seconds: float) -> tuple[int, str]:
    """Run a command of invoke, which prints as it goes; return its code and its JSON."""
    print(f"== invoke {' '.join(words)}", flush=True)
    done = subprocess.run(
        [ROOT / ".venv/bin/invoke", words[0], "--json", *words[1:]], cwd=ROOT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=seconds, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def keep(name: str, value: Any) -> Path:
    """Write a report whole."""
    path = REPORTS / "hosts" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    part.replace(path)
    return path


def kept(name: str) -> dict[str, Any]:
    """Read an earlier report; empty where there is none."""
    path = REPORTS / "hosts" / name
    return json.loads(path.read_text()) if path.exists() else {}


def passed(name: str) -> set[str]:
    """Return the cells of a kill matrix that have passed."""
    cells = kept(name).get("cells", {})
    return {target for target, cell in cells.items() if cell["wrong"] == []}


def machine(numbers: Sequence[int]) -> dict[str, Any]:
    """Return what a report says of this machine and of those of its GPUs that the hosts have."""
    host = gpus.read_host()
    names = [gpu.name for gpu in host.gpus if gpu.index in numbers]
    return {"gpus": names, "driver": host.driver, "cuda": host.cuda}


def began() -> str:
    """Return now, as reports give it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def image_of(stack: str, base: str) -> dict[str, Any]:
    """Return the image of a stack that the hosts have, as other reports give it."""
    with Engine() as engine:
        info = engine.image(f"stackyard/{stack}:{base}")
    assert info is not None, f"there is no image of {stack} on {base}"
    labels = {"digest": recipe.BASE_LABEL, "packages": recipe.PACKAGES_LABEL}
    return {
        "id": info.id, "tags": list(info.tags), "recipe": info.labels["stackyard.recipe"],
        "base": {name: info.labels[label] for name, label in labels.items()},
    }  # fmt: skip


class GpuMemory:
    """Look at the memory of some GPUs from this machine, where every program's counts."""

    def __init__(self, chosen: Sequence[Gpu]) -> None:
        self._gpus = chosen
        self._idle = gpus.used_bytes(chosen)
        busy = {uuid: used for uuid, used in self._idle.items() if used > 2**30}
        assert not busy, f"somebody holds GPUs before anything starts: {busy}"

    def held(self) -> Mapping[str, int]:
        """Return the bytes in use beyond those of idle GPUs, by UUID."""
        used = gpus.used_bytes(self._gpus)
        return {uuid: max(0, used[uuid] - idle) for uuid, idle in self._idle.items()}

    def until_free(self) -> Mapping[str, int]:
        """Wait, within bounds, until nothing is held; return what is."""
        started = time.monotonic()
        while any((held := self.held()).values()) and time.monotonic() - started < FREE_SECONDS:
            time.sleep(0.1)
        return held


def play_matrix(yard: Yard, stack: str, base: str, targets: Sequence[str]) -> bool:
    """Play the cells of one stack that have not passed yet; return whether all have.

    Other hosts of this machine may play cells of the same stack meanwhile.
    """
    own = [number for name in TWO for number in gpus_of(yard.folder)[name]]
    two, name = yard.only(*TWO), f"kill-matrix-{stack}.json"
    report = {
        "schema": "stackyard.test.kill-matrix/1", "kind": "kill matrix", "stack": stack,
        "base": base, "started": began(),
        "lease_seconds": matrix.LEASE_SECONDS, "allowed_seconds": matrix.ALLOWED_SECONDS,
    }  # fmt: skip
    # A run that was killed with an earlier command is over when its lease is.
    two.until_gone(90)
    ranks = matrix.CPU
    if own:
        report |= {"machine": machine(own), "image": image_of(stack, base)}
        chosen = [gpu for gpu in gpus.read_host().gpus if gpu.index in own]
        memory = GpuMemory(chosen)
        ranks = matrix.Ranks(words=("--base", base), values=REDUCED, memory=memory)
    for target in targets:
        if target in passed(name):
            continue
        cell = matrix.play(two, stack, target, ranks)
        value = {**dataclasses.asdict(cell), "wrong": cell.wrong}
        if not cell.wrong:
            del value["said"]
        with exclusive(name, lambda: None):
            keep(name, {**report, "cells": {**kept(name).get("cells", {}), target: value}})
        print(f"{stack}, {target}: {'; '.join(cell.wrong) or 'passed'}", flush=True)
        print(f"  nothing left after {cell.seconds} s, held {cell.held}, then {cell.held_after}",
              flush=True)  # fmt: skip
    return set(targets) <= passed(name)


def play_launchers(yard: Yard, base: str, chosen: Sequence[str]) -> bool:
    """Run everything of LAUNCHED once that has not passed yet; return whether all has."""
    two = yard.only(*TWO)
    images = json.loads((yard.folder / STATE).read_text())["images"]
    chosen = [one for one in chosen if f"stackyard/{LAUNCHED[one].stack}:{base}" in images]
    own = [number for name in TWO for number in gpus_of(yard.folder)[name]]
    where = ("--base", base) if own else ("--gpus", "0")
    report = {"schema": "stackyard.test.launchers/1", "base": base, "started": began(),
              "launchers": kept("launchers.json").get("launchers", {})}  # fmt: skip
    if own:
        report["machine"] = machine(own)
    bring(yard.folder, gpu=bool(own))
    for launcher in chosen:
        if report["launchers"].get(launcher, {}).get("code") == 0:
            continue
        one, name = LAUNCHED[launcher], f"by-{launcher}"
        hosts = ("--hosts", two.inventory, "--name", name)
        words = [str(yard.folder / word) if word == OWN_YAML else word for word in one.words]
        started = time.monotonic()
        ups = invoke("up", one.stack, *hosts, *where, seconds=150)[0]
        code, out = invoke("run", one.stack, *hosts, *words, seconds=240)
        downs = invoke("down", *hosts, seconds=60)[0]
        left, answer = two.until_gone(20)[1], json.loads(out or "null")
        unsaid = missing(one, name, answer)
        report["launchers"][launcher] = {
            "stack": one.stack, "words": one.words, "name": name, "up": ups, "down": downs,
            "image": image_of(one.stack, base), "unsaid": unsaid,
            "code": code or ups or downs or int(bool(left or unsaid)), "left": left,
            "seconds": round(time.monotonic() - started, 1), "answer": answer,
        }  # fmt: skip
        keep("launchers.json", report)
        print(f"{launcher}: exit codes {ups}, {code}, {downs}, left {left}, unsaid {unsaid}",
              flush=True)  # fmt: skip
    return all(report["launchers"][launcher]["code"] == 0 for launcher in chosen)


def bring(folder: Path, *, gpu: bool) -> None:
    """Write users' own programs to the hosts' shared folder, and a configuration beside it."""
    files = {
        "own.py": programs.OWN_ACCELERATE, "ds.py": programs.DEEPSPEED, "hf.py": programs.TRAINER,
        "ds.json": programs.DEEPSPEED_JSON, "trainer.json": programs.TRAINER_JSON,
    }  # fmt: skip
    for name, text in files.items():
        (folder / "shared" / name).write_text(text)
    kind = "MULTI_GPU" if gpu else "MULTI_CPU"
    text = f"distributed_type: {kind}\nuse_cpu: {str(not gpu).lower()}\nmachine_rank: 0\n"
    (folder / OWN_YAML).write_text(text)


def missing(one: Launched, name: str, answer: Mapping[str, Any] | None) -> list[str]:
    """Return what the log of a run does not say as often as it should."""
    if answer is None:
        return list(one.said)
    log = (ROOT / "reports" / "runs" / name / f"{answer['name']}.log").read_text()
    return [text for text, times in one.said.items() if log.count(text) < times]


# ------------------------------------------------------------------------------------- certify


HOLD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def must(code, what):
    if code:
        sys.exit(f"{what}: CUDA error {code}")
must(cuda.cuInit(0), "cuInit")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
must(cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1])), "cuDeviceGet")
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2**31)), "cuMemAlloc")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(yard: Yard, host: str, number: int) -> Iterator[None]:
    """Hold 2 GiB of a host's GPU, by a program that is no run's."""
    words = ["docker", "exec", "-i", "-e", "CUDA_DEVICE_ORDER=PCI_BUS_ID",
             yard.hosts[host].container, "python3", "-c", HOLD, str(number)]  # fmt: skip
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "held\n", "nothing could be held"
            yield
        finally:
            process.stdin.close()  # its end
            process.wait(timeout=30)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Hold one certification: where, with which fault, and what must be said of it.

    Attributes:
        fault: changes the hosts; what it returns is a context in which they are certified.
        named: a pattern of the line that names what is bad; empty where nothing is.
        against: another case, whose report's fingerprints must be met.
    """

    hosts: tuple[str, ...] = TWO
    fault: Callable[[Yard], tuple[Yard, Any]] = lambda yard: (yard, nullcontext())
    named: str = ""
    against: str = ""


CASES = {
    "good": Case(),
    "again": Case(against="good"),
    # Of two GPUs that differ none is believed: the fingerprint of before says which one is wrong.
    "flip": Case(
        fault=lambda yard: (planted(yard, {"train": "corrupt"}), nullcontext()),
        named=r"^train:0: it computes something else from update 4 on",
        against="good",
    ),
    "skipped": Case(
        fault=lambda yard: (planted(yard, {"train": "hang"}), nullcontext()),
        named=r"^train: .*\(train\) .*never came to all_reduce",
    ),
    "held": Case(
        hosts=("both",),
        fault=lambda yard: (yard, holding(yard, "both", 1)),
        named=r"^both:1: .*(processes hold it|are in use)",
    ),
    "p2p": Case(
        hosts=("both",),
        fault=lambda yard: (
            with_variables(yard, "p2p", {"both": {"NCCL_P2P_DISABLE": "1"}}), nullcontext()
        ),
        named=r"\bboth:0\b.*\bboth:1\b|(P2P|SHM|shared memory).*\bboth\b|\bboth\b.*(P2P|SHM)",
    ),
}  # fmt: skip


def told(value: Mapping[str, Any]) -> list[str]:
    """Return a line for everything that a certification calls bad: `NAME: why`."""
    lines = [f"{host['host']}: {host['why']}" for host in value["hosts"] if host["why"]]
    lines += [f"{gpu['name']}: {gpu['why']}" for host in value["hosts"] for gpu in host["gpus"]
              if gpu["state"] == "bad"]  # fmt: skip
    lines += [f"{' - '.join(one['names'])}: {one['why']}: {one['evidence']}"
              for one in value["faults"]]  # fmt: skip
    lines += [f"{name}: {why}" for name, why in value["unused"].items()]
    lines += [f"{check['name']}: {check.get('why', '')}" for check in value["checks"]
              if check["outcome"] == "failed"]  # fmt: skip
    return lines


def problems(case: Case, code: int, value: Mapping[str, Any], gpus: int) -> list[str]:
    """Return what a certification should not have said, or should have; empty if it is right.

    Args:
        gpus: how many trained.
    """
    lines, found = told(value), []
    if code != (1 if case.named else 0):
        found.append(f"its exit code is {code}")
    if not case.named:
        found += [f"nothing is bad, but: {line}" for line in lines]
        if any(one["outcome"] != "passed" for one in value["checks"]):
            found.append(f"checks did not pass: {value['checks']}")
        prints = {gpu["fingerprint"] for host in value["hosts"] for gpu in host["gpus"]}
        count = sum(len(host["gpus"]) for host in value["hosts"])
        if count != gpus or len(prints) != 1 or "" in prints:
            found.append(f"{count} GPUs have the fingerprints {sorted(prints)}, {gpus} should one")
    elif not any(re.search(case.named, line) for line in lines):
        found.append(f"nothing matches {case.named!r} of: {lines}")
    return found


def play_case(yard: Yard, name: str, base: str, stack: str) -> bool:
    """Certify with one fault planted; return whether it was named, and nothing when none was."""
    case = CASES[name]
    given = gpus_of(yard.folder)
    count = sum(len(given[host]) or 1 for host in case.hosts)
    where = ("--base", base) if given[case.hosts[0]] else ("--gpus", "0")
    altered, context = case.fault(yard.only(*case.hosts))
    against = (str(REPORTS / "certify" / f"{case.against}.json"),) if case.against else ()
    words = ("certify", stack, "--hosts", altered.inventory, "--name", name, *where)
    with context:
        code, out = invoke(*words, *(w for path in against for w in ("--against", path)),
                           seconds=400)  # fmt: skip
    if not out.strip():
        print(f"{name}: exit code {code} without a report", flush=True)
        return False
    value = json.loads(out)
    found = problems(case, code, value, count)
    for line in told(value):
        print(f"{name}: named: {line}", flush=True)
    if not found and case.against and not case.named:
        first = json.loads(Path(against[0]).read_text())["fingerprints"]
        if {k: v["bits"] for k, v in first.items()} != {
            k: v["bits"] for k, v in value["fingerprints"].items()
        }:
            found.append("the fingerprints are not those of before")
    for line in found:
        print(f"{name}: WRONG: {line}", flush=True)
    print(f"{name}: {value['outcome']} in {value['seconds']:.0f} s,"
          f" {len(value['rounds'])} rounds", flush=True)  # fmt: skip
    return not found


# ------------------------------------------------------------------------------------- typed


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("image")
    for name in ("start", "stop", "inventory", "launchers", "matrix", "certify"):
        one = commands.add_parser(name)
        one.add_argument("folder", type=Path)
        if name in ("launchers", "matrix", "certify"):
            one.add_argument("--base", default="cuda")
        if name in ("start", "inventory"):
            one.add_argument("names", nargs="+")
        if name == "start":
            one.add_argument("--images", default="")
        if name == "launchers":
            one.add_argument("chosen", nargs="*", default=list(LAUNCHED))
        if name == "matrix":
            one.add_argument("stack", choices=list(matrix.EXAMPLES))
            one.add_argument("--targets", default=",".join(matrix.TARGETS))
        if name == "certify":
            one.add_argument("case", choices=list(CASES))
            one.add_argument("--stack", default="accelerate")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run the command line."""
    given = parse(words)
    if given.command == "image":
        print(emulated.machine_image(python=True))
        return 0
    folder = given.folder.resolve()
    if given.command == "start":
        wanted = {}
        for name in given.names:
            host, _, numbers = name.partition("=")
            wanted[host] = [int(number) for number in numbers.split(",") if number]
        start(folder, wanted, [image for image in given.images.split(",") if image])
        return 0
    if given.command == "stop":
        stop(folder)
        return 0
    yard = load(folder)
    if given.command == "inventory":
        print(yard.only(*given.names).inventory)
        return 0
    if given.command == "launchers":
        return int(not play_launchers(yard, given.base, given.chosen))
    if given.command == "matrix":
        two = yard.only(*TWO)
        two = dataclasses.replace(two, hosts=two.hosts)
        return int(not play_matrix(yard, given.stack, given.base, given.targets.split(",")))
    return int(not play_case(yard, given.case, given.base, given.stack))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
