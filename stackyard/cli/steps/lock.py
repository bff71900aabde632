"""Run `invoke lock` and `invoke outdated`, from their arguments to the output.

Owns the words on the terminal and the exit codes. `build.locks.locking` and
`build.locks.outdated` take the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stackyard.build.choice import decide
from stackyard.build.locks import locking
from stackyard.build.locks import outdated as upstream
from stackyard.build.locks.change import change_lines, change_value
from stackyard.cli import tables
from stackyard.cli.console import Terminal
from stackyard.definitions.project import Project, load_project
from stackyard.system.files import replace_texts

if TYPE_CHECKING:
    from stackyard.cli import answers


def lock(terminal: Terminal, stack: str, base: str, *, check: bool) -> tuple[answers.Locked, int]:
    """Run `invoke lock [STACK] [--base B] [--check]`: write locks, then files that need them.

    `--check` writes nothing; its exit code is 1 when something would change.
    """
    project = load_project(locks_required=False)
    made = locking.resolve_all(project, stack, base, terminal.say)
    if not check:
        replace_texts(project.root, made.files)
        for path in made.gone:
            (project.root / path).unlink()
    for line in change_lines(made.changes):
        terminal.text(line)
    for path in made.written:
        done = "removed, another base's file holds it" if path in made.gone else "written"
        terminal.text(f"{f'would be {done}' if check else done}: {path}")
    if not made.written:
        terminal.text("every lock is as it was")
    for path, typed in made.stale.items():
        terminal.note(f"still to be locked: {path}; type: {typed.partition(' --base')[0]}")
    for name in made.outgrown:
        terminal.note(
            f"{stack} does not fit the torch layer as it was locked on {name}: that changes, too"
        )
    if made.rebuilt:
        shown = "; ".join(f"{name} ({', '.join(bases)})" for name, bases in made.rebuilt.items())
        terminal.note(f"images that will be built again, since their locks change: {shown}")
    value: answers.Locked = {
        "changed": list(made.written),
        "check": check,
        "locks": [change_value(change) for change in made.changes],
        "rebuilt": {name: list(bases) for name, bases in made.rebuilt.items()},
        "stale": dict(made.stale),
    }
    return value, 1 if check and made.written else 0


def outdated(terminal: Terminal, stack: str, base: str) -> tuple[answers.Outdated, int]:
    """Run `invoke outdated [STACK] [--base B]`; exit code 1 when a newer release exists."""
    project = load_project()
    chosen = decide(project, stack, base or _locked_base(project, stack))
    found = upstream.outdated(project, stack, chosen.base.name, terminal.say)
    for one in found:
        terminal.table(tables.outdated_table(one))
        for row in one["packages"]:
            for fix in row["fixes_not_covering"]:
                terminal.text(
                    f"{one['stack']}: fix {fix} does not cover {row['name']} {row['newest']}:"
                    f" look at images/fixes/{fix}.yml before you go there"
                )
    behind = sum(row["behind"] for one in found for row in one["packages"])
    if not behind:
        terminal.text("everything that is asked for by name is the newest there is")
    return {"stacks": found}, 1 if behind else 0


def _locked_base(project: Project, stack: str) -> str:
    """Return the default base of a query: the first that is made here, else a locked one."""
    bases = project.definitions.bases
    made_here = [name for name, base in sorted(bases.items()) if base.bootstrap is not None]
    return (made_here or locking.locked_bases(project, stack) or [project.default_base])[0]
