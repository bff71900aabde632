"""An image built again from the same locks, at another time, has the same files, byte for byte.

It is built by several commands beside each other, one of which is interrupted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator

import pytest

from stackyard.build import base_image, buildkit, mirrors
from stackyard.build import recipe as plan
from stackyard.build.builder import Built
from stackyard.definitions.project import INSIDE, ROOT
from stackyard.system.engine import Engine
from stackyard.system.image import ImageInfo
from tests.images.conftest import planned
from tests.images.saved import member, save
from tests.shared import BASE, own_name, until
from tests.trees import copy_tree, rename_stack

pytestmark = pytest.mark.engine
STACK = "megatron"  # `rebuilt` is: it has the smallest layer of its own
INVENTORY = (INSIDE / "inventory.py").read_text(encoding="utf-8")
# Two steps that write into a file what only they know: the first by its content, the second not.
MADE = """\
ARG BASE
FROM ${BASE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
USER 0
RUN --mount=type=tmpfs,target=/mnt \\
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \\
    --mount=type=bind,source=again,target=/mnt/again \\
    . /mnt/build.sh && mkdir /srv/made && date +%N > /srv/made/now && echo same > /srv/made/same
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A plan and what it is executed with."""

    plan: plan.BuildPlan
    client: buildkit.Client
    tools: str
    caller: mirrors.CallerSettings

    def again(self, mark, **changes):
        """Build it under another name, from a context that differs in nothing that is installed."""
        tag = f"stackyard/{own_name('same')}:{mark}"
        other = dataclasses.replace(self.plan, tag=tag, **changes)
        return tag, buildkit.build(other, self.client, self.tools, self.caller, print)


@pytest.fixture(scope="module")
def first(project, engine, stack_images):
    """The image as it is, and everything to build it again."""
    done = planned(project, engine, stack_images[STACK])
    caller = mirrors.collect(os.environ, distribution=done.image.base.distribution)
    pins = [(name, setting.value) for name, setting in done.image.provided.items()]
    tools = base_image.ensure_tools(engine, caller, pins)
    client = buildkit.find_client(os.environ["PATH"])
    return done.info, Made(plan=done.plan, client=client, tools=tools, caller=caller)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """An image that was built again under another name, by several commands at once.

    Attributes:
        codes: the exit codes of the command that was interrupted, and of those that were not.
        output: what they all said.
    """

    info: ImageInfo
    codes: tuple[int, int, int]
    output: str


@pytest.fixture(scope="module")
def rebuilt(
    engine: Engine, stack_images: dict[str, Built], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rebuilt]:
    """Megatron's own layers made again: a comment in its lock makes every step of them run.

    The command that began it is interrupted when two others have joined in.
    """
    folder, name = tmp_path_factory.mktemp("rebuilt"), own_name("rebuilt")
    tree = copy_tree(folder)
    with (rename_stack(tree, "megatron", name) / f"{BASE}.lock").open("a") as lock:
        lock.write(f"# Again, at {time.time_ns()}.\n")
    command = [ROOT / ".venv/bin/invoke", "build", name, "--base", BASE, "--verbose"]

    def start(output: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=tree, stdout=output, stderr=subprocess.STDOUT, text=True
        )

    path = folder / "output"
    with path.open("w") as output, start(subprocess.PIPE) as first:
        # BuildKit shows a step that is for several to the first of them.
        for line in first.stdout:
            if "installing packages" in line:
                break
        others = [start(output), start(output)]
        until(lambda: path.read_text().count("load remote build context") == len(others))
        first.send_signal(signal.SIGINT)
        said = first.stdout.read()
        codes = (first.wait(), *(other.wait(timeout=600) for other in others))
    info = engine.image(f"stackyard/{name}:{BASE}")
    said += path.read_text()
    assert info is not None, said
    yield Rebuilt(info=info, codes=codes, output=said)
    engine.remove_image(f"stackyard/{name}:{BASE}")


def layers(archive, image, wanted):
    """The files of some layers: by path what tells one from another, content by its hash."""
    entries = json.loads(member(archive, "manifest.json").read())
    (entry,) = (e for e in entries if image.id.removeprefix("sha256:") in e["Config"])
    pairs = zip(image.layers, entry["Layers"], strict=True)
    return [files(member(archive, name)) for digest, name in pairs if digest in wanted]


def files(stream):
    found = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            assert member.name not in found
            content = archive.extractfile(member).read() if member.isfile() else b""
            found[member.name] = {
                "type": member.type, "mode": oct(member.mode), "owner": (member.uid, member.gid),
                "time": member.mtime, "link": member.linkname, "size": member.size,
                "more": member.pax_headers,
                "content": hashlib.sha256(content).hexdigest(),
            }  # fmt: skip
    return found


def differences(one, other, folder):
    """What differs between two images, path by path; nothing is read where layers are the same."""
    wanted = set(one.layers) ^ set(other.layers)
    if not wanted:
        return []
    save(folder / "images.tar", one.id, other.id)
    with tarfile.open(folder / "images.tar", "r:") as archive:
        pairs = list(zip(*(layers(archive, i, wanted) for i in (one, other)), strict=True))
    (folder / "images.tar").unlink()
    return [
        f"/{path}: " + (", ".join(k for k in a[path] if a[path][k] != b[path][k])
                        if path in a and path in b else "in one only")
        for a, b in pairs
        for path in sorted({*a, *b})
        if a.get(path) != b.get(path)
    ]  # fmt: skip


def test_a_step_that_writes_what_only_it_knows_is_seen(engine, first, tmp_path):
    _, made = first
    context = {path: made.plan.context[path] for path in ("stackyard/inside/build.sh",)}
    found = []
    for mark in ("one", "two"):
        other = {**context, "Dockerfile": MADE, "again": mark}
        found.append(made.again(mark, context=other, dockerfile="Dockerfile"))
        ended = int(time.time())
        while int(time.time()) == ended:  # the times in a layer are whole seconds
            time.sleep(0.01)
    try:
        images = [engine.image(image) for _, image in found]
        assert differences(*images, tmp_path) == ["/srv/made/now: content"]
    finally:
        for tag, _ in found:
            engine.remove_image(tag)


def test_builds_of_one_stack_do_not_disturb_each_other_nor_does_an_interrupted_one(rebuilt):
    assert rebuilt.codes == (130, 0, 0), rebuilt.output


def test_an_image_built_again_has_the_same_files_byte_for_byte(engine, first, rebuilt, tmp_path):
    info, second = first[0], rebuilt.info
    assert info.id != second.id, "nothing was built: the clock stands in an image's configuration"
    steps = [step["CreatedBy"] for step in engine.history(second.id)]
    assert sum("install_locked /mnt/stack.lock" in step for step in steps) == 1
    assert len(info.layers) == len(second.layers)
    # Not by digests: an engine that holds the layer below under two ids packs the same files in
    # another order.
    assert differences(info, second, tmp_path) == []


def test_two_images_of_one_recipe_hold_the_same_packages(engine, first, rebuilt):
    said = [engine.run_once(image.id, ["python3", "-c", INVENTORY], seconds=60)
            for image in (first[0], rebuilt.info)]  # fmt: skip
    assert said[0] == said[1]
    assert json.loads(said[0])["python"]["deepspeed"]
