"""Declare the commands about releases: publish, evidence, releases, verify, pull, prune."""

from typing import Annotated

from stackyard.cli.answer import Answer
from stackyard.cli.command import command
from stackyard.cli.console import Terminal
from stackyard.cli.option import Option, Repository, Signers
from stackyard.cli.options.releases import (
    EvidenceRequest,
    PublishRequest,
    PullRequest,
    VerifyRequest,
)


@command
def publish(terminal: Terminal, asked: PublishRequest) -> Answer:
    """Release a proven image: searched for secrets, signed, with its SBOM, report and locks.

    Example:
        invoke publish fairseq --to registry.example:5000/team/stackyard
    """
    from stackyard.cli.steps import release

    return release.publish(terminal, asked)


@command
def evidence(terminal: Terminal, asked: EvidenceRequest) -> Answer:
    """Verify, sign or attach the record of a run: on which hardware, vouched for by whom.

    Example:
        invoke evidence smoke.intoto.jsonl --sign
    """
    from stackyard.cli.steps import evidence as steps

    return steps.show(terminal, asked)


@command
def releases(terminal: Terminal, from_: Repository = "", signers: Signers = "") -> Answer:
    """List the releases in a registry, and which of them can be verified.

    Example:
        invoke releases --from registry.example:5000/team/stackyard
    """
    from stackyard.cli.steps import published

    return published.releases(terminal, from_, signers)


@command
def verify(terminal: Terminal, asked: VerifyRequest) -> Answer:
    """Verify one release; with `--rebuild` build it again from scratch and compare every file.

    Example:
        invoke verify fairseq-0.12.2-cpu-r1 --from registry.example:5000/team/stackyard --rebuild
    """
    from stackyard.cli.steps import verify as steps

    return steps.verify(terminal, asked)


@command
def pull(terminal: Terminal, asked: PullRequest) -> Answer:
    """Pull a verified release onto all hosts: once from the registry, then from host to host.

    Example:
        invoke pull fairseq --from registry.example:5000/team/stackyard --hosts hosts.yml
    """
    from stackyard.cli.steps import pull as steps

    return steps.pull(terminal, asked)


@command
def prune(
    terminal: Terminal,
    hosts: Annotated[
        str,
        Option("hosts.yml, a node set as in gpu[01-64], or ssh:PATTERN (default: hosts.yml here)"),
    ] = "",
    keep: Annotated[int, Option("how many releases of each stack and base stay", least=1)] = 2,
    dry_run: Annotated[bool, Option("only say what would go")] = False,
) -> Answer:
    """Remove old releases from hosts; what a container uses stays, and what has the stack's name.

    Example:
        invoke prune --hosts hosts.yml --dry-run
    """
    from stackyard.cli.steps import pull

    return pull.prune(terminal, hosts, keep, dry_run=dry_run)
