"""Declare the commands about runs on hosts and clusters.

certify, up, run, export, status, logs, sync, stop and down.
"""

from typing import Annotated

from stackyard.cli.answer import Answer
from stackyard.cli.command import command
from stackyard.cli.console import Terminal
from stackyard.cli.option import Hosts, Option, RunName
from stackyard.cli.options.runs import (
    CertifyRequest,
    ExportRequest,
    LogsRequest,
    RunRequest,
    StatusRequest,
    StopRequest,
    SyncRequest,
    UpRequest,
)


@command
def certify(terminal: Terminal, asked: CertifyRequest) -> Answer:
    """Train on hosts alone and in groups, and name the host, GPU or link that is bad.

    Example:
        invoke certify accelerate --hosts hosts.yml
    """
    from stackyard.cli.steps import certify as steps

    return steps.certify(terminal, asked)


@command
def up(terminal: Terminal, asked: UpRequest) -> Answer:
    """Start a mesh of nodes on hosts; it stands until `invoke down`.

    Example:
        invoke up fairseq --hosts hosts.yml
    """
    from stackyard.cli.steps import run as steps

    return steps.up(terminal, asked)


@command
def run(terminal: Terminal, asked: RunRequest) -> Answer:
    """Run an example, or `-- COMMAND`, on all nodes by a launcher, and follow it.

    Example:
        invoke run fairseq --example gpt2-fsdp
        invoke run accelerate --launcher torchrun -- /code/train.py --lr 1e-3
    """
    if asked.examples or asked.write:
        from stackyard.cli.steps import examples

        if asked.examples:
            return examples.list_examples(terminal, asked.stack)
        return examples.write_example(terminal, asked)
    if asked.on or asked.nodes is not None or asked.site or asked.out or asked.runtime:
        from stackyard.cli.steps import clusters

        return clusters.run(terminal, asked)
    from stackyard.cli.steps import run as steps

    return steps.run(terminal, asked)


@command
def export(terminal: Terminal, asked: ExportRequest) -> Answer:
    """Write the files that run a training on Slurm or Kubernetes, and say what to type there.

    Example:
        invoke export slurm fairseq --nodes 2 --gpus 16 --example gpt2-fsdp
    """
    from stackyard.cli.steps import clusters

    return clusters.export(terminal, asked)


@command
def status(terminal: Terminal, asked: StatusRequest) -> Answer:
    """Show the runs on hosts and their jobs, or the state of a cluster's job.

    Example:
        invoke status
        invoke status --watch
    """
    if asked.on or asked.job or asked.site:
        from stackyard.cli.steps import clusters

        return clusters.status(terminal, asked)
    if asked.watch:
        from stackyard.cli.steps import watch

        return watch.watch(terminal, asked)
    from stackyard.cli.steps import hosts

    return hosts.status(terminal, asked)


@command
def logs(terminal: Terminal, asked: LogsRequest) -> Answer:
    """Print the output of a job's ranks, labelled by node and rank.

    Example:
        invoke logs --follow
    """
    if asked.on or asked.site:
        from stackyard.cli.steps import clusters

        return clusters.logs(terminal, asked)
    from stackyard.cli.steps import hosts

    return hosts.logs(terminal, asked)


@command
def sync(terminal: Terminal, asked: SyncRequest) -> Answer:
    """Bring code, data or checkpoints to all hosts of a run, or back: only what changed.

    Example:
        invoke sync code --to /data
        invoke sync /data/checkpoints --back --to checkpoints
    """
    from stackyard.cli.steps import hosts

    return hosts.sync(terminal, asked)


@command
def stop(terminal: Terminal, asked: StopRequest) -> Answer:
    """End what runs in a mesh, after it has saved; the mesh stays. Or cancel a cluster's job.

    Example:
        invoke stop
    """
    if asked.on or asked.job or asked.site:
        from stackyard.cli.steps import clusters

        return clusters.stop(terminal, asked)
    from stackyard.cli.steps import hosts

    return hosts.stop(terminal, asked)


@command
def down(
    terminal: Terminal,
    hosts: Hosts = "",
    name: RunName = "",
    all: Annotated[bool, Option("every run on the hosts")] = False,
) -> Answer:
    """Remove a run from its hosts: nothing of it is left.

    Example:
        invoke down --name fairseq
    """
    from stackyard.cli.steps import hosts as steps

    return steps.down(terminal, hosts, name, everything=all)
