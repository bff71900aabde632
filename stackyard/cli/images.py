"""Declare the commands about images: list, show, render, build, audit, engine and others."""

from typing import Annotated

from stackyard.cli.answer import Answer
from stackyard.cli.command import command
from stackyard.cli.console import Terminal
from stackyard.cli.option import Base, Image, Option, Stack, Stacks
from stackyard.cli.options.images import BuildRequest, BundleRequest


@command
def list_(terminal: Terminal) -> Answer:
    """List stacks and bases, and which images are built and proven."""
    from stackyard.cli.steps import images

    return images.list_images(terminal)


@command
def show(terminal: Terminal, stack: Stack, base: Base = "") -> Answer:
    """Show the plan of one image: every value and its origin."""
    from stackyard.cli.steps import images

    return images.show(terminal, stack, base)


@command
def render(
    terminal: Terminal,
    stack: Stacks = "all",
    check: Annotated[bool, Option("compare only; fail when a file differs")] = False,
) -> Answer:
    """Write the Dockerfiles from the definitions and templates."""
    from stackyard.cli.steps import images

    return images.render(terminal, stack, check=check)


@command
def base(
    terminal: Terminal,
    name: Annotated[str, Option("a base's name (see `invoke list`)", positional=True)],
) -> Answer:
    """Make or pull a base; does nothing when the base is current."""
    from stackyard.cli.steps import images

    return images.base(terminal, name)


@command
def bundle(terminal: Terminal, asked: BundleRequest) -> Answer:
    """Pack the inputs of builds, or released images, for a machine without a network."""
    if asked.images:
        from stackyard.cli.steps import release

        return release.carry(terminal, asked)
    from stackyard.cli.steps import images

    return images.bundle(terminal, asked)


@command
def build(terminal: Terminal, asked: BuildRequest) -> Answer:
    """Build an image; does nothing when its recipe has not changed."""
    if asked.source or asked.despite or asked.tag:
        from stackyard.cli.steps import source

        return source.build(terminal, asked)
    from stackyard.cli.steps import build as steps

    return steps.build(terminal, asked)


@command
def audit(terminal: Terminal, stack: Stack, base: Base = "", image: Image = "") -> Answer:
    """Look for known vulnerabilities in an image's packages, and for versions that fix them."""
    from stackyard.cli.steps import audit as steps

    return steps.audit(terminal, stack, base, image)


@command
def engine(terminal: Terminal) -> Answer:
    """Find a container engine; on Debian or Ubuntu as root, install and start one."""
    from stackyard.cli.steps import images

    return images.engine(terminal)
