"""Run `invoke run STACK --examples` and `--write FOLDER`: list trainings, or write a copy of one.

Owns the meaning of their arguments, and the output. `mesh.example_copy` makes the files of a copy.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from stackyard.build.choice import decide
from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import RunRequest
from stackyard.cli.steps.hosts import HOSTS_FILE, load_fleet
from stackyard.cli.steps.run import wanted_of
from stackyard.cli.steps.run_job import work_of
from stackyard.definitions.examples import Example
from stackyard.definitions.job_source import (
    example_files,
    example_names,
    load_example,
    parse_settings,
    require_work,
    split_settings,
)
from stackyard.definitions.project import ROOT, load_project
from stackyard.mesh.example_copy import CopyRequest, copied
from stackyard.system.errors import UsageError

if TYPE_CHECKING:
    from stackyard.cli import answers


def repeated(given: RunRequest) -> dict[str, str]:
    """Return the options to repeat in the copy's own command, by flag."""
    return {
        "--gpus": "0" if given.gpus == 0 else "",
        "--base": given.base,
        "--image": given.image,
        "--name": given.name,
        "--launcher": given.launcher,
        "--save": given.save,
        "--per-node": str(given.per_node) if given.per_node > 1 else "",
    }


def unfit_of(given: RunRequest) -> dict[str, object]:
    """Return the options that a copy cannot have, by flag."""
    return {
        "--include": given.include,
        "--exclude": given.exclude,
        "--detach": given.detach,
        "--overlay": given.overlay,
        "--despite": given.despite,
        "--env": given.env,
        "--accelerate-config": given.accelerate_config,
        "--on": given.on,
        "--nodes": given.nodes,
        "--site": given.site,
        "--out": given.out,
    }


def list_examples(terminal: Terminal, stack: str) -> tuple[answers.Examples, int]:
    """Run `invoke run STACK --examples`: list examples with their ranks and notes."""
    project = load_project()
    name = decide(project, stack).stack
    names = example_names(project.root, name)
    found = [load_example(project.root, name, example) for example in names]
    examples = [example for example in found if example is not None]
    terminal.table(_table(name, examples))
    terminal.text("values are changed by --set NAME=VALUE,...; what they are:")
    terminal.text(f"invoke run {name} --example NAME --write FOLDER")
    return {"stack": name, "examples": [_value(example) for example in examples]}, 0


def _table(stack: str, examples: list[Example]) -> Table:
    table = Table(title=f"examples of {stack}", title_justify="left")
    for column in ("name", "what", "ranks", "launcher", "in the notes of 2021"):
        table.add_column(column, overflow="fold")
    for found in examples:
        table.add_row(found.name, found.summary, found.ranks, found.launcher, found.note)
    return table


def _value(example: Example) -> answers.ExampleRow:
    return {
        "name": example.name,
        "summary": example.summary,
        "ranks": example.ranks,
        "launcher": example.launcher,
        "note": example.note,
        "values": dict(example.values),
        "reduced": dict(example.sizes["reduced"].values) if "reduced" in example.sizes else {},
        "devices": sorted(example.devices),
    }


def write_example(terminal: Terminal, given: RunRequest) -> tuple[answers.Written, int]:
    """Run `invoke run STACK --example NAME --write FOLDER`: write a copy for the user to edit."""
    unfit = [flag for flag, value in unfit_of(given).items() if value]
    if unfit or not given.example:
        why = ", ".join(unfit) or "no example is named"
        raise UsageError(
            f"--write writes a copy of an example for hosts: {why}",
            hint=f"invoke run {given.stack} --example NAME --hosts hosts.yml --write FOLDER",
        )
    project = load_project()
    fleet = load_fleet(given.hosts)
    asked = wanted_of(project, given.mesh, fleet)
    require_work(work_of(given), asked.stack, project.root, f"invoke run {asked.stack}")
    example = load_example(project.root, asked.stack, given.example)
    assert example is not None
    inventory = Path(given.hosts or HOSTS_FILE)
    values, options = split_settings(example, parse_settings(given.set))
    example = replace(example, options={**example.options, **options})
    words = [word for flag, value in repeated(given).items() for word in (flag, value) if value]
    request = CopyRequest(
        base=asked.base,
        device=asked.device,
        ranks=given.per_node,
        given=values,
        more=given.words,
        options=words,
        inventory=inventory.read_text(encoding="utf-8") if inventory.is_file() else "",
        root=str(ROOT),
    )
    files = copied(example, example_files(project.root, example), fleet, request)
    folder = Path(given.write)
    write_folder(folder, files)
    terminal.text(f"{given.write}: {', '.join(sorted(files))}")
    terminal.text(f"sh {folder / 'start.sh'} trains; {folder / 'README.md'} says what to edit")
    return {"folder": str(folder.resolve()), "files": sorted(files)}, 0


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files, whole or not at all.

    Raises:
        UsageError: the path exists, or the folder cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", hint="another name, or remove it first")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for name, content in files.items():
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            mask = os.umask(0)
            os.umask(mask)
            partial.chmod(0o777 & ~mask)
            partial.replace(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise UsageError(f"{folder} cannot be written", why=str(error)) from error
