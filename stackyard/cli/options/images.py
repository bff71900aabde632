"""Declare the requests of `invoke build` and `invoke bundle`."""

from dataclasses import dataclass
from typing import Annotated

from stackyard.cli.option import Base, Option, Stacks, Verbose


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """Ask for images, or for one of the caller's own source."""

    stack: Stacks = "all"
    base: Base = ""
    force: Annotated[bool, Option("build even if nothing changed")] = False
    no_cache: Annotated[
        bool,
        Option("build from scratch: base and every step again, nothing from BuildKit's cache"),
    ] = False
    offline: Annotated[str, Option("a bundle to build from, without a network", "FILE")] = ""
    source: Annotated[
        tuple[str, ...],
        Option(
            "your own code (docs/howto/source.md); several times", "[PACKAGE=]PATH_OR_GIT[@REV]"
        ),
    ] = ()
    despite: Annotated[
        tuple[str, ...],
        Option("with --source: a fix to leave out, by its name; several times", "FIX"),
    ] = ()
    tag: Annotated[
        str, Option("with --source: the image's name (stackyard/STACK:BASE-src-COMMIT)")
    ] = ""
    verbose: Verbose = False


@dataclass(frozen=True, kw_only=True)
class BundleRequest:
    """Ask for what builds need, or for released images, in files."""

    stack: Stacks = "all"
    base: Base = ""
    out: Annotated[
        str,
        Option(
            "what to write (stackyard-BASE.bundle.tar; with --images the folder stackyard-images)",
            "PATH",
        ),
    ] = ""
    images: Annotated[bool, Option("releases of a registry, in place of what builds need")] = False
    from_: Annotated[
        str, Option("with --images, the repository: REGISTRY[:PORT]/NAME", "REPOSITORY")
    ] = ""
    release: Annotated[str, Option("with --images, a tag or digest (default: the latest)")] = ""
    signers: Annotated[str, Option("with --images, whose releases are accepted", "FILE")] = ""
