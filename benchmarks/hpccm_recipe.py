"""Write a stack's Dockerfile with HPCCM, from its building blocks `apt_get` and `pip`.

Reads the stack's ingredients from standard input (JSON, see `benchmarks.image_size`) and writes the
Dockerfile. It runs in the benchmarks' own environment (`benchmarks/requirements.lock`) and imports
nothing of the project.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hpccm import Stage, config
from hpccm.building_blocks import apt_get, pip
from hpccm.primitives import baseimage, copy, environment, raw, shell, workdir

INSIDE = "stackyard/inside"
SITE = "/usr/local/lib/python3.11/dist-packages"
PLAIN = r"sed -e 's/\x1b\[[0-9;]*m//g' -e ':a' -e 's/[^\x08]\x08//' -e 'ta' -e '/^%$/d' -e 's/^[[:space:]]*//' -e '/^$/d'"  # noqa: E501


def installed(pins: Sequence[str], *options: str, env: Mapping[str, str] | None = None) -> pip:
    """Return the building block for exact requirements, without their dependencies."""
    words = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    return pip(
        pip=" ".join(["env", *words, "pip3"]) if words else "pip3", ospackages=[],
        packages=list(pins),
        install_args=["--break-system-packages", "--no-deps", "--find-links", "/tmp/wheels",
                      *options],
    )  # fmt: skip


def text(packages: Sequence[str]) -> shell:
    """Extract the text that trainings read from Debian's packages."""
    place, books = "/usr/local/share/stackyard/text", "usr/share/games/fortunes"
    return shell(commands=[
        "mkdir -p /tmp/text", "cd /tmp/text", "apt-get update -y",
        f"apt-get download {' '.join(packages)}",
        'for package in *.deb; do dpkg-deb -x "$package" .; done', f"mkdir -p {place}",
        f"cat {books}/tang300 {books}/song100 | {PLAIN} > {place}/zh.txt",
        f"cat {books}/science {books}/wisdom | {PLAIN} > {place}/en.txt",
        f"cp usr/share/doc/fortunes-zh/copyright {place}/zh.copyright",
        f"cp usr/share/doc/fortunes/copyright {place}/en.copyright",
        "rm -rf /tmp/text /var/lib/apt/lists/* /etc/ssh/ssh_host_*",
    ])  # fmt: skip


def recipe(stack: Mapping[str, Any]) -> Stage:
    """Build one stage, as HPCCM's own recipes do: system, Python packages, files."""
    made = Stage()
    made += baseimage(image=stack["base"], _distro="ubuntu22")
    made += apt_get(ospackages=stack["system"])
    made += text(stack["text"])
    if stack["built_without_torch"]:
        # fairseq's setup.py fails where torch can be imported, so fairseq comes first.
        made += installed(stack["build_requires"])
        made += installed(stack["built_without_torch"], "--no-build-isolation")
    made += installed(stack["torch"])
    if stack["built"]:
        made += installed(stack["built"], "--no-build-isolation", env=stack["build_env"])
    made += installed(stack["packages"])
    made += shell(
        _arguments=f"--mount=type=bind,source={INSIDE}/apply_fixes.py,target=/tmp/apply_fixes.py"
        f" --mount=type=bind,source={stack['fixes']},target=/tmp/fixes.json",
        commands=[f"python3 /tmp/apply_fixes.py /tmp/fixes.json --stage installed --root {SITE}"],
    )
    made += copy(src=f"{INSIDE}/node.py", dest="/usr/local/lib/stackyard/")
    made += copy(src=[f"{INSIDE}/sshd_config", f"{INSIDE}/ssh_config"], dest="/etc/ssh/")
    made += environment(variables=stack["env"])
    made += workdir(directory="/root")
    made += raw(docker='ENTRYPOINT ["/usr/bin/tini", "--"]')
    made += raw(docker='CMD ["python3", "/usr/local/lib/stackyard/node.py"]')
    return made


if __name__ == "__main__":
    config.set_container_format("docker")
    print(recipe(json.load(sys.stdin)))
