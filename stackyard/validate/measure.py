"""Measure bandwidth and speed of a placement's GPUs, in the mesh and on the bare host.

Owns starting `images/measure/gpu_measure.py` in both places, and its time limit. It must not
judge.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackyard.definitions.project import ROOT
from stackyard.gpu import nccl
from stackyard.gpu.placement import Gpu
from stackyard.launch import LAUNCHERS, Launch, LaunchRequest
from stackyard.mesh.node import GRACE_SECONDS, SCRATCH, nccl_environment, rank_environment
from stackyard.mesh.nodes import SMOKE_FOLDER, Mesh
from stackyard.mesh.supervisor import Refused
from stackyard.system import cleanup, process
from stackyard.system.errors import CommandError, EngineError
from stackyard.system.process import last_lines

PROGRAM = "gpu_measure.py"
FOLDER = ROOT / "images" / "measure"
# 25 s on 2 x H200; sockets in place of NVLink take 60 s more for the largest messages.
SECONDS = 240
JOB = "measure"
_HAS_TORCH = "import torch; assert torch.cuda.is_available(); print(torch.__version__)"


def in_mesh(running: Mesh, per_node: int, port: int) -> dict[str, Any]:
    """Measure with one process per GPU on every node.

    Raises:
        EngineError: it failed or did not end in time; carries its last lines.
    """
    out = f"{running.shared}/runs/measure.json"
    request = LaunchRequest(
        nodes=running.plan.nodes,
        per_node=per_node,
        port=port,
        program=(f"{SMOKE_FOLDER}/{PROGRAM}", "--out", out),
        env={
            **rank_environment(JOB),
            **nccl_environment(running.plan.run, JOB, logs=False),
            "NCCL_DEBUG": "WARN",
        },
        folder=SMOKE_FOLDER,
        scratch=f"{SCRATCH}/{JOB}",
        ssh_port=running.plan.port_of(running.head),
        device="cuda",
    )
    launch = LAUNCHERS["torchrun"](request)
    said = _supervised(running, launch)
    if said.why:
        raise EngineError(f"measuring the GPUs failed: {said.why}", why=reason(said.output))
    read = running.exec(running.head, ["cat", out], seconds=20)
    found: dict[str, Any] = json.loads(read.output)
    if found.get("copy_gb_s") is None:
        found["copy_gb_s"] = _copy_between_all(running)
    return found


@dataclass(frozen=True, kw_only=True)
class _Said:
    """Hold the output of a job, and why it failed; empty where it did not."""

    output: str
    why: str


def _supervised(running: Mesh, launch: Launch) -> _Said:
    """Run a launch to its end, as a job of the mesh's supervisor beside no other.

    Raises:
        Refused: the supervisor refused it.
    """
    words = ["sh", "-euc", f'mkdir -p {running.shared}/runs; exec "$@"', JOB, *launch.argv]
    running.talk.send(
        "start",
        name=JOB,
        steps=[launch.step(JOB, words)],
        env=rank_environment(JOB),
        folder=SMOKE_FOLDER,
        nodes=list(running.plan.nodes),
        lease=running.lease,
        grace_seconds=GRACE_SECONDS,
    )
    running.talk.send("follow", job=JOB)
    lines: list[str] = []
    end = time.monotonic() + SECONDS
    while not running.lost:
        event = running.talk.next(0.2) or {"event": ""}
        if event["event"] == "refused":
            raise Refused(str(event["why"]))
        if event["event"] == "log" and event["job"] == JOB:
            lines += [str(entry["text"]) for entry in event["lines"] if "text" in entry]
        if event["event"] == "ended" and event["job"]["name"] == JOB:
            job = event["job"]
            code = "" if job["code"] == 0 else f"exit code {job['code']}"
            return _Said(output="\n".join(lines), why=str(job["reason"] or code))
        if time.monotonic() > end:
            why = f"it did not end within {SECONDS} s"
            running.talk.send("stop", job=JOB, reason=why)
            end += SECONDS
    return _Said(output="\n".join(lines), why=running.lost)


def _copy_between_all(running: Mesh) -> float | None:
    """Measure a copy by one process that sees every GPU of its node; None if it sees only one."""
    words = ["env", "-u", "CUDA_VISIBLE_DEVICES", "python3", PROGRAM, "--only-copy"]
    done = running.exec(running.head, words, seconds=60, folder=SMOKE_FOLDER, control=False)
    try:
        copied = json.loads(done.output.splitlines()[-1])["copy_gb_s"]
    except (ValueError, IndexError, KeyError, TypeError):
        return None
    return None if copied is None else float(copied)


def reason(output: str) -> str:
    """Return why measuring failed: NCCL's warnings in the output if any, else its last lines."""
    warned = dict.fromkeys(nccl.read_log(output.splitlines()).warnings)
    return "\n".join(list(warned)[:5]) or last_lines(output, 40)


def host_python(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return a Python of this host with torch that sees GPUs; empty, with the reason, if none."""
    own = str(Path(sys.prefix) / "bin")
    path = os.pathsep.join(p for p in environment.get("PATH", "").split(os.pathsep) if p != own)
    python = environment.get("STACKYARD_HOST_PYTHON") or shutil.which("python3", path=path)
    if not python:
        return "", "there is no python3 on this host"
    try:
        process.run([python, "-c", _HAS_TORCH], timeout=60)
    except CommandError:
        return "", f"{python} of this host has no torch that sees a GPU (STACKYARD_HOST_PYTHON)"
    return python, ""


def on_host(gpus: Sequence[Gpu], settings: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Measure on the bare host, on the same GPUs; empty, with the reason, if that is impossible.

    Args:
        settings: the caller's NCCL settings, as containers get them.
    """
    python, why = host_python(os.environ)
    if not python:
        return {}, why
    with cleanup.folder("measure") as folder:
        out = folder / "measure.json"
        words = [
            python, "-m", "torch.distributed.run",
            f"--nproc-per-node={len(gpus)}",
            "--master-addr=127.0.0.1",
            f"--master-port={_free_port()}",
            str(FOLDER / PROGRAM), "--out", str(out),
        ]  # fmt: skip
        env = {
            **settings,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus),
        }
        try:
            process.run(words, env=env, timeout=SECONDS)
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        except (CommandError, OSError, ValueError) as error:
            detail = error.why if isinstance(error, CommandError) else str(error)
            return {}, f"measuring on the bare host failed: {last_lines(detail, 5)}"
    return found, ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
