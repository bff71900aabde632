"""Small images for tests that are about the way, not about what travels."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fleet.emulated import docker

LABELS = "LABEL stackyard.stack=accelerate stackyard.base=cpu"


@contextmanager
def small_image(layers: int, megabytes: int, on: str = "") -> Iterator[str]:
    """An image of some layers of random bytes, on another one; its id while the block lasts."""
    tag = f"stackyard-test-small:{secrets.token_hex(4)}"
    with TemporaryDirectory() as name:
        folder = Path(name)
        steps = [f"FROM {on or 'scratch'}", LABELS]
        for _ in range(layers):
            file = f"{secrets.token_hex(4)}.bin"
            (folder / file).write_bytes(os.urandom(megabytes * 2**20))
            steps.append(f"COPY {file} /{file}")
        (folder / "Dockerfile").write_text("\n".join(steps) + "\n")
        subprocess.run(["/usr/bin/docker", "build", "-q", "-t", tag, name], check=True,
                       capture_output=True)  # fmt: skip
    try:
        yield docker("image", "inspect", "--format", "{{.Id}}", tag)
    finally:
        docker("rmi", "-f", tag, check=False)
