"""Execute a build plan with BuildKit, through a docker client that supports it.

Owns finding that client and turning its output into steps and errors. It must not decide what is
built: the plan does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stackyard.build.mirrors import CallerSettings
from stackyard.build.recipe import BuildPlan
from stackyard.system import cleanup, process
from stackyard.system.archive import pack
from stackyard.system.errors import BuildError, CommandError, EngineError, StackyardError

Step = Callable[[str], None]
_STEP = re.compile(r"^#(\d+) (\[[^\]]+\] .*)$")
_ERROR = re.compile(r"^#(\d+) ERROR: (.*)$")
# BuildKit says the first now and then where steps wait for each other on a busy machine
# (moby/buildkit#990, #1822), the second where the build that began a shared step is interrupted
# while others join, and the third where a busy engine loses a build's session while a step asks it
# for a secret. The next try finds what was made.
_PASSING = (
    "flightcontrol: exceeded retry timeout",
    "no active sessions",
    "rpc error: code = Internal desc = unexpected EOF",
)
_TRIES = 3
# The engine that Stackyard talks to, which is DOCKER_HOST's or the default one, and its own
# BuildKit: a context or builder that the caller has chosen may be elsewhere, without the base.
_HERE = {"DOCKER_BUILDKIT": "1", "DOCKER_CONTEXT": "default", "BUILDX_BUILDER": "default"}


@dataclass(frozen=True, kw_only=True)
class Client:
    """Name a docker client that builds with BuildKit."""

    path: str
    buildx: bool

    @property
    def says(self) -> str:
        """Return the client's path and mode, for people."""
        return f"{self.path} ({'buildx' if self.buildx else 'DOCKER_BUILDKIT=1'})"


def find_client(path: str) -> Client:
    """Find the first docker binary on PATH that can build with BuildKit.

    Raises:
        EngineError: there is none; says what each binary lacks.
    """
    tried: list[str] = []
    for folder in dict.fromkeys(path.split(os.pathsep)):
        binary = shutil.which("docker", path=folder)
        if binary is None:
            continue
        try:
            version = process.run([binary, "--version"], check=False, timeout=20).output
            buildx = process.run([binary, "buildx", "version"], check=False, timeout=20)
        except StackyardError as error:
            tried.append(str(error))
            continue
        if buildx.code == 0:
            return Client(path=binary, buildx=True)
        match = re.search(r"version (\d+)\.", version)
        # Since version 23, the client needs the buildx plugin for BuildKit.
        if match and 18 < int(match.group(1)) < 23:
            return Client(path=binary, buildx=False)
        tried.append(f"{binary}: {version.strip()[:60]}: no buildx plugin")
    raise EngineError(
        "no docker client here can build with BuildKit",
        why="\n".join(tried) or "there is no docker on PATH",
        hint="apt-get install docker.io (Debian 12), docker-buildx (Ubuntu), or"
        " docker-buildx-plugin (Docker's own packages)",
    )


def arguments(
    plan: BuildPlan,
    client: Client,
    tools: str,
    caller: CallerSettings,
    secrets: Path,
    *,
    offline: bool = False,
    out: Path | None = None,
    fresh: bool = False,
) -> list[str]:
    """Return the exact build command; secrets are files in `secrets`, never values in argv.

    Args:
        out: folder for the files of the Dockerfile's last stage; None to make an image.
    """
    words = [client.path, "buildx", "build"] if client.buildx else [client.path, "build"]
    if client.buildx and out is None:
        words += ["--load"]
    made = ["-t", plan.tag] if out is None else ["--output", f"type=local,dest={out}"]
    words += ["--progress=plain", "-f", plan.dockerfile, *made]
    if offline:
        words += ["--network", "none"]
    if fresh:
        words += ["--no-cache"]
    words += ["--build-arg", f"BASE={plan.base_image}", "--build-arg", f"TOOLS={tools}"]
    if plan.packages:
        words += ["--build-arg", f"PACKAGES={plan.packages}"]
    for name in sorted(caller.proxies):
        words += ["--build-arg", name]  # the value comes from the environment
    for name, value in sorted(plan.labels.items()) if out is None else ():
        words += ["--label", f"{name}={value}"]
    for name in sorted(caller.secrets):
        words += ["--secret", f"id={name},src={secrets / name}"]
    return [*words, "-"]


