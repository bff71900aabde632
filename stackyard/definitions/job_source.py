"""Make a job from the command line, which names an example, a copy of one, or a command.

Owns the options that say what a job is, the same for all that run it, and reading an example's
files. It must not know where a job runs: hosts, Slurm and Kubernetes take the same `Job`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stackyard.definitions.document import nearest
from stackyard.definitions.examples import BESIDE, Example, Where, job_of
from stackyard.definitions.project import INSIDE
from stackyard.definitions.read.example import read_example
from stackyard.launch import CHOICES, LAUNCHERS, wrong_options
from stackyard.launch.job import Job
from stackyard.system.errors import UsageError, shown

OWN = "example.yml"


@dataclass(frozen=True, kw_only=True)
class Work:
    """Hold what the command line says is to run.

    Attributes:
        example: name of an example of the stack, or the folder of a copy of one.
        words: a command of the user's; with an example, more arguments for its program.
        launcher: the launcher that starts the ranks; empty for the example's or the stack's own.
        settings: values of the example or options of the launcher, as `NAME=VALUE,...`.
        save: folder of checkpoints in the nodes.
        folder: working directory of a command in the nodes.
    """

    example: str = ""
    words: tuple[str, ...] = ()
    launcher: str = ""
    settings: str = ""
    save: str = ""
    folder: str = ""


def require_work(work: Work, stack: str, root: Path, typed: str) -> None:
    """Refuse a command line that names nothing to run, or an unknown launcher.

    Args:
        typed: how the command begins, for the hint.

    Raises:
        UsageError: no example or command is named, both are, or the launcher is unknown.
    """
    if not work.example and not work.words:
        known = ", ".join(example_names(root, stack)) or "none"
        raise UsageError(
            "say what is to run: either an example or a command",
            why=f"examples of {stack}: {known}",
            hint=f"{typed} --example NAME, or {typed} -- COMMAND (invoke run {stack} --examples)",
        )
    if work.example and work.words and not work.words[0].startswith("-"):
        raise UsageError(
            f"{shown(work.words[0])!r} is no argument for {work.example}",
            why="after --example, what follows -- goes to its program, and begins with a -",
            hint=f"{typed} --example {work.example} -- --NAME VALUE, or {typed} -- COMMAND",
        )
    if work.launcher and work.launcher not in LAUNCHERS:
        hint = ", ".join(sorted(LAUNCHERS))
        raise UsageError(
            f"there is no launcher {shown(work.launcher)!r}",
            why=nearest(work.launcher, LAUNCHERS),
            hint=f"one of: {hint}",
        )


def example_names(root: Path, stack: str) -> list[str]:
    """Return the names of the examples of a stack."""
    return sorted(path.stem for path in (root / "images" / stack / "examples").glob("*.yml"))


def load_example(root: Path, stack: str, name: str) -> Example | None:
    """Load an example of a stack, or a copy of one in a folder; None when none was asked for.

    Args:
        name: name of the stack's example; or the path, with a `/`, of a folder with `example.yml`.

    Raises:
        UsageError: the stack has no example of that name, or the folder holds none.
        DefinitionError: the example's file is wrong.
    """
    if not name:
        return None
    if "/" in name:
        return _own_example(stack, Path(name))
    known = example_names(root, stack)
    if name not in known:
        raise UsageError(
            f"there is no example {shown(name)!r} of {stack}",
            why=nearest(name, known),
            hint=f"invoke run {stack} --examples",
        )
    path = root / "images" / stack / "examples" / f"{name}.yml"
    file = str(path.relative_to(root))
    return read_example(path.read_text(encoding="utf-8"), file, stack, name)


def _own_example(stack: str, folder: Path) -> Example:
    path = folder / OWN
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read",
            why=str(error),
            hint=f"invoke run {stack} --example NAME --write {folder}",
        ) from error
    found = read_example(text, str(path), stack, example_name(str(folder)))
    return replace(found, home=str(folder))


def example_name(given: str) -> str:
    """Return the part of a job's name that stands for an example as the user typed it."""
    if "/" not in given:
        return given
    return re.sub("[^a-z0-9]+", "-", Path(given).resolve().name.lower()).strip("-")[:24] or "own"


def example_files(root: Path, example: Example) -> dict[str, bytes]:
    """Read the files that an example brings, by their place in the nodes."""
    found: dict[str, bytes] = {}
    for place, folder in example.files.items():
        home = Path(example.home) if example.home else root / "images" / example.stack
        source = home / folder
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found[f"{place}/{path.relative_to(source)}"] = path.read_bytes()
        found |= {f"{place}/{name}": (INSIDE / name).read_bytes() for name in BESIDE}
    return found


def make_job(
    work: Work, example: Example | None, where: Where, *, root: Path, stack: str, usual: str
) -> Job:
    """Return what is to run as a job.

    Args:
        usual: the launcher of a command for which none is named.

    Raises:
        UsageError: the example does not fit, or the launcher refuses an option.
    """
    settings = parse_settings(work.settings)
    if example is None:
        return _command_job(work, where, stack, work.launcher or usual, settings)
    settings, options = split_settings(example, settings)
    job = job_of(example, where, example_files(root, example), settings, work.words)
    job = replace(job, options={**job.options, **options})
    if not work.launcher or work.launcher == job.launcher:
        return job
    known = CHOICES.get(work.launcher, {})
    options = {name: value for name, value in job.options.items() if name in known}
    return replace(job, launcher=work.launcher, options=options)


def split_settings(
    example: Example, settings: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Split settings into values of the example and options that it leaves to its launcher.

    Raises:
        UsageError: the launcher refuses the value of an option.
    """
    open_ = {*CHOICES.get(example.launcher, {})} - {*example.options, *example.values}
    options = {name: value for name, value in settings.items() if name in open_}
    wrong = wrong_options(example.launcher, options)
    if wrong:
        raise UsageError(f"{example.launcher}: {'; '.join(wrong)}")
    return {n: v for n, v in settings.items() if n not in options}, options


def _command_job(
    work: Work, where: Where, stack: str, launcher: str, options: Mapping[str, str]
) -> Job:
    wrong = wrong_options(launcher, options)
    if wrong:
        raise UsageError(f"{launcher}: {'; '.join(wrong)}", hint="correct --set NAME=VALUE,...")
    return Job(
        name=where.name,
        stack=stack,
        base=where.base,
        image=where.image,
        nodes=where.nodes,
        per_node=where.per_node,
        device=where.device,
        program=work.words,
        env={"DS_ACCELERATOR": "cpu"} if where.device == "cpu" else {},
        folder=work.folder or "/root",
        launcher=launcher,
        options=options,
    )


def parse_settings(text: str) -> dict[str, str]:
    """Read the values of `--set NAME=VALUE,...`.

    Raises:
        UsageError: a part is not NAME=VALUE.
    """
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"[a-z_][a-z0-9_]*", name.strip()):
            raise UsageError(f"--set: {shown(part)!r} is not NAME=VALUE")
        found[name.strip()] = value
    return found
