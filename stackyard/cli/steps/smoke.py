"""Run `invoke smoke`, from its arguments to verdicts on the terminal.

Owns the meaning of a smoke's arguments, and its output. `report.smokes` runs it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path

from stackyard.build import host
from stackyard.build.builder import Builder, Built
from stackyard.build.choice import Choice, decide
from stackyard.cli import tables
from stackyard.cli.answer import EXIT_CODES, Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.trainings import SmokeRequest
from stackyard.cli.steps import compare, diagnose, smoke_hosts, smoke_slurm
from stackyard.definitions.project import Project, load_project
from stackyard.definitions.spec import SMOKE_GPUS, SMOKE_GPUS_WORDS
from stackyard.gpu import access
from stackyard.mesh import nodes
from stackyard.report import junit, pages, records, smokes, vouch
from stackyard.report.shapes import SmokeReport
from stackyard.system.engine import Engine
from stackyard.system.errors import UsageError
from stackyard.validate import gpu_run
from stackyard.validate.gpu_run import GpuPlan
from stackyard.validate.smoke import SmokeWatcher

_BUSY = (
    "other programs took this machine's CPUs ({}): if nothing else explains the failure,"
    " smoke again when they have ended"
)


def smoke(terminal: Terminal, asked: SmokeRequest) -> Answer:
    """Smoke the stacks that were asked for; the worst outcome decides the exit code."""
    project, busy = load_project(), "" if asked.hosts or asked.on else host.busy()
    typed = "invoke smoke" if asked.stack == "all" else f"invoke smoke {asked.stack}"
    typed += f" --image {asked.image}" if asked.image else ""
    chosen = decide(
        project, asked.stack, asked.base, gpus=asked.gpus, gpus_for="smoke", image=asked.image,
        image_here=not asked.hosts and not smoke_slurm.on_nodes(asked), cpu_ranks_anywhere=True,
        typed=typed,
    )  # fmt: skip
    gpus = chosen.gpus or 0
    require_fit_for_hosts(asked, typed)
    smoke_slurm.require_fit(asked, typed)
    count = node_count(gpus, asked.nodes, asked.placement, typed)
    if gpus and not asked.hosts and not asked.on:
        host.require_gpus(gpus, typed)
    names, base = list(chosen.stacks), chosen.base.name
    require_smokes(project, names, chosen.device, gpus)
    earlier = compare.earlier_reports(asked.against, project, names, base, gpus)
    if asked.junit:
        junit.require_place(Path(asked.junit))
    if asked.on:
        reports = smoke_slurm.smoke_each(
            project, chosen, asked, lambda built: _watcher(built, chosen.device, terminal),
            terminal, typed,
        )  # fmt: skip
    elif asked.hosts:
        reports = smoke_hosts.smoke_each(
            project, chosen, asked.hosts, chosen.device,
            lambda built: _watcher(built, chosen.device, terminal), terminal, typed,
        )  # fmt: skip
    else:
        reports = _smoke_here(project, chosen, asked, count, terminal, typed)
    terminal.table(tables.phase_table(reports))
    terminal.table(tables.smoke_table(reports))
    for value in reports:
        _explain(value, terminal)
        terminal.text(f"{value['stack']}: {vouch.told(project.root, value)}")
    code = compare.hold_against(project, earlier, reports, terminal)
    if asked.junit:
        junit.write(Path(asked.junit), reports)
    answer = records.together(reports)
    activate = "" if shutil.which("invoke") else f"{sys.prefix}/bin/activate"
    for line in last_lines(reports, terminal.seconds, chosen.device, busy, activate):
        terminal.text(line)
    return answer, EXIT_CODES[answer["outcome"]] or code


def last_lines(
    reports: Sequence[SmokeReport],
    seconds: float,
    device: str,
    busy: str = "",
    activate: str = "",
) -> list[str]:
    """Return a smoke's verdict with its time and page, and what to do next.

    Args:
        busy: how busy this machine was before, if it was.
        activate: the script that brings `invoke` onto the path, where it is not.
    """
    passed = [value for value in reports if value["outcome"] == "passed"]
    failed = next((value for value in reports if value["outcome"] == "failed"), None)
    shown = failed or (reports[0] if len(reports) == 1 else None)
    page = records.path_of_report(shown, "html") if shown else pages.INDEX
    minutes, rest = divmod(round(seconds), 60)
    time = f"{minutes} min {rest} s" if minutes else f"{rest} s"
    stack = reports[0]["stack"]
    only = f"{stack} " if len(reports) == 1 else ""
    following = {
        "cpu": f"invoke smoke {only}--gpus 2 (on a GPU host), or docs/tutorials: "
        "own-stack.md, two-hosts.md, publish-pull.md",
        "cuda": f"invoke publish {stack} --to REGISTRY/NAME",
    }[device]
    if activate:
        following = f". {os.path.relpath(activate)}, then {following}"
    caused = failed and any(found["kind"] == "cause" for found in failed["diagnoses"])
    unknown = sum(value["outcome"] == "not run" for value in reports)
    return [
        f"{len(passed)} of {len(reports)} {'stacks' if len(reports) > 1 else 'stack'} passed"
        f"{f', {unknown} not run,' if unknown else ''} in {time}; page: {page}",
        *([f"next: {following}"] if len(passed) == len(reports) else []),
        *([_BUSY.format(busy)] if failed and busy and not caused else []),
    ]


def _smoke_here(
    project: Project,
    chosen: Choice,
    asked: SmokeRequest,
    count: int,
    terminal: Terminal,
    typed: str,
) -> list[SmokeReport]:
    """Smoke stacks on this machine."""
    gpus, names, base = chosen.gpus or 0, list(chosen.stacks), chosen.base.name
    with Engine() as held:
        plan = None
        if gpus:
            plan = gpu_run.make_plan(held, gpus, count, asked.placement, f"{typed} --gpus 0")
            gpu_run.require_fit(plan, base, project.definitions.bases)
            _explain_placement(plan, terminal)
        return _smoke_each(project, held, names, base, count, plan, terminal, chosen.there)


def require_fit_for_hosts(asked: SmokeRequest, typed: str) -> None:
    """Refuse options about containers of this machine beside --hosts.

    Raises:
        UsageError: one is given.
    """
    here = [f"--{name}" for name in ("nodes", "placement") if getattr(asked, name)]
    if asked.hosts and here:
        raise UsageError(
            f"{' and '.join(here)} cannot be given with --hosts",
            why="each host has the nodes and GPUs that its entry in the inventory names",
            hint=f"{typed} --hosts {asked.hosts}",
        )


def node_count(gpus: int, nodes_: int | None, placement: str, typed: str) -> int:
    """Return a run's number of containers: 2 on CPU ranks; on GPUs 1 unless given.

    Raises:
        UsageError: the numbers fit no smoke.
    """
    if gpus == 0:
        if nodes_ not in (None, 2):
            raise UsageError(
                f"a CPU smoke runs on 2 nodes, not on {nodes_}",
                why="its layouts compare 1 process with 2 nodes of one rank each",
                hint=f"{typed} --gpus 0",
            )
        if placement:
            raise UsageError("--placement is about GPUs", hint=f"{typed} --gpus 2 --nodes 2")
        return 2
    if gpus not in SMOKE_GPUS:
        less = max((count for count in SMOKE_GPUS if count < gpus), default=SMOKE_GPUS[0])
        raise UsageError(
            f"a smoke runs on {SMOKE_GPUS_WORDS} GPUs, not on {gpus}",
            why="it compares 1 rank with so many, each of which gets an equal part of every batch",
            hint=f"{typed} --gpus {less}",
        )
    return nodes_ or 1


def require_smokes(project: Project, names: list[str], device: str, gpus: int = 0) -> None:
    """Check that each stack has a smoke on ranks of this device, with the files that it names.

    Raises:
        UsageError: a stack has none, or none on so many GPUs; a file is missing.
    """
    for name in names:
        declared = project.definitions.stacks[name].smoke_on(device, gpus)
        if declared is None:
            raise UsageError(
                f"{name} has no smoke on {'GPUs' if device == 'cuda' else 'CPU ranks'}",
                hint=f"images/{name}/stack.yml, smoke.gpus, says what it trains there",
            )
        most = max(layout.ranks for layout in declared.layouts)
        if gpus > most:
            what = f"the smoke of {name} runs on {most} GPUs, not on {gpus}: no layout grows"
            raise UsageError(what, hint=f"grows: yes in smoke.gpus of images/{name}/stack.yml")
        folder = project.root / "images" / name / "smoke"
        for word in (*declared.prepare, *declared.program):
            file = word.removeprefix(f"{nodes.SMOKE_FOLDER}/")
            if file != word and not (folder / file).exists():
                raise UsageError(
                    f"images/{name}/smoke/{file} is missing",
                    why=f"images/{name}/stack.yml names it as {word}, which every node would run",
                    hint="write it: docs/tutorials/own-stack.md has a program for a start",
                )


def _explain_placement(plan: GpuPlan, terminal: Terminal) -> None:
    placed, warnings = gpu_run.place(plan, "shown")
    shown = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in plan.chosen)
    terminal.text(f"GPUs {shown}, driver {plan.host.driver}: {access.explain(plan.way)}")
    terminal.text(f"placement {placed.name}: {placed.why}")
    for warning in warnings:
        terminal.note(warning)


def _smoke_each(
    project: Project,
    held: Engine,
    names: list[str],
    base: str,
    node_count: int,
    plan: GpuPlan | None,
    terminal: Terminal,
    there: Built | None = None,
) -> list[SmokeReport]:
    for gone, why in nodes.sweep(held).items():
        if why:
            terminal.note(f"something that run {gone} left cannot be removed: {why}")
        else:
            terminal.note(f"removed what an earlier run left: {gone}")
    device = "cuda" if plan else "cpu"

    def watched(built: Built) -> SmokeWatcher:
        if built.made:
            terminal.done(built.image.stack.name, f"image built in {built.seconds:.1f} s")
        return _watcher(built, device, terminal)

    with _coming(Builder(project, held, terminal.say), names, base, there) as images:
        if plan is not None:
            # Not beside a build, which would slow down the host that is measured.
            wait(images)
            for image in images:
                image.result()
            terminal.say("bare host", "measuring the same GPUs without containers")
            plan = gpu_run.with_bare_host(plan)
            rate = plan.bare.get("training", {}).get("tokens_s")
            terminal.done("bare host", f"{rate:,.0f} tokens/s" if rate else plan.no_bare)
        return smokes.smoke_all(project, held, images, node_count, watched, plan)


def _coming(
    builder: Builder, names: list[str], base: str, there: Built | None
) -> contextlib.AbstractContextManager[list[Future[Built]]]:
    """Return the images to come: builds that run, or the one that was named."""
    if there is None:
        return builder.building(names, base)
    named: Future[Built] = Future()
    named.set_result(there)
    return contextlib.nullcontext([named])


def _watcher(built: Built, device: str, terminal: Terminal) -> SmokeWatcher:
    name = built.image.stack.name
    declared = built.image.stack.smoke_on(device)
    total = declared.updates if declared else 0
    return SmokeWatcher(
        phase=lambda text: terminal.say(name, text),
        loss=lambda label, step, loss: terminal.loss(name, label, step, total, loss),
        over=lambda outcome, seconds: terminal.done(name, f"smoke {outcome} in {seconds:.1f} s"),
    )


def _explain(value: SmokeReport, terminal: Terminal) -> None:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for check in value["checks"]:
        if check["outcome"] != "passed":
            by_reason.setdefault((check["why"], check["outcome"]), []).append(check["name"])
    for (why, outcome), names in by_reason.items():
        known = next((n for (w, o), n in by_reason.items() if w == why and o != outcome), None)
        said = f"as {known[0]} says" if known and outcome == "not run" else why
        terminal.text(f"{value['stack']}: {', '.join(names)} {outcome}: {said}")
    for name, why in value.get("not_applicable", {}).items():
        terminal.text(f"{value['stack']}: {name} does not apply: {why}")
    diagnose.show(value["diagnoses"], lambda text: terminal.text(f"{value['stack']}: {text}"))
    if value["outcome"] == "failed":
        for layout, tail in value["last_lines"].items():
            if tail:
                shown = "\n".join(tail.splitlines()[-40:])
                terminal.text(f"{value['stack']}: last lines of {layout}:\n{shown}")
    terminal.text(f"{value['stack']}: report in {records.path_of_report(value, 'html')}")
