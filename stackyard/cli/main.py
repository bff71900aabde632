"""The command line's edge: arguments in, terminal and exit code out.

Owns what is printed where and which exit code results: 0 passed, 1 a check failed, 2 wrong input,
3 nothing to run on, 4 the engine or a build failed, 130 interrupted, 141 the reader of the output
has gone. Every task of `tasks.py` is one call of a function here. A command imports what only some
commands need itself: a build with nothing to do is not to wait for a smoke's modules.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stackyard.build.catalog import choose
from stackyard.cli.console import Terminal
from stackyard.definitions.project import ROOT, Project, load_project
from stackyard.system import cleanup, process
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError, UsageError

if TYPE_CHECKING:
    from stackyard.build.builder import Builder

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_CODES = {"passed": 0, "failed": 1, "not run": 3}
# As a shell tells a process that SIGPIPE ended.
READER_GONE = 128 + signal.SIGPIPE


def run(command: Callable[[Terminal], tuple[Any, int]], *, as_json: bool) -> int:
    """Run one command: its result as JSON where asked for, errors said once, an exit code.

    SIGTERM and SIGHUP end a command as Ctrl-C does: by unwinding, so that everything of it is
    removed; further signals do not disturb the removal. So does a reader of the output that goes
    (`| head`).
    """
    try:
        return _run(command, as_json=as_json)
    except BrokenPipeError:
        if not _reader_gone():
            raise
        return READER_GONE


def _reader_gone() -> bool:
    """Whether nobody reads the output any more; what is still to be written then goes nowhere."""
    gone = False
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(io.UnsupportedOperation):
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream.fileno())
                gone = True
    return gone


def _run(command: Callable[[Terminal], tuple[Any, int]], *, as_json: bool) -> int:
    previous = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    terminal = Terminal(json=as_json)
    try:
        with cleanup.guarded(process.Warden), terminal:
            result, code = command(terminal)
    except StackyardError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        found = _recognised(error)
        show_diagnoses(found, lambda text: print(text, file=sys.stderr, flush=True))
        result = {"error": {"what": error.what, "why": error.why, "hint": error.hint}}
        result["diagnoses"] = found
        code = error.exit_code
    except KeyboardInterrupt:
        print("interrupted: everything of this run has been removed", file=sys.stderr, flush=True)
        result, code = {"error": {"what": "interrupted", "why": "", "hint": ""}}, 130
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if as_json:
        print(json.dumps(result, indent=1, ensure_ascii=False), flush=True)
    return code


def _recognised(error: StackyardError) -> list[dict[str, Any]]:
    """Known failures in what a build or the engine said; other errors say themselves what to do."""
    if error.exit_code != StackyardError.exit_code:
        return []
    from stackyard.cli import commands

    said = [str(one) for one in (error, error.__cause__) if isinstance(one, StackyardError)]
    found: list[dict[str, Any]] = []
    with contextlib.suppress(StackyardError):
        found = commands.diagnose_text(ROOT, "\n".join(said))["diagnoses"]
    return found


def show_diagnoses(found: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    """Say each recognised failure with its cause and remedy."""
    from stackyard.validate.diagnose import diagnosis_text

    for value in found:
        say(diagnosis_text(value))


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in _SIGNALS:
        signal.signal(other, _already)
    raise KeyboardInterrupt


def _already(number: int, frame: FrameType | None) -> None:
    print("interrupted already: removing everything of this run", file=sys.stderr, flush=True)


def list_images(*, as_json: bool) -> int:
    """`invoke list`."""
    from stackyard.cli import commands, tables

    def command(terminal: Terminal) -> tuple[Any, int]:
        with contextlib.ExitStack() as stack:
            held = _engine_or_none(stack)
            found = commands.list_all(load_project(locks_required=False), held)
        terminal.table(tables.image_table(found["images"]))
        for stack_name, summary in {r["stack"]: r["summary"] for r in found["images"]}.items():
            terminal.text(f"stack {stack_name}: {summary}")
        for base in found["bases"]:
            never = f" (never built: {base['never_built']})" if base["never_built"] else ""
            terminal.text(f"base {base['base']}: {base['summary']}, {base['reference']}{never}")
        if found["engine"] is None:
            terminal.note("no container engine answers: what is built is not known")
        return found, 0

    return run(command, as_json=as_json)


def _engine_or_none(stack: contextlib.ExitStack) -> Engine | None:
    try:
        return stack.enter_context(Engine())
    except StackyardError:
        return None


def show(stack: str, base: str, *, as_json: bool) -> int:
    """`invoke show STACK`."""
    from stackyard.cli import commands, tables

    def command(terminal: Terminal) -> tuple[Any, int]:
        project = load_project(locks_required=False)
        found = commands.show(project, stack, base or project.default_base)
        terminal.table(tables.plan_table(found))
        if found["never_built"]:
            terminal.text(f"never built: {found['never_built']}")
        return found, 0

    return run(command, as_json=as_json)


def render(stack: str, *, check: bool, as_json: bool) -> int:
    """`invoke render [--check]`."""
    from stackyard.cli import commands

    def command(terminal: Terminal) -> tuple[Any, int]:
        changed = commands.render(load_project(locks_required=False), stack, check=check)
        for path in changed:
            terminal.text(f"{'differs' if check else 'written'}: {path}")
        if check and changed:
            terminal.note("rendered files are not what the definitions say; type: invoke render")
        elif not changed:
            terminal.text("every rendered file is as the definitions say")
        return {"changed": changed}, 1 if check and changed else 0

    return run(command, as_json=as_json)


def build(
    stack: str,
    base: str,
    *,
    again: bool,
    as_json: bool,
    offline: str = "",
    fresh: bool = False,
) -> int:
    """`invoke build [STACK]`."""

    from stackyard.build.builder import Builder

    def command(terminal: Terminal) -> tuple[Any, int]:
        project = load_project()
        names = chosen_stacks(project, stack)
        bundle = Path(offline) if offline else None
        with Engine() as held:
            builder = Builder(project, held, terminal.say, bundle, fresh=fresh)
            return {"images": _build_each(project, builder, names, base, again, terminal)}, 0

    return run(command, as_json=as_json)


def _build_each(
    project: Project,
    builder: Builder,
    names: list[str],
    base: str,
    again: bool,
    terminal: Terminal,
) -> list[dict[str, Any]]:
    rows = []
    for built in builder.build_all(names, base or project.default_base, again=again):
        name = built.image.stack.name
        made = f"built in {built.seconds:.1f} s" if built.made else "is current"
        terminal.done(name, f"{built.tag} {made} ({built.info.size / 1e9:.2f} GB)")
        rows.append(
            {
                "stack": name,
                "base": built.image.base.name,
                "image": built.info.id,
                "tags": list(built.info.tags),
                "made": built.made,
                "seconds": round(built.seconds, 2),
                "size_bytes": built.info.size,
            }
        )
    return rows


def base(name: str, *, as_json: bool) -> int:
    """`invoke base NAME`."""
    from stackyard.cli import commands

    def command(terminal: Terminal) -> tuple[Any, int]:
        with Engine() as held:
            made = commands.make_base(load_project(), held, name, terminal.say)
        done = "made" if made["made"] else "is current"
        terminal.done(name, f"{made['reference']} {done} ({made['size_bytes'] / 1e9:.2f} GB)")
        return made, 0

    return run(command, as_json=as_json)


def bundle(stack: str, base: str, out: str, *, as_json: bool) -> int:
    """`invoke bundle [STACK] --base BASE`."""
    from stackyard.cli import commands

    def command(terminal: Terminal) -> tuple[Any, int]:
        project = load_project()
        chosen_stacks(project, stack)
        chosen = base or project.default_base
        path = Path(out or f"stackyard-{chosen}.bundle.tar")
        made = commands.make_bundle(project, stack, chosen, path, terminal.say)
        parts = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in made["bytes"].items())
        total = f"{made['files']} files, {made['size_bytes'] / 1e6:.1f} MB"
        terminal.done(chosen, f"{path}: {total} ({parts})")
        return made, 0

    return run(command, as_json=as_json)


def chosen_stacks(project: Project, stack: str) -> list[str]:
    """The stacks that a command was told: one, or all.

    Raises:
        UsageError: there is none of that name.
    """
    return [choose("stack", name, project.definitions.stacks) for name in project.stacks(stack)]


def diagnose(file: str, *, as_json: bool) -> int:
    """`invoke diagnose FILE`: exit code 1 when nothing was recognised."""
    from stackyard.cli import commands

    def command(terminal: Terminal) -> tuple[Any, int]:
        found = commands.diagnose_text(ROOT, _read_log(file))
        show_diagnoses(found["diagnoses"], terminal.text)
        if not found["diagnoses"]:
            known = f"{found['known']} failures are known (images/failures)"
            terminal.text(f"nothing was recognised in {file}: {known}, and it shows none of them")
        return {"file": file, **found}, 0 if found["diagnoses"] else 1

    return run(command, as_json=as_json)


def _read_log(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read", why=error.strerror or str(error)) from error
    return data.decode("utf-8", errors="replace")


def engine(*, as_json: bool) -> int:
    """`invoke engine`: find, install or start a container engine."""
    from stackyard.build import host

    def command(terminal: Terminal) -> tuple[Any, int]:
        host.ensure_engine(lambda text: terminal.say("engine", text))
        with Engine() as found:
            facts = found.facts()
        terminal.text(f"engine {facts['engine']} on {facts['os']}, {facts['cpus']} CPUs")
        return facts, 0

    return run(command, as_json=as_json)
