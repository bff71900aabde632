"""A stand-in for NVIDIA's PyTorch container, in a registry of the tests' own.

What it has of the real image, from where that is known, and what it has not: README.md beside this
file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from stackyard.build import base_image, buildkit, mirrors
from stackyard.definitions import lock
from stackyard.definitions.project import ROOT, load_project
from stackyard.system import cleanup
from stackyard.system.engine import Engine
from tests.fleet.images import CACHE

HERE = Path(__file__).resolve().parent
NAME = "stackyard-test-ngc"
TORCH = "2.13.0a0+5ac4a1e.nv25.12"
# Versions inside that no index has, or that a stack's own pins meet.
HELD = {
    "torch": TORCH,
    **dict(line.split("==") for line in (HERE / "held.txt").read_text().split()),
}
_SECRETS = ("ca.pem", "uv.toml", "pip.conf")


def make_image(engine: Engine) -> str:
    """Build the stand-in; its name. BuildKit keeps it for the next run."""
    definitions = load_project().definitions
    base, common = definitions.bases["cpu"], definitions.common
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    base_image.ensure_base(engine, base, common, caller, print)
    locked = definitions.locks[lock.base_lock_path("cpu")]
    wanted = lock.versions(lock.parse_lock(locked)).items()
    client = buildkit.find_client(os.environ["PATH"])
    command = [client.path, *(["buildx"] if client.buildx else []), "build", "--tag", NAME,
               *(["--load"] if client.buildx else []), "--label", CACHE,
               "--build-arg", f"BASE={base_image.base_reference(base, common)}",
               "--build-arg", f"TOOLS={base_image.ensure_tools(engine, caller, wanted)}",
               "--build-arg", f"TORCH_INDEX={base.torch_index}"]  # fmt: skip
    command += [word for proxy in sorted(caller.proxies) for word in ("--build-arg", proxy)]
    with cleanup.folder("test-image") as place:
        context = place / "context"
        shutil.copytree(HERE, context, ignore=shutil.ignore_patterns("__*"))
        shutil.copy(ROOT / "stackyard" / "inside" / "build.sh", context)
        (context / "base.lock").write_text(locked, encoding="utf-8")
        for secret in _SECRETS:
            if secret in caller.secrets:
                (place / secret).write_bytes(caller.secrets[secret])
                command += ["--secret", f"id={secret},src={place / secret}"]
        env = {**os.environ, **caller.proxies, "DOCKER_BUILDKIT": "1"}
        done = subprocess.run(
            [*command, str(context)], env=env, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return NAME
