"""Build the stacks as a person would: Dockerfiles of `by_hand/`, pip, the layer cache.

Owns what those builds are given: a context with pinned requirements made from the project's locks
on one base, the local wheels that these name, and the caller's package settings as secrets. The
Dockerfiles are written by hand and are the other side of every comparison; nothing of the project's
own building is used.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from stackyard.build import base_image, buildkit, catalog, dockerfile, mirrors, recipe
from stackyard.definitions import lock
from stackyard.definitions.load import load_definitions
from stackyard.definitions.project import Project
from stackyard.definitions.spec import Base, Bootstrap, Common, Definitions
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError
from stackyard.system.image import ImageInfo

DOCKERFILES = Path(__file__).resolve().parent / "by_hand"
BASE = "benchmark/debian:12"


@dataclass(frozen=True, kw_only=True)
class Hand:
    """Hold what builds by hand need on one machine.

    Attributes:
        folder: the build context.
        secrets: the files that are passed as secrets, by id.
        device: the images' device, passed to the Dockerfiles.
    """

    client: buildkit.Client
    folder: Path
    secrets: Mapping[str, Path]
    proxies: Mapping[str, str]
    device: str = "cpu"


def tag(stack: str, variant: str = "by-hand") -> str:
    """Return the name of an image built by hand, from `<stack>.Dockerfile` or a variant of it."""
    return f"benchmark/{stack}:{variant}"


def dockerfile_name(stack: str, variant: str = "by-hand") -> str:
    """Return the name of a Dockerfile in the context."""
    return f"{stack}.Dockerfile" if variant == "by-hand" else f"{stack}.{variant}.Dockerfile"


def fixes_path(stack: str) -> str:
    """Return the path of a stack's fixes in the context, those of the base that is built on."""
    return f"fixes/{stack}.json"


def requirements(text: str, exact: Collection[str] = ()) -> str:
    """Return pinned requirements from a lock, without hashes, as people write them.

    Args:
        exact: names pinned to one build of a version, such as 2.13.0+cpu.
    """
    return "".join(
        f"{item.name}{'===' if item.name in exact else '=='}{item.version}\n"
        for item in lock.parse_lock(text)
    )


def exact_names(base: Base) -> set[str]:
    """Return the distributions that a base pins to one build (`torch===2.13.0`)."""
    return {canonicalize_name(pin.split("===")[0]) for pin in base.torch if "===" in pin}


def bare_base(definitions: Definitions) -> Base:
    """Return the bare Debian that hand-written Dockerfiles start from, with apt alone."""
    base = definitions.bases["cpu"]
    assert base.bootstrap is not None
    bare = Bootstrap(suite=base.bootstrap.suite, packages=("apt",), exclude=base.bootstrap.exclude)
    return dataclasses.replace(base, name="debian", reference=BASE, bootstrap=bare)


def names(project: Project) -> list[str]:
    """Return every image name that builds by hand leave in an engine."""
    base = base_image.base_reference(*_bare(project))
    return [base, BASE, *(tag(stack) for stack in project.stacks("all"))]


def _bare(project: Project) -> tuple[Base, Common]:
    common = dataclasses.replace(
        project.definitions.common, system=(), build_system=(), text_packages=(), stack_system=()
    )
    return bare_base(project.definitions), common


def ensure_base(engine: Engine, project: Project, say: Callable[[str], None]) -> ImageInfo:
    """Return the bare base's image, bootstrapped if the engine does not have it."""
    base, common = _bare(project)
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    return base_image.ensure_base(engine, base, common, caller, say)


@contextmanager
def prepared(project: Project, base_name: str) -> Iterator[Hand]:
    """Write the context and the secrets for one base, and remove them after the builds.

    Raises:
        StackyardError: the torch wheel is neither on the index nor in a local folder.
    """
    base = project.definitions.bases[base_name]
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    client = buildkit.find_client(os.environ.get("PATH", ""))
    with tempfile.TemporaryDirectory(prefix="stackyard-by-hand-") as name:
        folder = Path(name)
        secrets = _write_secrets(folder / "secrets", caller.secrets)
        write_context(project, base, folder / "context", caller.wheel_folders)
        yield Hand(
            client=client, folder=folder / "context", secrets=secrets, proxies=caller.proxies,
            device=base.device,
        )  # fmt: skip


