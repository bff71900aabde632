"""Measure an upgrade: bytes sent by the registry to two hosts, by what was changed.

Each case publishes a stack, pulls it, makes one change in a copy of the project, publishes that and
pulls again; a real registry, emulated hosts. An image made in one RUN moves as a whole whatever
changed; a vendor's base image is the same on both sides.

    benchmarks/run release_upgrade
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.cold_build import INVOKE
from benchmarks.common import Measured, Panel, Verdict
from benchmarks.one_package import Case, edit_copy, names_restored
from stackyard.build import buildkit, dockerfile
from stackyard.cli.console import Terminal
from stackyard.system import process
from stackyard.system.engine import Engine
from tests.fleet import emulated
from tests.release.conftest import Site, make_publisher
from tests.release.registry import registry

HOSTS = ("study", "train")
GOAL = 0.2


def change_fix(origin: Path, copy: Path, mark: str) -> None:
    """Change the text of a module that a fix adds."""
    module = copy / "images/fixes/files/fairseq/fused.py"
    module.write_text(f"{module.read_text(encoding='utf-8')}# {mark}\n", encoding="utf-8")
    process.run([str(INVOKE), "render"], cwd=copy)


def change_package(origin: Path, copy: Path, mark: str) -> None:
    """Change the stack's first package to an earlier version, which its fixes fit, too."""
    for path in (origin / "images/fixes").glob("accelerate-*.yml"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('accelerate: "==1.15.0"', 'accelerate: ">=1.14"'), "utf-8")
    case = Case(stack="accelerate", package="accelerate", versions=("1.14.0",))
    edit_copy(origin, copy, case, case.versions[0], mark)
    process.run([str(INVOKE), "render"], cwd=copy)


def change_base(origin: Path, copy: Path, mark: str) -> None:
    """Add a package of the distribution to the base, so that everything above it is built again."""
    base = copy / "images/bases/cpu.yml"
    text = base.read_text(encoding="utf-8")
    old = "packages: [python3, libgomp1]"
    assert text.count(old) == 1
    base.write_text(text.replace(old, f"{old[:-1]}, file]  # {mark}"), encoding="utf-8")
    process.run([str(INVOKE), "lock", "all", "--base", "cpu"], cwd=copy, timeout=1800)
    process.run([str(INVOKE), "render"], cwd=copy)


CASES: dict[str, tuple[str, Callable[[Path, Path, str], None]]] = {
    "a fix": ("fairseq", change_fix),
    "a package": ("accelerate", change_package),
    "the base": ("megatron", change_base),
}


def run_case(name: str, site: Site, folder: Path) -> dict[str, Any]:
    """Make one change; return what the pull after it moved."""
    stack, change = CASES[name]
    slug = name.replace(" ", "-")
    origin, copy = (common.copy_project(folder / f"{slug}-{which}") for which in ("old", "new"))
    change(origin, copy, f"benchmark {secrets.token_hex(8)}")
    moved = []
    for project in (origin, copy):
        process.run([str(INVOKE), "build", stack, "--base", "cpu"], cwd=project, timeout=3600)
        here = dataclasses.replace(site, project=project)
        done = here.publish(stack, "--unproven", seconds=900)
        size = sum(layer["size"] for layer in done["layers"])
        # A cache of its own: that of the machine that pulled before is of no use to it.
        away = dataclasses.replace(here, cache=folder / f"{slug}-{len(moved)}")
        pulled = away.pull(stack, seconds=900)
        assert {mark["state"] for mark in pulled["hosts"].values()} == {"pulled"}, pulled
        moved.append((pulled["from_registry_bytes"], size))
    (_, whole), (again, size) = moved
    return {"change": name, "stack": stack, "image": size, "before": whole, "moved": again}


def measure(terminal: Terminal, engine: Engine) -> Measured:
    """Measure every case."""
    runs = []
    client = buildkit.find_client(os.environ.get("PATH", "")).path
    tags = [dockerfile.image_tag(stack, "cpu") for stack, _ in CASES.values()]
    with (
        tempfile.TemporaryDirectory(prefix="release-upgrade-") as name,
        names_restored(engine, client, tags) as made,
    ):
        folder = Path(name)
        with emulated.hosts(HOSTS, [], folder) as found:
            yard = emulated.Yard(folder=folder, hosts={host.name: host for host in found})
            with registry(folder / "registry", yard.network) as reg:
                site = Site(folder=folder, registry=reg, yard=yard, cache=folder / "cache")
                make_publisher(site)
                for case in CASES:
                    runs.append(run_case(case, site, folder))
                    terminal.done("upgrade", json.dumps(runs[-1]))
                    made |= {info.id for tag in tags if (info := engine.image(tag))}
    return summarise(runs)


def summarise(runs: list[dict[str, Any]]) -> Measured:
    """Return a bar for each change, and the verdicts."""
    x = [run["change"] for run in runs]
    return Measured(
        title="An upgrade of a release: what it moves",
        runs=runs,
        panels=[
            Panel(title="out of the registry, by what was changed", unit="MB", x=x,
                  series={"moved": [[run["moved"] / 1e6] for run in runs],
                          "the image": [[run["image"] / 1e6] for run in runs]}),
        ],
        verdicts=[
            Verdict(what=f"moved of the image when {run['change']} changed",
                    value=run["moved"] / run["image"],
                    goal=1.0 if run["change"] == "the base" else GOAL)
            for run in runs
        ],
    )  # fmt: skip


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    sys.exit(common.main("release_upgrade", measure))
