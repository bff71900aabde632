"""A smoke on Slurm whose nodes are made up: everything that they write lies in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stackyard.schedulers import slurm_client
from stackyard.schedulers.slurm_state import JobStatus
from stackyard.validate import slurm_follower
from stackyard.validate.bench import slurm
from stackyard.validate.bench.plan import BenchPlan, as_smoke
from stackyard.validate.slurm_plan import SlurmRun, of_smoke
from tests.unit import samples
from tests.unit.slurm_jobs import site

DIGEST = "d" * 64
HOSTS = ("node1", "node2")


def plan(folder: Path, **changes: Any) -> SlurmRun:
    smoke = changes.get("smoke") or samples.smoke()
    values: dict[str, Any] = {
        "run": "toy-1", "stack": "toy", "base": "cpu", "image": "stackyard/toy:cpu",
        "image_id": "sha256:1", "digest": DIGEST, "smoke": smoke,
        "trainings": of_smoke(smoke, 2, folder),
        "site": site("filesystem"), "nodes": 2, "per_node": 1, "folder": folder,
        "files": {"train.py": b"train"}, "binds": {},
    }  # fmt: skip
    return SlurmRun(**{**values, **changes})


def bench(folder: Path, made: BenchPlan, **changes: Any) -> SlurmRun:
    """A bench over the same nodes."""
    return plan(
        folder, smoke=as_smoke(made, made.sides[0], 1),
        **{"trainings": slurm.trainings(made, folder), **changes},
    )  # fmt: skip


def state(name: str = "RUNNING", found: str = "running", reason: str = "") -> JobStatus:
    return JobStatus(job_id="17", state=found, slurm=name, code=None, reason=reason,
                     nodes="node[1-2]", log="")  # fmt: skip


class Nodes:
    """What the nodes of a good smoke write; a test changes some of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.killed: list[str] = []
        self.state = state()
        for number, host in enumerate(HOSTS, 1):
            self.write(f"facts/{host}", survey(host, number))
            self.image(host)
        for label in ("image", "data", "one", "two-resumed"):
            self.over(label)
        self.write("killed/.made", "")
        every = samples.UPDATES
        self.records("one", 1, range(1, every + 1))
        self.records("two", 2, range(1, every + 1), saved=True, end=False)
        self.records("two-resumed", 2, range(samples.SAVE_AT + 1, every + 1), loaded=True)
        for label in ("one", "two", "two-resumed"):
            for host in HOSTS:
                self.left(label, host)

    def write(self, path: str, text: str) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def image(self, host: str, digest: str = DIGEST, gpus: str = "") -> None:
        told = {"digest": digest, "host": host, "interface": "eth0", "cpus": "2",
                "kernel": "6.1", "architecture": "x86_64", "gpus": gpus}  # fmt: skip
        self.write(f"images/{host}.json", json.dumps(told))

    def over(self, label: str, code: int = 0) -> None:
        self.write(f"ended/{label}", json.dumps({"code": code, "began": 5.0, "ended": 7.5}))

    def left(self, label: str, host: str, text: str = "\n") -> None:
        self.write(f"left/{label}/{host}", text)

    def records(
        self, label: str, ranks: int, steps: range, *, saved: bool = False, loaded: bool = False,
        end: bool = True,
    ) -> None:  # fmt: skip
        losses = samples.losses()
        for rank in range(ranks):
            # Which node is first, the rendezvous decided: here it is the second.
            host = HOSTS[::-1][rank] if ranks == 2 else HOSTS[0]
            found = [{"event": "start", "world_size": ranks, "host": host, "pid": 7,
                      "backend": "gloo", "device": "cpu"}]  # fmt: skip
            found += [{"event": "loaded", "step": samples.SAVE_AT}] * loaded
            for step in steps:
                found.append({"event": "step", "step": step, "loss": losses[step]})
                if step == samples.SAVE_AT:
                    found += [{"event": "saved", "step": step}] * saved
            found.append({"event": "params", "step": steps[-1], "group": "all", "sha256": "a"})
            found += [{"event": "end", "step": steps[-1]}] * end
            lines = "".join(f"{json.dumps(one)}\n" for one in found)
            self.write(f"records/{label}/rank{rank}.jsonl", lines)

    def served(self, monkeypatch: Any) -> None:
        """Answer for Slurm, without waiting for anything."""
        monkeypatch.setattr(slurm_client, "status", lambda job, patience=0.0: self.state)
        monkeypatch.setattr(slurm_client, "kill_step", self.kill)
        for name in ("LATE_SECONDS", "END_SECONDS"):
            monkeypatch.setattr(slurm_follower, name, 0.0)
        monkeypatch.setattr(slurm_follower, "POLL_SECONDS", 0.001)

    def kill(self, job: str, label: str) -> None:
        """Be killed as Slurm kills a step."""
        self.killed.append(label)
        self.over(label, 137)


def survey(host: str, number: int) -> str:
    return (
        f"== clock\n1.0\n== name\n{host}\n== addresses\n"
        f"2: eth0    inet 10.0.0.{number}/24 scope global eth0\n"
        "== links\neth0 1500 1000 up\n== memory\nMemTotal: 2097152\n== end\n"
    )


def gpu_survey(host: str, number: int, used: int) -> str:
    """The survey of a node with one GPU, of which some MiB are in use."""
    gpu = f"0, GPU-{number}, NVIDIA H200, 143771, {used}, Default, Disabled, 9.0"
    driver = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23"
    lines = f"== driver\n{driver}\n== gpus\n{gpu}\n== end\n"
    return survey(host, number).replace("== end\n", lines)
