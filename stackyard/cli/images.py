"""Declare the commands about images.

list, show, build, base, lock, outdated, render, bundle and audit.
"""

from typing import Annotated

from stackyard.cli.answer import Answer
from stackyard.cli.command import command
from stackyard.cli.console import Terminal
from stackyard.cli.option import AnyBase, Base, Image, Option, Stack, Stacks, Verbose
from stackyard.cli.options.images import BuildRequest, BundleRequest


@command
def list_(terminal: Terminal) -> Answer:
    """List stacks and bases, and which images are built and proven.

    Example:
        invoke list
    """
    from stackyard.cli.steps import images

    return images.list_images(terminal)


@command
def show(terminal: Terminal, stack: Stack, base: Base = "") -> Answer:
    """Show the plan of one image: every value and its origin.

    Example:
        invoke show fairseq --base cpu
    """
    from stackyard.cli.steps import images

    return images.show(terminal, stack, base)


@command
def build(terminal: Terminal, asked: BuildRequest) -> Answer:
    """Build an image; does nothing when its recipe has not changed.

    Example:
        invoke build fairseq --base cpu
        invoke build fairseq --source ~/fairseq@my-branch
    """
    if asked.source or asked.despite or asked.tag:
        from stackyard.cli.steps import source

        return source.build(terminal, asked)
    from stackyard.cli.steps import build as steps

    return steps.build(terminal, asked)


@command
def base(
    terminal: Terminal,
    name: Annotated[str, Option("a base's name (see `invoke list`)", positional=True)],
    verbose: Verbose = False,
) -> Answer:
    """Make or pull a base; does nothing when the base is current.

    Example:
        invoke base cuda
    """
    from stackyard.cli.steps import images

    return images.base(terminal, name)


@command
def lock(
    terminal: Terminal,
    stack: Stacks = "all",
    base: AnyBase = "",
    check: Annotated[bool, Option("write nothing; exit code 1 when a lock would change")] = False,
) -> Answer:
    """Resolve versions over the network, write the locks, show what changed.

    Without --base it does so on every base that has a lock. Torch layers, which all stacks share,
    are resolved anew for `all`; a stack alone keeps those that fit.

    Example:
        invoke lock fairseq
    """
    from stackyard.cli.steps import lock as steps

    return steps.lock(terminal, stack, base, check=check)


@command
def outdated(terminal: Terminal, stack: Stacks = "all", base: AnyBase = "") -> Answer:
    """Compare locks with newer upstream releases; exit code 1 when something is newer.

    Without --base it looks at the first base that is made here, not pulled.

    Example:
        invoke outdated fairseq
    """
    from stackyard.cli.steps import lock as steps

    return steps.outdated(terminal, stack, base)


@command
def render(
    terminal: Terminal,
    stack: Stacks = "all",
    check: Annotated[bool, Option("write nothing; exit code 1 when a file would change")] = False,
) -> Answer:
    """Write the Dockerfiles from the definitions and templates.

    Example:
        invoke render --check
    """
    from stackyard.cli.steps import images

    return images.render(terminal, stack, check=check)


@command
def bundle(terminal: Terminal, asked: BundleRequest) -> Answer:
    """Pack the inputs of builds, or released images, for a machine without a network.

    Example:
        invoke bundle --base nvidia-host
        invoke bundle --images --from registry.example:5000/team/stackyard
    """
    if asked.images:
        from stackyard.cli.steps import release

        return release.carry(terminal, asked)
    from stackyard.cli.steps import images

    return images.bundle(terminal, asked)


@command
def audit(terminal: Terminal, stack: Stack, base: Base = "", image: Image = "") -> Answer:
    """Look for known vulnerabilities in an image's packages, and for versions that fix them.

    Example:
        invoke audit fairseq --base cuda
    """
    from stackyard.cli.steps import audit as steps

    return steps.audit(terminal, stack, base, image)
