"""Images that are made for the tests: machines, and nodes of a cluster.

Owns building them from a folder beside this file, with the caller's package sources. They are a
cache for the next run; BuildKit makes only what has changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from stackyard.build import buildkit, mirrors
from stackyard.definitions.project import ROOT, load_project
from stackyard.system import cleanup

HERE = Path(__file__).resolve().parent
CACHE = "stackyard-test-cache"


def build_image(name: str, folder: str, on: str, **arguments: str) -> str:
    """Build the image `name` of a folder's Dockerfile, on the image `on`; its name."""
    client = buildkit.find_client(os.environ["PATH"])
    distribution = load_project().definitions.bases["cpu"].distribution
    caller = mirrors.collect(os.environ, distribution=distribution)
    command = [client.path, *(["buildx"] if client.buildx else []), "build", "--tag", name,
               "--label", CACHE, "--build-arg", f"IMAGE={on}"]  # fmt: skip
    for key, value in arguments.items():
        command += ["--build-arg", f"{key}={value}"]
    command += [word for proxy in sorted(caller.proxies) for word in ("--build-arg", proxy)]
    with cleanup.folder("test-image") as place:
        context = place / "context"
        shutil.copytree(HERE / folder, context)
        shutil.copy(ROOT / "stackyard" / "inside" / "build.sh", context)
        for secret in ("ca.pem", "apt.sources"):
            if secret in caller.secrets:
                (place / secret).write_bytes(caller.secrets[secret])
                command += ["--secret", f"id={secret},src={place / secret}"]
        env = {**os.environ, **caller.proxies, "DOCKER_BUILDKIT": "1"}
        done = subprocess.run(
            [*command, str(context)], env=env, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return name
