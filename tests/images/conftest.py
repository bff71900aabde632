"""One built image after the other: its plan, its layers, and one node running from it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import testinfra

from stackyard import foundation, mesh, nodes, plan, settings, smoke
from stackyard.builder import Builder
from stackyard.caller import Caller, make_caller
from stackyard.catalog import ResolvedImage
from stackyard.engine import Engine
from stackyard.gate import Allowed, Finding, read_allowed
from stackyard.image import ImageInfo
from stackyard.project import Project, load_project
from tests.images.saved import SavedImage, scan_image

BASE = "cpu"
PROJECT = load_project()


@dataclass(frozen=True, kw_only=True)
class Built:
    """A built image, as planned and as the engine holds it."""

    image: ResolvedImage
    info: ImageInfo
    plan: plan.BuildPlan


@pytest.fixture(scope="session")
def project() -> Project:
    return PROJECT


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="session")
def builder(project: Project, engine: Engine) -> Builder:
    return Builder(project, engine, lambda name, text: print(f"{name}: {text}"))


# Every stack of the catalog; tests of one image run together, so one node runs at a time.
@pytest.fixture(scope="session", params=sorted(PROJECT.definitions.stacks))
def built(
    request: pytest.FixtureRequest, project: Project, engine: Engine, builder: Builder
) -> Built:
    """The image, built first if what is there is not current."""
    done = builder.build(request.param, BASE)
    reference = foundation.base_reference(done.image.base, done.image.common)
    base = engine.image(reference)
    assert base is not None
    paths = plan.context_paths(done.image)
    files = {path: (project.root / path).read_text(encoding="utf-8") for path in paths}
    made = plan.make_plan(done.image, files, base_image=reference, base_digest=base.id)
    return Built(image=done.image, info=done.info, plan=made)


@pytest.fixture(scope="session")
def node(engine: Engine, built: Built) -> Iterator[nodes.Mesh]:
    """A mesh of one node, as every run starts it: without a way out, and with keys."""
    run = f"images-{built.plan.stack}-{secrets.token_hex(4)}"
    only = mesh.MeshPlan(run=run, nodes=("node-1",), port=2222, seconds=3600)
    probes = {"mesh_probe.py": (smoke.INSIDE / "mesh_probe.py").read_bytes()}
    wanted = nodes.NodeSettings(image=built.info.id, env={}, files={}, probes=probes)
    with nodes.running_mesh(engine, only, wanted, now=int(time.time())) as running:
        nodes.wait_reachable(running)
        yield running


@pytest.fixture(scope="session")
def host(node: nodes.Mesh) -> Any:
    """The node, for testinfra."""
    return testinfra.get_host(f"docker://{node.first}")


@pytest.fixture(scope="session")
def said(host: Any) -> Callable[[str], str]:
    """Runs a shell command in the node that must succeed; its output without the line's end."""

    def run(command: str) -> str:
        done = host.run("timeout 100 bash -c %s", command)
        assert done.rc == 0, f"{command}: exit code {done.rc}: {done.stdout}{done.stderr}"
        return str(done.stdout).rstrip("\n")

    return run


@pytest.fixture(scope="session")
def caller(built: Built) -> Caller:
    """What this machine's package settings hold, to be looked for in the image."""
    base = built.image.base
    found = settings.collect(os.environ, distribution=base.distribution)
    return make_caller(found, own=[base.torch_index])


@pytest.fixture(scope="session")
def allowed(project: Project) -> Allowed:
    """The secrets that everybody may know."""
    file = "images/gate.yml"
    return read_allowed((project.root / file).read_text(encoding="utf-8"), file)


@pytest.fixture(scope="session")
def scanned() -> dict[str, tuple[Finding, ...]]:
    """Findings by layer: what images share is scanned once."""
    return {}


@pytest.fixture(scope="session")
def saved(
    engine: Engine,
    built: Built,
    caller: Caller,
    allowed: Allowed,
    scanned: dict[str, tuple[Finding, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> SavedImage:
    """The image's configuration and what its layers hold."""
    path = tmp_path_factory.mktemp("saved") / "image.tar"
    try:
        engine.save(built.info.id, path)
        return scan_image(path, caller, scanned, allowed)
    finally:
        path.unlink(missing_ok=True)
