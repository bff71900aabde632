"""`invoke lock`: what was typed to what is printed and written.

Owns the words on the terminal and the exit codes; the steps are `stackyard.locking`'s.
"""

from __future__ import annotations

from typing import Any

from stackyard import locking, resolve
from stackyard.cli import run
from stackyard.console import Terminal
from stackyard.lock_change import change_lines, change_value
from stackyard.project import load_project


def lock(stack: str, base: str, *, check: bool, as_json: bool) -> int:
    """`invoke lock [STACK] [--base B] [--check]`: locks, then the files that depend on them.

    Exit code 1 with `--check` when something would change; nothing is written then.
    """

    def command(terminal: Terminal) -> tuple[Any, int]:
        project = load_project(locks_required=False)
        made = locking.resolve_all(project, stack, base, terminal.say)
        if not check:
            resolve.write_files(project.root, made.files)
        for line in change_lines(made.changes):
            terminal.text(line)
        for path in made.written:
            terminal.text(f"{'would be written' if check else 'written'}: {path}")
        if not made.written:
            terminal.text("every lock is as it was")
        for path, typed in made.stale.items():
            terminal.note(f"still to be locked: {path}; type: {typed.partition(' --base')[0]}")
        value = {
            "changed": list(made.written),
            "check": check,
            "locks": [change_value(change) for change in made.changes],
            "stale": dict(made.stale),
        }
        return value, 1 if check and made.written else 0

    return run(command, as_json=as_json)
