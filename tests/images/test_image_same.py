"""An image built again from the same locks, at another time, has the same files, byte for byte."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tarfile
import time

import pytest

from stackyard.build import base_image, buildkit, mirrors
from stackyard.build import recipe as plan
from stackyard.definitions.project import INSIDE
from tests.images.conftest import planned
from tests.images.saved import member, save
from tests.shared import own_name

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