def write_context(project: Project, base: Base, context: Path, wheels: tuple[Path, ...]) -> None:
    """Write everything that the Dockerfiles read to a new folder.

    Args:
        wheels: local folders that may hold what the lock of the base names.

    Raises:
        StackyardError: the torch wheel is neither on the index nor in a local folder.
    """
    stacks = project.stacks("all")
    for path in recipe.INSIDE:
        (context / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project.root / path, context / path)
    (context / "fixes").mkdir()
    for stack in stacks:
        fixes = catalog.resolve(project.definitions, stack, base.name).fixes
        text = dockerfile.fixes_json(fixes, "installed")
        (context / fixes_path(stack)).write_text(text, encoding="utf-8")
    for written in DOCKERFILES.glob("*.Dockerfile"):
        shutil.copy2(written, context)
    write_requirements(project.root, base, context, stacks)
    _copy_wheels(project.root, base, context / "wheels", wheels)


def write_requirements(
    root: Path, base: Base, context: Path, stacks: list[str], *, mark: str = ""
) -> None:
    """Write requirements of the shared part and of each stack, from the locks below `root`.

    Args:
        mark: a comment in the stacks' files.
    """
    (context / "requirements").mkdir(exist_ok=True)
    paths = {
        "base": lock.base_lock_path(base.name),
        **{stack: lock.lock_path(stack, base.name) for stack in stacks},
    }
    exact = exact_names(base)
    locks = load_definitions(root, locks_required=False).locks
    for name, path in paths.items():
        text = requirements(locks[path], exact)
        text += f"# {mark}\n" if mark and name != "base" else ""
        (context / "requirements" / f"{name}.txt").write_text(text, encoding="utf-8")


def _write_secrets(folder: Path, given: Mapping[str, bytes]) -> dict[str, Path]:
    """Write pip.conf, ca.pem and apt.sources as pip and apt read them."""
    pip = given.get("pip.conf", b"[global]\n")
    if "ca.pem" in given:
        pip += b"cert = /run/secrets/ca.pem\n"
    wanted = {"pip.conf": pip, **{n: given[n] for n in ("ca.pem", "apt.sources") if n in given}}
    folder.mkdir(mode=0o700)
    for name, data in wanted.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in wanted}


def _copy_wheels(root: Path, base: Base, target: Path, folders: tuple[Path, ...]) -> None:
    """Copy the local wheels that the base's lock names; `invoke build` uses them, too."""
    pins = lock.versions(lock.parse_lock((root / lock.base_lock_path(base.name)).read_text()))
    wheels = base_image.local_wheels(folders, set(pins.items()))
    # The public index lacks this build of torch, so pip gets no other source for it.
    if base.torch_index and not any(wheel.name.startswith("torch-") for wheel in wheels):
        raise StackyardError(
            f"the wheel of torch {pins['torch']} is in no local folder",
            why="both sides must take it from this machine, so that they download the same",
            hint="pip download --no-deps torch==... into a folder, name it in PIP_FIND_LINKS",
        )
    target.mkdir()
    # Builders may leave an empty folder out of the context, and pip wants the one that is named.
    (target / "README").write_text("Wheels of this machine.\n", encoding="utf-8")
    for wheel in wheels:
        shutil.copy2(wheel, target)


def arguments(hand: Hand, stack: str, variant: str = "by-hand") -> list[str]:
    """Return the build command that a person would type."""
    client = hand.client
    words = [client.path, "buildx", "build", "--load"] if client.buildx else [client.path, "build"]
    words += ["--progress=plain", "-f", str(hand.folder / dockerfile_name(stack, variant))]
    words += ["-t", tag(stack, variant)]
    words += ["--build-arg", f"BASE={BASE}", "--build-arg", f"DEVICE={hand.device}"]
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
        CommandError: the build failed; has its last lines.
    """
    process.run(
        arguments(hand, stack, variant),
        env={"DOCKER_BUILDKIT": "1", **hand.proxies},
        timeout=3600,
        on_line=buildkit.Progress(lambda step: say(step)).line,
    )
