"""Run `invoke bench`, from its arguments to a table on the terminal and a report.

Owns the meaning of a bench's arguments, and its output. `validate.bench.play` runs the trainings.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from stackyard.build import host
from stackyard.build.builder import Builder, Built
from stackyard.build.choice import Choice, decide
from stackyard.cli.answer import EXIT_CODES, Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.trainings import BenchRequest
from stackyard.cli.steps import diagnose, smoke_hosts, smoke_slurm
from stackyard.cli.steps.bench_place import Place, here, on_slurm, there
from stackyard.definitions.project import Project, load_project
from stackyard.gpu import transport
from stackyard.mesh import nodes
from stackyard.mesh.hosts import node_names
from stackyard.mesh.runs import reached
from stackyard.report import pages, records, vouch
from stackyard.report.bench import bench_report
from stackyard.report.bench_page import SPENT, headings, render_page, rows, spent_rows, unwatched
from stackyard.report.shapes import BenchReport
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError, UsageError
from stackyard.validate import gpu_run
from stackyard.validate.bench import play, slurm
from stackyard.validate.bench.judge import judge
from stackyard.validate.bench.plan import BenchPlan, Turn, as_smoke, make_plan, read_counts
from stackyard.validate.bench.read import load_bench, load_peaks
from stackyard.validate.bench.result import START, Played, Seen, group_speed, speed
from stackyard.validate.slurm_follower import Follower

CPU_RANKS = 2
ROUNDS = 2
# Columns of words, aligned left; numbers are aligned right.
LEFT = ("variant", "ratio", f"of all after {START}")


def bench(terminal: Terminal, asked: BenchRequest) -> Answer:
    """Bench the stacks that were asked for; the worst outcome decides the exit code."""
    project = load_project()
    typed = "invoke bench" if asked.stack == "all" else f"invoke bench {asked.stack}"
    typed += f" --image {asked.image}" if asked.image else ""
    chosen = decide(
        project, asked.stack, asked.base, gpus=asked.gpus, gpus_for="bench", image=asked.image,
        image_here=not asked.hosts and not smoke_slurm.on_nodes(asked), typed=typed,
    )  # fmt: skip
    smoke_slurm.require_fit(asked, typed)
    if asked.on:
        values = _bench_slurm(project, chosen, asked, terminal, typed)
    elif asked.hosts:
        values = _bench_hosts(project, chosen, asked, terminal, typed)
    else:
        values = _bench_here(project, chosen, asked, terminal, typed)
    for value in values:
        _show(value, terminal)
        terminal.text(f"{value['stack']}: {vouch.told(project.root, value)}")
    answer = records.together(values)
    return answer, EXIT_CODES[answer["outcome"]]


def _bench_here(
    project: Project, chosen: Choice, asked: BenchRequest, terminal: Terminal, typed: str
) -> list[BenchReport]:
    """Bench stacks on this machine, in one container each."""
    gpus, names, base = chosen.gpus or 0, list(chosen.stacks), chosen.base.name
    if gpus:
        host.require_gpus(gpus, typed)
    plans = _plans(project, asked, names, chosen.device, gpus or CPU_RANKS)
    with Engine() as held:
        gpu_plan = None
        if gpus:
            gpu_plan = gpu_run.make_plan(held, gpus, 1, "", f"{typed} --gpus 0")
            gpu_run.require_fit(gpu_plan, base, project.definitions.bases)
        there = [chosen.there] if chosen.there else None
        images = there or Builder(project, held, terminal.say).build_all(names, base)
        nodes.sweep(held)
        return [
            _bench_one(
                project, built, plans[name], here(project, held, built, plans[name], gpu_plan),
                terminal,
            )
            for name, built in zip(names, images, strict=True)
        ]  # fmt: skip


def _bench_hosts(
    project: Project, chosen: Choice, asked: BenchRequest, terminal: Terminal, typed: str
) -> list[BenchReport]:
    """Bench stacks over hosts, one after another: they share the hosts."""
    fleet = smoke_hosts.fleet_of(asked.hosts, typed)
    count = sum(len(node_names(one)) for one in fleet.hosts)
    ranks = chosen.gpus or count
    plans = _plans(project, asked, list(chosen.stacks), chosen.device, ranks, count)
    found = []
    with reached(fleet) as hosts:
        for name in chosen.stacks:
            wanted = smoke_hosts.request_of(project, chosen, name, chosen.device)
            built = smoke_hosts.image_of(project, hosts, wanted)
            files = play.files(project.root, name)
            made = smoke_hosts.spread_of(
                hosts, wanted, built, play.neutral(plans[name]), files, terminal
            )
            found.append(_bench_one(project, built, plans[name], there(made, plans[name]),
                                    terminal))  # fmt: skip
    return found


def _bench_slurm(
    project: Project, chosen: Choice, asked: BenchRequest, terminal: Terminal, typed: str
) -> list[BenchReport]:
    """Bench stacks on Slurm, one after another."""
    count = asked.nodes or smoke_slurm.NODES
    if count < 2:
        raise UsageError(
            "a bench on Slurm needs two nodes",
            why="on a single one its GPUs are measured at once, in one container",
            hint=f"{typed} --on slurm --nodes 2, or without --on on a machine with an engine",
        )
    ranks = chosen.gpus or count
    each, rest = divmod(ranks, count)
    if rest:
        raise UsageError(
            f"--gpus {ranks} is the GPUs of the whole job: {count} nodes cannot have equally many",
            hint=f"{typed} --on slurm --nodes {count} --gpus {max(each, 1) * count}",
        )
    plans = _plans(project, asked, list(chosen.stacks), chosen.device, ranks, count)

    def parts(stack: str, folder: Path) -> smoke_slurm.Parts:
        plan = plans[stack]
        return smoke_slurm.Parts(
            smoke=as_smoke(plan, plan.sides[0], 1),
            trainings=slurm.trainings(plan, folder),
            files=play.files(project.root, stack),
        )

    found = []
    for built, run in smoke_slurm.planned(project, chosen, asked, count, each, parts, terminal):
        plan = plans[run.stack]
        with smoke_slurm.submitted(run, terminal) as job:
            place = on_slurm(Follower(run, job), plan)
            found.append(_bench_one(project, built, plan, place, terminal))
    return found


def _plans(
    project: Project,
    asked: BenchRequest,
    names: list[str],
    device: str,
    ranks: int,
    nodes_: int = 1,
) -> dict[str, BenchPlan]:
    counts = read_counts(asked.counts, ranks)
    named = [name.strip() for name in asked.sides.split(",") if name.strip()]
    return {
        name: make_plan(
            load_bench(project.root, name),
            device,
            ranks,
            rounds=asked.rounds or ROUNDS,
            updates=asked.updates or 0,
            named=named,
            counts=counts,
            nodes=nodes_,
        )
        for name in names
    }


def _bench_one(
    project: Project, built: Built, plan: BenchPlan, place: Place, terminal: Terminal
) -> BenchReport:
    name = built.image.stack.name
    peaks = load_peaks(project.root)
    started = datetime.datetime.now(datetime.timezone.utc)
    clock = time.monotonic()

    def written(seen: Seen) -> BenchReport:
        value = bench_report(
            built.image,
            built.info,
            plan,
            seen,
            judge(plan, seen),
            peaks=peaks,
            started=started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - clock,
            host=place.facts(),
            gpus=place.gpus(),
            failures=project.definitions.failures.values(),
        )
        if hosts := place.hosts():
            value["hosts"] = hosts
        if place.slurm:
            value["slurm"] = place.slurm
        value["made"] = pages.made_by(project.root)
        path = records.path_of_report(value, "json")
        pages.write(project.root, value, path, render_page(value))
        vouch.write(project.root, value, built.info.layers, Path.home())
        return value

    kept: list[Seen] = []
    try:
        seen = place.play(_watcher(name, plan, terminal, kept.append))
    except (KeyboardInterrupt, SystemExit, StackyardError) as error:
        if kept:  # keep measurements that took minutes of GPUs
            done, wanted = len(kept[-1].played), len(plan.turns())
            why = error.what if isinstance(error, StackyardError) else "interrupted"
            broken = f"{why} after {done} of {wanted} trainings"
            value = written(replace(kept[-1], broken=broken))
            terminal.done(name, f"{broken}: report in {records.path_of_report(value, 'html')}")
        raise
    return written(seen)


def _watcher(
    name: str, plan: BenchPlan, terminal: Terminal, so_far: Callable[[Seen], None]
) -> play.BenchWatcher:
    beside: dict[tuple[str, int], dict[int, float]] = {}

    def loss(turn: Turn, step: int, value: float) -> None:
        # Concurrent trainings are shown as one: the slowest's step, with their mean loss.
        there = beside.setdefault((turn.name, step), {})
        there[turn.group] = value
        if len(there) == turn.groups:
            mean = statistics.fmean(there.values())
            terminal.loss(name, _called(turn), step, plan.size.updates, mean)

    def played(group: Sequence[Played]) -> None:
        for text in results(group, plan):
            terminal.done(name, text)

    return play.BenchWatcher(
        phase=lambda text: terminal.say(name, text), loss=loss, played=played, so_far=so_far
    )


def _called(turn: Turn) -> str:
    return f"{turn.name} x {turn.groups}" if turn.groups > 1 else turn.name


def results(group: Sequence[Played], plan: BenchPlan) -> list[str]:
    """Return the result lines of concurrent trainings: one for all, and one for each failure."""
    first, unit, warm = group[0].turn, plan.bench.unit, plan.size.warm
    failed = [played for played in group if played.training.failed]
    if failed:
        return [
            f"{played.turn.label}: failed: "
            f"{played.training.stopped or f'exit code {played.training.code}'} "
            f"({played.training.seconds:.0f} s)"
            for played in failed
        ]
    mean, seconds = group_speed(group, warm), max(p.training.seconds for p in group)
    said = f"{mean:,.0f} {unit}/s" if mean else "no speed"
    speeds = [speed(played.training, warm) for played in group]
    timed = [value for value in speeds if value is not None]
    if mean and len(timed) > 1:
        said += f" each, {min(timed):,.0f} to {max(timed):,.0f}"
    return [f"{_called(first)}: {said} ({seconds:.0f} s)"]


def transports(value: Mapping[str, Any]) -> list[str]:
    """Return a line for each way that data took between GPUs, over all trainings of a bench."""
    found = [transport.words(path) for run in value["runs"] for path in run.get("transport", ())]
    return [f"NCCL: {words}" for words in dict.fromkeys(found)]


def _show(value: Mapping[str, Any], terminal: Terminal) -> None:
    what = f"{value['stack']} on {value['base']}: {value['what']}"
    spent = "where the time of an update goes", SPENT, spent_rows(value)
    for title, columns, found in ((what, headings(value), rows(value)), spent):
        table = Table(title=title, title_justify="left")
        for heading in columns:
            table.add_column(heading, justify="left" if heading in LEFT else "right")
        for row in found:
            table.add_row(*map(escape, row))
        if found:
            terminal.table(table)
    for name, side in value["sides"].items():
        terminal.text(f"{value['stack']}: {name} is {side['what']}")
    if value["no_mfu"]:
        terminal.text(f"{value['stack']}: no MFU: {value['no_mfu']}")
    for line in (*transports(value), *filter(None, [unwatched(value)])):
        terminal.text(f"{value['stack']}: {line}")
    diagnose.show_end(terminal, value["stack"], value)
