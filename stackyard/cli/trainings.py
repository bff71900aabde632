"""Declare the commands about trainings: smoke, bench, prove, compare, diagnose, data, convert."""

from typing import Annotated

from stackyard.cli.answer import Answer
from stackyard.cli.command import command
from stackyard.cli.console import Terminal
from stackyard.cli.option import Option
from stackyard.cli.options.trainings import (
    BenchRequest,
    ConvertRequest,
    DataRequest,
    ProveRequest,
    SmokeRequest,
)


@command
def smoke(terminal: Terminal, asked: SmokeRequest) -> Answer:
    """Train for real in a mesh of containers and judge it by named checks."""
    from stackyard.cli.steps import smoke as steps

    return steps.smoke(terminal, asked)


@command
def bench(terminal: Terminal, asked: BenchRequest) -> Answer:
    """Measure tokens per second, MFU, memory and scaling, of each variant in turn, in one run."""
    from stackyard.cli.steps import bench as steps

    return steps.bench(terminal, asked)


@command
def prove(terminal: Terminal, asked: ProveRequest) -> Answer:
    """Prove that each fix's witness fails without it and passes with it; each limit likewise."""
    from stackyard.cli.steps import prove as steps

    return steps.prove(terminal, asked)


@command
def compare(
    terminal: Terminal,
    before: Annotated[str, Option("an earlier smoke.json", positional=True)],
    after: Annotated[str, Option("a later one", positional=True)],
) -> Answer:
    """Compare two smokes of a stack: losses, resume, speed, size, packages."""
    from stackyard.cli.steps import compare as steps

    return steps.compare(terminal, before, after)


@command
def diagnose(
    terminal: Terminal,
    file: Annotated[str, Option("a log, or - for standard input", positional=True)],
) -> Answer:
    """Name the known failure that a log shows, its cause and what to do about it."""
    from stackyard.cli.steps import diagnose as steps

    return steps.diagnose(terminal, file)


@command
def data(terminal: Terminal, asked: DataRequest) -> Answer:
    """Encode your own text for a stack's training, by its own vocabulary or tokenizer."""
    from stackyard.cli.steps import data as steps

    return steps.data(terminal, asked)


@command
def convert(terminal: Terminal, asked: ConvertRequest) -> Answer:
    """Convert a checkpoint to a folder of Hugging Face transformers that computes the same."""
    from stackyard.cli.steps import convert as steps

    return steps.convert(terminal, asked)
