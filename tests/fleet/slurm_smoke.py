"""A stack's smoke as a job of two Slurm nodes: how it is made, and what its ranks said."""

from __future__ import annotations

import json
import time

import pytest

from stackyard.definitions.project import INSIDE, ROOT, load_project
from stackyard.launch.job import Job
from stackyard.mesh.nodes import SMOKE_FOLDER
from stackyard.schedulers import slurm_client
from stackyard.validate import launches, smoke
from tests.fleet.slurm_cluster import wait

# The layout of each stack that is trained here, and whether nodes must share what was prepared.
STACKS = {"fairseq": ("ddp-2", False), "megatron": ("tp-2", True), "accelerate": ("zero-2", False)}
ENDLESS = 1_000_000
PROJECT = load_project()


def job(stack, folder, updates=None, **changes):
    """The smoke of a stack on two nodes, with its records and checkpoints in `folder`."""
    wanted = PROJECT.definitions.stacks[stack].smoke
    name, shared_data = STACKS[stack]
    layout = wanted.layout(name)
    values = {
        "text": launches.TEXT,
        "data": folder / "data" if shared_data else f"/tmp/{folder.name}/data",
        "save": folder / "save",
        "record": folder / "record",
        "updates": updates or wanted.updates,
        "horizon": wanted.horizon,
        "save_at": wanted.save_at,
        "ranks": layout.ranks,
        **launches.gpus_of(wanted),
    }
    files = smoke.workload_files(ROOT / "images" / stack / "smoke")
    files["stackyard_record.py"] = (INSIDE / "stackyard_record.py").read_bytes()
    fields = {
        "name": stack,
        "stack": stack,
        "base": "cpu",
        "image": f"stackyard/{stack}:cpu",
        "nodes": 2,
        "per_node": 1,
        "device": "cpu",
        "program": launches.fill((*wanted.program, *wanted.args, *layout.args), values),
        "prepare": (launches.fill(wanted.prepare, values),),
        "env": {"PYTHONPATH": SMOKE_FOLDER, **wanted.env},
        "folder": SMOKE_FOLDER,
        "binds": {str(folder): str(folder)},
        "files": {f"{SMOKE_FOLDER}/{path}": data for path, data in files.items()},
        "launcher": layout.launcher,
        "options": layout.options,
    }
    return Job(**{**fields, **changes})


def events(folder, rank):
    """What a rank said of itself so far."""
    path = folder / "record" / f"rank{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def losses(folder, rank):
    return [event["loss"] for event in events(folder, rank) if event["event"] == "step"]


def finished(number, seconds=90):
    """Follow a job to its end, as a user would; how it ended, and its log."""
    lines = []
    wait(lambda: slurm_client.status(number).ended, seconds)
    return slurm_client.logs(number, True, lines.append), "\n".join(lines)


def assert_trained(found, log, folder):
    assert (found.state, found.code) == ("done", 0), log[-3000:]
    starts = [events(folder, rank)[0] for rank in (0, 1)]
    assert [start["world_size"] for start in starts] == [2, 2]
    assert {start["host"] for start in starts} == {"node1", "node2"}
    assert [events(folder, rank)[-1]["event"] for rank in (0, 1)] == ["end", "end"]
    for rank in (0, 1):
        assert losses(folder, rank)[-1] < 0.7 * losses(folder, rank)[0]
    assert losses(folder, 0) == pytest.approx(losses(folder, 1))
    for label, node in enumerate(("node1", "node2")):
        assert f"{label}: stackyard: {node}: address " in log
    assert log.endswith("stackyard: done")


def cancelled(running, number):
    """Cancel a job, and see that it is gone soon."""
    started = time.monotonic()
    assert slurm_client.cancel(number).state == "cancelled"
    wait(lambda: running.processes() == [], 10 - (time.monotonic() - started))
