"""Decide which stacks, base, GPUs and image a command means, for all commands that take them.

Owns that rule: without a named base CPU ranks train on `cpu`, all else is on the project's default.
It must not build or start anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stackyard.build import catalog, dockerfile
from stackyard.build.catalog import choose
from stackyard.build.source import fork
from stackyard.build.source.naming import require_labels
from stackyard.definitions.project import Project
from stackyard.definitions.spec import Base
from stackyard.system.errors import UsageError, gpus_missing, shown

if TYPE_CHECKING:
    from stackyard.build.builder import Built
    from stackyard.system.engine import Engine


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Hold what a command is about.

    Attributes:
        gpus: as typed; None where nobody said.
        device: of the ranks: `cpu` or `cuda`.
        image: by tag or id, in place of the stack's own; empty for the stack's own.
        there: that image, where this machine's engine was asked for it.
    """

    stacks: tuple[str, ...]
    base: Base
    gpus: int | None
    device: str
    image: str = ""
    there: Built | None = None

    @property
    def stack(self) -> str:
        """Return the one stack of a command that takes one."""
        return self.stacks[0]

    @property
    def tag(self) -> str:
        """Return the image of its stack, by tag or id."""
        return self.image or dockerfile.image_tag(self.stack, self.base.name)


def decide(
    project: Project,
    stack: str,
    base: str = "",
    *,
    gpus: int | None = None,
    gpus_for: str = "",
    image: str = "",
    image_here: bool = False,
    cpu_ranks_anywhere: bool = False,
    typed: str = "",
) -> Choice:
    """Decide what a command is about, from what was typed.

    Args:
        stack: its name; `all` is every one.
        gpus_for: one word for the action that needs a number of GPUs.
        image_here: this machine's engine must hold the image.
        cpu_ranks_anywhere: ranks without GPUs may train on a base for GPUs.
        typed: the beginning of the command, for hints.

    Raises:
        UsageError: something does not exist, or does not fit the rest.
    """
    if gpus is None and gpus_for:
        raise gpus_missing(gpus_for, typed)
    there = None
    if image and image_here:
        from stackyard.system.engine import Engine

        with Engine() as engine:
            there = held_image(project, engine, image, stack, base)
        stack, base = there.image.stack.name, there.image.base.name
    definitions = project.definitions
    stacks = tuple(choose("stack", name, definitions.stacks) for name in project.stacks(stack))
    name = base or ("cpu" if gpus == 0 else project.default_base)
    found = definitions.bases[choose("base", name, definitions.bases)]
    device = found.device if gpus is None else "cuda" if gpus else "cpu"
    if device != found.device and not (cpu_ranks_anywhere and device == "cpu"):
        fitting = [b.name for b in definitions.bases.values() if b.device == device]
        ranks = "GPUs" if gpus else "CPU ranks"
        raise UsageError(
            f"base {found.name!r} is for {found.device} ranks, --gpus {gpus} asks for {ranks}",
            hint=f"{typed} --gpus {gpus} --base {fitting[0]}".lstrip() if fitting else "",
        )
    return Choice(
        stacks=stacks, base=found, gpus=gpus, device=device, image=image, there=there
    )  # fmt: skip


def held_image(project: Project, engine: Engine, reference: str, stack: str, base: str) -> Built:
    """Return an image by its tag or id, seen to be of a stack and a base by its labels.

    Args:
        stack: `all` takes any; so does an empty base.

    Raises:
        UsageError: there is none, or it is another's.
    """
    from stackyard.build.builder import Built

    info = engine.image(reference)
    if info is None:
        raise UsageError(f"--image: the engine has no image {shown(reference)!r}",
                         hint="docker images 'stackyard/*' shows what it has")  # fmt: skip
    require_labels(info.labels, reference, stack, base)
    found = info.labels["stackyard.stack"], info.labels["stackyard.base"]
    choose("stack", found[0], project.definitions.stacks)
    choose("base", found[1], project.definitions.bases)
    image = catalog.resolve(project.definitions, *found)
    own = fork.fork_of(project.definitions, info.labels)
    image = own.image(image) if own else image
    return Built(image=image, tag=reference, info=info, seconds=0.0, made=False)
