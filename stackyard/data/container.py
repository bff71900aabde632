"""Run a program of images/data in a container of its stack, which sees what it reads and no more.

Owns the container (read-only inputs, no network, the caller's user) and what the program's
answers mean: a refusal, a failure, or the end. It must not know what the programs do.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackyard.data import dataset
from stackyard.definitions.project import ROOT
from stackyard.system import cleanup
from stackyard.system.engine import OWNER_LABEL, RUN_LABEL, ContainerSpec, Engine
from stackyard.system.errors import StackyardError
from stackyard.system.process import last_lines

Heard = Callable[[Mapping[str, Any], float], None]
"""Takes an event of a running program, and the seconds since it was started."""
_SECONDS = 30 * 24 * 3600
"""The time limit of one program, far longer than any takes."""
_PROGRAMS = ROOT / "images" / "data"


class DataError(StackyardError):
    """Report that the program in the container refused what it was given."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Program:
    """Hold a program of images/data.

    Attributes:
        what: what it does, as in "preparing the data".
        fewer: what makes it need less memory.
    """

    name: str
    what: str
    fewer: str


def program_texts() -> dict[str, bytes]:
    """Return the texts of the programs that make the data, by name; they are not in the image."""
    return {path.name: path.read_bytes() for path in sorted(_PROGRAMS.glob("*.py"))}


def run(
    engine: Engine,
    image: str,
    program: Program,
    given: Mapping[str, Any],
    binds: Mapping[str, str],
    work: Path,
    heard: Heard,
) -> dict[str, Any]:
    """Run a program on its settings; return its last answer.

    Args:
        binds: what it reads, by its place in the container.
        work: the only folder that it writes.

    Raises:
        DataError: it refused what it was given.
        StackyardError: it failed, or was killed.
    """
    name = f"data-{secrets.token_hex(4)}"
    events: list[dict[str, Any]] = []
    begun = time.monotonic()

    def on_line(line: str) -> None:
        event = dataset.read_event(line)
        if event.get("event") in ("done", "error"):
            events.append(event)
        elif event:
            heard(event, time.monotonic() - begun)

    with cleanup.undoing(cleanup.RUN, name):
        try:
            container = engine.start(_container(image, binds, work, name))
            begun = time.monotonic()
            done = engine.exec(
                container,
                ["python3", f"{dataset.PROGRAMS}/{program.name}"],
                seconds=_SECONDS,
                stdin=json.dumps(given).encode() + b"\n",
                on_line=on_line,
            )
        finally:
            engine.remove_run(f"{RUN_LABEL}={name}")
    last = events[-1] if events else {}
    if last.get("event") == "done" and done.code == 0:
        return last
    if last.get("event") == "error":
        kind = DataError if done.code == 2 else StackyardError
        raise kind(last["what"], why=last["why"], hint=last["hint"])
    killed = f"it was killed, most likely for memory: {program.fewer}"
    raise StackyardError(
        f"{program.what} failed with exit code {done.code}",
        why=last_lines(done.output, 15),
        hint=killed if done.code == 137 else "",
    )


def _container(image: str, binds: Mapping[str, str], work: Path, name: str) -> ContainerSpec:
    """Return a container that reads what is bound, and the programs, and writes one folder."""
    user, group = os.getuid(), os.getgid()
    return ContainerSpec(
        name=f"stackyard-{name}",
        image=image,
        hostname="data",
        network="none",
        env={"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
        labels={RUN_LABEL: name, OWNER_LABEL: cleanup.owner()},
        volumes={},
        # root needs it to read other users' files, as it does outside; others get no capability.
        capabilities=("DAC_OVERRIDE",) if user == 0 else (),
        tmpfs={"/tmp": "rw,mode=1777,nosuid,nodev"},
        shm_bytes=64 << 20,
        command=("sleep", str(_SECONDS)),
        binds={**binds, dataset.PROGRAMS: str(_PROGRAMS)},
        mounts={dataset.WORK: str(work.resolve())},
        fleeting=True,
        user=f"{user}:{group}",
    )
