"""Ask the caller's package index for releases newer than the locks (`invoke outdated`).

Owns the queries: those of `invoke lock`, and the newest release of each package. It must not write
anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypedDict

from stackyard.build import catalog, mirrors
from stackyard.build.builder import require_lock
from stackyard.build.locks import locking, resolve, upstream
from stackyard.definitions import compat, lock
from stackyard.definitions.project import Project
from stackyard.system.errors import CommandError, NothingToRunOn, StackyardError, UsageError

Say = Callable[[str, str], None]
# uv's messages when no index answers.
_SILENT = re.compile(
    r"failed to fetch|dns error|error sending request|connect(ion)? (error|refused)|timed out"
    r"|network (was|is) disabled|could not connect|client error",
    re.IGNORECASE,
)
# uv's message when an index answers, but refuses: a missing package, or a login.
_ANSWERED = re.compile(r"HTTP status (client|server) error", re.IGNORECASE)


class OutdatedStack(TypedDict):
    """Hold the packages of one stack."""

    stack: str
    base: str
    packages: list[upstream.OutdatedPackage]


def outdated(project: Project, stack: str, base_name: str, say: Say) -> list[OutdatedStack]:
    """Return the newer releases for each stack, with its base.

    Raises:
        UsageError: a stack has no lock on the base.
        NothingToRunOn: no package index answers.
    """
    definitions = project.definitions
    base = definitions.bases[catalog.choose("base", base_name, definitions.bases)]
    names = [catalog.choose("stack", n, definitions.stacks) for n in project.stacks(stack)]
    if base.bootstrap is None and base.host is None:
        raise UsageError(
            f"{base.name} is pulled, and its own packages are on no index",
            why="what it holds is known only from the image itself",
            hint="invoke outdated --base cpu",
        )
    images = [catalog.resolve(definitions, name, base.name) for name in names]
    for image in images:
        require_lock(image)
    try:
        then = locking.resolve_on(project, names, base.name, say)
        return [_of_stack(project, image, then, say) for image in images]
    except CommandError as error:
        raise _explained(error) from error


def _of_stack(
    project: Project, image: catalog.ResolvedImage, then: dict[str, str], say: Say
) -> OutdatedStack:
    base, stack = image.base, image.stack
    paths = [lock.base_lock_path(base.name), lock.lock_path(stack.name, base.name)]
    locked: dict[str, str] = {}
    allowed: dict[str, str] = {}
    for versions, texts in ((locked, project.definitions.locks), (allowed, then)):
        for path in paths:
            versions |= lock.versions(lock.parse_lock(texts.get(path, "")))
        for name in stack.builds:
            text = texts.get(lock.wheel_lock_path(name), "")
            versions |= lock.versions(lock.some_of(text, {compat.canonical(name)}))
    written = upstream.direct(stack, base)
    wanted = upstream.told(locked, allowed, written)
    say(stack.name, f"asking for the newest of {len(wanted)} packages")
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    newest = resolve.find_newest(wanted, base, caller)
    fixes = upstream.fixes_of(project.definitions, stack)
    return {
        "stack": stack.name,
        "base": base.name,
        "packages": upstream.rows(locked, allowed, newest, written, fixes),
    }


def _explained(error: CommandError) -> StackyardError:
    if _ANSWERED.search(str(error)) or not _SILENT.search(str(error)):
        return error
    return NothingToRunOn(
        "no package index answers",
        why=error.why.strip() or error.what,
        hint="invoke outdated asks the index that pip or uv is configured for: pip config list",
    )
