"""Define the errors that a user can act on, with their reasons, hints and exit codes.

Owns the exception types. It must not print or exit: `cli.command` does.
"""

from __future__ import annotations

from dataclasses import dataclass


class StackyardError(Exception):
    """Report an error that a user can act on.

    Args:
        what: one sentence naming the thing that failed.
        why: the probable reason, or the last lines of what failed.
        hint: what to type or change next.

    Attributes:
        step: the step that failed, as known failures name steps; empty where it may be any.
    """

    exit_code = 4
    step = ""

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.hint = what, why, hint

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append("\n".join(f"  {line}" for line in self.why.splitlines()))
        if self.hint:
            parts.append(f"To go on: {self.hint}")
        return "\n".join(parts)


class Terminated(KeyboardInterrupt):
    """End a command as Ctrl-C does, after SIGTERM: what runs for it may save first."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Describe one problem in the definitions, with its file, line and key.

    Attributes:
        command: what to type, where no line is wrong; empty where one is.
    """

    file: str
    line: int
    key: str
    message: str
    command: str = ""

    def __str__(self) -> str:
        key = f"{shown(self.key)}: " if self.key else ""
        return f"{shown(self.file)}:{self.line}: {key}{shown(self.message, 500)}"


def shown(text: str, limit: int = 200) -> str:
    """Return a text as one printable line, cut after `limit` characters."""
    cut = text if len(text) <= limit else f"{text[:limit]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


class DefinitionError(StackyardError):
    """Report all problems of the definitions under `images/`."""

    exit_code = 2

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.file, p.line, p.key))
        count = len(self.problems)
        commands = dict.fromkeys(problem.command for problem in self.problems)
        super().__init__(
            f"{count} problem{'s' if count != 1 else ''} in the definitions",
            why="\n".join(str(problem) for problem in self.problems),
            hint="correct the lines named above" if "" in commands else "; ".join(commands),
        )


class UsageError(StackyardError):
    """Report that something the user typed does not exist or does not fit."""

    exit_code = 2


class NothingToRunOn(StackyardError):
    """Report that this machine lacks what the command needs (GPUs, a base image)."""

    exit_code = 3


class EngineError(StackyardError):
    """Report that the container engine is missing, unusable, or refused a request."""


class CommandError(StackyardError):
    """Report that a command failed, with its exit code."""

    def __init__(self, what: str, *, code: int, why: str = "", hint: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.code = code


class RegistryError(StackyardError):
    """Report that a registry cannot be reached, refuses, or sends content that does not match.

    Attributes:
        passing: whether the same request may succeed later.
        status: the HTTP status of a refusal; 0 for every other failure.
    """

    step = "registry"
    passing = False
    status = 0


class ReleaseError(StackyardError):
    """Report that an image must not be published, or that a release is not what it claims.

    Nothing was changed.
    """

    exit_code = 1


class BuildError(StackyardError):
    """Report that an image could not be built, with the failed step and its last lines."""

    step = "build"


class MeshError(StackyardError):
    """Report that a node of a mesh did not become reachable, and why."""

    step = "run"


def gpus_missing(action: str, typed: str) -> UsageError:
    """Return the error for a command that begins on no number of GPUs unless it was typed."""
    return UsageError(
        f"say how many GPUs the {action} is to use",
        why="--gpus is missing",
        hint=f"{typed} --gpus 0 (CPU ranks), or --gpus 2",
    )
