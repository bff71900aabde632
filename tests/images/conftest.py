"""One built image after the other: its plan, its layers, and one node running from it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest
from testinfra.host import Host

from stackyard.build import base_image, builder, mirrors
from stackyard.build import recipe as plan
from stackyard.build.catalog import ResolvedImage
from stackyard.definitions.project import INSIDE, Project, load_project
from stackyard.mesh import certificates, nodes
from stackyard.scan.mirror_traces import Caller, make_caller
from stackyard.scan.secrets.gate import Allowed, read_allowed
from stackyard.system.engine import Engine
from stackyard.system.image import ImageInfo
from tests.images.saved import SavedImage, read_saved, save
from tests.shared import BASE, inside

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


def planned(project: Project, engine: Engine, done: builder.Built) -> Built:
    """An image with the plan that it was built from."""
    reference = base_image.base_reference(done.image.base, done.image.common)
    base = engine.image(reference)
    assert base is not None
    files = plan.context_files(project.root, done.image)
    content = base_image.content(done.image.base, done.image.common, base)
    made = plan.make_plan(done.image, files, base_image=reference, content=content)
    return Built(image=done.image, info=done.info, plan=made)


# Every stack of the catalog; tests of one image run together, so one node runs at a time. All are
# rendered from one template and smoked in the main job: what is in those after the first is
# repetition.
STACKS = [
    pytest.param(stack, marks=pytest.mark.repeat if number else ())
    for number, stack in enumerate(sorted(PROJECT.definitions.stacks))
]


@pytest.fixture(scope="session", params=STACKS)
def built(
    request: pytest.FixtureRequest,
    project: Project,
    engine: Engine,
    stack_images: Mapping[str, builder.Built],
) -> Built:
    """The image of one stack."""
    return planned(project, engine, stack_images[request.param])


@pytest.fixture(scope="session")
def node(engine: Engine, built: Built) -> Iterator[nodes.Mesh]:
    """A mesh of one node, as every run starts it: without a way out, and with keys."""
    run = f"images-{built.plan.stack}-{secrets.token_hex(4)}"
    only = certificates.MeshPlan(run=run, nodes=("node-1",), port=2222, seconds=3600)
    probes = {"mesh_probe.py": (INSIDE / "mesh_probe.py").read_bytes()}
    wanted = nodes.NodeSettings(image=built.info.id, env={}, files={}, probes=probes)
    with nodes.running_mesh(engine, only, wanted, now=int(time.time())) as running:
        nodes.wait_reachable(running)
        yield running


@pytest.fixture(scope="session")
def host(node: nodes.Mesh) -> Host:
    """The node, for testinfra."""
    return inside(node.first)


@pytest.fixture(scope="session")
def said(host: Host) -> Callable[[str], str]:
    """Runs a shell command in the node that must succeed; its output without the line's end."""

    def run(command: str) -> str:
        done = host.run("timeout 100 bash -c %s", command)
        assert done.rc == 0, f"{command}: exit code {done.rc}: {done.stdout}{done.stderr}"
        return str(done.stdout).rstrip("\n")

    return run


@pytest.fixture(scope="session")
def caller(project: Project) -> Caller:
    """What this machine's package settings hold, to be looked for in images."""
    base = project.definitions.bases[BASE]
    found = mirrors.collect(os.environ, distribution=base.distribution)
    return make_caller(found, own=[base.torch_index])


@pytest.fixture(scope="session")
def allowed(project: Project) -> Allowed:
    """The secrets that everybody may know."""
    file = "images/gate.yml"
    return read_allowed((project.root / file).read_text(encoding="utf-8"), file)


@pytest.fixture(scope="session")
def all_saved(
    request: pytest.FixtureRequest,
    stack_images: Mapping[str, builder.Built],
    caller: Caller,
    allowed: Allowed,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, SavedImage]:
    """The images that tests ask for as they are saved, by id: they share four fifths of it."""
    tests = [test for test in request.session.items if "saved" in test.fixturenames]
    asked = {test.callspec.params["built"] for test in tests if isinstance(test, pytest.Function)}
    path = tmp_path_factory.mktemp("saved") / "images.tar"
    try:
        save(path, *(stack_images[stack].info.id for stack in sorted(asked)))
        return read_saved(path, caller, allowed)
    finally:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def saved(built: Built, all_saved: Mapping[str, SavedImage]) -> SavedImage:
    """The image's configuration and what its layers hold."""
    return all_saved[built.info.id]
