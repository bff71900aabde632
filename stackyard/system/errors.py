"""What can go wrong, said once: what, where, why, and what to type.

Owns the exception types and their exit codes. It must not print or exit: `cli.command` does.
"""

from __future__ import annotations

from dataclasses import dataclass


class StackyardError(Exception):
    """An error that a user can act on.

    Args:
        what: one sentence naming the thing that failed.
        why: the probable reason, or the last lines of what failed.
        hint: what to type or change next.
    """

    exit_code = 4

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


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong in the definitions, with its place."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        key = f"{shown(self.key)}: " if self.key else ""
        return f"{shown(self.file)}:{self.line}: {key}{shown(self.message, 500)}"


def shown(text: str, limit: int = 200) -> str:
    """One line that a terminal takes as text, whatever a file says, and no longer than `limit`."""
    cut = text if len(text) <= limit else f"{text[:limit]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


class DefinitionError(StackyardError):
    """The definitions under `images/` are wrong; carries every problem found."""

    exit_code = 2

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.file, p.line, p.key))
        count = len(self.problems)
        super().__init__(
            f"{count} problem{'s' if count != 1 else ''} in the definitions",
            why="\n".join(str(problem) for problem in self.problems),
            hint="correct the lines named above",
        )


class UsageError(StackyardError):
    """Something typed does not exist or does not fit."""

    exit_code = 2


class NothingToRunOn(StackyardError):
    """What the command needs (GPUs, a base image) is not on this machine."""

    exit_code = 3


class EngineError(StackyardError):
    """The container engine is missing, unusable, or refused a request."""


class CommandError(StackyardError):
    """A command failed; carries its exit code."""

    def __init__(self, what: str, *, code: int, why: str = "", hint: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.code = code


class RegistryError(StackyardError):
    """A registry cannot be reached, refuses, or holds something else than it says.

    Attributes:
        passing: whether the same request may succeed later.
    """

    passing = False


class ReleaseError(StackyardError):
    """An image may not be published, or a release is not what it says; nothing was changed."""

    exit_code = 1


class BuildError(StackyardError):
    """An image could not be built; says the step and its last lines."""


class MeshError(StackyardError):
    """A node of a mesh did not become reachable; names the node and the reason."""
