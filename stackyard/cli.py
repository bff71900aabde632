"""The command line's edge: arguments in, terminal and exit code out.

Owns what is printed where and which exit code results: 0 passed, 1 a check failed, 2 wrong input,
3 nothing to run on, 4 the engine or a build failed, 130 interrupted. Every task of `tasks.py` is
one call of a function here. A command imports what only some commands need itself: a build with
nothing to do is not to wait for a smoke's modules.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stackyard import guard, process
from stackyard.catalog import choose
from stackyard.console import Terminal
from stackyard.engine import Engine
from stackyard.errors import NothingToRunOn, StackyardError, UsageError
from stackyard.project import ROOT, Project, load_project

if TYPE_CHECKING:
    from stackyard.builder import Built
    from stackyard.smoke import Watcher

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_CODES = {"passed": 0, "failed": 1, "not run": 3}


def run(command: Callable[[Terminal], tuple[Any, int]], *, as_json: bool) -> int:
    """Run one command: its result as JSON where asked for, errors said once, an exit code.

    SIGTERM and SIGHUP end a command as Ctrl-C does: by unwinding, so that everything of it is
    removed; further signals do not disturb the removal.
    """
    previous = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    terminal = Terminal(json=as_json)
    try:
        with guard.guarded(process.Warden), terminal:
            result, code = command(terminal)
    except StackyardError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        found = _recognised(error)
        _show(found, lambda text: print(text, file=sys.stderr, flush=True))
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
    from stackyard import commands

    said = [str(one) for one in (error, error.__cause__) if isinstance(one, StackyardError)]
    found: list[dict[str, Any]] = []
    with contextlib.suppress(StackyardError):
        found = commands.diagnose_text(ROOT, "\n".join(said))["diagnoses"]
    return found


def _show(found: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    from stackyard.diagnose import diagnosis_text

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
    from stackyard import commands, tables

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
    from stackyard import commands, tables

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
    from stackyard import commands

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


def lock(stack: str, base: str, *, as_json: bool) -> int:
    """`invoke lock [STACK]`: locks, then the Dockerfiles that depend on them."""
    from stackyard import commands

    def command(terminal: Terminal) -> tuple[Any, int]:
        project = load_project(locks_required=False)
        changed = commands.lock_all(project, stack, base or "cpu", terminal.say)
        changed += commands.render(load_project(), "all", check=False)
        for path in changed:
            terminal.text(f"written: {path}")
        if not changed:
            terminal.text("every lock is as it was")
        return {"changed": changed}, 0

    return run(command, as_json=as_json)


def build(stack: str, base: str, *, again: bool, as_json: bool) -> int:
    """`invoke build [STACK]`."""

    def command(terminal: Terminal) -> tuple[Any, int]:
        project = load_project()
        names = _stacks(project, stack)
        with Engine() as held:
            return {"images": _build_each(project, held, names, base, again, terminal)}, 0

    return run(command, as_json=as_json)


def _build_each(
    project: Project, held: Engine, names: list[str], base: str, again: bool, terminal: Terminal
) -> list[dict[str, Any]]:
    from stackyard.builder import Builder

    builder = Builder(project, held, terminal.say)
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


def _stacks(project: Project, stack: str) -> list[str]:
    return [choose("stack", name, project.definitions.stacks) for name in project.stacks(stack)]


def smoke(stack: str, base: str, gpus: int, nodes: int, *, as_json: bool) -> int:
    """`invoke smoke [STACK] --gpus N`."""
    from stackyard import commands, report, tables

    def command(terminal: Terminal) -> tuple[Any, int]:
        project = load_project()
        names = _stacks(project, stack)
        target = "smoke" if stack == "all" else f"smoke {stack}"
        _require_cpu(gpus, nodes, f"invoke {target}")
        chosen = commands.smoke_base(project, base, gpus)
        with Engine() as held:
            reports = _smoke_each(project, held, names, chosen, nodes, terminal)
        terminal.table(tables.phase_table(reports))
        terminal.table(tables.smoke_table(reports))
        for value in reports:
            _explain(value, terminal)
        answer = report.together(reports)
        return answer, EXIT_CODES[answer["outcome"]]

    return run(command, as_json=as_json)


def _smoke_each(
    project: Project, held: Engine, names: list[str], base: str, node_count: int, terminal: Terminal
) -> list[dict[str, Any]]:
    from stackyard import nodes, smokes
    from stackyard.builder import Builder

    builder = Builder(project, held, terminal.say)
    images = builder.build_all(names, base)
    for built in images:
        if built.made:
            terminal.done(built.image.stack.name, f"image built in {built.seconds:.1f} s")
    for run, why in nodes.sweep(held).items():
        if why:
            terminal.note(f"something that run {run} left cannot be removed: {why}")
        else:
            terminal.note(f"removed what an earlier run left: {run}")
    watchers = [_watcher(built, terminal) for built in images]
    return smokes.smoke_all(project, held, images, node_count, watchers)


def _require_cpu(gpus: int, nodes: int, typed: str) -> None:
    from stackyard import host

    if gpus < 0:
        hint = f"{typed} --gpus 0 (CPU) or --gpus 2"
        raise UsageError("say how many GPUs the run is to use", why="--gpus is missing", hint=hint)
    if gpus:
        host.require_gpus(gpus, typed)
        raise NothingToRunOn(
            f"{gpus} GPUs are here, but no base for GPUs has been built yet",
            why="ngc is rendered only: see `invoke list`",
            hint=f"{typed} --gpus 0",
        )
    if nodes != 2:
        raise UsageError(
            f"a CPU smoke runs on 2 nodes, not on {nodes}",
            why="its layouts compare 1 process with 2 nodes of one rank each",
            hint=f"{typed} --gpus 0",
        )


def _watcher(built: Built, terminal: Terminal) -> Watcher:
    from stackyard.smoke import Watcher

    name, total = built.image.stack.name, built.image.stack.smoke.updates
    return Watcher(
        phase=lambda text: terminal.say(name, text),
        loss=lambda label, step, loss: terminal.loss(name, label, step, total, loss),
        over=lambda outcome, seconds: terminal.done(name, f"smoke {outcome} in {seconds:.1f} s"),
    )


def _explain(value: dict[str, Any], terminal: Terminal) -> None:
    from stackyard import report

    for check in value["checks"]:
        if check["outcome"] != "passed":
            terminal.text(f"{value['stack']}: {check['name']} {check['outcome']}: {check['why']}")
    _show(value["diagnoses"], lambda text: terminal.text(f"{value['stack']}: {text}"))
    if value["outcome"] == "failed":
        for layout, tail in value["last_lines"].items():
            if tail:
                shown = "\n".join(tail.splitlines()[-40:])
                terminal.text(f"{value['stack']}: last lines of {layout}:\n{shown}")
    page = report.path_of(value["stack"], value["base"], value["kind"], "html")
    terminal.text(f"{value['stack']}: report in {page}")


def diagnose(file: str, *, as_json: bool) -> int:
    """`invoke diagnose FILE`: exit code 1 when nothing was recognised."""
    from stackyard import commands

    def command(terminal: Terminal) -> tuple[Any, int]:
        found = commands.diagnose_text(ROOT, _read_log(file))
        _show(found["diagnoses"], terminal.text)
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
    from stackyard import host

    def command(terminal: Terminal) -> tuple[Any, int]:
        host.ensure_engine(lambda text: terminal.say("engine", text))
        with Engine() as found:
            facts = found.facts()
        terminal.text(f"engine {facts['engine']} on {facts['os']}, {facts['cpus']} CPUs")
        return facts, 0

    return run(command, as_json=as_json)
