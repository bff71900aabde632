"""Declare the commands beside images and runs: doctor, engine, diagnose, data, convert."""

from typing import Annotated

from stackyard.cli.answer import Answer
from stackyard.cli.command import command
from stackyard.cli.console import Terminal
from stackyard.cli.option import Option
from stackyard.cli.options.runs import DoctorRequest
from stackyard.cli.options.trainings import ConvertRequest, DataRequest


@command
def doctor(terminal: Terminal, asked: DoctorRequest) -> Answer:
    """Look at this machine, or at hosts: engine, GPUs, driver, and what a run would meet.

    Example:
        invoke doctor
        invoke doctor --hosts hosts.yml --stack fairseq
    """
    if asked.hosts:
        from stackyard.cli.steps import hosts

        return hosts.doctor(terminal, asked)
    from stackyard.cli.steps import doctor as steps

    return steps.examine(terminal)


@command
def engine(terminal: Terminal) -> Answer:
    """Find a container engine; on Debian or Ubuntu as root, install and start one.

    Example:
        invoke engine
    """
    from stackyard.cli.steps import images

    return images.engine(terminal)


@command
def diagnose(
    terminal: Terminal,
    file: Annotated[str, Option("a log, or - for standard input", positional=True)],
) -> Answer:
    """Name the known failure that a log shows, its cause and what to do about it.

    Example:
        invoke diagnose train.log
    """
    from stackyard.cli.steps import diagnose as steps

    return steps.diagnose(terminal, file)


@command
def data(terminal: Terminal, asked: DataRequest) -> Answer:
    """Encode your own text for a stack's training, by its own vocabulary or tokenizer.

    Example:
        invoke data fairseq --input corpus.txt --tokenizer FOLDER --split 900,50,50 --out data
    """
    from stackyard.cli.steps import data as steps

    return steps.data(terminal, asked)


@command
def convert(terminal: Terminal, asked: ConvertRequest) -> Answer:
    """Convert a checkpoint to a folder of Hugging Face transformers that computes the same.

    Example:
        invoke convert fairseq --checkpoint checkpoints/checkpoint_best.pt --out model
    """
    from stackyard.cli.steps import convert as steps

    return steps.convert(terminal, asked)
