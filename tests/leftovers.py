"""What tests leave in the engine and in memory: removed by the next run, named after a whole one.

python -m tests.leftovers: after the whole suite. Names what its tests left, removes it and the
images that they keep for each other, and fails when there was something.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stackyard.mesh import nodes
from stackyard.system.engine import RUN_LABEL, Engine
from tests.fleet.emulated import OWNER, docker, drop_cache, sweep
from tests.shared import name_is_left


def sweep_all() -> None:
    """Remove what sessions that are gone, and the runs that they killed, have left."""
    sweep()
    with Engine() as engine:
        nodes.sweep(engine)
    for name in _image_names():
        if name_is_left(name):
            docker("image", "rm", "-f", name, check=False)


def labelled(engine: Engine, label: str) -> list[str]:
    """Names of containers, networks and volumes that carry a label."""
    return [name for names in engine.found(label) for name in names]


def left() -> list[str]:
    """List what is there of tests and of their runs; nothing while no test runs."""
    found = []
    for kind, every in (("container", ["-a"]), ("network", []), ("volume", []), ("image", [])):
        for label in (OWNER, RUN_LABEL):
            listed = docker(kind, "ls", "-q", *every, "--filter", f"label={label}")
            found += [f"{kind} {name}" for name in listed.split()]
    found += [f"image {name}" for name in _image_names() if name_is_left(name)]
    return [*found, *map(str, Path("/dev/shm").glob("stackyard-*"))]


def _image_names() -> list[str]:
    return docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()


def main() -> int:
    """Name what was left, and remove it."""
    found = left()
    for one in found:
        print(f"left by the tests: {one}", file=sys.stderr)
    sweep_all()
    drop_cache()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
