"""Small images for tests that are about the way, not about what travels.

They are put together here and loaded, which takes a moment; a build takes seconds.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from stackyard.system import cleanup
from tests.fleet.emulated import OWNER, docker

LABELS = {"stackyard.stack": "accelerate", "stackyard.base": "cpu"}


def tar(files: Mapping[str, bytes]) -> bytes:
    """An archive of files; as a layer `.wh.NAME` deletes NAME of those below."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def random_layers(count: int, megabytes: int) -> list[bytes]:
    """Layers of a file each that does not compress."""
    return [tar({f"{secrets.token_hex(4)}.bin": os.urandom(megabytes * 2**20)})
            for _ in range(count)]  # fmt: skip


@contextmanager
def loaded(
    layers: Sequence[bytes], labels: Mapping[str, str] = LABELS, env: Sequence[str] = ()
) -> Iterator[str]:
    """An image of these layers in the engine here; its id while the block lasts."""
    tag = f"stackyard-test-small:{secrets.token_hex(4)}"
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "created": "2026-01-01T00:00:00Z",
        "config": {"Labels": {**labels, OWNER: cleanup.owner()}, "Env": list(env)},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers],
        },
        "history": [{"created_by": f"step {number}"} for number in range(len(layers))],
    }).encode()  # fmt: skip
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    listed = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
    archive = tar({
        **dict(zip(names, layers, strict=True)),
        "config.json": config, "manifest.json": json.dumps(listed).encode(),
    })  # fmt: skip
    subprocess.run(["docker", "load", "-q"], input=archive, check=True, capture_output=True)
    try:
        yield docker("image", "inspect", "--format", "{{.Id}}", tag)
    finally:
        docker("rmi", "-f", tag, check=False)


@contextmanager
def small_image(layers: int, megabytes: int) -> Iterator[str]:
    """An image of some layers of random bytes; its id while the block lasts."""
    with loaded(random_layers(layers, megabytes)) as image:
        yield image
