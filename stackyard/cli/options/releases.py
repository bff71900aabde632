"""Declare the requests of `invoke publish`, `evidence`, `verify` and `pull`."""

from dataclasses import dataclass
from typing import Annotated

from stackyard.cli.option import (
    Base,
    Image,
    Key,
    Option,
    PlainHosts,
    Repository,
    Signers,
    Stack,
)


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """Ask for a release of a proven image."""

    stack: Stack
    base: Base = ""
    to: Repository = ""
    key: Key = ""
    unproven: Annotated[
        bool,
        Option(
            "publish it without a passed smoke, or from source that is in no commit; its"
            " statement says so"
        ),
    ] = False
    evidence: Annotated[
        tuple[str, ...],
        Option("signed evidence of this image (docs/howto/evidence.md); several times", "FILE"),
    ] = ()
    without_gpu_evidence: Annotated[
        bool,
        Option("publish an image for GPUs that nobody saw train on one; its statement says so"),
    ] = False
    signers: Annotated[str, Option("whose evidence is accepted, beside your own key's", "FILE")] = (
        ""
    )
    image: Image = ""


@dataclass(frozen=True, kw_only=True)
class EvidenceRequest:
    """Ask to look at a file of evidence, to sign it, or to attach it to a release."""

    file: Annotated[
        str,
        Option("what a smoke or bench wrote beside its report: *.intoto.jsonl", positional=True),
    ]
    sign: Annotated[bool, Option("vouch for it with your key")] = False
    key: Key = ""
    add: Annotated[bool, Option("attach it to a standing release")] = False
    release: Annotated[
        str,
        Option("the release, by tag or digest (default: the latest of its stack and base)"),
    ] = ""
    to: Repository = ""
    signers: Signers = ""


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """Ask whether a release is what it claims to be."""

    release: Annotated[
        str, Option("the release, by tag or digest (see `invoke releases`)", positional=True)
    ]
    rebuild: Annotated[
        bool,
        Option("build it from scratch out of what lies beside it, and compare every file"),
    ] = False
    from_: Repository = ""
    signers: Signers = ""


@dataclass(frozen=True, kw_only=True)
class PullRequest:
    """Ask for a verified release, on hosts or on this machine."""

    stack: Stack
    base: Base = ""
    from_: Repository = ""
    release: Annotated[str, Option("its tag or digest (default: the latest)")] = ""
    hosts: PlainHosts = ""
    signers: Signers = ""
    via: Annotated[str, Option("hosts: they pass it on; registry: each pulls by itself")] = "hosts"
    mirror: Annotated[str, Option("the site's own mirror: each pulls from there", "HOST:PORT")] = ""
    as_: Annotated[
        str,
        Option("image: into engines; squashfs: one file, for machines without an engine"),
    ] = "image"
    into: Annotated[
        str,
        Option(
            "--as squashfs: where the file goes (default: ~/.cache/stackyard/squashfs)", "FOLDER"
        ),
    ] = ""
    max_unavailable: Annotated[
        int, Option("how many hosts may fail without the command failing", least=0)
    ] = 0
