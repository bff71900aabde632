"""Collect every command, for `tasks.py` and for the console script `stackyard`.

Owns that script: `invoke.Program` over the same commands, in a checkout. It must not decide what a
command does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.collection import Collection
from invoke.exceptions import ParseError
from invoke.program import Program

from stackyard import __version__
from stackyard.cli import completion, help, images, parser, proof, releases, runs, tools
from stackyard.cli.command import Command

# In the order of help.
TOPICS = (images, proof, runs, releases, tools)
# Files that every checkout holds.
MARKS = ("tasks.py", "stackyard/__init__.py", "images/common.yml")
_ROOT = Path(__file__).resolve().parent.parent.parent


def collection() -> Collection:
    """Return all commands, and install this package's parser, help and completion."""
    parser.install()
    help.install()
    completion.install()
    found = [one for topic in TOPICS for one in vars(topic).values() if isinstance(one, Command)]
    return Collection(*found)


def checkout(folder: Path) -> Path | None:
    """Return the checkout that contains a folder; None where none does."""
    folders = (folder, *folder.parents)
    return next((one for one in folders if all((one / mark).is_file() for mark in MARKS)), None)


class Stackyard(Program):
    """Run commands from any folder inside the checkout that this package belongs to."""

    def parse_core(self, argv: list[str] | None) -> None:
        """Read the program's options; keep writing bytecode, which invoke turns off.

        Raises:
            Exit: an option is wrong.
        """
        try:
            super().parse_core(argv)
        except (ParseError, ValueError) as error:
            raise parser.refused(str(error), hint="stackyard --help") from None
        sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

    def execute(self) -> None:
        """Run the commands of the line.

        Raises:
            Exit: the current folder is in no checkout; names the missing files.
        """
        here = Path.cwd()
        found = checkout(here)
        if found is None:
            raise parser.refused(
                f"{here} is in no checkout of stackyard",
                why=f"neither it nor a folder above holds {', '.join(MARKS)}",
                hint=f"cd {_ROOT if checkout(_ROOT) else 'CHECKOUT'}",
            )
        if found != _ROOT:
            raise parser.refused(
                f"{here} is in another checkout than this stackyard",
                why=f"this one belongs to {_ROOT}, the folder to {found}",
                hint=f"cd {_ROOT}, or there: pip install -e {found}",
            )
        super().execute()


def program() -> Program:
    """Return the program of the console script."""
    return Stackyard(
        version=__version__, namespace=collection(), name="stackyard", binary="stackyard",
        binary_names=["stackyard"],
    )  # fmt: skip


def main() -> None:
    """Run the console script."""
    program().run()