def build(
    plan: BuildPlan,
    client: Client,
    tools: str,
    caller: CallerSettings,
    on_step: Step,
    *,
    offline: bool = False,
    fresh: bool = False,
) -> str:
    """Build and tag the plan's image; return its id.

    The id is certain to be of this build: another build may have taken over the tag meanwhile.

    Args:
        tools: the image that steps take their tools from, and offline everything else.
        offline: run steps without a network.
        fresh: run every step, whatever BuildKit has cached.

    Raises:
        BuildError: a step failed; names it, with its last lines.
    """
    with _secret_files(caller) as folder:
        words = arguments(plan, client, tools, caller, folder, offline=offline, fresh=fresh)
        made = folder / "image-id"
        _run(plan, [*words[:-1], "--iidfile", str(made), words[-1]], caller, on_step)
        return made.read_text(encoding="utf-8").strip()


def export(
    plan: BuildPlan,
    client: Client,
    tools: str,
    caller: CallerSettings,
    out: Path,
    *,
    offline: bool = False,
) -> None:
    """Build the plan's Dockerfile, and write the files of its last stage to `out`.

    Raises:
        BuildError: a step failed; names it, with its last lines.
    """
    with _secret_files(caller) as folder:
        words = arguments(plan, client, tools, caller, folder, offline=offline, out=out)
        _run(plan, words, caller, lambda step: None)


def _run(plan: BuildPlan, words: list[str], caller: CallerSettings, on_step: Step) -> None:
    for left in reversed(range(_TRIES)):
        progress = Progress(on_step)
        try:
            process.run(
                words,
                env={**_HERE, **caller.proxies},
                stdin=pack({**{p: t.encode() for p, t in plan.context.items()}, **plan.blobs}),
                timeout=3600,
                on_line=progress.line,
            )
            return
        except CommandError as error:
            if left and any(words in error.why for words in _PASSING):
                continue
            raise BuildError(
                f"{plan.tag} could not be built: {progress.failed_step()}",
                why=progress.last_lines() or error.why,
                hint=f"correct what the lines above name, then: invoke build {plan.stack}"
                f" --base {plan.base}",
            ) from error


@contextlib.contextmanager
def _secret_files(caller: CallerSettings) -> Iterator[Path]:
    with cleanup.folder("secrets") as folder:
        for secret, data in caller.secrets.items():
            path = folder / secret
            path.touch(mode=0o600)
            path.write_bytes(data)
        yield folder


class Progress:
    """Read BuildKit's plain progress: the steps, the failed one, and its last lines."""

    def __init__(self, on_step: Step) -> None:
        self._on_step = on_step
        self._names: dict[str, str] = {}
        self._said: dict[str, list[str]] = {}
        self._failed = ""

    def line(self, line: str) -> None:
        """Take one line of output."""
        step = _STEP.match(line)
        if step:
            number, name = step.groups()
            if number not in self._names:
                self._names[number] = name
                self._on_step(name)
            return
        wrong = _ERROR.match(line)
        if wrong and not self._failed:
            self._failed = wrong.group(1)
        match = re.match(r"^#(\d+) [\d.]+ (.*)$", line)
        if match:
            self._said.setdefault(match.group(1), []).append(match.group(2))

    def failed_step(self) -> str:
        """Return the name of the step that failed."""
        last = next(reversed(self._names.values()), "")
        name = self._names.get(
            self._failed, f"the last step begun was {last}" if last else "no step was reached"
        )
        return re.sub(r"--mount=\S+\s*", "", name)[:200]

    def last_lines(self) -> str:
        """Return the last lines of the failed step's output."""
        return "\n".join(self._said.get(self._failed, [])[-25:])
