"""Run `invoke doctor`: read this machine's state and print the problems that a run would have.

Owns the reading and the printing; `gpu.doctor` and `gpu.health` judge.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from dataclasses import asdict
from typing import Any

from stackyard.build import host
from stackyard.build.base_image import free_bytes
from stackyard.build.buildkit import find_client
from stackyard.cli import tables
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.definitions.project import load_project
from stackyard.gpu import access, doctor, gpus, health
from stackyard.gpu.doctor import Machine
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError


def examine(terminal: Terminal) -> Answer:
    """Run `invoke doctor`; exit code 1 when something is wrong."""
    project = load_project(locks_required=False)
    bases = project.definitions.bases
    default = bases.get(project.default_base)
    needed = (default.disk_bytes if default else 0) or host.NEEDED_BYTES
    findings = doctor.examine(read_machine(needed), bases.values())
    findings += health.merged(health.examine(gpus.read_health()))
    terminal.table(tables.findings_table(findings))
    state = doctor.worst(findings)
    return {"state": state, "findings": [asdict(f) for f in findings]}, int(state == doctor.WRONG)


def read_machine(needed: int) -> Machine:
    """Read all that `doctor` judges; an error while reading is recorded, not raised.

    Args:
        needed: disk space in bytes for a first build on the default base.
    """
    found: dict[str, Any] = {}
    info: dict[str, object] = {}
    try:
        with Engine() as engine:
            info = dict(engine.info())
            found["engine"] = engine.version
            found["free_bytes"] = free_bytes(engine.data_folder())
        found["client"] = find_client(os.environ.get("PATH", "")).says
    except StackyardError as error:
        found |= {"engine": "", "no_engine": f"{error.what}: {error.why}".rstrip(": ")}
    try:
        found["gpus"] = gpus.read_host()
        found["driver"] = gpus.driver_files()
        found["way"] = access.choose_way(info, gpus.cdi_kinds())
    except StackyardError as error:
        found |= {"gpus": None, "no_gpus": error.what}
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shm: int | None = None
    with contextlib.suppress(OSError):
        shm = shutil.disk_usage("/dev/shm").total
    return Machine(
        shm_bytes=shm,
        memlock=-1 if limit == resource.RLIM_INFINITY else limit,
        needed_bytes=needed,
        settings=gpus.caller_settings(os.environ),
        **found,
    )
