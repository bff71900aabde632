"""Declare the commands that prove images: smoke, bench, prove, compare."""

from typing import Annotated

from stackyard.cli.answer import Answer
from stackyard.cli.command import command
from stackyard.cli.console import Terminal
from stackyard.cli.option import Option
from stackyard.cli.options.trainings import BenchRequest, ProveRequest, SmokeRequest


@command
def smoke(terminal: Terminal, asked: SmokeRequest) -> Answer:
    """Train for real in a mesh of containers and judge it by named checks.

    Example:
        invoke smoke fairseq --gpus 0
        invoke smoke fairseq --gpus 2 --nodes 2
    """
    from stackyard.cli.steps import smoke as steps

    return steps.smoke(terminal, asked)


@command
def bench(terminal: Terminal, asked: BenchRequest) -> Answer:
    """Measure tokens per second, MFU, memory and scaling, of each variant in turn, in one run.

    Example:
        invoke bench fairseq --gpus 2
        invoke bench megatron --example gpt2-345m --gpus 2
    """
    if asked.example or asked.set:
        from stackyard.cli.steps import template

        return template.template(terminal, asked)
    from stackyard.cli.steps import bench as steps

    return steps.bench(terminal, asked)


@command
def prove(terminal: Terminal, asked: ProveRequest) -> Answer:
    """Prove that each fix's witness fails without it and passes with it; each limit likewise.

    Example:
        invoke prove fairseq --fix fairseq-ddp-cpu
    """
    from stackyard.cli.steps import prove as steps

    return steps.prove(terminal, asked)


@command
def compare(
    terminal: Terminal,
    before: Annotated[str, Option("an earlier smoke.json", positional=True)],
    after: Annotated[str, Option("a later one", positional=True)],
) -> Answer:
    """Compare two smokes of a stack: losses, resume, speed, size, packages.

    Example:
        invoke compare old/smoke.json reports/fairseq/cpu/smoke.json
    """
    from stackyard.cli.steps import compare as steps

    return steps.compare(terminal, before, after)
