"""The stacks as a person would build them: Dockerfiles of `by_hand/`, pip, the layer cache.

Owns what those builds are given: a context with pinned requirements made from the project's locks,
the local torch wheel, and the caller's package settings as secrets. The Dockerfiles are written by
hand and are the other side of every comparison; nothing of the project's own building is used.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stackyard import build, foundation, lock, plan, process, settings
from stackyard.engine import Engine
from stackyard.errors import StackyardError
from stackyard.image import ImageInfo
from stackyard.project import Project
from stackyard.spec import Base, Bootstrap, Common, Definitions

DOCKERFILES = Path(__file__).resolve().parent / "by_hand"
BASE = "benchmark/debian:12"


@dataclass(frozen=True, kw_only=True)
class Hand:
    """Everything builds by hand need on one machine.

    Attributes:
        folder: the build context.
        secrets: the files that are handed over as secrets, by id.
    """

    client: build.Client
    folder: Path
    secrets: Mapping[str, Path]
    proxies: Mapping[str, str]


def tag(stack: str, variant: str = "by-hand") -> str:
    """The name of an image built by hand, from `<stack>.Dockerfile` or a variant of it."""
    return f"benchmark/{stack}:{variant}"


def dockerfile(stack: str, variant: str = "by-hand") -> str:
    """The name of a Dockerfile in the context."""
    return f"{stack}.Dockerfile" if variant == "by-hand" else f"{stack}.{variant}.Dockerfile"


def requirements(text: str) -> str:
    """Pinned requirements as people write them, from a lock: the hashes left out."""
    return "".join(f"{item.name}=={item.version}\n" for item in lock.parse_lock(text))


def bare_base(definitions: Definitions) -> Base:
    """The bare Debian that hand-written Dockerfiles start from: apt and nothing of ours."""
    base = definitions.bases["cpu"]
    assert base.bootstrap is not None
    bare = Bootstrap(suite=base.bootstrap.suite, packages=("apt",), exclude=base.bootstrap.exclude)
    return dataclasses.replace(base, name="debian", reference=BASE, bootstrap=bare)


def names(project: Project) -> list[str]:
    """Every image name that builds by hand leave in an engine."""
    base = foundation.base_reference(*_bare(project))
    return [base, BASE, *(tag(stack) for stack in project.stacks("all"))]


def _bare(project: Project) -> tuple[Base, Common]:
    common = dataclasses.replace(project.definitions.common, system=())
    return bare_base(project.definitions), common


def ensure_base(engine: Engine, project: Project, say: Callable[[str], None]) -> ImageInfo:
    """Have the bare base in the engine, bootstrapped if it is not there."""
    base, common = _bare(project)
    caller = settings.collect(os.environ, distribution=base.distribution)
    return foundation.ensure_base(engine, base, common, caller, say)


@contextmanager
def prepared(project: Project) -> Iterator[Hand]:
    """Lay out the context and the secrets, for as long as the builds take.

    Raises:
        StackyardError: the torch wheel is in no local folder that pip is told of.
    """
    base = project.definitions.bases["cpu"]
    caller = settings.collect(os.environ, distribution=base.distribution)
    client = build.find_client(os.environ.get("PATH", ""))
    with tempfile.TemporaryDirectory(prefix="stackyard-by-hand-") as name:
        folder = Path(name)
        secrets = _write_secrets(folder / "secrets", caller.secrets)
        context = folder / "context"
        for path in (*plan.INSIDE, *(f"images/{s}/cpu.fixes.json" for s in project.stacks("all"))):
            (context / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project.root / path, context / path)
        for written in DOCKERFILES.glob("*.Dockerfile"):
            shutil.copy2(written, context)
        write_requirements(project.root, context, project.stacks("all"))
        _copy_torch(project.root, context / "wheels", caller.wheel_folders)
        yield Hand(client=client, folder=context, secrets=secrets, proxies=caller.proxies)


def write_requirements(root: Path, context: Path, stacks: list[str], *, mark: str = "") -> None:
    """Requirements of the shared part and of each stack, from the locks below `root`.

    Args:
        mark: a comment in the stacks' files.
    """
    (context / "requirements").mkdir(exist_ok=True)
    paths = {"base": lock.base_lock_path("cpu"), **{s: lock.lock_path(s, "cpu") for s in stacks}}
    for name, path in paths.items():
        text = requirements((root / path).read_text(encoding="utf-8"))
        text += f"# {mark}\n" if mark and name != "base" else ""
        (context / "requirements" / f"{name}.txt").write_text(text, encoding="utf-8")


def _write_secrets(folder: Path, given: Mapping[str, bytes]) -> dict[str, Path]:
    """pip.conf, ca.pem and apt.sources as pip and apt read them."""
    pip = given.get("pip.conf", b"[global]\n")
    if "ca.pem" in given:
        pip += b"cert = /run/secrets/ca.pem\n"
    wanted = {"pip.conf": pip, **{n: given[n] for n in ("ca.pem", "apt.sources") if n in given}}
    folder.mkdir(mode=0o700)
    for name, data in wanted.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in wanted}


def _copy_torch(root: Path, target: Path, folders: tuple[Path, ...]) -> None:
    pins = lock.versions(lock.parse_lock((root / lock.base_lock_path("cpu")).read_text()))
    wheels = foundation.local_wheels(folders, {("torch", pins["torch"])})
    if not wheels:
        raise StackyardError(
            f"the wheel of torch {pins['torch']} is in no local folder",
            why="both sides are to take it from this machine, so that they download the same",
            hint="pip download --no-deps torch==... into a folder, name it in PIP_FIND_LINKS",
        )
    target.mkdir()
    for wheel in wheels:
        shutil.copy2(wheel, target)


def arguments(hand: Hand, stack: str, variant: str = "by-hand") -> list[str]:
    """The build command that a person would type."""
    client = hand.client
    words = [client.path, "buildx", "build", "--load"] if client.buildx else [client.path, "build"]
    words += ["--progress=plain", "-f", str(hand.folder / dockerfile(stack, variant))]
    words += ["-t", tag(stack, variant)]
    words += ["--build-arg", f"BASE={BASE}"]
    for name in sorted(hand.proxies):
        words += ["--build-arg", name]
    for name, path in sorted(hand.secrets.items()):
        words += ["--secret", f"id={name},src={path}"]
    return [*words, str(hand.folder)]


def build_stack(
    hand: Hand, stack: str, say: Callable[[str], None], variant: str = "by-hand"
) -> None:
    """Build one hand-written Dockerfile, or a variant that lies beside it in the context.

    Raises:
        CommandError: the build failed; carries its last lines.
    """
    process.run(
        arguments(hand, stack, variant),
        env={"DOCKER_BUILDKIT": "1", **hand.proxies},
        timeout=3600,
        on_line=build.Progress(lambda step: say(step)).line,
    )
